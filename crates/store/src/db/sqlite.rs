//! Opens a SQLite file for several processes at once: a server that writes all day and commands that run beside it.
//! Readers never wait for the writer (WAL), and a commit is on the disk when it returns (`synchronous=FULL`).

use crate::OpenError;
use crate::db::error_codes::{ANSWER_TIMEOUT, STATEMENT_TIMEOUT, explain_opening, is_busy};
use crate::db::write_slot::Connector;
use crate::db::{Conn, migrate};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

/// How soon a connection that was refused because another process is just setting the file up tries again.
const SET_UP_RETRY: Duration = Duration::from_millis(10);

/// Whether the file is there and holds our schema. Unlike the connections below, this one leaves another program's file
/// as it is, its journal's mode included.
pub(crate) async fn is_ours(file: &Path) -> Result<bool, OpenError> {
    match std::fs::metadata(file) {
        Ok(_) => {}
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(false);
        }
        Err(error) => return Err(OpenError::CannotOpen { file: file.to_owned(), why: error.to_string() }),
    }
    let explained = |error: sqlx::Error| explain_opening(&error, file);
    let mut connection = read_options(file).connect().await.map_err(explained)?;
    let found = migrate::has_schema(&mut Conn::from(&mut connection)).await.map_err(explained);
    SqliteConnector::disconnect(connection).await;
    found
}

pub(crate) fn pool(max_connections: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(max_connections)
        .acquire_timeout(STATEMENT_TIMEOUT)
        // The other end is a thread of this process: there is nothing that could have gone away.
        .test_before_acquire(false)
        .idle_timeout(None)
        .max_lifetime(None)
}

pub(crate) fn options(file: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new().filename(file).foreign_keys(true).disable_statement_logging()
}

pub(crate) fn write_options(file: &Path) -> SqliteConnectOptions {
    options(file)
        // The waiting is done by `patience`.
        .busy_timeout(Duration::ZERO)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        // On macOS a plain fsync leaves the data in the drive's cache; elsewhere this changes nothing.
        .pragma("fullfsync", "ON")
        // Replies that were kept for a while are gone from the file when their time is up, not only out of sight.
        .pragma("secure_delete", "ON")
}

pub(crate) fn read_options(file: &Path) -> SqliteConnectOptions {
    options(file).busy_timeout(STATEMENT_TIMEOUT).pragma("query_only", "ON")
}

/// The file holds key hashes and what everyone spends, so only its owner may read it. SQLite gives its `-wal` and
/// `-shm` files the same mode.
pub(crate) fn create_private_file(file: &Path) -> Result<(), OpenError> {
    existing_folder(file)?;
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

/// The folder that the file is in, or is to be made in.
pub(crate) fn existing_folder(file: &Path) -> Result<&Path, OpenError> {
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
        // Turning WAL on needs the file to itself for a moment. When several processes start on a new file, SQLite may
        // answer "locked" at once instead of waiting for the busy timeout.
        let tries = async {
            loop {
                match self.options.connect().await {
                    Err(error) if is_busy(&error) => tokio::time::sleep(SET_UP_RETRY).await,
                    outcome => return outcome,
                }
            }
        };
        tokio::time::timeout(ANSWER_TIMEOUT, tries).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }

    async fn disconnect(connection: SqliteConnection) {
        if let Err(error) = connection.close().await {
            tracing::warn!(%error, "closing the database");
        }
    }
}
