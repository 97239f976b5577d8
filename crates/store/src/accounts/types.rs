//! Billing accounts and keys as the rest of Chancery sees them.

use crate::UsageTotals;
use chancery_domain::{
    Account, AccountId, AccountName, ContactEmail, Day, Key, KeyHash, KeyPrefix, Month, Nanos, PersonRef,
    PostalAddress, RateLimits, RequestId, UnixMillis,
};

#[derive(Clone, Debug)]
pub struct NewAccount {
    pub name: AccountName,
    pub limits: RateLimits,
    pub created_at: UnixMillis,
}

/// What to change of an account's limits; `None` leaves a limit as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct LimitsChange {
    pub requests_per_min: Option<u32>,
    pub tokens_per_min: Option<u32>,
    pub spend_per_month: CapChange,
}

/// What to do with the cap on what an account spends in a month.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CapChange {
    #[default]
    Keep,
    Remove,
    Set(Nanos),
}

#[derive(Clone, Debug)]
pub struct NewKey {
    pub prefix: KeyPrefix,
    pub hash: KeyHash,
    pub label: String,
    pub account: Option<AccountId>,
    pub created_at: UnixMillis,
}

/// A key together with the account it bills, read in one step.
#[derive(Clone, Debug)]
pub struct KeyOwner {
    pub key: Key,
    pub account: Option<Account>,
}

/// What a request may cost at most, to be set aside of what its account may spend in the month of `at`.
#[derive(Clone, Debug)]
pub struct SpendingReservation {
    pub request_id: RequestId,
    pub account: AccountId,
    pub amount: Nanos,
    /// When the request was admitted; decides the month.
    pub at: UnixMillis,
    pub now: UnixMillis,
    /// The latest moment at which it can still be under way.
    pub expires_at: UnixMillis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    Yes,
    /// The account has no cap, and nothing was written.
    NotNeeded,
    /// What was spent and set aside in the month leaves less than the amount.
    Refused {
        cap: Nanos,
        spent: Nanos,
        set_aside: Nanos,
    },
}

/// Accounts on one page of their list.
pub const ACCOUNTS_PER_PAGE: u32 = 50;

/// Keys that are listed together. Those that are not revoked come first; a firm that has more of them has other tools.
pub const MAX_KEYS_LISTED: u32 = 200;

/// Accounts that a form offers to choose from.
pub const MAX_ACCOUNTS_OFFERED: u32 = 1_000;

/// Lines of an account's history that its page shows.
pub const MAX_ACCOUNT_EVENTS: u32 = 50;

/// An account on the list of accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountOverview {
    pub account: Account,
    pub active_keys: u64,
    /// Of the month that was asked for.
    pub month: UsageTotals,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountQuery {
    /// Whose sums to show.
    pub month: Month,
    /// The first is 1.
    pub page: u32,
}

/// An account to choose from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountChoice {
    pub id: AccountId,
    pub name: AccountName,
}

#[derive(Clone, Debug)]
pub struct AccountPage {
    /// By name, closed ones last.
    pub accounts: Vec<AccountOverview>,
    /// How many there are on all pages.
    pub total: u64,
    /// The keys that bill no account: the newest first, revoked ones last, up to `MAX_KEYS_LISTED`.
    pub unattached: Vec<KeyUse>,
    /// How many of these there are.
    pub unattached_total: u64,
    /// Open ones, by name, up to `MAX_ACCOUNTS_OFFERED`.
    pub open_accounts: Vec<AccountChoice>,
    /// What was done with keys while they billed no account: the newest first, up to `MAX_ACCOUNT_EVENTS`.
    pub events: Vec<AccountEvent>,
}

/// Where an account's invoices go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BillingContact {
    pub address: PostalAddress,
    pub email: ContactEmail,
}

/// What to change of it; `None` leaves it as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BillingChange {
    pub address: Option<PostalAddress>,
    pub email: Option<ContactEmail>,
}

/// A key as the pages show it.
#[derive(Clone, Debug)]
pub struct KeyUse {
    pub key: Key,
    /// The last day (UTC) on which something was billed to it.
    pub last_used: Option<Day>,
}

/// One line of an account's history. There is one for what has changed something, and for nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountEvent {
    pub id: AccountEventId,
    /// In plain words, in the past: "made the key ck_7f3a9x4d".
    pub deed: String,
    /// None: the command line.
    pub by: Option<PersonRef>,
    pub at: UnixMillis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AccountEventId(pub i64);

#[derive(Clone, Debug)]
pub struct AccountRecord {
    pub account: Account,
    pub billing: BillingContact,
    /// The newest first, revoked ones last, up to `MAX_KEYS_LISTED`.
    pub keys: Vec<KeyUse>,
    /// How many there are.
    pub keys_total: u64,
    /// Of the month that was asked for.
    pub month: UsageTotals,
    /// The newest first, up to `MAX_ACCOUNT_EVENTS`.
    pub events: Vec<AccountEvent>,
    /// Keys that bill no account and are not revoked, the newest first, up to `MAX_KEYS_LISTED`.
    pub unattached: Vec<KeyUse>,
    /// Open ones, by name, up to `MAX_ACCOUNTS_OFFERED`.
    pub open_accounts: Vec<AccountChoice>,
}

/// What can be done with accounts and keys. Keys are named by their public part, as pages and commands name them.
#[derive(Clone, Debug)]
pub enum AccountDeed {
    Make(NewAccount),
    SetLimits { account: AccountId, change: LimitsChange },
    SetBilling { account: AccountId, change: BillingChange },
    Close(AccountId),
    MakeKey(NewKey),
    LabelKey { key: KeyPrefix, label: String },
    AttachKey { key: KeyPrefix, account: AccountId },
    RevokeKey(KeyPrefix),
}

/// What a deed was done to, as it is now.
#[derive(Clone, Debug)]
pub struct AccountDone {
    pub subject: AccountSubject,
    /// Its line in the history, on the account's own page where it has to do with one. None: it was so already, and nothing
    /// was changed.
    pub event: Option<AccountEventId>,
}

#[derive(Clone, Debug)]
pub enum AccountSubject {
    Account(Account),
    Key(Key),
}
