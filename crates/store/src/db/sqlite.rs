//! Opens a SQLite file for several processes: a server that writes all day and commands that run beside it. Readers
//! never wait for the writer (WAL), and a commit is on disk when it returns (`synchronous=FULL`).

use crate::OpenError;
use crate::db::error_codes::{QueryError, RESPONSE_TIMEOUT, STATEMENT_TIMEOUT, is_busy, map_open_error};
use crate::db::migrate;
use crate::db::tx::{Driver, Tx};
use chancery_domain::{Clock, SystemClock};
use rusqlite::{Connection, OpenFlags};
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Pause before retrying a connection that failed because another process is setting up the file.
const SETUP_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Whether the file exists and has our schema. Unlike the connections below, this one does not change another program's
/// file, its journal mode included.
pub(crate) fn is_chancery_database(file: &Path) -> Result<bool, OpenError> {
    match std::fs::metadata(file) {
        Ok(_) => {}
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(false);
        }
        Err(error) => return Err(OpenError::CannotOpen { file: file.to_owned(), why: error.to_string() }),
    }
    let map_error = |error: QueryError| map_open_error(&error, file);
    let connection = open_reader(file).map_err(map_error)?;
    migrate::has_schema(&mut Tx::outside(Driver::Sqlite(&connection))).map_err(map_error)
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

/// Statements that a connection keeps prepared.
const MAX_PREPARED: usize = 256;

/// `temp_store = MEMORY`: what a savepoint can undo would otherwise go into temporary files outside the data directory, clients'
/// texts among them. `fullfsync`: on macOS a plain fsync leaves data in the drive's cache; elsewhere it has no effect.
/// `secure_delete` overwrites deleted replies in the file, so that expired text is not recoverable.
const WRITER_SETTINGS: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA fullfsync = ON; \
    PRAGMA secure_delete = ON; PRAGMA temp_store = MEMORY";

/// For the thread that writes. It polls while another process has the write lock.
pub(crate) fn open_writer(file: &Path) -> Result<Connection, QueryError> {
    let deadline = SystemClock.monotonic() + RESPONSE_TIMEOUT;
    loop {
        let opened = open(file).and_then(|connection| {
            connection.execute_batch(WRITER_SETTINGS)?;
            Ok(connection)
        });
        match opened {
            // Enabling WAL needs exclusive access for a moment. When several processes start on a new file, SQLite may
            // return "locked" at once instead of waiting for the busy timeout.
            Err(error) if is_busy(&error) && SystemClock.monotonic() < deadline => {
                thread::sleep(SETUP_RETRY_INTERVAL);
            }
            outcome => return outcome,
        }
    }
}

pub(crate) fn open_reader(file: &Path) -> Result<Connection, QueryError> {
    let connection = open(file)?;
    connection.busy_timeout(STATEMENT_TIMEOUT)?;
    connection.execute_batch("PRAGMA query_only = ON")?;
    Ok(connection)
}

fn open(file: &Path) -> Result<Connection, QueryError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(Duration::ZERO)?;
    connection.execute_batch("PRAGMA foreign_keys = ON")?;
    connection.set_prepared_statement_cache_capacity(MAX_PREPARED);
    Ok(connection)
}

/// The file holds key hashes and spending data, so only its owner may read it. SQLite gives its `-wal` and `-shm` files
/// the same mode.
pub(crate) fn create_private_file(file: &Path) -> Result<(), OpenError> {
    parent_folder(file)?;
    let mut open_options = OpenOptions::new();
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

/// A file beside the database, the same for every path to it. Only its owner may read it.
pub(crate) fn sidecar_file(database: &Path, suffix: &str) -> Result<File, OpenError> {
    let path = sidecar_path(database, suffix)?;
    let mut open_options = OpenOptions::new();
    open_options.create(true).truncate(false).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut open_options, 0o600);
    open_options.open(&path).map_err(|error| OpenError::CannotOpen { file: path, why: error.to_string() })
}

fn sidecar_path(database: &Path, suffix: &str) -> Result<PathBuf, OpenError> {
    let folder = parent_folder(database)?;
    let whole = std::fs::canonicalize(database)
        .or_else(|_| Ok(std::fs::canonicalize(folder)?.join(database.file_name().unwrap_or_default())));
    let whole = whole.map_err(|error: std::io::Error| OpenError::CannotOpen {
        file: database.to_owned(),
        why: error.to_string(),
    })?;
    let mut name = whole.into_os_string();
    name.push(suffix);
    Ok(name.into())
}

/// Stops a statement whose time is up. SQLite has no time limit of its own.
pub(crate) struct StatementTimer {
    /// In microseconds since `epoch`; `u64::MAX` while nothing is timed.
    deadline: Arc<AtomicU64>,
    epoch: Instant,
}

/// How many of SQLite's virtual instructions run between two looks at the clock.
const INSTRUCTIONS_PER_LOOK: i32 = 1000;

impl StatementTimer {
    pub(crate) fn of(connection: &Connection) -> Result<Self, QueryError> {
        let (deadline, epoch) = (Arc::new(AtomicU64::new(u64::MAX)), SystemClock.monotonic());
        let watched = Arc::clone(&deadline);
        let is_over = move || {
            SystemClock.monotonic().duration_since(epoch).as_micros() as u64 > watched.load(Ordering::Relaxed)
        };
        connection.progress_handler(INSTRUCTIONS_PER_LOOK, Some(is_over))?;
        Ok(Self { deadline, epoch })
    }

    pub(crate) fn start(&self, limit: Duration) {
        let until = SystemClock.monotonic().duration_since(self.epoch) + limit;
        self.deadline.store(until.as_micros() as u64, Ordering::Relaxed);
    }

    pub(crate) fn stop(&self) {
        self.deadline.store(u64::MAX, Ordering::Relaxed);
    }
}
