//! A database of its own for a test, of either kind, and a way to change it that no trigger stops.

use chancery_domain::{OsRandomness, Randomness};
use chancery_store::DatabaseUrl;
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Sqlite,
    Postgres,
}

pub enum Database {
    Sqlite(tempfile::TempDir),
    Postgres { admin_url: String, url: String, name: String },
}

async fn run_on_postgres(url: &str, sql: &str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

impl Database {
    pub async fn create(kind: Kind) -> Self {
        match kind {
            Kind::Sqlite => Self::Sqlite(tempfile::tempdir().unwrap()),
            Kind::Postgres => {
                let admin_url = std::env::var("CHANCERY_TEST_POSTGRES_URL").unwrap_or_else(|_| {
                    panic!("run `make test`, which starts a PostgreSQL and sets CHANCERY_TEST_POSTGRES_URL")
                });
                let name = format!("chancery_verify_{:016x}", OsRandomness.next_u64());
                run_on_postgres(
                    &admin_url,
                    &format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'"),
                )
                .await;
                let url = format!("{}/{name}", admin_url.rsplit_once('/').unwrap().0);
                Self::Postgres { admin_url, url, name }
            }
        }
    }

    pub fn url(&self) -> DatabaseUrl {
        match self {
            Self::Sqlite(folder) => DatabaseUrl::sqlite_file(&folder.path().join("chancery.db")),
            Self::Postgres { url, .. } => url.parse().unwrap(),
        }
    }

    /// As somebody does who may do everything: triggers and references do not hold.
    pub async fn change_behind_the_back(&self, sql: &str) {
        match self {
            Self::Sqlite(folder) => {
                let url = format!("sqlite:{}", folder.path().join("chancery.db").display());
                let mut connection = SqliteConnection::connect(&url).await.unwrap();
                let guards = "PRAGMA foreign_keys = OFF; DROP TRIGGER ledger_is_never_updated; \
                    DROP TRIGGER ledger_is_never_deleted; DROP TRIGGER ledger_is_never_replaced; ";
                sqlx::raw_sql(AssertSqlSafe(format!("{guards}{sql}")))
                    .execute(&mut connection)
                    .await
                    .unwrap();
                connection.close().await.unwrap();
            }
            Self::Postgres { url, .. } => {
                run_on_postgres(url, &format!("SET session_replication_role = replica; {sql}")).await;
            }
        }
    }

    pub async fn remove(self) {
        if let Self::Postgres { admin_url, name, .. } = self {
            run_on_postgres(&admin_url, &format!("DROP DATABASE {name} WITH (FORCE)")).await;
        }
    }
}
