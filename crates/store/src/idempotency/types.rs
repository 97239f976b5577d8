//! Public types of idempotency keys.

use chancery_domain::{AccountId, Fingerprint, IdempotencyKey, RequestId, UnixMillis, UsageRow};

/// A request's claim to run under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyClaim {
    pub account: AccountId,
    pub key: IdempotencyKey,
    pub fingerprint: Fingerprint,
    pub request_id: RequestId,
    pub now: UnixMillis,
    /// The latest time at which the request can still be in progress.
    pub expires_at: UnixMillis,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    Claimed,
    AlreadyClaimed(Box<IdempotencyRecord>),
}

/// The request that holds a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyRecord {
    pub fingerprint: Fingerprint,
    /// `None` while the request is in progress.
    pub reply: Option<FinishedReply>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedReply {
    pub row: UsageRow,
    /// Empty if the model did not reason.
    pub reasoning_text: String,
    pub output_text: String,
    /// As they were encoded when the reply was stored.
    pub logprobs: Option<Vec<u8>>,
    pub reasoning_tokens: u32,
}

/// A key of a finished request, and the account that the ledger billed for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedKey {
    pub account: AccountId,
    pub key: IdempotencyKey,
    pub request_id: RequestId,
    /// `None` if the ledger has no such request.
    pub billed_account: Option<AccountId>,
}
