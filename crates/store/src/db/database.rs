//! The open database: read connections, write connections, and how statements and transactions are retried.
//!
//! A transaction is a closure over the connection and one argument:
//! `run(&args, |conn, args| Box::pin(async move { … }))`. Its inputs come in as that argument and are not captured: a future
//! that borrows from both sides of a closure cannot be proved `Send` for every lifetime of the connection. The step may run
//! several times.

use super::conn::{Conn, Dialect};
use super::query::Query;
use super::row::{FromRow, Row};
use super::tx::{Tx, TxError};
use crate::db::error_codes::{
    STATEMENT_TIMEOUT, is_connection_lost, is_transaction_rollback, with_long_timeout, with_timeout,
    with_timeout_of,
};
use crate::db::read_pool::{ReadLease, ReadPool};
use crate::db::retry::RetryPolicy;
use crate::db::sqlite::SqliteConnector;
use crate::db::write_slot::{OpenConnection, WriteSlot};
use sqlx::pool::PoolConnection;
use sqlx::{PgPool, Postgres, SqliteConnection};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::MappedMutexGuard;

/// How long a command waits for the write lock. A user who sees it fail earlier would only start it again.
pub(crate) const COMMAND_RETRY_LIMIT: Duration = crate::db::retry::COMMAND_RETRY_LIMIT;

/// How often PostgreSQL may roll back one transaction because of conflicts with other nodes.
const MAX_CONFLICT_RETRIES: u32 = 5;

pub(crate) type StepFuture<'t, T, E> = Pin<Box<dyn Future<Output = Result<T, TxError<E>>> + Send + 't>>;

/// A step of a transaction; see the module documentation.
pub(crate) trait Step<A: ?Sized, T, E>:
    for<'t> Fn(&'t mut Conn<'_>, &'t A) -> StepFuture<'t, T, E> + Send + Sync
{
}

impl<A: ?Sized, T, E, F> Step<A, T, E> for F where
    F: for<'t> Fn(&'t mut Conn<'_>, &'t A) -> StepFuture<'t, T, E> + Send + Sync
{
}

#[derive(Clone)]
pub(crate) enum Pool {
    Sqlite(Arc<ReadPool<SqliteConnector>>),
    Postgres(PgPool),
}

/// Where connections for writing come from.
#[derive(Clone)]
pub(crate) enum WritePool {
    /// SQLite has one writer at a time, so there is one connection. The ledger has its own, and waits for this one
    /// (`ledger::sqlite`).
    Slot(Arc<WriteSlot<SqliteConnector>>),
    Pool(PgPool),
}

#[derive(Clone)]
pub(crate) struct Db {
    reads: Pool,
    /// For queries that may take minutes, so that they do not delay other reads.
    long_reads: Pool,
    writers: WritePool,
}

/// A borrowed connection.
enum LeasedConnection<'a> {
    Sqlite(ReadLease<'a, SqliteConnector>),
    Slot(MappedMutexGuard<'a, OpenConnection<SqliteConnection>>),
    Postgres(PostgresLease),
}

/// A borrowed connection of sqlx's pool. One that is dropped before it is finished is closed: sqlx does not roll back a
/// `BEGIN` that was still under way, and the next user would write into a transaction that nobody commits.
struct PostgresLease {
    connection: PoolConnection<Postgres>,
    is_finished: bool,
}

impl PostgresLease {
    async fn acquire(pool: &PgPool) -> Result<Self, sqlx::Error> {
        // Boxed, because the future of a new connection is large and seldom needed.
        Ok(Self { connection: Box::pin(pool.acquire()).await?, is_finished: false })
    }
}

impl Drop for PostgresLease {
    fn drop(&mut self) {
        if !self.is_finished {
            self.connection.close_on_drop();
        }
    }
}

impl LeasedConnection<'_> {
    fn conn(&mut self) -> Conn<'_> {
        match self {
            Self::Sqlite(lease) => Conn::Sqlite(&mut lease.connection),
            Self::Slot(open) => Conn::Sqlite(&mut open.connection),
            Self::Postgres(lease) => Conn::Postgres(&mut lease.connection),
        }
    }

    /// Returns the outcome unchanged, and gives the connection back.
    fn finish<R>(self, outcome: Result<R, sqlx::Error>) -> Result<R, sqlx::Error> {
        match self {
            Self::Sqlite(lease) => lease.finish(outcome),
            Self::Slot(mut open) => open.checked(outcome),
            Self::Postgres(mut lease) => {
                lease.is_finished = !outcome.as_ref().is_err_and(is_connection_lost);
                outcome
            }
        }
    }
}

impl Pool {
    async fn acquire(&self) -> Result<LeasedConnection<'_>, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(pool) => LeasedConnection::Sqlite(pool.acquire().await?),
            Self::Postgres(pool) => LeasedConnection::Postgres(PostgresLease::acquire(pool).await?),
        })
    }

    fn is_closed(&self) -> bool {
        match self {
            Self::Sqlite(pool) => pool.is_closed(),
            Self::Postgres(pool) => pool.is_closed(),
        }
    }

    async fn close(&self) {
        match self {
            Self::Sqlite(pool) => pool.close().await,
            Self::Postgres(pool) => pool.close().await,
        }
    }

    async fn fetch_all<T: FromRow>(&self, query: &Query<'_>) -> Result<Vec<T>, sqlx::Error> {
        let mut connection = self.acquire().await?;
        let outcome = query.fetch_all(&mut connection.conn()).await;
        connection.finish(outcome)
    }

    async fn fetch_optional<T: FromRow>(&self, query: &Query<'_>) -> Result<Option<T>, sqlx::Error> {
        let mut connection = self.acquire().await?;
        let outcome = query.fetch_optional(&mut connection.conn()).await;
        connection.finish(outcome)
    }

    async fn snapshot<A: Sync + ?Sized, T, E>(
        &self,
        args: &A,
        step: &impl Step<A, T, E>,
    ) -> Result<Result<T, E>, sqlx::Error> {
        let mut connection = self.acquire().await?;
        let outcome = match Tx::begin_read(connection.conn()).await {
            Ok(tx) => run_transaction(tx, args, step).await,
            Err(error) => Err(error),
        };
        connection.finish(outcome)
    }

    async fn snapshot_rows<const N: usize>(
        &self,
        queries: &[Query<'_>; N],
    ) -> Result<[Vec<Row>; N], sqlx::Error> {
        match self {
            Self::Sqlite(pool) => {
                let mut lease = pool.acquire().await?;
                let outcome = Query::fetch_whole(&mut lease.connection, queries).await;
                lease.finish(outcome)
            }
            Self::Postgres(_) => {
                let mut connection = self.acquire().await?;
                let outcome = async {
                    let mut tx = Tx::begin_read(connection.conn()).await?;
                    let mut rows = [const { Vec::new() }; N];
                    for (rows, query) in rows.iter_mut().zip(queries) {
                        *rows = query.rows(&mut tx.conn()).await?;
                    }
                    tx.commit().await?;
                    Ok(rows)
                };
                let outcome = outcome.await;
                connection.finish(outcome)
            }
        }
    }

    async fn read<A: Sync + ?Sized, T, E>(
        &self,
        args: &A,
        step: &impl Step<A, T, E>,
    ) -> Result<Result<T, E>, sqlx::Error> {
        let mut connection = self.acquire().await?;
        let outcome = match step(&mut connection.conn(), args).await {
            Ok(found) => Ok(Ok(found)),
            Err(TxError::Rejected(error)) => Ok(Err(error)),
            Err(TxError::Database(error)) => Err(error),
        };
        connection.finish(outcome)
    }
}

/// Commits the step, or rolls it back.
async fn run_transaction<A: Sync + ?Sized, T, E>(
    mut tx: Tx<'_>,
    args: &A,
    step: &impl Step<A, T, E>,
) -> Result<Result<T, E>, sqlx::Error> {
    let outcome = step(&mut tx.conn(), args).await;
    match outcome {
        Ok(done) => tx.commit().await.map(|()| Ok(done)),
        Err(TxError::Rejected(error)) => tx.rollback().await.map(|()| Err(error)),
        Err(TxError::Database(error)) => Err(error),
    }
}

impl Db {
    pub(crate) fn new(reads: Pool, long_reads: Pool, writers: WritePool) -> Self {
        Self { reads, long_reads, writers }
    }

    pub(crate) fn dialect(&self) -> Dialect {
        match self.reads {
            Pool::Sqlite(_) => Dialect::Sqlite,
            Pool::Postgres(_) => Dialect::Postgres,
        }
    }

    pub(crate) async fn fetch_all<T: FromRow>(&self, query: Query<'_>) -> Result<Vec<T>, sqlx::Error> {
        with_timeout(self.reads.fetch_all(&query)).await
    }

    pub(crate) async fn fetch_optional<T: FromRow>(
        &self,
        query: Query<'_>,
    ) -> Result<Option<T>, sqlx::Error> {
        with_timeout(self.reads.fetch_optional(&query)).await
    }

    pub(crate) async fn fetch_one<T: FromRow>(&self, query: Query<'_>) -> Result<T, sqlx::Error> {
        self.fetch_optional(query).await?.ok_or(sqlx::Error::RowNotFound)
    }

    /// For queries over the whole ledger.
    pub(crate) async fn long_fetch_all<T: FromRow>(&self, query: Query<'_>) -> Result<Vec<T>, sqlx::Error> {
        with_long_timeout(self.long_reads.fetch_all(&query)).await
    }

    /// Several reads on one connection, without a common snapshot.
    pub(crate) async fn read<A: Sync + ?Sized, T, E: From<sqlx::Error>>(
        &self,
        args: &A,
        step: impl Step<A, T, E>,
    ) -> Result<T, E> {
        with_timeout(self.reads.read(args, &step)).await?
    }

    pub(crate) async fn long_read<A: Sync + ?Sized, T, E: From<sqlx::Error>>(
        &self,
        args: &A,
        step: impl Step<A, T, E>,
    ) -> Result<T, E> {
        with_long_timeout(self.long_reads.read(args, &step)).await?
    }

    /// Several reads from one snapshot.
    pub(crate) async fn snapshot<A: Sync + ?Sized, T, E: From<sqlx::Error>>(
        &self,
        args: &A,
        step: impl Step<A, T, E>,
    ) -> Result<T, E> {
        with_timeout(self.reads.snapshot(args, &step)).await?
    }

    /// Reads whose statements do not depend on each other's results, from one snapshot: one command to SQLite. Returns the
    /// rows of each.
    pub(crate) async fn snapshot_rows<const N: usize>(
        &self,
        queries: [Query<'_>; N],
    ) -> Result<[Vec<Row>; N], sqlx::Error> {
        with_timeout(self.reads.snapshot_rows(&queries)).await
    }

    pub(crate) async fn long_snapshot<A: Sync + ?Sized, T, E: From<sqlx::Error>>(
        &self,
        args: &A,
        step: impl Step<A, T, E>,
    ) -> Result<T, E> {
        with_long_timeout(self.long_reads.snapshot(args, &step)).await?
    }

    /// Returns the number of affected rows. Waits up to `wait` for SQLite's write lock.
    pub(crate) async fn execute(&self, query: Query<'_>, wait: Duration) -> Result<u64, sqlx::Error> {
        let mut retry_policy = RetryPolicy::of(wait);
        loop {
            let outcome = {
                let mut connection = self.writer().await?;
                let outcome = with_timeout(query.execute(&mut connection.conn())).await;
                connection.finish(outcome)
            };
            match outcome {
                Err(error) if retry_policy.should_retry(&error).await => {}
                outcome => return outcome,
            }
        }
    }

    /// Like `execute`, for a statement with `RETURNING`.
    pub(crate) async fn write_returning<T: FromRow>(
        &self,
        query: Query<'_>,
        wait: Duration,
    ) -> Result<Vec<T>, sqlx::Error> {
        let mut retry_policy = RetryPolicy::of(wait);
        loop {
            let outcome = {
                let mut connection = self.writer().await?;
                let outcome = with_timeout(query.fetch_all(&mut connection.conn())).await;
                connection.finish(outcome)
            };
            match outcome {
                Err(error) if retry_policy.should_retry(&error).await => {}
                outcome => return outcome,
            }
        }
    }

    /// A write transaction in one command to SQLite (`whole_transaction`). Returns the number of affected rows of each
    /// statement, or `None` on PostgreSQL, which has no such commands.
    pub(crate) async fn execute_whole(
        &self,
        transaction: &Query<'_>,
        statements: usize,
    ) -> Result<Option<Vec<u64>>, sqlx::Error> {
        let WritePool::Slot(slot) = &self.writers else { return Ok(None) };
        if self.reads.is_closed() {
            return Err(sqlx::Error::PoolClosed);
        }
        let mut retry_policy = RetryPolicy::of(COMMAND_RETRY_LIMIT);
        loop {
            let outcome = {
                let mut taken = slot.take().await?;
                let outcome =
                    with_timeout(transaction.execute_whole(&mut taken.connection, statements)).await;
                taken.finish(outcome)
            };
            match outcome {
                Err(error) if retry_policy.should_retry(&error).await => {}
                outcome => return outcome.map(Some),
            }
        }
    }

    /// A write transaction. It is retried while another process has the write lock, and when PostgreSQL rolls it back
    /// because of a conflict.
    pub(crate) async fn run<A: Sync + ?Sized, T, E: From<sqlx::Error>>(
        &self,
        args: &A,
        step: impl Step<A, T, E>,
    ) -> Result<T, E> {
        let (mut retry_policy, mut conflicts) = (RetryPolicy::of(COMMAND_RETRY_LIMIT), 0);
        loop {
            let outcome = {
                let mut connection = self.writer().await?;
                let outcome = with_timeout(async {
                    run_transaction(Tx::begin_write(connection.conn()).await?, args, &step).await
                })
                .await;
                connection.finish(outcome)
            };
            match outcome {
                Ok(done) => return done,
                Err(error) if retry_policy.should_retry(&error).await => {}
                Err(error) if is_transaction_rollback(&error) && conflicts < MAX_CONFLICT_RETRIES => {
                    conflicts += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Like `run`, for a step that may take minutes, up to `limit`: an unresponsive connection must not block other
    /// writers. It runs once.
    pub(crate) async fn run_long<A: Sync + ?Sized, T, E: From<sqlx::Error>>(
        &self,
        limit: Duration,
        args: &A,
        step: impl Step<A, T, E>,
    ) -> Result<T, E> {
        let mut retry_policy = RetryPolicy::of(COMMAND_RETRY_LIMIT);
        loop {
            let mut connection = self.writer().await?;
            let (has_begun, outcome) = match with_timeout(Tx::begin_write(connection.conn())).await {
                Ok(tx) => (true, with_timeout_of(limit, run_transaction(tx, args, &step)).await),
                Err(error) => (false, Err(error)),
            };
            match connection.finish(outcome) {
                Ok(done) => return done,
                Err(error) if !has_begun && retry_policy.should_retry(&error).await => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Rejects later calls. A report that takes minutes has nothing to lose, so it does not delay shutdown.
    pub(crate) async fn close_reads(&self) {
        let long_reads = tokio::time::timeout(STATEMENT_TIMEOUT, self.long_reads.close());
        // Queries that still run after that end with their connection.
        let ((), _) = tokio::join!(self.reads.close(), long_reads);
    }

    async fn writer(&self) -> Result<LeasedConnection<'_>, sqlx::Error> {
        if self.reads.is_closed() {
            return Err(sqlx::Error::PoolClosed);
        }
        Ok(match &self.writers {
            WritePool::Slot(slot) => LeasedConnection::Slot(Box::pin(slot.acquire()).await?),
            WritePool::Pool(pool) => LeasedConnection::Postgres(PostgresLease::acquire(pool).await?),
        })
    }
}
