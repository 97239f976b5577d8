//! Public types of billing accounts and keys.

use crate::{ListTotal, UsageTotals};
use chancery_domain::{
    Account, AccountId, AccountName, AccountState, AllowedModels, ContactEmail, Day, Key, KeyHash, KeyId,
    KeyLimits, KeyPrefix, LimitScope, Month, Nanos, PersonRef, PostalAddress, RateLimits, RequestId,
    UnixMillis,
};

#[derive(Clone, Debug)]
pub struct NewAccount {
    pub name: AccountName,
    pub limits: RateLimits,
    pub created_at: UnixMillis,
}

/// A change of an account's limits; `None` leaves a limit as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct LimitsChange {
    pub requests_per_min: Option<u32>,
    pub tokens_per_min: Option<u32>,
    pub spend_per_month: CapChange,
}

/// A change of a limit that need not be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitChange<T> {
    #[default]
    Keep,
    Remove,
    Set(T),
}

impl<T> LimitChange<T> {
    pub(crate) fn apply(self, before: Option<T>) -> Option<T> {
        match self {
            Self::Keep => before,
            Self::Remove => None,
            Self::Set(after) => Some(after),
        }
    }
}

/// A change of a monthly spending cap.
pub type CapChange = LimitChange<Nanos>;

/// A change of a key's own limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyLimitsChange {
    pub requests_per_min: LimitChange<u32>,
    pub tokens_per_min: LimitChange<u32>,
    pub spend_per_month: CapChange,
    pub models: LimitChange<AllowedModels>,
    pub expires_at: LimitChange<UnixMillis>,
}

impl KeyLimitsChange {
    pub fn apply(self, before: KeyLimits) -> KeyLimits {
        KeyLimits {
            requests_per_min: self.requests_per_min.apply(before.requests_per_min),
            tokens_per_min: self.tokens_per_min.apply(before.tokens_per_min),
            spend_per_month: self.spend_per_month.apply(before.spend_per_month),
            models: self.models.apply(before.models),
            expires_at: self.expires_at.apply(before.expires_at),
        }
    }
}

#[derive(Clone, Debug)]
pub struct NewKey {
    pub prefix: KeyPrefix,
    pub hash: KeyHash,
    pub label: String,
    pub account: Option<AccountId>,
    pub created_at: UnixMillis,
    pub limits: KeyLimits,
}

/// A new secret for a key.
#[derive(Clone, Debug)]
pub struct KeyRotation {
    pub key: KeyPrefix,
    /// The secret that it replaces. The rotation is rejected if the key has another one by now.
    pub replaces: KeyHash,
    pub hash: KeyHash,
    /// Until then the old secret works too.
    pub overlap_ends_at: UnixMillis,
    /// Whether to end the overlap of an earlier rotation. Callers may still use the secret before it.
    pub ends_running_overlap: bool,
}

/// A key with the account that it bills, read in one query.
#[derive(Clone, Debug)]
pub struct KeyWithAccount {
    pub key: Key,
    pub account: Option<Account>,
    /// When an admitted request last used the key, a few seconds old at most.
    pub last_used_at: Option<UnixMillis>,
}

/// A reservation of a request's maximum cost against the caps of its account and its key in the month of `at`.
#[derive(Clone, Debug)]
pub struct SpendingReservation {
    pub request_id: RequestId,
    pub account: AccountId,
    pub key: KeyId,
    pub amount: Nanos,
    /// When the request was admitted; decides the month.
    pub at: UnixMillis,
    pub now: UnixMillis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveOutcome {
    Reserved,
    /// Neither the account nor the key has a cap, and nothing was written.
    NoCap,
    Rejected(CapStatus),
}

/// A cap, and the month's spending and reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapStatus {
    pub scope: LimitScope,
    pub cap: Nanos,
    pub spent: Nanos,
    pub reserved: Nanos,
}

impl CapStatus {
    /// Negative if the cap was lowered below what is spent.
    pub fn remaining(&self) -> Nanos {
        Nanos(self.cap.0 - self.spent.0 - self.reserved.0)
    }
}

/// The caps of an account and of a key, those that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapStatuses {
    pub account: Option<CapStatus>,
    pub key: Option<CapStatus>,
}

pub const ACCOUNTS_PER_PAGE: u32 = 50;

/// Most keys in one list, active keys first. A firm with more active keys needs other tools.
pub const MAX_KEYS_LISTED: u32 = 200;

/// Most accounts in a selection list.
pub const MAX_ACCOUNT_OPTIONS: u32 = 1_000;

/// History rows on an account's page.
pub const MAX_ACCOUNT_EVENTS: u32 = 50;

/// An account on the list of accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountOverview {
    pub account: Account,
    pub active_keys: u64,
    /// Usage in the requested month.
    pub month: UsageTotals,
}

/// Which accounts to list: a page of them by name, closed ones last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountQuery {
    /// The month of the sums.
    pub month: Month,
    /// `None` for the first page.
    pub cursor: Option<AccountCursor>,
    /// Whether to count every account, however many there are.
    pub counts_all: bool,
    /// Whether to read the accounts that a key can be attached to.
    pub reads_options: bool,
}

/// Where a page of accounts begins, or ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountCursor {
    After(AccountPosition),
    Before(AccountPosition),
    /// The page of this number, from 1, for programs that count pages. It sorts all accounts.
    Page(u32),
}

/// The position of an account in the list. There need not be such an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountPosition {
    pub is_closed: bool,
    pub name: AccountName,
}

impl AccountPosition {
    pub fn of(account: &Account) -> Self {
        Self { is_closed: account.state != AccountState::Open, name: account.name.clone() }
    }
}

/// An account in a selection list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountOption {
    pub id: AccountId,
    pub name: AccountName,
}

#[derive(Clone, Debug)]
pub struct AccountPage {
    /// By name, closed ones last.
    pub accounts: Vec<AccountOverview>,
    pub has_previous: bool,
    pub has_next: bool,
    /// Number of accounts on all pages.
    pub total: ListTotal,
    /// Unassigned keys: newest first, revoked keys last, up to `MAX_KEYS_LISTED`.
    pub unassigned_keys: Vec<KeyWithLastUse>,
    /// Number of unassigned keys.
    pub unassigned_keys_total: u64,
    /// Open accounts by name, up to `MAX_ACCOUNT_OPTIONS`. Empty unless the query reads them.
    pub open_accounts: Vec<AccountOption>,
    /// Events of keys while they billed no account: newest first, up to `MAX_ACCOUNT_EVENTS`.
    pub events: Vec<AccountEvent>,
}

/// Where an account's invoices go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BillingContact {
    pub address: PostalAddress,
    pub email: ContactEmail,
}

/// A change of the billing contact; `None` leaves a field as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BillingChange {
    pub address: Option<PostalAddress>,
    pub email: Option<ContactEmail>,
}

/// A key with its last use.
#[derive(Clone, Debug)]
pub struct KeyWithLastUse {
    pub key: Key,
    /// The last day (UTC) with usage billed to the key.
    pub last_used: Option<Day>,
    /// When an admitted request last used it, a few seconds old at most.
    pub last_used_at: Option<UnixMillis>,
}

/// When a key was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyUse {
    pub key: KeyId,
    pub at: UnixMillis,
}

/// An event in an account's history. Only effective changes have one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountEvent {
    pub id: AccountEventId,
    /// Text in the past tense, without a subject: "revoked the key ck_7f3a9x4d".
    pub description: String,
    /// `None` for the command line.
    pub by: Option<PersonRef>,
    pub at: UnixMillis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AccountEventId(pub i64);

#[derive(Clone, Debug)]
pub struct AccountRecord {
    pub account: Account,
    pub billing: BillingContact,
    /// Newest first, revoked keys last, up to `MAX_KEYS_LISTED`.
    pub keys: Vec<KeyWithLastUse>,
    /// Number of keys.
    pub keys_total: u64,
    /// Usage in the requested month.
    pub month: UsageTotals,
    /// Newest first, up to `MAX_ACCOUNT_EVENTS`.
    pub events: Vec<AccountEvent>,
    /// Active keys without an account, newest first, up to `MAX_KEYS_LISTED`.
    pub unassigned_keys: Vec<KeyWithLastUse>,
    /// Open accounts by name, up to `MAX_ACCOUNT_OPTIONS`.
    pub open_accounts: Vec<AccountOption>,
}

/// A change of an account or key. Keys are identified by prefix, as in pages and commands.
#[derive(Clone, Debug)]
pub enum AccountChange {
    CreateAccount(NewAccount),
    SetLimits { account: AccountId, change: LimitsChange },
    SetBilling { account: AccountId, change: BillingChange },
    Close(AccountId),
    CreateKey(NewKey),
    LabelKey { key: KeyPrefix, label: String },
    AttachKey { key: KeyPrefix, account: AccountId },
    RevokeKey(KeyPrefix),
    SetKeyLimits { key: KeyPrefix, change: KeyLimitsChange },
    RotateKey(KeyRotation),
}

/// The result of a change.
#[derive(Clone, Debug)]
pub struct AccountChangeOutcome {
    pub subject: AccountSubject,
    /// The history event, on the account's own page if an account is involved. `None` if nothing changed.
    pub event: Option<AccountEventId>,
}

#[derive(Clone, Debug)]
pub enum AccountSubject {
    Account(Account),
    Key(Key),
}
