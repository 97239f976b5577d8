//! A separate database per test, of either kind, and a way to change it that bypasses triggers.

use chancery_store::DatabaseUrl;
use chancery_test_support::{PostgresDatabase, raw_sql};

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Sqlite,
    Postgres,
}

pub enum Database {
    Sqlite(tempfile::TempDir),
    Postgres(PostgresDatabase),
}

impl Database {
    pub fn create(kind: Kind) -> Self {
        match kind {
            Kind::Sqlite => Self::Sqlite(tempfile::tempdir().unwrap()),
            Kind::Postgres => Self::Postgres(PostgresDatabase::create("transparency")),
        }
    }

    pub fn url(&self) -> DatabaseUrl {
        match self {
            Self::Sqlite(folder) => DatabaseUrl::sqlite_file(&folder.path().join("chancery.db")),
            Self::Postgres(database) => database.url().parse().unwrap(),
        }
    }

    /// Runs SQL with full privileges: without triggers and foreign keys.
    pub async fn tamper(&self, sql: &str) {
        match self {
            Self::Sqlite(folder) => {
                let url = format!("sqlite:{}", folder.path().join("chancery.db").display());
                let guards = "PRAGMA foreign_keys = OFF; DROP TRIGGER IF EXISTS ledger_no_update; \
                    DROP TRIGGER IF EXISTS ledger_no_delete; DROP TRIGGER IF EXISTS log_segments_no_delete; ";
                raw_sql(&url, &format!("{guards}{sql}")).await.unwrap();
            }
            Self::Postgres(database) => {
                database.query(&format!("SET session_replication_role = replica; {sql}"));
            }
        }
    }
}
