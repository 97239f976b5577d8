//! The open database: steps run on threads that own their connections.
//!
//! A step is plain, synchronous Rust on a transaction: `db.write(move |tx| …)`. It owns what it needs, does no other I/O, and may
//! run several times: when PostgreSQL reports a conflict, or when another step lost their common transaction on SQLite. `Ok` keeps
//! its changes, `Err` undoes them. A step that nobody waits for any more does not begin.

use super::error_codes::{
    LONG_RESPONSE_TIMEOUT, LONG_STATEMENT_TIMEOUT, QueryError, RESPONSE_TIMEOUT, STATEMENT_TIMEOUT,
};
use super::postgres::PostgresOptions;
use super::query::Query;
use super::row::FromRow;
use super::sqlite_writer::{GroupEnd, WriterQueue};
use super::threads::{Access, StepJob, Threads, WaitingJob};
use super::tx::{Dialect, Tx};
use super::{postgres_threads, sqlite_reader};
use chancery_domain::{Clock, SystemClock, WriterId};
use rusqlite::Connection;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How long a command waits for the write lock. A user who sees it fail earlier would only start it again.
pub(crate) const COMMAND_RETRY_LIMIT: Duration = Duration::from_secs(30);

/// Threads that read a SQLite file. Reads are short, so a few serve many requests.
const SQLITE_READERS: usize = 4;

/// Threads for sums over the whole ledger. They are separate because a few such queries would delay every key lookup.
const SQLITE_REPORT_READERS: usize = 2;

/// Connections to PostgreSQL per node for everything but the ledger, which has its own so that reads cannot starve it.
pub(crate) const POSTGRES_THREADS: usize = 16;
const POSTGRES_REPORT_THREADS: usize = 4;

/// How often a closing store looks whether its threads have ended.
const END_POLL: Duration = Duration::from_millis(2);

#[derive(Clone)]
pub(crate) struct Db(Arc<Backend>);

enum Backend {
    Sqlite(SqliteDatabase),
    Postgres(PostgresDatabase),
}

pub(crate) struct SqliteDatabase {
    readers: Threads,
    report_readers: Threads,
    writer: WriterQueue,
}

pub(crate) struct PostgresDatabase {
    threads: Threads,
    report_threads: Threads,
}

impl SqliteDatabase {
    /// The connection is that which opened the file, for writing.
    pub(crate) fn start(
        file: &Path,
        connection: Connection,
        writer: WriterId,
        end: Option<Box<dyn GroupEnd>>,
    ) -> io::Result<Self> {
        let readers = |name, max| {
            let file = file.to_owned();
            Threads::new(name, max, Arc::new(move |queue| sqlite_reader::read(&file, queue)))
        };
        Ok(Self {
            readers: readers("db-reader", SQLITE_READERS),
            report_readers: readers("db-reports", SQLITE_REPORT_READERS),
            writer: WriterQueue::start(file, connection, writer, end)?,
        })
    }
}

impl PostgresDatabase {
    pub(crate) fn new(options: &PostgresOptions) -> Self {
        let threads = |name, max, statement_timeout| {
            let options = options.clone();
            let work = move |queue: &_| postgres_threads::run(&options, statement_timeout, queue);
            Threads::new(name, max, Arc::new(work))
        };
        Self {
            threads: threads("db", POSTGRES_THREADS, STATEMENT_TIMEOUT),
            report_threads: threads("db-reports", POSTGRES_REPORT_THREADS, LONG_STATEMENT_TIMEOUT),
        }
    }
}

impl From<SqliteDatabase> for Db {
    fn from(database: SqliteDatabase) -> Self {
        Self(Arc::new(Backend::Sqlite(database)))
    }
}

impl From<PostgresDatabase> for Db {
    fn from(database: PostgresDatabase) -> Self {
        Self(Arc::new(Backend::Postgres(database)))
    }
}

/// How a step runs.
#[derive(Clone, Copy)]
struct Terms {
    access: Access,
    /// For queries over the whole ledger, which may take minutes.
    is_report: bool,
    /// How long it waits for SQLite's write lock.
    lock_limit: Duration,
    /// How long it may run on SQLite.
    limit: Duration,
    /// How long the caller waits.
    response_limit: Duration,
}

const READ: Terms = Terms {
    access: Access::Snapshot,
    is_report: false,
    lock_limit: STATEMENT_TIMEOUT,
    limit: STATEMENT_TIMEOUT,
    response_limit: RESPONSE_TIMEOUT,
};

const REPORT: Terms =
    Terms { is_report: true, limit: LONG_STATEMENT_TIMEOUT, response_limit: LONG_RESPONSE_TIMEOUT, ..READ };

const WRITE: Terms = Terms { access: Access::Write, lock_limit: COMMAND_RETRY_LIMIT, ..READ };

impl Db {
    pub(crate) fn dialect(&self) -> Dialect {
        match &*self.0 {
            Backend::Sqlite(_) => Dialect::Sqlite,
            Backend::Postgres(_) => Dialect::Postgres,
        }
    }

    /// A step that reads, from one snapshot.
    pub(crate) async fn read<T, E>(
        &self,
        step: impl FnMut(&mut Tx<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<QueryError> + Send + 'static,
    {
        self.run(READ, step).await
    }

    /// A step that reads the whole ledger, from one snapshot. It may take minutes, and does not delay other reads.
    pub(crate) async fn read_report<T, E>(
        &self,
        step: impl FnMut(&mut Tx<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<QueryError> + Send + 'static,
    {
        self.run(REPORT, step).await
    }

    /// A step that writes. While another process has SQLite's write lock, it waits as long as a command does.
    pub(crate) async fn write<T, E>(
        &self,
        step: impl FnMut(&mut Tx<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<QueryError> + Send + 'static,
    {
        self.run(WRITE, step).await
    }

    /// A step that writes, and waits at most `STATEMENT_TIMEOUT` while another process has SQLite's write lock.
    pub(crate) async fn write_soon<T, E>(
        &self,
        step: impl FnMut(&mut Tx<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<QueryError> + Send + 'static,
    {
        self.run(Terms { lock_limit: STATEMENT_TIMEOUT, ..WRITE }, step).await
    }

    /// A step that writes and may take minutes, up to `limit`. On SQLite it has a commit of its own, and all other writes wait.
    pub(crate) async fn write_long<T, E>(
        &self,
        limit: Duration,
        step: impl FnMut(&mut Tx<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<QueryError> + Send + 'static,
    {
        self.run(Terms { limit, response_limit: limit, ..WRITE }, step).await
    }

    pub(crate) async fn fetch_all<T: FromRow + Send + 'static>(
        &self,
        query: Query,
    ) -> Result<Vec<T>, QueryError> {
        self.run(Terms { access: Access::Statement, ..READ }, move |tx| query.fetch_all(tx)).await
    }

    pub(crate) async fn fetch_optional<T: FromRow + Send + 'static>(
        &self,
        query: Query,
    ) -> Result<Option<T>, QueryError> {
        self.run(Terms { access: Access::Statement, ..READ }, move |tx| query.fetch_optional(tx)).await
    }

    pub(crate) async fn fetch_one<T: FromRow + Send + 'static>(&self, query: Query) -> Result<T, QueryError> {
        self.fetch_optional(query).await?.ok_or(QueryError::NotFound)
    }

    /// A query over the whole ledger.
    pub(crate) async fn fetch_report<T: FromRow + Send + 'static>(
        &self,
        query: Query,
    ) -> Result<Vec<T>, QueryError> {
        self.run(Terms { access: Access::Statement, ..REPORT }, move |tx| query.fetch_all(tx)).await
    }

    /// A step of one statement. Returns the number of affected rows. `wait` is how long it waits for SQLite's write lock.
    pub(crate) async fn execute(&self, query: Query, wait: Duration) -> Result<u64, QueryError> {
        self.run(Terms { lock_limit: wait, ..WRITE }, move |tx| query.execute(tx)).await
    }

    /// A step of one statement with `RETURNING`. Returns its rows.
    pub(crate) async fn write_returning<T: FromRow + Send + 'static>(
        &self,
        query: Query,
        wait: Duration,
    ) -> Result<Vec<T>, QueryError> {
        self.run(Terms { lock_limit: wait, ..WRITE }, move |tx| query.fetch_all(tx)).await
    }

    /// Has SQLite's writer run the end of a group soon.
    pub(crate) fn wake_writer(&self) {
        if let Backend::Sqlite(database) = &*self.0 {
            database.writer.wake();
        }
    }

    async fn run<T, E>(
        &self,
        terms: Terms,
        step: impl FnMut(&mut Tx<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<QueryError> + Send + 'static,
    {
        let (job, response) = StepJob::new(step);
        let waiting = WaitingJob {
            job: Box::new(job),
            access: terms.access,
            since: SystemClock.monotonic(),
            lock_limit: terms.lock_limit,
            limit: terms.limit,
        };
        self.submit(terms, waiting, response).await
    }

    /// Not generic over the step, so that it is compiled once for each kind of result.
    async fn submit<T, E: From<QueryError>>(
        &self,
        terms: Terms,
        waiting: WaitingJob,
        mut response: oneshot::Receiver<Result<T, E>>,
    ) -> Result<T, E> {
        let (threads, report_threads, writer) = match &*self.0 {
            Backend::Sqlite(database) => {
                (&database.readers, &database.report_readers, Some(&database.writer))
            }
            Backend::Postgres(database) => (&database.threads, &database.report_threads, None),
        };
        let Some(writer) = writer.filter(|_| terms.access == Access::Write) else {
            if terms.is_report { report_threads } else { threads }.push(waiting);
            return wait_for(terms.response_limit, &mut response).await;
        };
        if timeout(terms.response_limit, writer.push(waiting)).await.is_err() {
            return Err(QueryError::Overloaded.into());
        }
        match timeout(terms.response_limit, &mut response).await {
            Ok(response) => response.unwrap_or_else(|_| Err(QueryError::Closed.into())),
            // Another process has the write lock: the writer answers when the step may wait no longer.
            Err(_) if writer.is_blocked() => {
                wait_for(terms.lock_limit + terms.response_limit, &mut response).await
            }
            Err(_) => Err(QueryError::TimedOut { limit: terms.response_limit }.into()),
        }
    }

    /// Rejects later reads. A report that takes minutes has nothing to lose, so it does not delay shutdown.
    pub(crate) async fn close_reads(&self) {
        let (threads, report_threads) = match &*self.0 {
            Backend::Sqlite(database) => (&database.readers, &database.report_readers),
            Backend::Postgres(database) => (&database.threads, &database.report_threads),
        };
        for (threads, limit) in [(threads, RESPONSE_TIMEOUT), (report_threads, STATEMENT_TIMEOUT)] {
            let threads = threads.close();
            let joining = async {
                while !threads.iter().all(JoinHandle::is_finished) {
                    tokio::time::sleep(END_POLL).await;
                }
            };
            if timeout(limit, joining).await.is_err() {
                tracing::warn!("a query still runs while the database is closed");
            }
        }
    }

    /// Runs the writes that wait, and rejects later ones.
    pub(crate) async fn close_writes(&self) {
        let Backend::Sqlite(database) = &*self.0 else { return };
        if timeout(RESPONSE_TIMEOUT, database.writer.close()).await.is_err() {
            tracing::error!("the database's writer did not end in time");
        }
    }
}

async fn wait_for<T, E: From<QueryError>>(
    limit: Duration,
    response: &mut oneshot::Receiver<Result<T, E>>,
) -> Result<T, E> {
    match timeout(limit, response).await {
        Ok(response) => response.unwrap_or_else(|_| Err(QueryError::Closed.into())),
        Err(_) => Err(QueryError::TimedOut { limit }.into()),
    }
}
