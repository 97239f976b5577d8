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
    pub async fn create(kind: Kind) -> Self {
        match kind {
            Kind::Sqlite => Self::Sqlite(tempfile::tempdir().unwrap()),
            Kind::Postgres => Self::Postgres(PostgresDatabase::create("verify")),
        }
    }

    pub fn url(&self) -> DatabaseUrl {
        match self {
            Self::Sqlite(folder) => DatabaseUrl::sqlite_file(&folder.path().join("chancery.db")),
            Self::Postgres(database) => database.url().parse().unwrap(),
        }
    }

    /// Thirty-two bytes as an SQL literal.
    pub fn hash_literal(&self, hash: [u8; 32]) -> String {
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Self::Sqlite(_) => format!("x'{hex}'"),
            Self::Postgres(_) => format!("'\\x{hex}'::bytea"),
        }
    }

    /// Runs SQL with full privileges: without triggers and foreign keys.
    pub async fn tamper(&self, sql: &str) {
        match self {
            Self::Sqlite(folder) => {
                let url = format!("sqlite:{}", folder.path().join("chancery.db").display());
                let triggers = [
                    "ledger_no_update",
                    "ledger_no_delete",
                    "ledger_no_replace",
                    "audit_no_update",
                    "audit_no_delete",
                    "audit_no_replace",
                    "log_segments_no_delete",
                    "log_segments_no_update",
                    "log_nodes_no_delete",
                    "log_checkpoints_no_delete",
                    "log_checkpoints_no_update",
                ];
                let guards: String =
                    triggers.iter().map(|trigger| format!("DROP TRIGGER IF EXISTS {trigger}; ")).collect();
                let guards = format!("PRAGMA foreign_keys = OFF; {guards}");
                raw_sql(&url, &format!("{guards}{sql}")).await.unwrap();
            }
            Self::Postgres(database) => {
                database.query(&format!("SET session_replication_role = replica; {sql}"));
            }
        }
    }
}
