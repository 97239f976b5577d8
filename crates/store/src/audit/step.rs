//! Writes the audit row and the change it allows in one transaction; events of signing in and out likewise. Every
//! business write goes through here; `tests/it/write_coverage.rs` lists the exceptions.
//!
//! 1. Steps of one process queue up (`AuditQueue`). All their rows go into one chain, so concurrent steps would only
//!    wait for the chain head while each occupies a connection.
//! 2. The transaction appends the decision to the chain and locks the client. It checks that the client's owner is
//!    still the one that the policy saw, and then changes the client. Last, it checks that the principal is unchanged too
//!    (`audit/principal.rs`). What is only read is read after the commit, with the same checks (`clients/reads.rs`), so
//!    that reading a long record keeps no writer waiting. A row that records the outcome (a new client's id, an old and
//!    a new role) is appended after the step.
//! 3. A step that is rejected rolls its audit row back too, unless it returns the row with the rejection.

use crate::DbError;
use crate::audit::chain::append_to_chain;
use crate::audit::principal::{allowed_principals, distinct, ensure_principals_unchanged, not_changed_by};
use crate::db::error_codes::STATEMENT_TIMEOUT;
use crate::db::{Db, Dialect, Query, Step};
use chancery_domain::{AuditRow, ChainHead, Principal, WriterId};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

/// `BEGIN`, the decision, its change, the end of the chain and `COMMIT`.
const WHOLE_STEP_STATEMENTS: usize = 5;

/// Has the end of this process's chain. `None` before the first step, and after one that failed or was cancelled: it may
/// have been committed or not, so that the next step reads the end again.
#[derive(Default)]
struct AuditQueue(Mutex<Option<ChainHead>>);

impl AuditQueue {
    async fn lock(&self) -> Result<MutexGuard<'_, Option<ChainHead>>, DbError> {
        let guard = tokio::time::timeout(STATEMENT_TIMEOUT, self.0.lock()).await;
        guard.map_err(|_| DbError::Unavailable("the audit queue timed out; try again".to_owned()))
    }
}

/// The only way to change or read what needs a permit. The decision is appended to this process's chain in the
/// transaction that makes the change, or before the read.
#[derive(Clone)]
pub(crate) struct AuditedSteps {
    db: Db,
    writer: WriterId,
    /// Steps wait here, not in the database, because all decisions of this process go into one chain.
    queue: Arc<AuditQueue>,
}

impl AuditedSteps {
    pub(crate) fn new(db: Db, writer: WriterId) -> Self {
        Self { db, writer, queue: Arc::default() }
    }

    /// Appends the decisions and runs the step, or does neither. The step may run several times. It must not change the
    /// people who were allowed it: they are checked after it, so that its waits for locks come before the check.
    pub(crate) async fn run<A: Sync + ?Sized, T: Send, E: From<DbError> + From<sqlx::Error>>(
        &self,
        decisions: &[AuditRow],
        args: &A,
        step: impl Step<A, T, E>,
    ) -> Result<T, E> {
        let mut known_head = self.queue.lock().await?;
        let args = (self.writer, known_head.take(), decisions, args, &step);
        let outcome = self.db.run(&args, |conn, (writer, head, decisions, args, step)| {
            Box::pin(async move {
                let head = append_to_chain::<E>(conn, *writer, *head, decisions).await?;
                let done = step(conn, args).await?;
                ensure_principals_unchanged::<E>(conn, &allowed_principals(decisions)).await?;
                Ok((done, head))
            })
        });
        remember_head(&mut known_head, outcome.await)
    }

    /// Like `run`, for a step whose last statement checks the principal itself.
    pub(crate) async fn run_checked<A: Sync + ?Sized, T: Send, E: From<DbError> + From<sqlx::Error>>(
        &self,
        decisions: &[AuditRow],
        args: &A,
        step: impl Step<A, T, E>,
    ) -> Result<T, E> {
        let mut known_head = self.queue.lock().await?;
        let args = (self.writer, known_head.take(), decisions, args, &step);
        let outcome = self.db.run(&args, |conn, (writer, head, decisions, args, step)| {
            Box::pin(async move {
                let head = append_to_chain::<E>(conn, *writer, *head, decisions).await?;
                let done = step(conn, args).await?;
                Ok((done, head))
            })
        });
        remember_head(&mut known_head, outcome.await)
    }

    /// Appends a decision and makes its change in one command to SQLite. `transaction` gets the writer and the ends of its
    /// chain, before and after the decision, and returns `WHOLE_STEP_STATEMENTS` statements. It checks its own conditions,
    /// and moves the head last, or changes nothing. Returns whether it did. If not, `run_checked` finds out why; it also does
    /// the step on PostgreSQL, and before the end of the chain is known.
    pub(crate) async fn run_whole<'q>(
        &self,
        decision: &AuditRow,
        transaction: impl FnOnce(WriterId, ChainHead, ChainHead) -> Query<'q>,
    ) -> Result<bool, DbError> {
        if self.db.dialect() != Dialect::Sqlite {
            return Ok(false);
        }
        let mut known_head = self.queue.lock().await?;
        let Some(before) = known_head.take() else { return Ok(false) };
        let after = before.with_row(self.writer, decision);
        let transaction = transaction(self.writer, before, after);
        let changed = self.db.execute_whole(&transaction, WHOLE_STEP_STATEMENTS).await?;
        let is_done = changed.is_some_and(|rows| rows[WHOLE_STEP_STATEMENTS - 2] == 1);
        *known_head = Some(if is_done { after } else { before });
        Ok(is_done)
    }

    /// Like `run`, for a step that may take minutes, up to `limit`. It runs once.
    pub(crate) async fn run_long<A: Sync + ?Sized, T: Send, E: From<DbError> + From<sqlx::Error>>(
        &self,
        limit: Duration,
        decisions: &[AuditRow],
        args: &A,
        step: impl Step<A, T, E>,
    ) -> Result<T, E> {
        let mut known_head = self.queue.lock().await?;
        let args = (self.writer, known_head.take(), decisions, args, &step);
        let outcome = self.db.run_long(limit, &args, |conn, (writer, head, decisions, args, step)| {
            Box::pin(async move {
                let head = append_to_chain::<E>(conn, *writer, *head, decisions).await?;
                let done = step(conn, args).await?;
                ensure_principals_unchanged::<E>(conn, &allowed_principals(decisions)).await?;
                Ok((done, head))
            })
        });
        remember_head(&mut known_head, outcome.await)
    }

    /// Like `run`, for an event: nothing was permitted, and the step returns its rows with its result. They are appended
    /// after it, in the same transaction.
    pub(crate) async fn run_then_record<A: Sync + ?Sized, T: Send, E: From<DbError> + From<sqlx::Error>>(
        &self,
        args: &A,
        step: impl Step<A, (T, Vec<AuditRow>), E>,
    ) -> Result<T, E> {
        self.run_as(&[], args, step).await
    }

    /// Like `run`, for a step that returns its decisions with its result. They are appended after it, in the same
    /// transaction. The principals are checked before it, and after it again, because it may have waited for locks. A step
    /// that changes its own principal must lock that person and check them itself, before the change.
    pub(crate) async fn run_as<A: Sync + ?Sized, T: Send, E: From<DbError> + From<sqlx::Error>>(
        &self,
        principals: &[Principal],
        args: &A,
        step: impl Step<A, (T, Vec<AuditRow>), E>,
    ) -> Result<T, E> {
        let mut known_head = self.queue.lock().await?;
        let args = (self.writer, known_head.take(), principals, args, &step);
        let outcome = self.db.run(&args, |conn, (writer, head, principals, args, step)| {
            Box::pin(async move {
                ensure_principals_unchanged::<E>(conn, principals).await?;
                let (done, decisions) = step(conn, args).await?;
                let head = append_to_chain::<E>(conn, *writer, *head, &decisions).await?;
                let others = not_changed_by(&decisions, principals);
                ensure_principals_unchanged::<E>(conn, &others).await?;
                Ok((done, head))
            })
        });
        remember_head(&mut known_head, outcome.await)
    }

    /// Runs a step in parts, which may take minutes, up to `limit`. `part` runs again and again in one transaction, until it
    /// returns `None`. The decisions of each part are appended after it, so that they are never all in memory.
    pub(crate) async fn run_long_in_parts<A: Sync + ?Sized, E: From<DbError> + From<sqlx::Error> + Send>(
        &self,
        limit: Duration,
        args: &A,
        part: impl Step<A, Option<Vec<AuditRow>>, E>,
    ) -> Result<(), E> {
        let mut known_head = self.queue.lock().await?;
        let args = (self.writer, known_head.take(), args, &part);
        let outcome = self.db.run_long(limit, &args, |conn, (writer, head, args, part)| {
            Box::pin(async move {
                let (mut head, mut principals) = (*head, Vec::new());
                while let Some(decisions) = part(conn, args).await? {
                    head = append_to_chain::<E>(conn, *writer, head, &decisions).await?;
                    principals = distinct(principals.into_iter().chain(allowed_principals(&decisions)));
                }
                ensure_principals_unchanged::<E>(conn, &principals).await?;
                Ok(((), head))
            })
        });
        remember_head(&mut known_head, outcome.await)
    }

    /// Records decisions without a write: reads and denials.
    pub(crate) async fn record(&self, decisions: &[AuditRow]) -> Result<(), DbError> {
        self.run::<(), (), DbError>(decisions, &(), |_, ()| Box::pin(async { Ok(()) })).await
    }
}

/// Returns a step's result, and remembers the end of the chain if the step was committed.
fn remember_head<T, E>(
    known_head: &mut Option<ChainHead>,
    outcome: Result<(T, Option<ChainHead>), E>,
) -> Result<T, E> {
    let (done, head) = outcome?;
    *known_head = head;
    Ok(done)
}
