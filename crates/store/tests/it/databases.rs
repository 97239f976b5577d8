//! A new database for each test, on SQLite in a temporary folder and on the PostgreSQL server of the test setup.

use chancery_store::{DatabaseUrl, OpenError, Store};
use chancery_test_support::{RawConnection, raw_sql};
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

pub trait TestDatabase: Send + Sync + Sized + 'static {
    /// Thirty-two bytes as an SQL literal.
    fn some_hash(&self) -> &'static str;

    fn url_text(&self) -> String;

    fn url(&self) -> DatabaseUrl {
        self.url_text().parse().unwrap()
    }

    fn try_open(&self) -> impl Future<Output = Result<Store, OpenError>>;

    /// Whether a copy of the whole database contains these bytes. Call it after the stores are closed.
    fn contains(&self, bytes: &[u8]) -> impl Future<Output = bool>;

    /// Runs statements directly, without the store.
    fn raw(&self, sql: &str) -> impl Future<Output = Result<(), String>> {
        let url = self.url_text();
        async move { raw_sql(&url, sql).await }
    }

    /// A connection without the store.
    fn connect(&self) -> impl Future<Output = RawConnection> {
        let url = self.url_text();
        async move { RawConnection::open(&url).await }
    }

    fn open(&self) -> impl Future<Output = Arc<Store>> {
        async { Arc::new(self.try_open().await.unwrap()) }
    }
}

/// The database of a conformance test. Not a type parameter: each test would be compiled for both databases.
pub enum AnyDatabase {
    Sqlite(SqliteFile),
    Postgres(PostgresDatabase),
}

impl AnyDatabase {
    pub fn sqlite() -> Arc<Self> {
        Arc::new(Self::Sqlite(SqliteFile::create()))
    }

    /// For the cases of this file. Those of `opening` are about migrations and get an empty database.
    pub fn postgres(file: &str) -> Arc<Self> {
        Arc::new(Self::Postgres(match file {
            "opening" => PostgresDatabase::create(),
            _ => PostgresDatabase::with_schema(),
        }))
    }

    /// A new database of the same kind.
    pub fn another(&self) -> Arc<Self> {
        match self {
            Self::Sqlite(_) => Self::sqlite(),
            Self::Postgres(_) => Self::postgres("another"),
        }
    }
}

impl TestDatabase for AnyDatabase {
    fn some_hash(&self) -> &'static str {
        match self {
            Self::Sqlite(database) => database.some_hash(),
            Self::Postgres(database) => database.some_hash(),
        }
    }

    fn url_text(&self) -> String {
        match self {
            Self::Sqlite(database) => database.url_text(),
            Self::Postgres(database) => database.url_text(),
        }
    }

    async fn try_open(&self) -> Result<Store, OpenError> {
        match self {
            Self::Sqlite(database) => database.try_open().await,
            Self::Postgres(database) => database.try_open().await,
        }
    }

    async fn contains(&self, bytes: &[u8]) -> bool {
        match self {
            Self::Sqlite(database) => database.contains(bytes).await,
            Self::Postgres(database) => database.contains(bytes).await,
        }
    }
}

pub struct SqliteFile {
    pub folder: tempfile::TempDir,
}

impl SqliteFile {
    pub fn create() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("chancery.db")
    }
}

impl TestDatabase for SqliteFile {
    fn some_hash(&self) -> &'static str {
        "x'1111111111111111111111111111111111111111111111111111111111111111'"
    }

    fn url_text(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    async fn try_open(&self) -> Result<Store, OpenError> {
        Store::open_file(&self.path()).await
    }

    async fn contains(&self, bytes: &[u8]) -> bool {
        let files = std::fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut copies = files.map(|file| std::fs::read(file).unwrap());
        copies.any(|copy| copy.windows(bytes.len()).any(|window| window == bytes))
    }
}

pub struct PostgresDatabase(chancery_test_support::PostgresDatabase);

impl PostgresDatabase {
    pub fn create() -> Self {
        Self(chancery_test_support::PostgresDatabase::create("store"))
    }

    /// A copy of a database that was migrated once, which takes a third of the time of migrating another.
    fn with_schema() -> Self {
        const SCHEMA: &str = include_str!("../../migrations/postgres.sql");
        Self(chancery_test_support::PostgresDatabase::create_from_template("store", SCHEMA, |url| {
            let url = url.parse().unwrap();
            let migrate = async { Store::open_for_test(&url).await.unwrap().close().await };
            // The caller is on a runtime already.
            std::thread::scope(|scope| {
                scope.spawn(|| tokio::runtime::Runtime::new().unwrap().block_on(migrate));
            });
        }))
    }

    pub fn name(&self) -> &str {
        self.0.name()
    }
}

impl TestDatabase for PostgresDatabase {
    fn some_hash(&self) -> &'static str {
        "'\\x1111111111111111111111111111111111111111111111111111111111111111'"
    }

    fn url_text(&self) -> String {
        self.0.url()
    }

    async fn try_open(&self) -> Result<Store, OpenError> {
        Store::open_for_test(&self.url()).await
    }

    async fn contains(&self, bytes: &[u8]) -> bool {
        let mut connection = self.connect().await;
        let tables =
            connection.texts("SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'").await;
        // A row as text shows bytes in hexadecimal.
        let hexadecimal: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = String::from_utf8_lossy(bytes);
        for table in tables {
            let rows = connection.texts(&format!("SELECT t::text FROM \"{table}\" t")).await;
            if rows.iter().any(|row| row.contains(&hexadecimal) || row.contains(&*text)) {
                return true;
            }
        }
        false
    }
}
