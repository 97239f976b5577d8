//! Reads of the Merkle logs, for proofs and for `verify`.

use crate::DbError;
use crate::audit::types::ChainedAuditRow;
use crate::db::{Db, FromRow, QueryError, Row, corrupt, from_row, query};
use crate::ledger::batch::to_db_count;
use crate::ledger::types::ChainedRow;
use crate::logs::append::SIZE;
use crate::logs::types::{LogLeaf, LogSegment, LoggedUsage, StoredCheckpoint};
use chancery_domain::{LogName, RequestId, TreeHash, UsageRow, WriterId, leaf_hash};
use std::ops::Range;

/// Only tampering can give two rows the same position, but then both are read.
const LEDGER_LEAVES: &str = "SELECT * FROM ledger WHERE writer_id = $1 AND position >= $2 AND position < $3 \
    ORDER BY position, request_id LIMIT $4";
const AUDIT_LEAVES: &str = "SELECT * FROM audit_rows WHERE writer_id = $1 AND position >= $2 AND position < $3 \
    ORDER BY position, id LIMIT $4";

/// From the segment that has the leaf `$2` on.
const SEGMENTS: &str = "SELECT first_index, writer_id, first_position, row_count FROM log_segments \
    WHERE log = $1 AND first_index >= COALESCE((SELECT MAX(first_index) FROM log_segments \
        WHERE log = $1 AND first_index <= $2), 0) \
    ORDER BY first_index LIMIT $3";

const NODES: &str = "SELECT hash FROM log_nodes WHERE log = $1 AND level = $2 AND node_index >= $3 \
    AND node_index < $4 ORDER BY node_index";

const CHECKPOINTS: &str = "SELECT size, note, at_ms FROM log_checkpoints WHERE log = $1 AND size > $2 \
    ORDER BY size LIMIT $3";

const USAGE: &str = "SELECT l.*, (SELECT s.first_index + l.position - s.first_position FROM log_segments s \
        WHERE s.log = 'ledger' AND s.writer_id = l.writer_id AND s.first_position <= l.position \
        AND s.first_position + s.row_count > l.position ORDER BY s.first_position DESC LIMIT 1) AS leaf_index \
    FROM ledger l WHERE l.request_id = $1";

from_row!(LogSegment { first_index, writer: "writer_id", first_position, rows: "row_count" });

impl FromRow for TreeHash {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        row.hash("hash", "a hash of a log").map(Self)
    }
}

from_row!(StoredCheckpoint { size, note, at: "at_ms" });

impl FromRow for LoggedUsage {
    const ROW_LABEL_COLUMN: Option<&'static str> = UsageRow::ROW_LABEL_COLUMN;

    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let index = row.get::<Option<i64>>("leaf_index")?.map(u64::try_from).transpose();
        let index = index.map_err(|_| corrupt("the index of a leaf", "it is negative"))?;
        Ok(Self { row: UsageRow::from_row(row)?, index })
    }
}

/// Reads the logs.
#[derive(Clone)]
pub struct LogReader {
    pub(crate) db: Db,
}

impl LogReader {
    /// The number of leaves.
    pub async fn log_size(&self, log: LogName) -> Result<u64, DbError> {
        let size: Option<u64> = self.db.fetch_optional(query(SIZE).bind(log.as_str())).await?;
        Ok(size.unwrap_or(0))
    }

    /// The leaves of a writer's rows at these positions, by position. Missing rows are left out; of rows that are there more
    /// than once, at least one too many is read.
    pub async fn log_leaves(
        &self,
        log: LogName,
        writer: WriterId,
        positions: Range<u64>,
    ) -> Result<Vec<LogLeaf>, DbError> {
        let limit = positions.end.saturating_sub(positions.start).saturating_add(1);
        let page = |sql| {
            let page = query(sql).bind(writer.0).bind(to_db_count(positions.start));
            page.bind(to_db_count(positions.end)).bind(to_db_count(limit))
        };
        Ok(match log {
            LogName::Ledger => {
                let rows: Vec<ChainedRow> = self.db.fetch_report(page(LEDGER_LEAVES)).await?;
                let leaf = |row: ChainedRow| LogLeaf { position: row.position, hash: leaf_hash(&row.row) };
                rows.into_iter().map(leaf).collect()
            }
            LogName::Audit => {
                let rows: Vec<ChainedAuditRow> = self.db.fetch_report(page(AUDIT_LEAVES)).await?;
                let leaf =
                    |row: ChainedAuditRow| LogLeaf { position: row.position, hash: leaf_hash(&row.row) };
                rows.into_iter().map(leaf).collect()
            }
        })
    }

    /// Up to `limit` segments in the order of the log, from the one that has this leaf on.
    pub async fn log_segments(
        &self,
        log: LogName,
        index: u64,
        limit: u32,
    ) -> Result<Vec<LogSegment>, DbError> {
        let segments = query(SEGMENTS).bind(log.as_str()).bind(to_db_count(index)).bind(i64::from(limit));
        Ok(self.db.fetch_report(segments).await?)
    }

    /// The stored nodes of a level, by index. Missing ones are left out.
    pub async fn log_nodes(
        &self,
        log: LogName,
        level: u8,
        indexes: Range<u64>,
    ) -> Result<Vec<TreeHash>, DbError> {
        let nodes = query(NODES).bind(log.as_str()).bind(i64::from(level));
        let nodes = nodes.bind(to_db_count(indexes.start)).bind(to_db_count(indexes.end));
        Ok(self.db.fetch_report(nodes).await?)
    }

    /// Up to `limit` checkpoints of trees with more leaves than this, by size.
    pub async fn checkpoints_after(
        &self,
        log: LogName,
        size: u64,
        limit: u32,
    ) -> Result<Vec<StoredCheckpoint>, DbError> {
        let checkpoints =
            query(CHECKPOINTS).bind(log.as_str()).bind(to_db_count(size)).bind(i64::from(limit));
        Ok(self.db.fetch_all(checkpoints).await?)
    }

    /// The usage row of a request.
    pub async fn logged_usage(&self, request: &RequestId) -> Result<Option<LoggedUsage>, DbError> {
        Ok(self.db.fetch_optional(query(USAGE).bind(request.as_str())).await?)
    }
}
