//! The ledger's rows and the hash chains that their writers link them into. Rows are only ever added, and only by the
//! `LedgerWriter`; they are read to verify them, and what people ask for is answered from the sums by day (`day_sums`).

use crate::DbError;
use crate::db::Db;
use crate::db::{Conn, FromRow, Row, corrupt, query};
use crate::ledger::batch::stored_count;
use crate::ledger::day_sums;
use crate::ledger::writer::LedgerWriter;
use crate::{ChainedRow, DayUsage, LedgerError, Settlement, UsageQuery, UsageSum};
use chancery_domain::{
    AccountId, ChainHash, ChainHead, HowEnded, KeyId, Nanos, Prices, RequestId, TokenPrice, UsageRow,
    WriterId,
};
use std::sync::Arc;

pub(crate) const ROW: &str = "SELECT * FROM ledger WHERE request_id = $1";

const HEAD: &str = "SELECT row_count, head FROM ledger_writers WHERE id = $1";

/// Changes nothing where the chain ends elsewhere than at $2 and $3.
pub(crate) const SET_HEAD: &str = "INSERT INTO ledger_writers (id, row_count, head) VALUES ($1, $4, $5) \
    ON CONFLICT (id) DO UPDATE SET row_count = excluded.row_count, head = excluded.head \
    WHERE ledger_writers.row_count = $2 AND ledger_writers.head = $3";

const PAGE: &str = "SELECT * FROM ledger WHERE request_id > $1 ORDER BY request_id LIMIT $2";

/// Two rows may stand at one place only where somebody put them there, but then none of them must be missed.
const CHAIN_PAGE: &str = "SELECT * FROM ledger WHERE writer_id = $1 AND (place, request_id) > ($2, $3) \
    ORDER BY place, request_id LIMIT $4";

/// Of those that have rows and those that have an end, which should be the same.
const NEXT_WRITER: &str = "SELECT MIN(id) FROM (SELECT MIN(writer_id) AS id FROM ledger WHERE writer_id > $1 \
    UNION ALL SELECT MIN(id) FROM ledger_writers WHERE id > $1) AS next";

impl FromRow for UsageRow {
    const NAMED_BY: Option<&'static str> = Some("request_id");

    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let request_id: String = row.get("request_id")?;
        let corrupt = |what, found: String| corrupt(what, format!("request {request_id} has {found}"));
        let tokens = |column: &str| {
            let stored: i64 = row.get(column)?;
            u32::try_from(stored).map_err(|_| corrupt("a token count", stored.to_string()))
        };
        let (input_tokens, output_tokens) = (tokens("input_tokens")?, tokens("output_tokens")?);
        let ended: String = row.get("ended")?;
        let ended = HowEnded::from_stored(&ended)
            .ok_or_else(|| corrupt("how a request ended", format!("{ended:?}")))?;
        Ok(Self {
            account: AccountId(row.get("account_id")?),
            key: KeyId(row.get("key_id")?),
            model: row.get("model")?,
            input_tokens,
            output_tokens,
            prices: Prices::from_row(row)?,
            cost: Nanos(row.get("cost_nanos")?),
            at: row.time("at_ms")?,
            ended,
            request_id: RequestId::from_stored(request_id),
        })
    }
}

/// Taken as they stand: the rule about prices may change, what was charged may not.
impl FromRow for Prices {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let price = |column: &str| row.get(column).map(TokenPrice::from_nanos_per_token);
        Ok(Self { input: price("input_price_nanos")?, output: price("output_price_nanos")? })
    }
}

impl FromRow for ChainedRow {
    const NAMED_BY: Option<&'static str> = Some("request_id");

    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self { place: row.count("place")?, hash: chain_hash(row, "hash")?, row: UsageRow::from_row(row)? })
    }
}

impl FromRow for ChainHead {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self { rows: row.count("row_count")?, hash: chain_hash(row, "head")? })
    }
}

fn chain_hash(row: &Row, column: &str) -> Result<ChainHash, sqlx::Error> {
    let stored: Vec<u8> = row.get(column)?;
    stored.try_into().map(ChainHash).map_err(|bytes: Vec<u8>| {
        corrupt("a hash of the ledger's chain", format!("it has {} bytes instead of 32", bytes.len()))
    })
}

pub(crate) async fn read_row(
    conn: &mut Conn<'_>,
    request: &RequestId,
) -> Result<Option<UsageRow>, sqlx::Error> {
    query(ROW).bind(request.as_str()).fetch_optional(conn).await
}

/// Where there is none, the chain is still to begin.
pub(crate) async fn read_head(
    conn: &mut Conn<'_>,
    writer: WriterId,
) -> Result<Option<ChainHead>, sqlx::Error> {
    query(HEAD).bind(writer.0).fetch_optional(conn).await
}

/// What was used: settled once for each request, and summed.
#[derive(Clone)]
pub struct Ledger {
    pub(crate) db: Db,
    pub(crate) writer: Arc<LedgerWriter>,
}

impl Ledger {
    /// Returns once the row is on disk, together with its place in this process's chain and what it adds to the sums of
    /// its day. Rows that come in together share one commit. Settling the same row again changes nothing; the same
    /// request with other values is `RequestAlreadyBilled`, and a row whose cost is not its tokens times its prices,
    /// whose account or key is unknown, or whose day's sum would be too large is `LedgerRefused`; one of a month that is
    /// invoiced is `MonthInvoiced`.
    ///
    /// What the request had set aside of its account's cap is given back in the same transaction; where that is gone,
    /// nothing is written, and that is `ReservationGone`. So is the reply kept under the key that the request claimed;
    /// where the key is no longer its own, nothing is written, and that is `ClaimGone`.
    ///
    /// After `Unavailable` nobody knows whether the row was written; settling it again is safe. Dropping the future
    /// leaves the row to be written, unless the queue was still full: then it was never handed over.
    pub async fn settle(&self, settlement: Settlement) -> Result<(), LedgerError> {
        self.writer.settle(settlement).await
    }

    /// Sums, in the order of their groups, from what is kept by day. A sum too large to be exact is `SumTooLarge`.
    pub async fn usage(&self, query: UsageQuery) -> Result<Vec<UsageSum>, LedgerError> {
        let sums = self.db.long_snapshot(&query, |conn, query| {
            Box::pin(async move { Ok(day_sums::usage_sums(conn, query).await?) })
        });
        sums.await
    }
}

/// The ledger as hash chains and sums by day, for `verify`.
#[derive(Clone)]
pub struct LedgerChains {
    pub(crate) db: Db,
}

impl LedgerChains {
    /// The whole ledger in order of request id, a page at a time: up to `limit` rows after the given one. Like the
    /// methods below it may take minutes on a long ledger, and keeps no other call waiting.
    pub async fn ledger_rows(&self, after: Option<&RequestId>, limit: u32) -> Result<Vec<UsageRow>, DbError> {
        // No request id is empty, so the empty text comes before them all.
        let after = after.map_or("", RequestId::as_str);
        Ok(self.db.long_fetch_all(query(PAGE).bind(after).bind(i64::from(limit))).await?)
    }

    /// The writer with the next higher number that has rows or an end.
    pub async fn writer_after(&self, writer: Option<WriterId>) -> Result<Option<WriterId>, DbError> {
        let after = writer.map_or(i64::MIN, |writer| writer.0);
        let next: Vec<Option<i64>> = self.db.long_fetch_all(query(NEXT_WRITER).bind(after)).await?;
        Ok(next.into_iter().next().flatten().map(WriterId))
    }

    /// Where the writer's chain is said to end.
    pub async fn chain_head(&self, writer: WriterId) -> Result<Option<ChainHead>, DbError> {
        Ok(self.db.fetch_optional(query(HEAD).bind(writer.0)).await?)
    }

    /// One writer's rows in order of their places, a page at a time: up to `limit` rows after the given one.
    pub async fn chained_rows(
        &self,
        writer: WriterId,
        after: Option<&ChainedRow>,
        limit: u32,
    ) -> Result<Vec<ChainedRow>, DbError> {
        let (place, request) =
            after.map_or((-1, ""), |last| (stored_count(last.place), last.row.request_id.as_str()));
        let page = query(CHAIN_PAGE).bind(writer.0).bind(place).bind(request).bind(i64::from(limit));
        Ok(self.db.long_fetch_all(page).await?)
    }

    /// The sums that are kept by day, a page at a time: up to `limit` after the given one.
    pub async fn day_usage(&self, after: Option<&DayUsage>, limit: u32) -> Result<Vec<DayUsage>, DbError> {
        Ok(self.db.long_fetch_all(day_sums::page(after, limit)).await?)
    }
}
