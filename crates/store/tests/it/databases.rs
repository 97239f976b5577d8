//! A new database for each test, on SQLite in a temporary folder and on the PostgreSQL server of the test setup.

use chancery_store::{DatabaseUrl, OpenError, Store};
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

pub trait TestDatabase: Send + Sync + Sized + 'static {
    /// Thirty-two bytes as an SQL literal.
    const SOME_HASH: &str;

    fn create() -> impl Future<Output = Self> + Send;

    fn url_text(&self) -> String;

    fn url(&self) -> DatabaseUrl {
        self.url_text().parse().unwrap()
    }

    fn try_open(&self) -> impl Future<Output = Result<Store, OpenError>> + Send;

    /// Runs statements directly, without the store.
    fn raw(&self, sql: &str) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    fn open(&self) -> impl Future<Output = Arc<Store>> + Send {
        async { Arc::new(self.try_open().await.unwrap()) }
    }
}

/// Runs a case on a new database, which is removed even when the case fails.
pub async fn with_fresh_database<D: TestDatabase, F: Future<Output = ()> + Send + 'static>(
    case: impl FnOnce(Arc<D>) -> F,
) {
    let database = Arc::new(D::create().await);
    let outcome = tokio::spawn(case(Arc::clone(&database))).await;
    drop(database);
    if let Err(failure) = outcome {
        std::panic::resume_unwind(failure.into_panic());
    }
}

pub struct SqliteFile {
    pub folder: tempfile::TempDir,
}

impl SqliteFile {
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("chancery.db")
    }

    pub async fn connect(&self) -> SqliteConnection {
        SqliteConnection::connect(&format!("sqlite:{}?mode=rwc", self.path().display())).await.unwrap()
    }
}

impl TestDatabase for SqliteFile {
    const SOME_HASH: &str = "x'1111111111111111111111111111111111111111111111111111111111111111'";

    async fn create() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn url_text(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    async fn try_open(&self) -> Result<Store, OpenError> {
        Store::open_file(&self.path()).await
    }

    async fn raw(&self, sql: &str) -> Result<(), sqlx::Error> {
        let mut connection = self.connect().await;
        let outcome = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.map(|_| ());
        connection.close().await?;
        outcome
    }
}

pub struct PostgresDatabase(chancery_test_support::PostgresDatabase);

impl PostgresDatabase {
    pub fn name(&self) -> &str {
        self.0.name()
    }

    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url_text()).await.unwrap()
    }
}

impl TestDatabase for PostgresDatabase {
    const SOME_HASH: &str = "'\\x1111111111111111111111111111111111111111111111111111111111111111'";

    async fn create() -> Self {
        Self(chancery_test_support::PostgresDatabase::create("store"))
    }

    fn url_text(&self) -> String {
        self.0.url()
    }

    async fn try_open(&self) -> Result<Store, OpenError> {
        Store::open(&self.url()).await
    }

    async fn raw(&self, sql: &str) -> Result<(), sqlx::Error> {
        let mut connection = self.connect().await;
        let outcome = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.map(|_| ());
        connection.close().await?;
        outcome
    }
}
