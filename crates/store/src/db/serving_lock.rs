//! Limits how many servers run on one database. In-memory rate limits apply to one server only, and a SQLite file
//! serves one process. A second server that would let accounts exceed their limits is rejected before it serves
//! requests.
//!
//! 1. SQLite: one server. It locks a file beside the database. It does not lock the database itself: closing a file
//!    releases every lock that the process has on it, SQLite's own included.
//! 2. PostgreSQL: one server with in-memory limits, or any number that share their limits. Each has a session of its
//!    own with an exclusive or shared advisory lock, and checks it all the time.
//! 3. A session may break, which releases its lock. The server takes the lock again at once. If that fails, because the
//!    database does not answer or another server was faster, it must admit no requests (`ServingLockStatus::unavailable_reason`) until
//!    it has the lock.
//!
//! Commands take no lock; they work beside a server. Only large imports lock a SQLite file like a server.

use crate::db::error_codes::map_db_error;
use crate::db::postgres::{PostgresConnector, bounded, connect_first, connect_options};
use crate::db::sqlite::parent_folder;
use crate::db::url::DatabaseLocation;
use crate::db::write_slot::Connector;
use crate::{DatabaseUrl, OpenError};
use sqlx::PgConnection;
use sqlx::postgres::PgConnectOptions;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// How often a server checks its lock.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a starting server waits for the lock of one that was just killed, whose session ends a moment later.
const START_LOCK_TIMEOUT: Duration = Duration::from_secs(3);
const START_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Ends the session of an unreachable server after about 10 s of silence, not after PostgreSQL's two hours.
const KEEPALIVES: &str =
    "SET tcp_keepalives_idle = 4; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3";

/// An arbitrary lock key, unlikely to clash with other programs in the same database: "chanserv" in ASCII.
const LOCK_EXCLUSIVE: &str = "SELECT pg_try_advisory_lock(7163082334343098998)";
const LOCK_SHARED: &str = "SELECT pg_try_advisory_lock_shared(7163082334343098998)";

/// Where a server keeps its rate limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitStorage {
    InMemory,
    /// In a store that all servers with the same configuration share.
    Shared,
}

/// Held while a server runs on the database. The end of the process releases it in any case.
#[derive(Debug)]
pub struct ServingLock {
    watch: ServingLockStatus,
    guard: HeldLock,
}

#[derive(Debug)]
enum HeldLock {
    File { _file: File },
    Session { end: oneshot::Sender<()>, maintainer: JoinHandle<()> },
}

/// Reports whether the lock is held.
#[derive(Clone, Debug)]
pub struct ServingLockStatus(watch::Receiver<Option<String>>);

impl ServingLockStatus {
    /// Why requests must be rejected; `None` while the lock is held.
    pub fn unavailable_reason(&self) -> Option<String> {
        self.0.borrow().clone()
    }
}

impl ServingLock {
    /// Fails if another server holds a conflicting lock.
    pub async fn take(url: &DatabaseUrl, limits: LimitStorage) -> Result<Self, OpenError> {
        let (state, watch) = watch::channel(None);
        let guard = match &url.0 {
            DatabaseLocation::Sqlite(file) => HeldLock::File { _file: lock_sidecar_file(file)? },
            DatabaseLocation::Postgres(options) => {
                let options = connect_options(options);
                let session = lock_at_start(&options, limits).await?;
                let (end, ended) = oneshot::channel();
                let maintainer = tokio::spawn(maintain_lock(session, options, limits, state, ended));
                HeldLock::Session { end, maintainer }
            }
        };
        Ok(Self { watch: ServingLockStatus(watch), guard })
    }

    pub fn watch(&self) -> ServingLockStatus {
        self.watch.clone()
    }

    /// Releases the lock at once, so that the next server need not wait.
    pub async fn release(self) {
        if let HeldLock::Session { end, maintainer } = self.guard {
            drop(end);
            // The task has no result, and how it ended does not matter.
            let _ = maintainer.await;
        }
    }
}

fn lock_sidecar_file(database: &Path) -> Result<File, OpenError> {
    let path = lock_file(database)?;
    let cannot_open =
        |error: std::io::Error| OpenError::CannotOpen { file: path.clone(), why: error.to_string() };
    let mut open_options = OpenOptions::new();
    open_options.create(true).truncate(false).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut open_options, 0o600);
    let file = open_options.open(&path).map_err(cannot_open)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::DatabaseFileInUse { file: database.to_owned() }),
        Err(TryLockError::Error(error)) => Err(cannot_open(error)),
    }
}

/// The lock file is the same for every path to the same database.
fn lock_file(database: &Path) -> Result<PathBuf, OpenError> {
    let folder = parent_folder(database)?;
    let whole = std::fs::canonicalize(database)
        .or_else(|_| Ok(std::fs::canonicalize(folder)?.join(database.file_name().unwrap_or_default())));
    let whole = whole.map_err(|error: std::io::Error| OpenError::CannotOpen {
        file: database.to_owned(),
        why: error.to_string(),
    })?;
    let mut name = whole.into_os_string();
    name.push("-serve.lock");
    Ok(name.into())
}

async fn lock_at_start(options: &PgConnectOptions, limits: LimitStorage) -> Result<PgConnection, OpenError> {
    // The first connection is opened separately, because its errors explain a wrong address.
    let mut session = connect_first(options).await?;
    let attempts = async {
        while !try_lock(&mut session, limits).await.map_err(|error| map_db_error(&error))? {
            tokio::time::sleep(START_RETRY_INTERVAL).await;
        }
        Ok(())
    };
    tokio::time::timeout(START_LOCK_TIMEOUT, attempts)
        .await
        .unwrap_or_else(|_| Err(already_serving(limits)))?;
    Ok(session)
}

async fn relock(options: &PgConnectOptions, limits: LimitStorage) -> Result<PgConnection, OpenError> {
    let connector = PostgresConnector { options: options.clone() };
    let mut session = connector.connect().await.map_err(|error| map_db_error(&error))?;
    match try_lock(&mut session, limits).await {
        Ok(true) => Ok(session),
        Ok(false) => Err(already_serving(limits)),
        Err(error) => Err(map_db_error(&error).into()),
    }
}

async fn try_lock(session: &mut PgConnection, limits: LimitStorage) -> Result<bool, sqlx::Error> {
    bounded(async {
        sqlx::raw_sql(KEEPALIVES).execute(&mut *session).await?;
        let lock = match limits {
            LimitStorage::InMemory => LOCK_EXCLUSIVE,
            LimitStorage::Shared => LOCK_SHARED,
        };
        sqlx::query_scalar(lock).fetch_one(&mut *session).await
    })
    .await
}

fn already_serving(limits: LimitStorage) -> OpenError {
    match limits {
        LimitStorage::InMemory => OpenError::OtherServerRunning,
        LimitStorage::Shared => OpenError::OtherServerUsesMemoryLimits,
    }
}

/// Checks the lock, and takes it again when it is lost, until told to end.
async fn maintain_lock(
    session: PgConnection,
    options: PgConnectOptions,
    limits: LimitStorage,
    state: watch::Sender<Option<String>>,
    ended: oneshot::Receiver<()>,
) {
    let mut guard = Some(session);
    let check_loop = async {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            if let Some(session) = &mut guard
                && bounded(sqlx::query("SELECT 1").execute(session)).await.is_ok()
            {
                continue;
            }
            guard = None;
            match relock(&options, limits).await {
                Ok(session) => {
                    guard = Some(session);
                    if state.send_replace(None).is_some() {
                        tracing::info!("serving lock reacquired, admitting requests");
                    }
                }
                Err(error) => {
                    if state.send_replace(Some(error.to_string())).is_none() {
                        tracing::error!(%error, "serving lock lost, rejecting requests until it is reacquired");
                    }
                }
            }
        }
    };
    tokio::select! {
        () = check_loop => {}
        _ = ended => {}
    }
    if let Some(session) = guard {
        PostgresConnector::disconnect(session).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advisory_lock_key_is_program_name() {
        let name = i64::from_be_bytes(*b"chanserv").to_string();
        assert!(LOCK_EXCLUSIVE.contains(&name) && LOCK_SHARED.contains(&name), "{name}");
    }

    #[tokio::test]
    async fn second_server_on_file_is_rejected_through_symlinks() {
        let folder = tempfile::tempdir().unwrap();
        let (database, link) = (folder.path().join("chancery.db"), folder.path().join("link.db"));
        std::fs::write(&database, "").unwrap();
        std::os::unix::fs::symlink(&database, &link).unwrap();
        for limits in [LimitStorage::InMemory, LimitStorage::Shared] {
            let first = ServingLock::take(&DatabaseUrl::sqlite_file(&database), limits).await.unwrap();
            assert_eq!(first.watch().unavailable_reason(), None);
            for path in [&database, &link] {
                let error = ServingLock::take(&DatabaseUrl::sqlite_file(path), limits).await.unwrap_err();
                assert!(matches!(error, OpenError::DatabaseFileInUse { .. }), "{error}");
            }
            first.release().await;
        }
    }
}
