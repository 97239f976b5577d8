//! One transaction, as a step sees it: which database it runs on, its audit chain, and whether a statement has failed.

use super::error_codes::{QueryError, STATEMENT_TIMEOUT, is_interrupted};
use super::postgres_session::PostgresSession;
use chancery_domain::{ChainHead, WriterId};
use std::time::Duration;

/// The SQL dialect of a connection. The two differ mostly in row locks, which SQLite does not need with its single
/// writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
}

pub(crate) enum Driver<'tx> {
    Sqlite(&'tx rusqlite::Connection),
    Postgres(&'tx mut PostgresSession),
}

/// The end of the audit chain of a connection that writes (`chain_head`).
#[derive(Clone, Copy)]
pub(crate) struct AuditChain {
    pub(crate) writer: WriterId,
    /// The end with the rows that this transaction has added. `None` before the first row, and after a commit that failed: it may
    /// have been made or not.
    pub(super) head: Option<ChainHead>,
    /// The end in the database.
    pub(super) stored: Option<ChainHead>,
}

impl AuditChain {
    pub(crate) fn new(writer: WriterId) -> Self {
        Self { writer, head: None, stored: None }
    }

    /// The head must be read again.
    pub(crate) fn forget(&mut self) {
        *self = Self::new(self.writer);
    }
}

/// A transaction. Statements run on it one after another, and block the thread.
pub(crate) struct Tx<'tx> {
    driver: Driver<'tx>,
    pub(super) chain: AuditChain,
    failure: Option<QueryError>,
    /// How long a statement may run.
    limit: Duration,
}

impl<'tx> Tx<'tx> {
    pub(super) fn new(driver: Driver<'tx>, chain: AuditChain, limit: Duration) -> Self {
        Self { driver, chain, failure: None, limit }
    }

    /// Statements without a transaction, or in one that the caller begins and commits. It adds no audit rows.
    pub(crate) fn outside(driver: Driver<'tx>) -> Self {
        Self::new(driver, AuditChain::new(WriterId(0)), STATEMENT_TIMEOUT)
    }

    pub(crate) fn dialect(&self) -> Dialect {
        match self.driver {
            Driver::Sqlite(_) => Dialect::Sqlite,
            Driver::Postgres(_) => Dialect::Postgres,
        }
    }

    pub(crate) fn driver(&mut self) -> &mut Driver<'tx> {
        &mut self.driver
    }

    /// Runs statements without parameters, one or several.
    pub(crate) fn batch(&mut self, sql: &str) -> Result<(), QueryError> {
        let outcome = match &mut self.driver {
            Driver::Sqlite(connection) => connection.execute_batch(sql).map_err(QueryError::from),
            Driver::Postgres(session) => session.batch(sql),
        };
        self.checked(outcome)
    }

    /// Returns the outcome, and remembers a failure: a step that overlooks it must not be committed.
    pub(crate) fn checked<T>(&mut self, outcome: Result<T, QueryError>) -> Result<T, QueryError> {
        outcome.map_err(|error| {
            let error =
                if is_interrupted(&error) { QueryError::TimedOut { limit: self.limit } } else { error };
            self.failure.get_or_insert_with(|| error.clone());
            error
        })
    }

    /// The first failure of a statement.
    pub(super) fn failure(&self) -> Option<&QueryError> {
        self.failure.as_ref()
    }
}
