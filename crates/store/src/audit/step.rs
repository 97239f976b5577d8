//! One decision, one transaction: what the policy decided is written down and done together, or neither is. The same holds for
//! events of signing in and out. Every business write goes through here; `tests/it/write_coverage.rs` lists what does not.
//!
//! 1. Whoever is next in this process begins (`AuditQueue`). All its rows go into one chain, so the others would only wait
//!    for the chain's end, and hold a connection while they do.
//! 2. The transaction links the decision into the chain, looks whether the client is still whose it was when the policy was
//!    asked, locks it so that it stays so, and reads or changes it. Where the row tells what was done (a new client's number, an
//!    old and a new role), it is linked after the step.
//! 3. A step that is rejected on the way takes its row in the audit back with it, unless it gives the row with the rejection.

use crate::DbError;
use crate::audit::chain::link;
use crate::db::error_codes::STATEMENT_TIMEOUT;
use crate::db::{Db, Step};
use chancery_domain::{AuditRow, WriterId};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

#[derive(Default)]
struct AuditQueue(Mutex<()>);

impl AuditQueue {
    async fn take(&self) -> Result<MutexGuard<'_, ()>, DbError> {
        let turn = tokio::time::timeout(STATEMENT_TIMEOUT, self.0.lock()).await;
        turn.map_err(|_| DbError::Unavailable("too many wait for a record; try again soon".to_owned()))
    }
}

/// The only way to change or read what needs a permit: the decision is linked into this process's chain in the transaction that
/// does what it allows.
#[derive(Clone)]
pub(crate) struct AuditedSteps {
    db: Db,
    writer: WriterId,
    /// All decisions of this process go into one chain, so the next one waits here and not in the database.
    queue: Arc<AuditQueue>,
}

impl AuditedSteps {
    pub(crate) fn new(db: Db, writer: WriterId) -> Self {
        Self { db, writer, queue: Arc::default() }
    }

    /// Links the decisions and takes the step, or does neither. The step may run several times.
    pub(crate) async fn run<A: Sync + ?Sized, T, E: From<DbError> + From<sqlx::Error>>(
        &self,
        decisions: &[AuditRow],
        args: &A,
        step: impl Step<A, T, E>,
    ) -> Result<T, E> {
        let _turn = self.queue.take().await?;
        let args = (self.writer, decisions, args, &step);
        let linked = self.db.run(&args, |conn, (writer, decisions, args, step)| {
            Box::pin(async move {
                link(conn, *writer, decisions).await?;
                step(conn, args).await
            })
        });
        linked.await
    }

    /// Like `run`, for a step that may take minutes, though not longer than the limit. It runs once.
    pub(crate) async fn run_long<A: Sync + ?Sized, T, E: From<DbError> + From<sqlx::Error>>(
        &self,
        limit: Duration,
        decisions: &[AuditRow],
        args: &A,
        step: impl Step<A, T, E>,
    ) -> Result<T, E> {
        let _turn = self.queue.take().await?;
        let args = (self.writer, decisions, args, &step);
        let linked = self.db.run_long(limit, &args, |conn, (writer, decisions, args, step)| {
            Box::pin(async move {
                link(conn, *writer, decisions).await?;
                step(conn, args).await
            })
        });
        linked.await
    }

    /// Like `run`, for a step that learns only on the way which decisions it is for: it gives them with its result, and they are
    /// linked after it, in the same transaction.
    pub(crate) async fn run_then_link<A: Sync + ?Sized, T: Send, E: From<DbError> + From<sqlx::Error>>(
        &self,
        args: &A,
        step: impl Step<A, (T, Vec<AuditRow>), E>,
    ) -> Result<T, E> {
        let _turn = self.queue.take().await?;
        let args = (self.writer, args, &step);
        let linked = self.db.run(&args, |conn, (writer, args, step)| {
            Box::pin(async move {
                let (done, decisions) = step(conn, args).await?;
                link(conn, *writer, &decisions).await?;
                Ok(done)
            })
        });
        linked.await
    }

    /// Like `run_then_link`, for a step that may take minutes, though not longer than the limit. It runs once.
    pub(crate) async fn run_long_then_link<
        A: Sync + ?Sized,
        T: Send,
        E: From<DbError> + From<sqlx::Error>,
    >(
        &self,
        limit: Duration,
        args: &A,
        step: impl Step<A, (T, Vec<AuditRow>), E>,
    ) -> Result<T, E> {
        let _turn = self.queue.take().await?;
        let args = (self.writer, args, &step);
        let linked = self.db.run_long(limit, &args, |conn, (writer, args, step)| {
            Box::pin(async move {
                let (done, decisions) = step(conn, args).await?;
                link(conn, *writer, &decisions).await?;
                Ok(done)
            })
        });
        linked.await
    }

    /// Records decisions that are only about reading, or that were denials.
    pub(crate) async fn record(&self, decisions: &[AuditRow]) -> Result<(), DbError> {
        self.run::<(), (), DbError>(decisions, &(), |_, ()| Box::pin(async { Ok(()) })).await
    }
}
