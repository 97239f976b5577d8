//! The open database: connections for reading, the way to a connection for writing, and how a statement or a transaction is
//! retried.
//!
//! A transaction is a closure over the connection and one argument, `run(&args, |conn, args| Box::pin(async move { … }))`. What it
//! works on comes in as that argument and is not captured: a future that borrows from both sides of a closure cannot be proved
//! `Send` for every lifetime of the connection. The step may run several times.

use super::conn::{Conn, Dialect};
use super::query::Query;
use super::row::FromRow;
use super::tx::{Tx, TxError};
use crate::db::error_codes::{is_undone, with_long_timeout, with_timeout, with_timeout_of};
use crate::db::retry::Patience;
use crate::db::sqlite::SqliteConnector;
use crate::db::write_slot::WriteSlot;
use sqlx::pool::PoolConnection;
use sqlx::{PgPool, Postgres, Sqlite, SqliteConnection, SqlitePool};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::MappedMutexGuard;

/// How long a command waits for its turn to write. Its user sees it wait, and would only start it again.
pub(crate) const COMMAND_WAIT: Duration = crate::db::retry::COMMAND_PATIENCE;

/// How often PostgreSQL may undo one transaction because of what other nodes did at the same time.
const MAX_CONFLICTS: u32 = 5;

pub(crate) type StepFuture<'t, T, E> = Pin<Box<dyn Future<Output = Result<T, TxError<E>>> + Send + 't>>;

/// A step of a transaction, see above.
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
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

/// Where connections for writing come from.
#[derive(Clone)]
pub(crate) enum Writers {
    /// SQLite has one writer at a time, so there is one connection.
    Slot(Arc<WriteSlot<SqliteConnector>>),
    Pool(PgPool),
}

#[derive(Clone)]
pub(crate) struct Db {
    reads: Pool,
    /// For what may take minutes, so that it keeps no other read waiting.
    long_reads: Pool,
    writers: Writers,
}

/// A connection of this process's, until it is dropped.
enum Lent<'a> {
    Sqlite(PoolConnection<Sqlite>),
    Slot(MappedMutexGuard<'a, SqliteConnection>),
    Postgres(PoolConnection<Postgres>),
}

impl Lent<'_> {
    fn conn(&mut self) -> Conn<'_> {
        match self {
            Self::Sqlite(conn) => Conn::Sqlite(conn),
            Self::Slot(conn) => Conn::Sqlite(conn),
            Self::Postgres(conn) => Conn::Postgres(conn),
        }
    }
}

impl Pool {
    async fn acquire(&self) -> Result<Lent<'static>, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(pool) => Lent::Sqlite(pool.acquire().await?),
            Self::Postgres(pool) => Lent::Postgres(pool.acquire().await?),
        })
    }

    fn is_closed(&self) -> bool {
        match self {
            Self::Sqlite(pool) => pool.is_closed(),
            Self::Postgres(pool) => pool.is_closed(),
        }
    }

    async fn fetch_all<T: FromRow>(&self, query: &Query<'_>) -> Result<Vec<T>, sqlx::Error> {
        query.fetch_all(&mut self.acquire().await?.conn()).await
    }

    async fn snapshot<A: Sync + ?Sized, T, E>(
        &self,
        args: &A,
        step: &impl Step<A, T, E>,
    ) -> Result<Result<T, E>, sqlx::Error> {
        let mut lent = self.acquire().await?;
        attempt(Tx::begin_read(lent.conn()).await?, args, step).await
    }

    async fn read<A: Sync + ?Sized, T, E>(
        &self,
        args: &A,
        step: &impl Step<A, T, E>,
    ) -> Result<Result<T, E>, sqlx::Error> {
        let mut lent = self.acquire().await?;
        match step(&mut lent.conn(), args).await {
            Ok(found) => Ok(Ok(found)),
            Err(TxError::Rejected(error)) => Ok(Err(error)),
            Err(TxError::Database(error)) => Err(error),
        }
    }
}

/// Commits what the step did, or rolls it back.
async fn attempt<A: Sync + ?Sized, T, E>(
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
    pub(crate) fn new(reads: Pool, long_reads: Pool, writers: Writers) -> Self {
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
        let read = async { query.fetch_optional(&mut self.reads.acquire().await?.conn()).await };
        with_timeout(read).await
    }

    pub(crate) async fn fetch_one<T: FromRow>(&self, query: Query<'_>) -> Result<T, sqlx::Error> {
        self.fetch_optional(query).await?.ok_or(sqlx::Error::RowNotFound)
    }

    /// For what an operator asks of the whole ledger.
    pub(crate) async fn long_fetch_all<T: FromRow>(&self, query: Query<'_>) -> Result<Vec<T>, sqlx::Error> {
        with_long_timeout(self.long_reads.fetch_all(&query)).await
    }

    /// Several reads on one connection, each of a moment of its own.
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

    /// Several reads of one moment.
    pub(crate) async fn snapshot<A: Sync + ?Sized, T, E: From<sqlx::Error>>(
        &self,
        args: &A,
        step: impl Step<A, T, E>,
    ) -> Result<T, E> {
        with_timeout(self.reads.snapshot(args, &step)).await?
    }

    pub(crate) async fn long_snapshot<A: Sync + ?Sized, T, E: From<sqlx::Error>>(
        &self,
        args: &A,
        step: impl Step<A, T, E>,
    ) -> Result<T, E> {
        with_long_timeout(self.long_reads.snapshot(args, &step)).await?
    }

    /// Gives the number of rows that the statement changed. Waits for SQLite's write lock for so long.
    pub(crate) async fn execute(&self, query: Query<'_>, wait: Duration) -> Result<u64, sqlx::Error> {
        let mut patience = Patience::of(wait);
        loop {
            let outcome = {
                let mut lent = self.writer().await?;
                with_timeout(query.execute(&mut lent.conn())).await
            };
            match outcome {
                Err(error) if patience.allows_another_try(&error).await => {}
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
        let mut patience = Patience::of(wait);
        loop {
            let outcome = {
                let mut lent = self.writer().await?;
                with_timeout(query.fetch_all(&mut lent.conn())).await
            };
            match outcome {
                Err(error) if patience.allows_another_try(&error).await => {}
                outcome => return outcome,
            }
        }
    }

    /// A transaction that writes: all of it is done or nothing. It is run again while the write lock is another process's, and
    /// when PostgreSQL undid it for another node's sake.
    pub(crate) async fn run<A: Sync + ?Sized, T, E: From<sqlx::Error>>(
        &self,
        args: &A,
        step: impl Step<A, T, E>,
    ) -> Result<T, E> {
        let (mut patience, mut conflicts) = (Patience::of(COMMAND_WAIT), 0);
        loop {
            let outcome = {
                let mut lent = self.writer().await?;
                with_timeout(async { attempt(Tx::begin_write(lent.conn()).await?, args, &step).await }).await
            };
            match outcome {
                Ok(done) => return done,
                Err(error) if patience.allows_another_try(&error).await => {}
                Err(error) if is_undone(&error) && conflicts < MAX_CONFLICTS => conflicts += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Like `run`, for a step that may take minutes, though not longer than the limit: a connection that has gone silent must
    /// not keep other writers out. It runs once.
    pub(crate) async fn run_long<A: Sync + ?Sized, T, E: From<sqlx::Error>>(
        &self,
        limit: Duration,
        args: &A,
        step: impl Step<A, T, E>,
    ) -> Result<T, E> {
        let mut patience = Patience::of(COMMAND_WAIT);
        loop {
            let busy = {
                let mut lent = self.writer().await?;
                match with_timeout(Tx::begin_write(lent.conn())).await {
                    Ok(tx) => return with_timeout_of(limit, attempt(tx, args, &step)).await?,
                    Err(error) => error,
                }
            };
            if !patience.allows_another_try(&busy).await {
                return Err(busy.into());
            }
        }
    }

    async fn writer(&self) -> Result<Lent<'_>, sqlx::Error> {
        if self.reads.is_closed() {
            return Err(sqlx::Error::PoolClosed);
        }
        Ok(match &self.writers {
            Writers::Slot(slot) => Lent::Slot(slot.hold().await?),
            Writers::Pool(pool) => Lent::Postgres(pool.acquire().await?),
        })
    }
}
