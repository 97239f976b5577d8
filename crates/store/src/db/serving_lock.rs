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

use crate::db::QueryError;
use crate::db::error_codes::STATEMENT_TIMEOUT;
use crate::db::postgres::{PostgresOptions, begin_session, bounded, connect, connect_first};
use crate::db::sqlite::sidecar_file;
use crate::db::url::DatabaseLocation;
use crate::{DatabaseUrl, OpenError};
use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

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
const UNLOCK: &str = "SELECT pg_advisory_unlock_all()";

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
            DatabaseLocation::Sqlite(file) => HeldLock::File { _file: lock_file(file)? },
            DatabaseLocation::Postgres(options) => {
                let session = lock_at_start(options, limits).await?;
                let (end, ended) = oneshot::channel();
                let options = PostgresOptions::clone(options);
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

/// Locks a file that is the same for every path to the database.
fn lock_file(database: &Path) -> Result<File, OpenError> {
    let file = sidecar_file(database, "-serve.lock")?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::DatabaseFileInUse { file: database.to_owned() }),
        Err(TryLockError::Error(error)) => Err(OpenError::CannotOpen {
            file: database.to_owned(),
            why: format!("its lock file cannot be locked: {error}"),
        }),
    }
}

async fn lock_at_start(options: &PostgresOptions, limits: LimitStorage) -> Result<Client, OpenError> {
    // Opened differently than later sessions, because its errors explain a wrong address.
    let session = connect_first(options).await?;
    let attempts = async {
        while !try_lock(&session, limits).await? {
            tokio::time::sleep(START_RETRY_INTERVAL).await;
        }
        Ok(())
    };
    tokio::time::timeout(START_LOCK_TIMEOUT, attempts)
        .await
        .unwrap_or_else(|_| Err(already_serving(limits)))?;
    Ok(session)
}

async fn relock(options: &PostgresOptions, limits: LimitStorage) -> Result<Client, OpenError> {
    let session = connect(options).await?;
    bounded(begin_session(&session, STATEMENT_TIMEOUT)).await?;
    if try_lock(&session, limits).await? { Ok(session) } else { Err(already_serving(limits)) }
}

async fn try_lock(session: &Client, limits: LimitStorage) -> Result<bool, QueryError> {
    bounded(async {
        session.batch_execute(KEEPALIVES).await?;
        let lock = match limits {
            LimitStorage::InMemory => LOCK_EXCLUSIVE,
            LimitStorage::Shared => LOCK_SHARED,
        };
        Ok(session.query_one(lock, &[]).await?.try_get(0)?)
    })
    .await
}

async fn run(session: &Client, command: &str) -> Result<(), QueryError> {
    bounded(async { Ok(session.batch_execute(command).await?) }).await
}

fn already_serving(limits: LimitStorage) -> OpenError {
    match limits {
        LimitStorage::InMemory => OpenError::OtherServerRunning,
        LimitStorage::Shared => OpenError::OtherServerUsesMemoryLimits,
    }
}

/// Checks the lock, and takes it again when it is lost, until told to end.
async fn maintain_lock(
    session: Client,
    options: PostgresOptions,
    limits: LimitStorage,
    state: watch::Sender<Option<String>>,
    ended: oneshot::Receiver<()>,
) {
    let mut guard = Some(session);
    let check_loop = async {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            if let Some(session) = &guard
                && run(session, "SELECT 1").await.is_ok()
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
        // The end of the session would release it too, but a little later. If this fails, the session is gone.
        let _ = run(&session, UNLOCK).await;
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
