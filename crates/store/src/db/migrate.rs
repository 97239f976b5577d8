//! Brings a database's schema up to this program's. Nothing here goes backwards: a newer schema is refused.
//!
//! 1. Without a lock, read which steps the database has. If it has them all, nothing is written, so that commands
//!    start while a server writes.
//! 2. Otherwise take the lock (SQLite: the write lock; PostgreSQL: an advisory one), and read again, for another
//!    process may have been quicker.
//! 3. Run every missing step and record it in `schema_migrations`, all in one transaction: all of it happens or nothing.

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

/// Nothing was released with the steps 1 to 10, so they are one step now: the schema as it was after them.
const FIRST_VERSION: i64 = 11;

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

/// The number only has to be unlike those of other programs in the same database: "chancery" in ASCII.
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

/// The second and the third step, for whoever has begun the transaction and ends it.
pub(crate) async fn apply_in_transaction(conn: &mut Conn<'_>) -> Result<(), OpenError> {
    if conn.dialect() == Dialect::Postgres {
        query(LOCK_POSTGRES).execute(conn).await?;
    }
    let applied = read_applied(conn).await?;
    if applied.is_none() {
        if has_foreign_tables(conn).await? {
            return Err(OpenError::ForeignDatabase);
        }
        query(create_migrations_table(conn.dialect())).execute(conn).await?;
    }
    for migration in pending(known(conn.dialect()), &applied.unwrap_or_default())? {
        tracing::info!(version = migration.version, name = migration.name, "migrating the database");
        match conn {
            Conn::Sqlite(conn) => sqlx::raw_sql(migration.sql).execute(&mut **conn).await.map(|_| ())?,
            Conn::Postgres(conn) => sqlx::raw_sql(migration.sql).execute(&mut **conn).await.map(|_| ())?,
        }
        let record = query(RECORD_APPLIED).bind(migration.version).bind(migration.name);
        record.bind(migration.checksum()).execute(conn).await?;
    }
    Ok(())
}

/// Whether any step was ever taken there. Only looks.
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

/// A SQLite file that is another program's database is left alone. In PostgreSQL other programs' tables may live in the same
/// schema, but not under our names.
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

/// `None` where no step was ever taken.
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

/// The steps that the database still lacks, once those it has are known to be this program's first ones, unchanged.
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
            let why = format!("step {} is missing though step {} is there", migration.version, done.version);
            return Err(OpenError::SchemaMismatch { why });
        }
        if migration.checksum() != done.checksum {
            let why =
                format!("step {} ({}) was another when it was taken", migration.version, migration.name);
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
    fn only_the_missing_steps_are_pending() {
        let versions = |applied: &[AppliedMigration]| -> Vec<i64> {
            pending(KNOWN, applied).unwrap().iter().map(|migration| migration.version).collect()
        };
        assert_eq!(versions(&[]), [1, 2]);
        assert_eq!(versions(&[applied(&KNOWN[0])]), [2]);
        assert!(versions(&[applied(&KNOWN[0]), applied(&KNOWN[1])]).is_empty());
    }

    #[test]
    fn a_step_from_the_future_is_refused_as_newer() {
        let future = AppliedMigration { version: 3, checksum: vec![] };
        let history = [applied(&KNOWN[0]), applied(&KNOWN[1]), future];
        assert!(matches!(pending(KNOWN, &history), Err(OpenError::NewerSchema { found: 3, known: 2 })));
    }

    #[test]
    fn a_schema_from_before_the_baseline_is_named_as_old() {
        let old = AppliedMigration { version: 10, checksum: vec![] };
        assert!(matches!(pending(SQLITE, &[old]), Err(OpenError::OldSchema)));
    }

    #[test]
    fn a_changed_or_skipped_step_is_refused() {
        let changed = AppliedMigration { version: 1, checksum: vec![0; 32] };
        assert!(matches!(pending(KNOWN, &[changed]), Err(OpenError::SchemaMismatch { .. })));
        assert!(matches!(pending(KNOWN, &[applied(&KNOWN[1])]), Err(OpenError::SchemaMismatch { .. })));
    }

    #[test]
    fn the_lock_is_our_name() {
        let name = i64::from_be_bytes(*b"chancery").to_string();
        assert_eq!(LOCK_POSTGRES, format!("SELECT pg_advisory_xact_lock({name})"));
    }

    #[test]
    fn both_databases_have_the_same_steps_in_order() {
        let names = |known: &[Migration]| -> Vec<(i64, &str)> {
            known.iter().map(|migration| (migration.version, migration.name)).collect()
        };
        assert_eq!(names(SQLITE), names(POSTGRES));
        assert!(SQLITE.iter().zip(FIRST_VERSION..).all(|(migration, place)| migration.version == place));
    }
}
