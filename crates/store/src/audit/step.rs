//! Writes the audit row and the change it allows in one transaction; events of signing in and out likewise. Every
//! business write goes through here; `tests/it/write_coverage.rs` lists the exceptions.
//!
//! The transaction appends the decision to the chain of its connection and locks the client. It checks that the client's owner is
//! still the one that the policy saw, and then changes the client. Last, it checks that the principal is unchanged too
//! (`audit/principal.rs`). A row that records the outcome (a new client's id, an old and a new role) is appended after the step.
//! A step that is rejected undoes its audit row too, unless it returns the row with the rejection.

use crate::DbError;
use crate::audit::chain::append_to_chain;
use crate::audit::principal::{allowed_principals, distinct, ensure_principals_unchanged, not_changed_by};
use crate::db::{Db, QueryError, Tx};
use chancery_domain::{AuditRow, Principal};
use std::time::Duration;

/// The only way to change or read what needs a permit. The decision is appended to the chain in the transaction that makes the
/// change, or before the read.
#[derive(Clone)]
pub(crate) struct AuditedSteps {
    db: Db,
}

impl AuditedSteps {
    pub(crate) fn new(db: Db) -> Self {
        Self { db }
    }

    /// Appends the decisions and runs the step, or does neither. The step must not change the people who were allowed it: they are
    /// checked after it, so that its waits for locks come before the check.
    pub(crate) async fn run<T, E>(
        &self,
        decisions: Vec<AuditRow>,
        mut step: impl FnMut(&mut Tx<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<DbError> + From<QueryError> + Send + 'static,
    {
        self.db.write(move |tx| with_decisions(tx, &decisions, &mut step)).await
    }

    /// Appends the decisions and runs a step that may take minutes, up to `limit`, or does neither.
    pub(crate) async fn run_long<T, E>(
        &self,
        limit: Duration,
        decisions: Vec<AuditRow>,
        mut step: impl FnMut(&mut Tx<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<DbError> + From<QueryError> + Send + 'static,
    {
        self.db.write_long(limit, move |tx| with_decisions(tx, &decisions, &mut step)).await
    }

    /// Runs a step that nobody needs a permit for, such as signing in. It returns the rows of its events with its result; they are
    /// appended after it, in the same transaction.
    pub(crate) async fn run_then_record<T, E>(
        &self,
        step: impl FnMut(&mut Tx<'_>) -> Result<(T, Vec<AuditRow>), E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<DbError> + From<QueryError> + Send + 'static,
    {
        self.run_as(Vec::new(), step).await
    }

    /// Runs a step that returns its decisions with its result. They are appended after it, in the same transaction. The principals are checked before it, and after it again, because it may have waited for locks. A step
    /// that changes its own principal must lock that person and check them itself, before the change.
    pub(crate) async fn run_as<T, E>(
        &self,
        principals: Vec<Principal>,
        mut step: impl FnMut(&mut Tx<'_>) -> Result<(T, Vec<AuditRow>), E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<DbError> + From<QueryError> + Send + 'static,
    {
        self.db
            .write(move |tx| {
                ensure_principals_unchanged::<E>(tx, &principals)?;
                let (done, decisions) = step(tx)?;
                append_to_chain(tx, &decisions)?;
                let others = not_changed_by(&decisions, &principals);
                ensure_principals_unchanged::<E>(tx, &others)?;
                Ok(done)
            })
            .await
    }

    /// Runs a step that may take minutes, up to `limit`, and appends its decisions part by part, so that they are never all in
    /// memory.
    pub(crate) async fn run_long_in_parts<T, E>(
        &self,
        limit: Duration,
        mut step: impl FnMut(&mut Tx<'_>, &mut AppendedDecisions) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<DbError> + From<QueryError> + Send + 'static,
    {
        self.db
            .write_long(limit, move |tx| {
                let mut appended = AppendedDecisions::default();
                let done = step(tx, &mut appended)?;
                ensure_principals_unchanged::<E>(tx, &appended.principals)?;
                Ok(done)
            })
            .await
    }

    /// Records decisions without a write: reads and denials.
    pub(crate) async fn record(&self, decisions: Vec<AuditRow>) -> Result<(), DbError> {
        self.run(decisions, |_| Ok(())).await
    }
}

/// What a step in parts has appended.
#[derive(Default)]
pub(crate) struct AppendedDecisions {
    /// Who was allowed it, to be checked at the end.
    principals: Vec<Principal>,
}

impl AppendedDecisions {
    pub(crate) fn append(&mut self, tx: &mut Tx<'_>, decisions: &[AuditRow]) -> Result<(), QueryError> {
        append_to_chain(tx, decisions)?;
        let principals = self.principals.iter().copied().chain(allowed_principals(decisions));
        self.principals = distinct(principals);
        Ok(())
    }
}

fn with_decisions<T, E: From<DbError> + From<QueryError>>(
    tx: &mut Tx<'_>,
    decisions: &[AuditRow],
    step: &mut impl FnMut(&mut Tx<'_>) -> Result<T, E>,
) -> Result<T, E> {
    append_to_chain(tx, decisions)?;
    let done = step(tx)?;
    ensure_principals_unchanged::<E>(tx, &allowed_principals(decisions))?;
    Ok(done)
}
