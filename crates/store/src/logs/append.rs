//! Appends to the Merkle logs. Only the checkpointer does, after the rows were committed, so nothing here is on the path of a
//! settlement.

use crate::DbError;
use crate::db::{COMMAND_RETRY_LIMIT, Db, Dialect, QueryError, Statement, Tx, from_row, query};
use crate::ledger::batch::to_db_count;
use crate::logs::types::{LogAppend, UnloggedRows};
use chancery_domain::{LogName, UnixMillis};

/// Rows per INSERT, far below both databases' parameter limits.
const MAX_ROWS_PER_STATEMENT: usize = 500;

/// An index finds the last segment of each writer.
const UNLOGGED_LEDGER: &str = "SELECT id, row_count, logged FROM ( \
        SELECT w.id, w.row_count, COALESCE((SELECT s.first_position + s.row_count FROM log_segments s \
            WHERE s.log = 'ledger' AND s.writer_id = w.id ORDER BY s.first_position DESC LIMIT 1), 0) AS logged \
        FROM ledger_writers w \
    ) AS writers WHERE row_count > logged ORDER BY id LIMIT $1";
const UNLOGGED_AUDIT: &str = "SELECT id, row_count, logged FROM ( \
        SELECT w.id, w.row_count, COALESCE((SELECT s.first_position + s.row_count FROM log_segments s \
            WHERE s.log = 'audit' AND s.writer_id = w.id ORDER BY s.first_position DESC LIMIT 1), 0) AS logged \
        FROM audit_writers w \
    ) AS writers WHERE row_count > logged ORDER BY id LIMIT $1";

pub(crate) const SIZE: &str = "SELECT first_index + row_count FROM log_segments WHERE log = $1 \
    ORDER BY first_index DESC LIMIT 1";

/// Makes concurrent checkpointers append one after another. SQLite has one writer anyway.
const LOCK_POSTGRES: &str = "LOCK TABLE log_segments IN EXCLUSIVE MODE";

const RECORD_CHECKPOINT: &str = "INSERT INTO log_checkpoints (log, size, note, at_ms) VALUES ($1, $2, $3, $4) \
    ON CONFLICT (log, size) DO NOTHING";

from_row!(UnloggedRows { writer: "id", logged, rows: "row_count" });

fn append(tx: &mut Tx<'_>, append: &LogAppend) -> Result<bool, QueryError> {
    let log = append.log.as_str();
    if tx.dialect() == Dialect::Postgres {
        query(LOCK_POSTGRES).execute(tx)?;
    }
    let size: Option<i64> = query(SIZE).bind(log).fetch_optional(tx)?;
    if size.unwrap_or(0) != to_db_count(append.size) {
        return Ok(false);
    }
    for segments in append.segments.chunks(MAX_ROWS_PER_STATEMENT) {
        let mut add = Statement::new(
            "INSERT INTO log_segments (log, first_index, writer_id, first_position, row_count) ",
        );
        add.push_values(segments, |segment| {
            [
                log.into(),
                to_db_count(segment.first_index).into(),
                segment.writer.0.into(),
                to_db_count(segment.first_position).into(),
                to_db_count(segment.rows).into(),
            ]
        });
        add.build().persistent(false).execute(tx)?;
    }
    for nodes in append.nodes.chunks(MAX_ROWS_PER_STATEMENT) {
        let mut add = Statement::new("INSERT INTO log_nodes (log, level, node_index, hash) ");
        add.push_values(nodes, |node| {
            [
                log.into(),
                i64::from(node.level).into(),
                to_db_count(node.index).into(),
                node.hash.0.to_vec().into(),
            ]
        });
        add.build().persistent(false).execute(tx)?;
    }
    Ok(true)
}

/// Adds rows and checkpoints to the logs.
#[derive(Clone)]
pub struct LogWriter {
    pub(crate) db: Db,
}

impl LogWriter {
    /// Up to `limit` writers with rows that are not in the log.
    pub async fn unlogged_rows(&self, log: LogName, limit: u32) -> Result<Vec<UnloggedRows>, DbError> {
        let sql = match log {
            LogName::Ledger => UNLOGGED_LEDGER,
            LogName::Audit => UNLOGGED_AUDIT,
        };
        Ok(self.db.fetch_report(query(sql).bind(i64::from(limit))).await?)
    }

    /// Appends to the log, unless it no longer has the size that the caller saw. Returns whether it did.
    pub async fn append_to_log(&self, addition: &LogAppend) -> Result<bool, DbError> {
        let addition = addition.clone();
        Ok(self.db.write(move |tx| append(tx, &addition)).await?)
    }

    /// Stores a checkpoint that was signed. One that is stored for this size stays.
    pub async fn record_checkpoint(
        &self,
        log: LogName,
        size: u64,
        note: &str,
        at: UnixMillis,
    ) -> Result<(), DbError> {
        let record =
            query(RECORD_CHECKPOINT).bind(log.as_str()).bind(to_db_count(size)).bind(note).bind(at.0);
        self.db.execute(record, COMMAND_RETRY_LIMIT).await?;
        Ok(())
    }
}
