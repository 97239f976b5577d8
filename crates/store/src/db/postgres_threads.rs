//! Threads that each own a connection to PostgreSQL and run steps on it, one transaction each. A transaction that conflicted with
//! another node's runs again. Each thread writes an audit chain of its own: with one chain for all, each step would wait until the
//! one before is on the server's disk.

use super::error_codes::{QueryError, is_connection_lost, is_transaction_rollback};
use super::postgres::PostgresOptions;
use super::postgres_session::PostgresSession;
use super::threads::{Access, Queue, WaitingJob};
use super::tx::{AuditChain, Driver, Tx};
use chancery_domain::{OsRandomness, WriterId};
use std::time::Duration;

/// How often PostgreSQL may roll back one transaction because of conflicts with other nodes.
const MAX_CONFLICT_RETRIES: u32 = 5;

/// One snapshot for several reads: concurrent writes are in none of them.
const BEGIN_READ: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY";

/// Runs the queue's jobs until it is closed. It connects for the first one, and again after a connection was lost.
pub(super) fn run(options: &PostgresOptions, statement_timeout: Duration, queue: &Queue) {
    let mut thread = PostgresThread {
        options,
        statement_timeout,
        session: None,
        chain: AuditChain::new(WriterId::random(&OsRandomness)),
    };
    while let Some(waiting) = queue.take() {
        if !waiting.job.is_abandoned() {
            thread.run(waiting);
        }
    }
}

struct PostgresThread<'a> {
    options: &'a PostgresOptions,
    statement_timeout: Duration,
    session: Option<PostgresSession>,
    chain: AuditChain,
}

/// Why an attempt failed.
enum Failed {
    /// Nothing was committed.
    Before(QueryError),
    /// Perhaps something was.
    AtCommit(QueryError),
}

impl PostgresThread<'_> {
    fn run(&mut self, mut waiting: WaitingJob) {
        let (mut conflicts, mut has_reconnected) = (0, self.session.is_none());
        loop {
            let failed = match self.attempt(&mut waiting) {
                Ok(()) => {
                    let is_read = waiting.access == Access::Snapshot;
                    waiting.answer(None);
                    // The caller need not wait for the end of its snapshot.
                    if is_read {
                        self.end_transaction("COMMIT");
                    }
                    return;
                }
                Err(failed) => failed,
            };
            self.chain.forget();
            let (error, may_retry) = match failed {
                Failed::Before(error) => (error, true),
                Failed::AtCommit(error) => {
                    if is_connection_lost(&error) {
                        // The server may still be committing rows of the chain. Another one need not wait for them.
                        self.chain = AuditChain::new(WriterId::random(&OsRandomness));
                    }
                    let is_rolled_back = is_transaction_rollback(&error);
                    (error, is_rolled_back)
                }
            };
            if is_connection_lost(&error) {
                self.session = None;
                // An idle connection may be long gone, as after a restart of the server.
                if may_retry && !has_reconnected && !matches!(error, QueryError::TimedOut { .. }) {
                    has_reconnected = true;
                    continue;
                }
            }
            if may_retry && is_transaction_rollback(&error) && conflicts < MAX_CONFLICT_RETRIES {
                conflicts += 1;
                continue;
            }
            return waiting.answer(Some(error));
        }
    }

    /// One transaction. An error of the step itself is no failure: the caller gets it.
    fn attempt(&mut self, waiting: &mut WaitingJob) -> Result<(), Failed> {
        let session = match &mut self.session {
            Some(session) => session,
            None => {
                let connected = PostgresSession::connect(self.options, self.statement_timeout);
                self.session.insert(connected.map_err(Failed::Before)?)
            }
        };
        match waiting.access {
            Access::Statement => {}
            Access::Snapshot => session.post(BEGIN_READ),
            Access::Write => session.post("BEGIN"),
        }
        let mut tx = Tx::new(Driver::Postgres(session), self.chain, waiting.limit);
        let is_kept = waiting.job.run(&mut tx);
        if let Some(failure) = tx.failure().cloned() {
            let is_lost = is_connection_lost(&failure);
            let is_retryable = is_lost || is_transaction_rollback(&failure);
            // The caller closes a connection that is lost.
            if !is_lost {
                self.end_transaction("ROLLBACK");
            }
            // Other failures are the step's result, unless it overlooked them.
            return if is_kept || is_retryable { Err(Failed::Before(failure)) } else { Ok(()) };
        }
        if waiting.access != Access::Write {
            return Ok(());
        }
        if !is_kept {
            self.end_transaction("ROLLBACK");
            return Ok(());
        }
        if let Err(error) = tx.save_chain_head() {
            self.end_transaction("ROLLBACK");
            return Err(Failed::Before(error));
        }
        let chain = tx.chain;
        session.batch("COMMIT").map_err(Failed::AtCommit)?;
        self.chain = chain;
        Ok(())
    }

    /// A session that cannot end its transaction is closed, which ends it.
    fn end_transaction(&mut self, command: &str) {
        if let Some(session) = &mut self.session
            && session.batch(command).is_err()
        {
            self.session = None;
        }
    }
}
