//! Brings a database's schema up to this program's. Nothing here goes backwards: a newer schema is refused.
//!
//! 1. Without a lock, read which steps the database has. If it has them all, nothing is written, so that commands
//!    start while a server writes.
//! 2. Otherwise take the lock (SQLite: the write lock; PostgreSQL: an advisory one), and read again, for another
//!    process may have been quicker.
//! 3. Run every missing step and note it in `schema_migrations`, all in one transaction: all of it happens or nothing.

use crate::StoreError;
use crate::db::both::stored_row;
use crate::db::error_codes::explain;
use sha2::{Digest, Sha256};
use sqlx::{Connection, PgConnection, SqliteConnection};

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

const SQLITE: &[Migration] = &[
    step(1, "accounts_keys_ledger", include_str!("../../migrations/sqlite/0001_accounts_keys_ledger.sql")),
    step(2, "chains_and_day_sums", include_str!("../../migrations/sqlite/0002_chains_and_day_sums.sql")),
    step(3, "spending_caps", include_str!("../../migrations/sqlite/0003_spending_caps.sql")),
    step(4, "idempotency_keys", include_str!("../../migrations/sqlite/0004_idempotency_keys.sql")),
    step(5, "people_and_sessions", include_str!("../../migrations/sqlite/0005_people_and_sessions.sql")),
    step(6, "provider_accounts", include_str!("../../migrations/sqlite/0006_provider_accounts.sql")),
    step(7, "provider_grants", include_str!("../../migrations/sqlite/0007_provider_grants.sql")),
    step(8, "shared_secrets", include_str!("../../migrations/sqlite/0008_shared_secrets.sql")),
    step(9, "client_records", include_str!("../../migrations/sqlite/0009_client_records.sql")),
    step(10, "invoices", include_str!("../../migrations/sqlite/0010_invoices.sql")),
];

const POSTGRES: &[Migration] = &[
    step(1, "accounts_keys_ledger", include_str!("../../migrations/postgres/0001_accounts_keys_ledger.sql")),
    step(2, "chains_and_day_sums", include_str!("../../migrations/postgres/0002_chains_and_day_sums.sql")),
    step(3, "spending_caps", include_str!("../../migrations/postgres/0003_spending_caps.sql")),
    step(4, "idempotency_keys", include_str!("../../migrations/postgres/0004_idempotency_keys.sql")),
    step(5, "people_and_sessions", include_str!("../../migrations/postgres/0005_people_and_sessions.sql")),
    step(6, "provider_accounts", include_str!("../../migrations/postgres/0006_provider_accounts.sql")),
    step(7, "provider_grants", include_str!("../../migrations/postgres/0007_provider_grants.sql")),
    step(8, "shared_secrets", include_str!("../../migrations/postgres/0008_shared_secrets.sql")),
    step(9, "client_records", include_str!("../../migrations/postgres/0009_client_records.sql")),
    step(10, "invoices", include_str!("../../migrations/postgres/0010_invoices.sql")),
];

stored_row! {
    struct AppliedMigration {
        version: i64,
        checksum: Vec<u8>,
    }
}

const APPLIED: &str = "SELECT version, checksum FROM schema_migrations ORDER BY version";
const NOTE_APPLIED: &str = "INSERT INTO schema_migrations (version, name, checksum) VALUES ($1, $2, $3)";

mod sqlite {
    pub(super) const BEGIN: &str = "BEGIN IMMEDIATE";
    pub(super) const LOCK: &str = "SELECT 1";
    pub(super) const HAS_MIGRATIONS_TABLE: &str =
        "SELECT COUNT(*) FROM sqlite_schema WHERE type = 'table' AND name = 'schema_migrations'";
    /// A file that is another program's database is left alone.
    pub(super) const COUNT_FOREIGN_TABLES: &str =
        "SELECT COUNT(*) FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'";
    pub(super) const CREATE_MIGRATIONS_TABLE: &str = "CREATE TABLE schema_migrations \
        (version INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum BLOB NOT NULL) STRICT";
}

mod postgres {
    pub(super) const BEGIN: &str = "BEGIN";
    /// The number only has to be unlike those of other programs in the same database: "chancery" in ASCII.
    pub(super) const LOCK: &str = "SELECT pg_advisory_xact_lock(7163082334074663545)";
    pub(super) const HAS_MIGRATIONS_TABLE: &str = "SELECT COUNT(*) FROM pg_catalog.pg_tables \
        WHERE schemaname = current_schema() AND tablename = 'schema_migrations'";
    /// Other programs' tables may live in the same PostgreSQL schema, but not under these names.
    pub(super) const COUNT_FOREIGN_TABLES: &str = "SELECT COUNT(*) FROM pg_catalog.pg_tables \
        WHERE schemaname = current_schema() AND tablename IN \
        ('accounts', 'api_keys', 'ledger', 'ledger_writers', 'usage_days', 'spending_reservations', 'writer_leases', \
        'idempotency_keys', 'people', 'sessions', 'sign_ins', 'half_sign_ins', 'code_counts', \
        'clients', 'client_counts', 'client_versions', 'client_words', 'client_looks', 'entries', 'entry_versions', \
        'audit_rows', 'audit_writers', 'account_months', 'account_events', 'invoices', 'invoice_lines', \
        'invoice_documents', 'invoice_events', 'invoice_serials', 'refusal_days', 'peak_days')";
    pub(super) const CREATE_MIGRATIONS_TABLE: &str = "CREATE TABLE schema_migrations \
        (version BIGINT PRIMARY KEY, name TEXT NOT NULL, checksum BYTEA NOT NULL)";
}

/// Writes the same runner for both kinds of connection; the modules above hold what differs.
macro_rules! migration_runner {
    ($apply:ident, $apply_in_transaction:ident, $is_in:ident, $read_applied:ident, $connection:ty, $known:ident, $dialect:ident) => {
        pub(crate) async fn $apply(connection: &mut $connection) -> Result<(), StoreError> {
            let explained = |error: sqlx::Error| explain(&error);
            let applied = $read_applied(connection).await.map_err(explained)?;
            if pending($known, applied.as_deref().unwrap_or_default())?.is_empty() {
                return Ok(());
            }
            let mut transaction = connection.begin_with($dialect::BEGIN).await.map_err(explained)?;
            $apply_in_transaction(&mut *transaction).await?;
            transaction.commit().await.map_err(explained)
        }

        /// The second and the third step, for whoever has begun the transaction and ends it.
        pub(crate) async fn $apply_in_transaction(transaction: &mut $connection) -> Result<(), StoreError> {
            let explained = |error: sqlx::Error| explain(&error);
            sqlx::query($dialect::LOCK).execute(&mut *transaction).await.map_err(explained)?;
            let applied = $read_applied(&mut *transaction).await.map_err(explained)?;
            if applied.is_none() {
                let foreign: i64 = sqlx::query_scalar($dialect::COUNT_FOREIGN_TABLES)
                    .fetch_one(&mut *transaction)
                    .await
                    .map_err(explained)?;
                if foreign > 0 {
                    return Err(StoreError::ForeignDatabase);
                }
                let create = sqlx::query($dialect::CREATE_MIGRATIONS_TABLE);
                create.execute(&mut *transaction).await.map_err(explained)?;
            }
            for migration in pending($known, &applied.unwrap_or_default())? {
                tracing::info!(version = migration.version, name = migration.name, "migrating the database");
                sqlx::raw_sql(migration.sql).execute(&mut *transaction).await.map_err(explained)?;
                sqlx::query(NOTE_APPLIED)
                    .bind(migration.version)
                    .bind(migration.name)
                    .bind(migration.checksum())
                    .execute(&mut *transaction)
                    .await
                    .map_err(explained)?;
            }
            Ok(())
        }

        /// Whether any step was ever taken there. Only looks.
        pub(crate) async fn $is_in(connection: &mut $connection) -> Result<bool, sqlx::Error> {
            Ok($read_applied(connection).await?.is_some())
        }

        /// `None` where no step was ever taken.
        async fn $read_applied(
            connection: &mut $connection,
        ) -> Result<Option<Vec<AppliedMigration>>, sqlx::Error> {
            let tables: i64 =
                sqlx::query_scalar($dialect::HAS_MIGRATIONS_TABLE).fetch_one(&mut *connection).await?;
            if tables == 0 {
                return Ok(None);
            }
            Ok(Some(sqlx::query_as(APPLIED).fetch_all(&mut *connection).await?))
        }
    };
}

migration_runner!(
    apply_to_sqlite,
    apply_in_sqlite_transaction,
    is_in_sqlite,
    read_applied_sqlite,
    SqliteConnection,
    SQLITE,
    sqlite
);
migration_runner!(
    apply_to_postgres,
    apply_in_postgres_transaction,
    is_in_postgres,
    read_applied_postgres,
    PgConnection,
    POSTGRES,
    postgres
);

/// The steps that the database still lacks, once those it has are known to be this program's first ones, unchanged.
fn pending<'a>(known: &'a [Migration], applied: &[AppliedMigration]) -> Result<&'a [Migration], StoreError> {
    let newest_known = known.last().map_or(0, |migration| migration.version);
    let newest_applied = applied.last().map_or(0, |migration| migration.version);
    if newest_applied > newest_known {
        return Err(StoreError::NewerSchema { found: newest_applied, known: newest_known });
    }
    for (migration, done) in known.iter().zip(applied) {
        if migration.version != done.version {
            let why = format!("step {} is missing though step {} is there", migration.version, done.version);
            return Err(StoreError::SchemaMismatch { why });
        }
        if migration.checksum() != done.checksum {
            let why =
                format!("step {} ({}) was another when it was taken", migration.version, migration.name);
            return Err(StoreError::SchemaMismatch { why });
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
        assert!(matches!(pending(KNOWN, &history), Err(StoreError::NewerSchema { found: 3, known: 2 })));
    }

    #[test]
    fn a_changed_or_skipped_step_is_refused() {
        let changed = AppliedMigration { version: 1, checksum: vec![0; 32] };
        assert!(matches!(pending(KNOWN, &[changed]), Err(StoreError::SchemaMismatch { .. })));
        assert!(matches!(pending(KNOWN, &[applied(&KNOWN[1])]), Err(StoreError::SchemaMismatch { .. })));
    }

    #[test]
    fn the_lock_is_our_name() {
        let name = i64::from_be_bytes(*b"chancery").to_string();
        assert_eq!(postgres::LOCK, format!("SELECT pg_advisory_xact_lock({name})"));
    }

    #[test]
    fn both_databases_have_the_same_steps_in_order() {
        let names = |known: &[Migration]| -> Vec<(i64, &str)> {
            known.iter().map(|migration| (migration.version, migration.name)).collect()
        };
        assert_eq!(names(SQLITE), names(POSTGRES));
        assert!(SQLITE.iter().zip(1..).all(|(migration, place)| migration.version == place));
    }
}
