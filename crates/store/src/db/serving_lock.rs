//! How many servers may run on one database. Limits per minute that are kept in a server's own memory hold for that
//! server alone, and a SQLite file is made for one; so a second server that would let accounts pass their limits is
//! refused before it serves anybody.
//!
//! 1. SQLite: one server. It holds a lock on a file beside the database. Not on the database itself: closing a file
//!    lets go of every lock that the process has on it, SQLite's own included.
//! 2. PostgreSQL: one server with limits in memory, alone, or any number that share their limits. Each has a session of
//!    its own that holds an advisory lock, alone or shared, and the server looks after it all the time.
//! 3. A session may break, and its lock goes with it. It is taken anew at once. Where that fails, because the database
//!    does not answer or another server was quicker, this one must admit nothing (`ServingWatch::why_not`) until it has
//!    the lock again.
//!
//! Commands take no lock; they work beside a server. Only what writes to a SQLite file for long takes its place (large imports).

use crate::db::error_codes::explain;
use crate::db::postgres::{PostgresConnector, bounded, connect_first, connect_options};
use crate::db::sqlite::existing_folder;
use crate::db::url::Place;
use crate::db::write_slot::Connector;
use crate::{DatabaseUrl, OpenError};
use sqlx::PgConnection;
use sqlx::postgres::PgConnectOptions;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// How often a server looks after its lock.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// How long a starting server waits for the lock of one that was just killed, whose session ends a moment later.
const START_PATIENCE: Duration = Duration::from_secs(3);
const START_RETRY: Duration = Duration::from_millis(100);

/// The session of a server whose machine is gone ends after about ten seconds of silence, not after PostgreSQL's two
/// hours.
const KEEPALIVES: &str =
    "SET tcp_keepalives_idle = 4; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3";

/// The number only has to be unlike those of other programs in the same database: "chanserv" in ASCII.
const LOCK_ALONE: &str = "SELECT pg_try_advisory_lock(7163082334343098998)";
const LOCK_SHARED: &str = "SELECT pg_try_advisory_lock_shared(7163082334343098998)";

/// Where a server keeps the limits per minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitsKept {
    InMemory,
    /// Where every server that is set up alike finds them.
    Shared,
}

/// Held while a server runs on the database; it is let go when the process ends, however it ends.
#[derive(Debug)]
pub struct ServingLock {
    watch: ServingWatch,
    held: Held,
}

#[derive(Debug)]
enum Held {
    File { _file: File },
    Session { end: oneshot::Sender<()>, keeper: JoinHandle<()> },
}

/// Tells whether the lock is held at the moment.
#[derive(Clone, Debug)]
pub struct ServingWatch(watch::Receiver<Option<String>>);

impl ServingWatch {
    /// Why nothing may be admitted; None while all is well.
    pub fn why_not(&self) -> Option<String> {
        self.0.borrow().clone()
    }
}

impl ServingLock {
    /// Refused where another server has it in a way that does not go together with this one.
    pub async fn take(url: &DatabaseUrl, limits: LimitsKept) -> Result<Self, OpenError> {
        let (state, watch) = watch::channel(None);
        let held = match &url.0 {
            Place::Sqlite(file) => Held::File { _file: lock_beside(file)? },
            Place::Postgres(options) => {
                let options = connect_options(options);
                let session = lock_at_start(&options, limits).await?;
                let (end, ended) = oneshot::channel();
                let keeper = tokio::spawn(keep(session, options, limits, state, ended));
                Held::Session { end, keeper }
            }
        };
        Ok(Self { watch: ServingWatch(watch), held })
    }

    pub fn watch(&self) -> ServingWatch {
        self.watch.clone()
    }

    /// So that the next server need not wait.
    pub async fn release(self) {
        if let Held::Session { end, keeper } = self.held {
            drop(end);
            // It only ends by returning; there is nothing to learn from how.
            let _ = keeper.await;
        }
    }
}

fn lock_beside(database: &Path) -> Result<File, OpenError> {
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
        Err(TryLockError::WouldBlock) => Err(OpenError::FileIsServed { file: database.to_owned() }),
        Err(TryLockError::Error(error)) => Err(cannot_open(error)),
    }
}

/// The same for every path that leads to the same database.
fn lock_file(database: &Path) -> Result<PathBuf, OpenError> {
    let folder = existing_folder(database)?;
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

async fn lock_at_start(options: &PgConnectOptions, limits: LimitsKept) -> Result<PgConnection, OpenError> {
    // The first connection is made apart, for its errors say what is wrong with the address.
    let mut session = connect_first(options).await?;
    let tries = async {
        while !try_lock(&mut session, limits).await.map_err(|error| explain(&error))? {
            tokio::time::sleep(START_RETRY).await;
        }
        Ok(())
    };
    tokio::time::timeout(START_PATIENCE, tries).await.unwrap_or_else(|_| Err(served(limits)))?;
    Ok(session)
}

async fn lock_again(options: &PgConnectOptions, limits: LimitsKept) -> Result<PgConnection, OpenError> {
    let connector = PostgresConnector { options: options.clone() };
    let mut session = connector.connect().await.map_err(|error| explain(&error))?;
    match try_lock(&mut session, limits).await {
        Ok(true) => Ok(session),
        Ok(false) => Err(served(limits)),
        Err(error) => Err(explain(&error).into()),
    }
}

async fn try_lock(session: &mut PgConnection, limits: LimitsKept) -> Result<bool, sqlx::Error> {
    bounded(async {
        sqlx::raw_sql(KEEPALIVES).execute(&mut *session).await?;
        let lock = match limits {
            LimitsKept::InMemory => LOCK_ALONE,
            LimitsKept::Shared => LOCK_SHARED,
        };
        sqlx::query_scalar(lock).fetch_one(&mut *session).await
    })
    .await
}

fn served(limits: LimitsKept) -> OpenError {
    match limits {
        LimitsKept::InMemory => OpenError::ServedByAnother,
        LimitsKept::Shared => OpenError::ServedWithLimitsInMemory,
    }
}

/// Looks after the lock until it is to end.
async fn keep(
    session: PgConnection,
    options: PgConnectOptions,
    limits: LimitsKept,
    state: watch::Sender<Option<String>>,
    ended: oneshot::Receiver<()>,
) {
    let mut held = Some(session);
    let looking_after = async {
        loop {
            tokio::time::sleep(LOOK_PAUSE).await;
            if let Some(session) = &mut held
                && bounded(sqlx::query("SELECT 1").execute(session)).await.is_ok()
            {
                continue;
            }
            held = None;
            match lock_again(&options, limits).await {
                Ok(session) => {
                    held = Some(session);
                    if state.send_replace(None).is_some() {
                        tracing::info!(
                            "this server holds its place at the database again and admits requests"
                        );
                    }
                }
                Err(error) => {
                    if state.send_replace(Some(error.to_string())).is_none() {
                        tracing::error!(%error, "this server lost its place at the database and admits nothing until it has it again");
                    }
                }
            }
        }
    };
    tokio::select! {
        () = looking_after => {}
        _ = ended => {}
    }
    if let Some(session) = held {
        PostgresConnector::disconnect(session).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_is_our_name() {
        let name = i64::from_be_bytes(*b"chanserv").to_string();
        assert!(LOCK_ALONE.contains(&name) && LOCK_SHARED.contains(&name), "{name}");
    }

    #[tokio::test]
    async fn a_second_server_on_one_file_is_refused_by_whatever_path() {
        let folder = tempfile::tempdir().unwrap();
        let (database, link) = (folder.path().join("chancery.db"), folder.path().join("link.db"));
        std::fs::write(&database, "").unwrap();
        std::os::unix::fs::symlink(&database, &link).unwrap();
        for limits in [LimitsKept::InMemory, LimitsKept::Shared] {
            let first = ServingLock::take(&DatabaseUrl::sqlite_file(&database), limits).await.unwrap();
            assert_eq!(first.watch().why_not(), None);
            for path in [&database, &link] {
                let error = ServingLock::take(&DatabaseUrl::sqlite_file(path), limits).await.unwrap_err();
                assert!(matches!(error, OpenError::FileIsServed { .. }), "{error}");
            }
            first.release().await;
        }
    }
}
