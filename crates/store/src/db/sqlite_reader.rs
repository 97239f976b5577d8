//! A thread that reads a SQLite file. Each step sees one snapshot.

use super::error_codes::QueryError;
use super::sqlite::{StatementTimer, open_reader};
use super::threads::{Access, Queue, WaitingJob};
use super::tx::{AuditChain, Driver, Tx};
use chancery_domain::WriterId;
use rusqlite::Connection;
use std::path::Path;

/// Runs the queue's jobs until it is closed. The connection is opened for the first one.
pub(super) fn read(file: &Path, queue: &Queue) {
    let mut open: Option<(Connection, StatementTimer)> = None;
    while let Some(mut waiting) = queue.take() {
        if waiting.job.is_abandoned() {
            continue;
        }
        let (connection, timer) = match open.take().map_or_else(|| connect(file), Ok) {
            Ok(opened) => opened,
            Err(error) => {
                waiting.answer(Some(error));
                continue;
            }
        };
        timer.start(waiting.limit);
        let failure = run(&connection, &mut waiting).err();
        timer.stop();
        waiting.answer(failure);
        // A transaction that could not be ended ends with its connection.
        if connection.is_autocommit() {
            open = Some((connection, timer));
        }
    }
}

fn connect(file: &Path) -> Result<(Connection, StatementTimer), QueryError> {
    let connection = open_reader(file)?;
    let timer = StatementTimer::of(&connection)?;
    Ok((connection, timer))
}

fn run(connection: &Connection, waiting: &mut WaitingJob) -> Result<(), QueryError> {
    // A single statement sees one snapshot anyway.
    let is_transaction = waiting.access != Access::Statement;
    if is_transaction {
        connection.prepare_cached("BEGIN")?.execute([])?;
    }
    let mut tx = Tx::new(Driver::Sqlite(connection), AuditChain::new(WriterId(0)), waiting.limit);
    waiting.job.run(&mut tx);
    if is_transaction {
        connection.prepare_cached("COMMIT")?.execute([])?;
    }
    Ok(())
}
