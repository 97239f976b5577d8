//! The ledger's rows and the hash chains of their writers. Only `LedgerWriter` adds rows, and none are changed. They
//! are read only for verification; reports use the sums by day (`daily_usage`).

use crate::DbError;
use crate::db::{Db, FromRow, QueryError, Row, Tx, corrupt, from_row, query};
use crate::ledger::batch::to_db_count;
use crate::ledger::daily_usage;
use crate::ledger::writer::LedgerWriter;
use crate::{ChainedRow, DailyUsage, LedgerError, Settlement, UsageQuery, UsageSum};
use chancery_domain::{ChainHash, ChainHead, Prices, RequestId, StopReason, UsageRow, WriterId};
use std::sync::Arc;

pub(crate) const ROW: &str = "SELECT * FROM ledger WHERE request_id = $1";

const HEAD: &str = "SELECT row_count, head FROM ledger_writers WHERE id = $1";

/// Changes nothing unless the stored head has row count `$2` and hash `$3`.
pub(crate) const SET_HEAD: &str = "INSERT INTO ledger_writers (id, row_count, head) VALUES ($1, $4, $5) \
    ON CONFLICT (id) DO UPDATE SET row_count = excluded.row_count, head = excluded.head \
    WHERE ledger_writers.row_count = $2 AND ledger_writers.head = $3";

const PAGE: &str = "SELECT * FROM ledger WHERE request_id > $1 ORDER BY request_id LIMIT $2";

/// Only tampering can give two rows the same position, but then none of them must be skipped.
const CHAIN_PAGE: &str = "SELECT * FROM ledger WHERE writer_id = $1 AND (position, request_id) > ($2, $3) \
    ORDER BY position, request_id LIMIT $4";

/// From the writers with rows and those with a chain head, which should be the same.
const NEXT_WRITER: &str = "SELECT MIN(id) FROM (SELECT MIN(writer_id) AS id FROM ledger WHERE writer_id > $1 \
    UNION ALL SELECT MIN(id) FROM ledger_writers WHERE id > $1) AS next";

impl FromRow for UsageRow {
    const ROW_LABEL_COLUMN: Option<&'static str> = Some("request_id");

    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let request_id: String = row.get("request_id")?;
        let corrupt = |what, found: String| corrupt(what, format!("request {request_id} has {found}"));
        let tokens = |column: &str| {
            let stored: i64 = row.get(column)?;
            u32::try_from(stored).map_err(|_| corrupt("a token count", stored.to_string()))
        };
        let (input_tokens, cached_input_tokens) = (tokens("input_tokens")?, tokens("cached_input_tokens")?);
        let output_tokens = tokens("output_tokens")?;
        let stop_reason: String = row.get("stop_reason")?;
        let stop_reason = StopReason::from_stored(&stop_reason)
            .ok_or_else(|| corrupt("a stop reason", format!("{stop_reason:?}")))?;
        Ok(Self {
            account: row.get("account_id")?,
            key: row.get("key_id")?,
            model: row.get("model")?,
            input_tokens,
            cached_input_tokens,
            output_tokens,
            prices: Prices::from_row(row)?,
            cost: row.get("cost_nanos")?,
            at: row.get("at_ms")?,
            stop_reason,
            request_id: RequestId::from_stored(request_id),
        })
    }
}

// Prices are not validated: the rules may change, but what was charged may not.
from_row!(Prices {
    input: "input_price_nanos",
    cached_input: "cached_price_nanos",
    output: "output_price_nanos"
});

impl FromRow for ChainedRow {
    const ROW_LABEL_COLUMN: Option<&'static str> = Some("request_id");

    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let hash = chain_hash(row, "hash")?;
        Ok(Self { position: row.get("position")?, hash, row: UsageRow::from_row(row)? })
    }
}

impl FromRow for ChainHead {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        Ok(Self { rows: row.get("row_count")?, hash: chain_hash(row, "head")? })
    }
}

fn chain_hash(row: &Row<'_>, column: &str) -> Result<ChainHash, QueryError> {
    row.hash(column, "a hash of the ledger's chain").map(ChainHash)
}

pub(crate) fn read_row(tx: &mut Tx<'_>, request: &RequestId) -> Result<Option<UsageRow>, QueryError> {
    query(ROW).bind(request.as_str()).fetch_optional(tx)
}

/// `None` if the chain has not begun.
pub(crate) fn read_head(tx: &mut Tx<'_>, writer: WriterId) -> Result<Option<ChainHead>, QueryError> {
    query(HEAD).bind(writer.0).fetch_optional(tx)
}

/// Usage: settled once per request, and summed by day.
#[derive(Clone)]
pub struct Ledger {
    pub(crate) db: Db,
    pub(crate) writer: Arc<LedgerWriter>,
}

impl Ledger {
    /// Returns once the row is on disk, with its link in this process's chain and its share of the day's sums.
    /// Concurrent rows share one commit. Settling the same row again changes nothing. The same request with other
    /// values is `RequestAlreadyBilled`. A row is `RowRejected` if its cost is not tokens times prices, its account
    /// or key is unknown, or the day's sum would overflow. A row of an invoiced month is `MonthInvoiced`.
    ///
    /// The same transaction releases the request's spending reservation; if that is gone, nothing is written, and the
    /// result is `ReservationLost`. It also stores the reply under the idempotency key that the request claimed; if the
    /// request no longer holds the key, nothing is written, and the result is `ClaimLost`.
    ///
    /// After `Unavailable` it is unknown whether the row was written; settling it again is safe. If the future is
    /// dropped, the row is still written, unless the queue was full: then it was never queued.
    pub async fn settle(&self, settlement: Settlement) -> Result<(), LedgerError> {
        self.writer.settle(settlement).await
    }

    /// Whether settlements can be written: writes as much as they do, through their writer, and deletes it again.
    pub async fn probe_write(&self) -> Result<(), LedgerError> {
        self.writer.probe_write().await
    }

    /// Sums in group order, from the sums by day. `SumTooLarge` if a sum overflows.
    pub async fn usage(&self, query: UsageQuery) -> Result<Vec<UsageSum>, LedgerError> {
        self.db.read_report(move |tx| Ok(daily_usage::usage_sums(tx, &query)?)).await
    }
}

/// The ledger as hash chains and sums by day, for `verify`.
#[derive(Clone)]
pub struct LedgerChains {
    pub(crate) db: Db,
}

impl LedgerChains {
    /// The whole ledger by request id, paginated: up to `limit` rows after the given one. Like the methods below, it
    /// may take minutes on a long ledger and does not delay other calls.
    pub async fn ledger_rows(&self, after: Option<&RequestId>, limit: u32) -> Result<Vec<UsageRow>, DbError> {
        // No request id is empty, so the empty text sorts before all of them.
        let after = after.map_or("", RequestId::as_str);
        Ok(self.db.fetch_report(query(PAGE).bind(after).bind(i64::from(limit))).await?)
    }

    /// The writer with the next higher id that has rows or a chain head.
    pub async fn next_writer(&self, writer: Option<WriterId>) -> Result<Option<WriterId>, DbError> {
        let after = writer.map_or(i64::MIN, |writer| writer.0);
        let next: Vec<Option<i64>> = self.db.fetch_report(query(NEXT_WRITER).bind(after)).await?;
        Ok(next.into_iter().next().flatten().map(WriterId))
    }

    /// The stored head of the writer's chain.
    pub async fn chain_head(&self, writer: WriterId) -> Result<Option<ChainHead>, DbError> {
        Ok(self.db.fetch_optional(query(HEAD).bind(writer.0)).await?)
    }

    /// One writer's rows in chain order, paginated: up to `limit` rows after the given one.
    pub async fn chained_rows(
        &self,
        writer: WriterId,
        after: Option<&ChainedRow>,
        limit: u32,
    ) -> Result<Vec<ChainedRow>, DbError> {
        let (position, request) =
            after.map_or((-1, ""), |last| (to_db_count(last.position), last.row.request_id.as_str()));
        let page = query(CHAIN_PAGE).bind(writer.0).bind(position).bind(request).bind(i64::from(limit));
        Ok(self.db.fetch_report(page).await?)
    }

    /// The sums by day, paginated: up to `limit` after the given one.
    pub async fn daily_usage(
        &self,
        after: Option<&DailyUsage>,
        limit: u32,
    ) -> Result<Vec<DailyUsage>, DbError> {
        Ok(self.db.fetch_report(daily_usage::page(after, limit)).await?)
    }
}
