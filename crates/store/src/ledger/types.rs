//! The ledger as the rest of Chancery sees it.

use crate::{UsageSum, UsageTotals};
use chancery_domain::{
    Account, AccountId, AccountName, ChainHash, Day, IdempotencyKey, KeyId, KeyPrefix, Month, UnixMillis,
    UsageRow,
};

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
