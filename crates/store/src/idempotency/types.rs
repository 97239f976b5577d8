//! Idempotency keys as the rest of Chancery sees them.

use crate::StoreError;
use async_trait::async_trait;
use chancery_domain::{AccountId, Fingerprint, IdempotencyKey, RequestId, UnixMillis, UsageRow};

/// A request that wants to be the one that runs under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub account: AccountId,
    pub key: IdempotencyKey,
    pub fingerprint: Fingerprint,
    pub request_id: RequestId,
    pub now: UnixMillis,
    /// The latest moment at which it can still be under way.
    pub expires_at: UnixMillis,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    Yes,
    HeldBy(KeyHolder),
}

/// The request that has a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyHolder {
    pub fingerprint: Fingerprint,
    /// None while it is under way.
    pub reply: Option<FinishedReply>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedReply {
    pub row: UsageRow,
    pub output_text: String,
    pub cached_tokens: u32,
}

/// A key whose request has ended, and the account that the ledger says was billed for that request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptKey {
    pub account: AccountId,
    pub key: IdempotencyKey,
    pub request_id: RequestId,
    /// None where the ledger has no such request.
    pub billed_account: Option<AccountId>,
}

/// Keys by which an account's callers name their requests: of all requests under one key, one row at most reaches the
/// ledger. A key is free when nobody has it, when its time is up, or when its request is under way in a dead process.
#[async_trait]
pub trait IdempotencyKeys: Send + Sync + 'static {
    /// Who has the key, if anybody.
    async fn key_holder(
        &self,
        account: AccountId,
        key: &IdempotencyKey,
        now: UnixMillis,
    ) -> Result<Option<KeyHolder>, StoreError>;

    /// Takes the key if it is free. However many do so at once, one succeeds.
    async fn claim_key(&self, claim: &Claim) -> Result<Claimed, StoreError>;

    /// For a request that comes to nothing. A key that is no longer its own, or whose request has ended, stays.
    async fn free_key(&self, claim: &Claim) -> Result<(), StoreError>;

    /// Removes up to `limit` keys whose time is up, with their replies, and says how many there were.
    async fn forget_expired_keys(&self, now: UnixMillis, limit: u32) -> Result<u64, StoreError>;

    /// The keys whose requests have ended, by account and key, a page at a time: up to `limit` after the given one.
    async fn kept_keys(&self, after: Option<&KeptKey>, limit: u32) -> Result<Vec<KeptKey>, StoreError>;
}
