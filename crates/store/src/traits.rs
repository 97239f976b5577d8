//! The store as the rest of Chancery sees it: one trait per aggregate.

use crate::{StoreError, UsageQuery, UsageSum};
use async_trait::async_trait;
use chancery_domain::{
    Account, AccountId, AccountName, Key, KeyHash, KeyId, KeyPrefix, RateLimits, RequestId, UnixMillis,
    UsageRow,
};

/// Everything that is kept, in one object that can be shared.
pub trait Store: Accounts + Keys + Ledger + Health {}

impl<T: Accounts + Keys + Ledger + Health> Store for T {}

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
}

#[async_trait]
pub trait Accounts: Send + Sync + 'static {
    async fn create_account(&self, new: NewAccount) -> Result<Account, StoreError>;

    /// All accounts, by name, closed ones included.
    async fn list_accounts(&self) -> Result<Vec<Account>, StoreError>;

    async fn account_named(&self, name: &AccountName) -> Result<Account, StoreError>;

    async fn set_limits(&self, name: &AccountName, change: LimitsChange) -> Result<Account, StoreError>;

    /// Closing keeps the account, its keys and its ledger; its keys stop generating. Closing it again changes nothing.
    async fn close_account(&self, name: &AccountName, at: UnixMillis) -> Result<Account, StoreError>;
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

#[async_trait]
pub trait Keys: Send + Sync + 'static {
    /// Refused with `AccountClosed` when the account is closed and with `NoSuchAccountId` when there is none.
    async fn create_key(&self, new: NewKey) -> Result<Key, StoreError>;

    /// All keys, oldest first, revoked ones included.
    async fn list_keys(&self) -> Result<Vec<KeyOwner>, StoreError>;

    async fn key_with_prefix(&self, prefix: &KeyPrefix) -> Result<Option<KeyOwner>, StoreError>;

    /// From now on the key bills this account; what it used before stays where it was billed. Refused for a revoked
    /// key and for a closed account.
    async fn attach_key(&self, key: KeyId, account: AccountId) -> Result<(), StoreError>;

    /// Revoking again changes nothing: the first time stands.
    async fn revoke_key(&self, key: KeyId, at: UnixMillis) -> Result<(), StoreError>;
}

#[async_trait]
pub trait Ledger: Send + Sync + 'static {
    /// Returns once the row is on disk. Rows that come in together share one commit. Settling the same row again
    /// changes nothing; the same request with other values is `RequestAlreadyBilled`, and a row whose cost is not its
    /// tokens times its prices, or whose account or key is unknown, is `LedgerRefused`.
    ///
    /// After `Unavailable` nobody knows whether the row was written; settling it again is safe. Dropping the future
    /// leaves the row to be written, unless the queue was still full: then it was never handed over.
    async fn settle(&self, row: UsageRow) -> Result<(), StoreError>;

    /// Sums, in the order of their groups. A sum too large to be exact is `SumTooLarge`. Like `ledger_rows` it may take
    /// minutes on a long ledger; neither keeps the other calls waiting.
    async fn usage(&self, query: UsageQuery) -> Result<Vec<UsageSum>, StoreError>;

    /// The whole ledger in order of request id, a page at a time: up to `limit` rows after the given one.
    async fn ledger_rows(&self, after: Option<&RequestId>, limit: u32) -> Result<Vec<UsageRow>, StoreError>;
}

#[async_trait]
pub trait Health: Send + Sync + 'static {
    /// Whether the database answers now.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Finishes the writes under way and lets go of the database, without waiting long for sums that take long. Later
    /// calls are `Unavailable`.
    async fn close(&self);
}
