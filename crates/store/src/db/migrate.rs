//! Applies schema migrations, forwards only: a newer schema is rejected.
//!
//! 1. Read the applied migrations, without a lock. If none are missing, nothing is written, so that commands start
//!    while a server writes.
//! 2. Otherwise take the lock (SQLite: the write lock; PostgreSQL: an advisory lock), and read again, because another
//!    process may have been faster.
//! 3. Apply the missing migrations and record them in `schema_migrations`, all in one transaction.

use super::query::query;
use super::statement::Statement;
use super::tables::TABLES;
use super::tx::{Dialect, Tx};
use crate::OpenError;
use crate::db::{QueryError, from_row};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;

struct Migration {
    version: i64,
    name: &'static str,
    sql: &'static str,
}

impl Migration {
    fn checksum(&self) -> Vec<u8> {
        Sha256::digest(self.sql.as_bytes()).to_vec()
    }
}

const fn step(version: i64, name: &'static str, sql: &'static str) -> Migration {
    Migration { version, name, sql }
}

/// Versions 1 to 11 were never released, so one baseline replaces them.
const FIRST_VERSION: i64 = 19;

const SQLITE: &[Migration] = &[step(FIRST_VERSION, "baseline", include_str!("../../migrations/sqlite.sql"))];

const POSTGRES: &[Migration] =
    &[step(FIRST_VERSION, "baseline", include_str!("../../migrations/postgres.sql"))];

pub(crate) struct AppliedMigration {
    version: i64,
    checksum: Vec<u8>,
}

from_row!(AppliedMigration { version, checksum });

pub(crate) const APPLIED: &str = "SELECT version, checksum FROM schema_migrations ORDER BY version";

/// An arbitrary lock key, unlikely to clash with other programs in the same database: "chancery" in ASCII.
pub(crate) const LOCK_POSTGRES: &str = "SELECT pg_advisory_xact_lock(7163082334074663545)";

/// For statements outside a transaction.
pub(crate) fn apply(tx: &mut Tx<'_>) -> Result<(), OpenError> {
    let applied = read_applied(tx)?;
    if pending(known(tx.dialect()), applied.as_deref().unwrap_or_default())?.is_empty() {
        return Ok(());
    }
    tx.batch(match tx.dialect() {
        Dialect::Sqlite => "BEGIN IMMEDIATE",
        Dialect::Postgres => "BEGIN",
    })?;
    let outcome = apply_in_transaction(tx).and_then(|()| Ok(tx.batch("COMMIT")?));
    if outcome.is_err() {
        // If it fails, the transaction ends with the connection.
        let _ = tx.batch("ROLLBACK");
    }
    outcome
}

/// Steps 2 and 3.
fn apply_in_transaction(tx: &mut Tx<'_>) -> Result<(), OpenError> {
    if tx.dialect() == Dialect::Postgres {
        tx.batch(LOCK_POSTGRES)?;
    }
    let applied = read_applied(tx)?;
    if applied.is_none() && has_foreign_tables(tx)? {
        return Err(OpenError::NotChanceryDatabase);
    }
    Ok(tx.batch(&script(tx.dialect(), applied.as_deref())?)?)
}

/// The statements that apply the missing migrations and record them. `None` if no migration was ever applied.
pub(crate) fn script(dialect: Dialect, applied: Option<&[AppliedMigration]>) -> Result<String, OpenError> {
    let mut script = String::new();
    if applied.is_none() {
        script.push_str(create_migrations_table(dialect));
    }
    for migration in pending(known(dialect), applied.unwrap_or_default())? {
        let Migration { version, name, sql } = migration;
        tracing::info!(version, name, "applying migration");
        let checksum: String = migration.checksum().iter().map(|byte| format!("{byte:02x}")).collect();
        let checksum = match dialect {
            Dialect::Sqlite => format!("x'{checksum}'"),
            Dialect::Postgres => format!("decode('{checksum}', 'hex')"),
        };
        // Writing to a `String` cannot fail.
        let _ = write!(
            script,
            "{sql}\nINSERT INTO schema_migrations (version, name, checksum) VALUES ({version}, '{name}', {checksum});"
        );
    }
    Ok(script)
}

/// Whether any migration was applied. Reads only.
pub(crate) fn has_schema(tx: &mut Tx<'_>) -> Result<bool, QueryError> {
    let tables: i64 = query(match tx.dialect() {
        Dialect::Sqlite => {
            "SELECT COUNT(*) FROM sqlite_schema WHERE type = 'table' AND name = 'schema_migrations'"
        }
        Dialect::Postgres => {
            "SELECT COUNT(*) FROM pg_catalog.pg_tables \
             WHERE schemaname = current_schema() AND tablename = 'schema_migrations'"
        }
    })
    .fetch_one(tx)?;
    Ok(tables > 0)
}

/// A SQLite file with another program's tables is left alone. In PostgreSQL other programs may have tables in the same
/// schema, but not with our names.
fn has_foreign_tables(tx: &mut Tx<'_>) -> Result<bool, QueryError> {
    let tables: i64 = match tx.dialect() {
        Dialect::Sqlite => {
            let count = "SELECT COUNT(*) FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'";
            query(count).fetch_one(tx)?
        }
        Dialect::Postgres => {
            let mut count = Statement::new(
                "SELECT COUNT(*) FROM pg_catalog.pg_tables WHERE schemaname = current_schema() AND tablename IN ",
            );
            count.push_list(TABLES.iter().copied());
            count.build().fetch_one(tx)?
        }
    };
    Ok(tables > 0)
}

fn create_migrations_table(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite => {
            "CREATE TABLE schema_migrations \
             (version INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum BLOB NOT NULL) STRICT;"
        }
        Dialect::Postgres => {
            "CREATE TABLE schema_migrations \
             (version BIGINT PRIMARY KEY, name TEXT NOT NULL, checksum BYTEA NOT NULL);"
        }
    }
}

/// `None` if no migration was ever applied.
fn read_applied(tx: &mut Tx<'_>) -> Result<Option<Vec<AppliedMigration>>, QueryError> {
    if has_schema(tx)? { query(APPLIED).fetch_all(tx).map(Some) } else { Ok(None) }
}

fn known(dialect: Dialect) -> &'static [Migration] {
    match dialect {
        Dialect::Sqlite => SQLITE,
        Dialect::Postgres => POSTGRES,
    }
}

/// The missing migrations, after checking that the applied ones are an unchanged prefix of this program's.
fn pending<'a>(known: &'a [Migration], applied: &[AppliedMigration]) -> Result<&'a [Migration], OpenError> {
    let newest_known = known.last().map_or(0, |migration| migration.version);
    let newest_applied = applied.last().map_or(0, |migration| migration.version);
    if applied.first().is_some_and(|oldest| known.first().is_some_and(|first| oldest.version < first.version))
    {
        return Err(OpenError::OldSchema);
    }
    if newest_applied > newest_known {
        return Err(OpenError::NewerSchema { found: newest_applied, known: newest_known });
    }
    for (migration, done) in known.iter().zip(applied) {
        if migration.version != done.version {
            let why = format!(
                "migration {} is missing, but migration {} was applied",
                migration.version, done.version
            );
            return Err(OpenError::SchemaMismatch { why });
        }
        if migration.checksum() != done.checksum {
            let why = format!(
                "migration {} ({}) has changed since it was applied",
                migration.version, migration.name
            );
            return Err(OpenError::SchemaMismatch { why });
        }
    }
    Ok(known.get(applied.len()..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Migration] = &[step(1, "one", "SELECT 1"), step(2, "two", "SELECT 2")];

    fn applied(migration: &Migration) -> AppliedMigration {
        AppliedMigration { version: migration.version, checksum: migration.checksum() }
    }

    #[test]
    fn only_missing_migrations_are_pending() {
        let versions = |applied: &[AppliedMigration]| -> Vec<i64> {
            pending(KNOWN, applied).unwrap().iter().map(|migration| migration.version).collect()
        };
        assert_eq!(versions(&[]), [1, 2]);
        assert_eq!(versions(&[applied(&KNOWN[0])]), [2]);
        assert!(versions(&[applied(&KNOWN[0]), applied(&KNOWN[1])]).is_empty());
    }

    #[test]
    fn unknown_newer_migration_is_rejected() {
        let future = AppliedMigration { version: 3, checksum: vec![] };
        let history = [applied(&KNOWN[0]), applied(&KNOWN[1]), future];
        assert!(matches!(pending(KNOWN, &history), Err(OpenError::NewerSchema { found: 3, known: 2 })));
    }

    #[test]
    fn pre_baseline_migration_is_old_schema() {
        let old = AppliedMigration { version: 10, checksum: vec![] };
        assert!(matches!(pending(SQLITE, &[old]), Err(OpenError::OldSchema)));
    }

    #[test]
    fn changed_or_skipped_migration_is_rejected() {
        let changed = AppliedMigration { version: 1, checksum: vec![0; 32] };
        assert!(matches!(pending(KNOWN, &[changed]), Err(OpenError::SchemaMismatch { .. })));
        assert!(matches!(pending(KNOWN, &[applied(&KNOWN[1])]), Err(OpenError::SchemaMismatch { .. })));
    }

    #[test]
    fn advisory_lock_key_is_program_name() {
        let name = i64::from_be_bytes(*b"chancery").to_string();
        assert_eq!(LOCK_POSTGRES, format!("SELECT pg_advisory_xact_lock({name})"));
    }

    #[test]
    fn both_databases_have_the_same_migrations() {
        let names = |known: &[Migration]| -> Vec<(i64, &str)> {
            known.iter().map(|migration| (migration.version, migration.name)).collect()
        };
        assert_eq!(names(SQLITE), names(POSTGRES));
        assert!(
            SQLITE.iter().zip(FIRST_VERSION..).all(|(migration, expected)| migration.version == expected)
        );
    }
}
