//! Idempotency keys as the rest of Chancery sees them.

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
