//! Applies schema migrations, forwards only: a newer schema is rejected.
//!
//! 1. Read the applied migrations, without a lock. If none are missing, nothing is written, so that commands start
//!    while a server writes.
//! 2. Otherwise take the lock (SQLite: the write lock; PostgreSQL: an advisory lock), and read again, because another
//!    process may have been faster.
//! 3. Apply the missing migrations and record them in `schema_migrations`, all in one transaction.

use super::conn::{Conn, Dialect};
use super::query::query;
use super::row::{FromRow, Row};
use super::statement::Statement;
use super::tables::TABLES;
use super::tx::Tx;
use crate::OpenError;
use sha2::{Digest, Sha256};

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

struct AppliedMigration {
    version: i64,
    checksum: Vec<u8>,
}

impl FromRow for AppliedMigration {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self { version: row.get("version")?, checksum: row.get("checksum")? })
    }
}

const APPLIED: &str = "SELECT version, checksum FROM schema_migrations ORDER BY version";
const RECORD_APPLIED: &str = "INSERT INTO schema_migrations (version, name, checksum) VALUES ($1, $2, $3)";

/// An arbitrary lock key, unlikely to clash with other programs in the same database: "chancery" in ASCII.
const LOCK_POSTGRES: &str = "SELECT pg_advisory_xact_lock(7163082334074663545)";

pub(crate) async fn apply(mut conn: Conn<'_>) -> Result<(), OpenError> {
    let applied = read_applied(&mut conn).await?;
    if pending(known(conn.dialect()), applied.as_deref().unwrap_or_default())?.is_empty() {
        return Ok(());
    }
    let mut tx = Tx::begin_write(conn).await?;
    apply_in_transaction(&mut tx.conn()).await?;
    Ok(tx.commit().await?)
}

/// Steps 2 and 3, within the caller's transaction.
pub(crate) async fn apply_in_transaction(conn: &mut Conn<'_>) -> Result<(), OpenError> {
    if conn.dialect() == Dialect::Postgres {
        query(LOCK_POSTGRES).execute(conn).await?;
    }
    let applied = read_applied(conn).await?;
    if applied.is_none() {
        if has_foreign_tables(conn).await? {
            return Err(OpenError::NotChanceryDatabase);
        }
        query(create_migrations_table(conn.dialect())).execute(conn).await?;
    }
    for migration in pending(known(conn.dialect()), &applied.unwrap_or_default())? {
        tracing::info!(version = migration.version, name = migration.name, "applying migration");
        match conn {
            Conn::Sqlite(conn) => sqlx::raw_sql(migration.sql).execute(&mut **conn).await.map(|_| ())?,
            Conn::Postgres(conn) => sqlx::raw_sql(migration.sql).execute(&mut **conn).await.map(|_| ())?,
        }
        let record = query(RECORD_APPLIED).bind(migration.version).bind(migration.name);
        record.bind(migration.checksum()).execute(conn).await?;
    }
    Ok(())
}

/// Whether any migration was applied. Reads only.
pub(crate) async fn has_schema(conn: &mut Conn<'_>) -> Result<bool, sqlx::Error> {
    let tables: i64 = query(match conn.dialect() {
        Dialect::Sqlite => {
            "SELECT COUNT(*) FROM sqlite_schema WHERE type = 'table' AND name = 'schema_migrations'"
        }
        Dialect::Postgres => {
            "SELECT COUNT(*) FROM pg_catalog.pg_tables \
             WHERE schemaname = current_schema() AND tablename = 'schema_migrations'"
        }
    })
    .fetch_one(conn)
    .await?;
    Ok(tables > 0)
}

/// A SQLite file with another program's tables is left alone. In PostgreSQL other programs may have tables in the same
/// schema, but not with our names.
async fn has_foreign_tables(conn: &mut Conn<'_>) -> Result<bool, sqlx::Error> {
    let tables: i64 = match conn.dialect() {
        Dialect::Sqlite => {
            let count = "SELECT COUNT(*) FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'";
            query(count).fetch_one(conn).await?
        }
        Dialect::Postgres => {
            let mut count = Statement::new(
                "SELECT COUNT(*) FROM pg_catalog.pg_tables WHERE schemaname = current_schema() AND tablename IN ",
            );
            count.push_list(TABLES.iter().copied());
            count.build().fetch_one(conn).await?
        }
    };
    Ok(tables > 0)
}

fn create_migrations_table(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite => {
            "CREATE TABLE schema_migrations \
             (version INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum BLOB NOT NULL) STRICT"
        }
        Dialect::Postgres => {
            "CREATE TABLE schema_migrations \
             (version BIGINT PRIMARY KEY, name TEXT NOT NULL, checksum BYTEA NOT NULL)"
        }
    }
}

/// `None` if no migration was ever applied.
async fn read_applied(conn: &mut Conn<'_>) -> Result<Option<Vec<AppliedMigration>>, sqlx::Error> {
    match has_schema(conn).await? {
        true => query(APPLIED).fetch_all(conn).await.map(Some),
        false => Ok(None),
    }
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
