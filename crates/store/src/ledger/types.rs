//! The ledger as the rest of Chancery sees it.

use crate::{DayUsage, StoreError, UsageQuery, UsageSum, UsageTotals};
use async_trait::async_trait;
use chancery_domain::{
    Account, AccountId, AccountName, ChainHash, ChainHead, Day, IdempotencyKey, KeyId, KeyPrefix, Month,
    RequestId, UnixMillis, UsageRow, WriterId,
};
use chancery_policy::{Permit, ReadUsage};

/// A row of the ledger with its place in its writer's chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainedRow {
    pub row: UsageRow,
    /// The first is 0.
    pub place: u64,
    pub hash: ChainHash,
}

/// What becomes durable together when a request has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    pub row: UsageRow,
    /// Whether the request set something aside with `reserve_spending`.
    pub is_reserved: bool,
    /// What to keep of the reply, where the request claimed an idempotency key.
    pub kept: Option<KeptReply>,
}

/// What to keep under a key of the row's account, beside what the row says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptReply {
    pub key: IdempotencyKey,
    pub output_text: String,
    pub cached_tokens: u32,
    pub expires_at: UnixMillis,
}

/// A row and nothing else.
impl From<UsageRow> for Settlement {
    fn from(row: UsageRow) -> Self {
        Self { row, is_reserved: false, kept: None }
    }
}

#[async_trait]
pub trait Ledger: Send + Sync + 'static {
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
    async fn settle(&self, settlement: Settlement) -> Result<(), StoreError>;

    /// Sums, in the order of their groups, from what is kept by day. A sum too large to be exact is `SumTooLarge`.
    async fn usage(&self, query: UsageQuery) -> Result<Vec<UsageSum>, StoreError>;

    /// The whole ledger in order of request id, a page at a time: up to `limit` rows after the given one. Like the
    /// methods below it may take minutes on a long ledger, and keeps no other call waiting.
    async fn ledger_rows(&self, after: Option<&RequestId>, limit: u32) -> Result<Vec<UsageRow>, StoreError>;

    /// The writer with the next higher number that has rows or an end.
    async fn writer_after(&self, writer: Option<WriterId>) -> Result<Option<WriterId>, StoreError>;

    /// Where the writer's chain is said to end.
    async fn chain_head(&self, writer: WriterId) -> Result<Option<ChainHead>, StoreError>;

    /// One writer's rows in order of their places, a page at a time: up to `limit` rows after the given one.
    async fn chained_rows(
        &self,
        writer: WriterId,
        after: Option<&ChainedRow>,
        limit: u32,
    ) -> Result<Vec<ChainedRow>, StoreError>;

    /// The sums that are kept by day, a page at a time: up to `limit` after the given one.
    async fn day_usage(&self, after: Option<&DayUsage>, limit: u32) -> Result<Vec<DayUsage>, StoreError>;
}

/// The ledger's months, where each has a place of its own.
#[async_trait]
pub trait Months: Send + Sync + 'static {
    /// Makes the places for the rows of this month and the next, so that nobody who settles waits for it, and moves
    /// rows there that came before. To be called every few minutes; it writes only when something is missing.
    async fn make_months_ready(&self, now: UnixMillis) -> Result<(), StoreError>;
}

/// Keys, and accounts, of a month's report: those that have spent most.
pub const MAX_USAGE_LINES: u32 = 200;

/// Lines of activity that are noted together: many enough for one round trip in nearly all cases, few enough that nobody waits for
/// them, and far below the bound on parameters of both databases.
pub const ACTIVITY_LINES_AT_ONCE: usize = 500;

/// Requests of one key that were refused on one day, by the code that the caller got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedDay {
    /// None: the key billed no account.
    pub account: Option<AccountId>,
    pub day: Day,
    pub key: KeyId,
    /// `rate_limited`, `no_billing_account` or `spending_cap_reached`.
    pub code: String,
    pub refusals: u64,
    pub last_at: UnixMillis,
}

/// Requests that were refused on one day, by the code that their callers got: of all keys together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedOnDay {
    pub day: Day,
    pub code: String,
    pub refusals: u64,
    pub last_at: UnixMillis,
}

/// The busiest sixty seconds of an account's day, as the limits saw them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeakDay {
    pub account: AccountId,
    pub day: Day,
    pub requests: u64,
    pub requests_at: UnixMillis,
    pub tokens: u64,
    pub tokens_at: UnixMillis,
}

/// What to show of a month; of one account, or of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageMonth {
    pub account: Option<AccountId>,
    pub month: Month,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUsage {
    pub prefix: KeyPrefix,
    pub label: String,
    pub totals: UsageTotals,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountUsage {
    pub account: AccountId,
    pub name: AccountName,
    pub totals: UsageTotals,
}

/// Everything that the page about usage shows, from sums and never from the ledger's rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageReport {
    /// The account that was asked for.
    pub account: Option<Account>,
    /// By name, up to `MAX_ACCOUNTS_OFFERED`, to choose from; the one that was asked for among them, wherever it stands.
    pub accounts: Vec<Account>,
    /// How many more there are.
    pub accounts_left_out: u64,
    /// The first month in which anything was used, by whomever.
    pub first_month: Option<Month>,
    /// Days with usage, in order.
    pub days: Vec<UsageSum>,
    /// By model.
    pub models: Vec<UsageSum>,
    /// By prefix; of more than `MAX_USAGE_LINES` those that have spent most.
    pub keys: Vec<KeyUsage>,
    /// By name; of more than `MAX_USAGE_LINES` those that have spent most. Only where all accounts are asked for.
    pub by_account: Vec<AccountUsage>,
    /// Of the month before, for comparison: all of it.
    pub previous: UsageTotals,
    /// In the order of days and codes.
    pub refusals: Vec<RefusedOnDay>,
    /// Days with a peak, in order. Only where one account is asked for.
    pub peaks: Vec<PeakDay>,
}

#[async_trait]
pub trait UsageReports: Send + Sync + 'static {
    /// `NoSuchAccountId`.
    async fn read_usage(
        &self,
        permit: Permit<ReadUsage>,
        query: UsageMonth,
    ) -> Result<UsageReport, StoreError>;

    /// Adds refusals to those of their days, and raises the peaks of theirs. Counts for people to read: what a process that dies
    /// had not noted yet is lost. One step, all of it or nothing: whoever has more than `ACTIVITY_LINES_AT_ONCE` takes several.
    async fn note_activity(&self, refused: &[RefusedDay], peaks: &[PeakDay]) -> Result<(), StoreError>;
}
