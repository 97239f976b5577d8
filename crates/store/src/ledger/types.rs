//! Public types of the ledger.

use crate::{CapRejection, KeyUse, UsageSum, UsageTotals};
use chancery_domain::{
    Account, AccountId, AccountName, ChainHash, Day, IdempotencyKey, KeyId, KeyPrefix, Month, UnixMillis,
    UsageRow,
};

/// A ledger row with its position in its writer's chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainedRow {
    pub row: UsageRow,
    /// Starts at 0.
    pub position: u64,
    pub hash: ChainHash,
}

/// What is written together when a request has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    pub row: UsageRow,
    /// Whether the request reserved spending with `reserve_spending`.
    pub is_reserved: bool,
    /// The reply to store, if the request claimed an idempotency key.
    pub stored_reply: Option<StoredReply>,
}

/// A reply to store under an idempotency key of the row's account, apart from what the row has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredReply {
    pub key: IdempotencyKey,
    /// Empty if the model did not reason.
    pub reasoning_text: String,
    pub output_text: String,
    /// The log probabilities of its tokens, as the caller encodes them; `None` if the request did not ask for them.
    pub logprobs: Option<Vec<u8>>,
    pub reasoning_tokens: u32,
    pub expires_at: UnixMillis,
}

impl StoredReply {
    /// Size of what the model generated, with its log probabilities.
    pub(crate) fn content_bytes(&self) -> usize {
        self.reasoning_text.len() + self.output_text.len() + self.logprobs.as_ref().map_or(0, Vec::len)
    }
}

impl From<UsageRow> for Settlement {
    fn from(row: UsageRow) -> Self {
        Self { row, is_reserved: false, stored_reply: None }
    }
}

/// Most keys, and most accounts, in a monthly report: those with the highest cost.
pub const MAX_USAGE_ROWS: u32 = 200;

/// What happened since the last call; any part may be empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct ActivityBatch<'a> {
    pub rejections: &'a [DailyRejections],
    pub peaks: &'a [DailyPeak],
    pub key_uses: &'a [KeyUse],
    /// Caps that rejected a request, with the time. Only the first of each cap and month is recorded.
    pub cap_rejections: &'a [(CapRejection, UnixMillis)],
}

/// Activity rows per statement: enough for one statement in nearly all cases, few enough not to delay other writes,
/// and far below the parameter limits of both databases.
pub const MAX_ACTIVITY_ROWS: usize = 500;

/// Rejected requests of one key on one day, by error code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DailyRejections {
    /// `None` if the key bills no account.
    pub account: Option<AccountId>,
    pub day: Day,
    pub key: KeyId,
    /// `rate_limited`, `no_billing_account` or `spending_cap_reached`.
    pub code: String,
    pub rejections: u64,
    pub last_at: UnixMillis,
}

/// Rejected requests of all keys on one day, by error code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DailyRejectionTotals {
    pub day: Day,
    pub code: String,
    pub rejections: u64,
    pub last_at: UnixMillis,
}

/// The busiest 60 seconds of an account's day, as the rate limiter saw them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DailyPeak {
    pub account: AccountId,
    pub day: Day,
    pub requests: u64,
    pub requests_at: UnixMillis,
    pub tokens: u64,
    pub tokens_at: UnixMillis,
}

/// Which month to report, for one account or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MonthlyUsageQuery {
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

/// The data of the usage page, from sums and never from the ledger's rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageReport {
    /// The requested account.
    pub account: Option<Account>,
    /// Accounts to choose from, by name, up to `MAX_ACCOUNT_OPTIONS`. Always includes the requested one.
    pub accounts: Vec<Account>,
    /// Number of accounts beyond that limit.
    pub accounts_omitted: u64,
    /// The first month with usage of any account.
    pub first_month: Option<Month>,
    /// Days with usage, in order.
    pub days: Vec<UsageSum>,
    /// By model.
    pub models: Vec<UsageSum>,
    /// By prefix. Beyond `MAX_USAGE_ROWS`, those with the highest cost.
    pub keys: Vec<KeyUsage>,
    /// By name. Beyond `MAX_USAGE_ROWS`, those with the highest cost. Empty if one account was requested.
    pub by_account: Vec<AccountUsage>,
    /// The whole previous month, for comparison.
    pub previous: UsageTotals,
    /// By day and code.
    pub rejections: Vec<DailyRejectionTotals>,
    /// Days with a peak, in order. Empty unless one account was requested.
    pub peaks: Vec<DailyPeak>,
}
