//! Opens a SQLite file for several processes: a server that writes all day and commands that run beside it. Readers
//! never wait for the writer (WAL), and a commit is on disk when it returns (`synchronous=FULL`).

use crate::OpenError;
use crate::db::error_codes::{RESPONSE_TIMEOUT, STATEMENT_TIMEOUT, is_busy, map_open_error};
use crate::db::write_slot::Connector;
use crate::db::{Conn, migrate};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

/// Pause before retrying a connection that failed because another process is setting up the file.
const SETUP_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Whether the file exists and has our schema. Unlike the connections below, this one does not change another program's
/// file, its journal mode included.
pub(crate) async fn is_chancery_database(file: &Path) -> Result<bool, OpenError> {
    match std::fs::metadata(file) {
        Ok(_) => {}
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(false);
        }
        Err(error) => return Err(OpenError::CannotOpen { file: file.to_owned(), why: error.to_string() }),
    }
    let map_error = |error: sqlx::Error| map_open_error(&error, file);
    let mut connection = read_options(file).connect().await.map_err(map_error)?;
    let found = migrate::has_schema(&mut Conn::from(&mut connection)).await.map_err(map_error);
    SqliteConnector::disconnect(connection).await;
    found
}

/// SQLite finds a file's WAL, and servers find its lock, by the file's name. Under a second name, another process would use neither.
/// Symbolic links are resolved, by SQLite as well.
pub(crate) fn reject_hard_links(file: &Path) -> Result<(), OpenError> {
    #[cfg(unix)]
    if let Ok(metadata) = std::fs::metadata(file)
        && metadata.is_file()
    {
        let links = std::os::unix::fs::MetadataExt::nlink(&metadata);
        if links > 1 {
            return Err(OpenError::HardLinked { file: file.to_owned(), links });
        }
    }
    Ok(())
}

pub(crate) fn options(file: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new().filename(file).foreign_keys(true).disable_statement_logging()
}

pub(crate) fn write_options(file: &Path) -> SqliteConnectOptions {
    options(file)
        // `retry` waits.
        .busy_timeout(Duration::ZERO)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        // On macOS a plain fsync leaves data in the drive's cache; elsewhere this has no effect.
        .pragma("fullfsync", "ON")
        // Overwrites deleted replies in the file, so that expired text is not recoverable.
        .pragma("secure_delete", "ON")
        .statement_cache_capacity(256)
}

pub(crate) fn read_options(file: &Path) -> SqliteConnectOptions {
    options(file).busy_timeout(STATEMENT_TIMEOUT).pragma("query_only", "ON")
}

/// The file holds key hashes and spending data, so only its owner may read it. SQLite gives its `-wal` and `-shm` files
/// the same mode.
pub(crate) fn create_private_file(file: &Path) -> Result<(), OpenError> {
    parent_folder(file)?;
    let mut open_options = std::fs::OpenOptions::new();
    open_options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut open_options, 0o600);
    match open_options.open(file) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(OpenError::CannotOpen { file: file.to_owned(), why: error.to_string() }),
    }
}

/// The folder of the file. It must exist.
pub(crate) fn parent_folder(file: &Path) -> Result<&Path, OpenError> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    match folder.is_dir() {
        true => Ok(folder),
        false => Err(OpenError::NoFolder { folder: folder.to_owned() }),
    }
}

pub(crate) struct SqliteConnector {
    pub(crate) options: SqliteConnectOptions,
}

impl Connector for SqliteConnector {
    type Connection = SqliteConnection;

    async fn connect(&self) -> Result<SqliteConnection, sqlx::Error> {
        // Enabling WAL needs exclusive access for a moment. When several processes start on a new file, SQLite may
        // return "locked" at once instead of waiting for the busy timeout.
        let attempts = async {
            loop {
                match self.options.connect().await {
                    Err(error) if is_busy(&error) => tokio::time::sleep(SETUP_RETRY_INTERVAL).await,
                    outcome => return outcome,
                }
            }
        };
        tokio::time::timeout(RESPONSE_TIMEOUT, attempts).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }

    async fn disconnect(connection: SqliteConnection) {
        if let Err(error) = connection.close().await {
            tracing::warn!(%error, "closing database connection failed");
        }
    }
}
