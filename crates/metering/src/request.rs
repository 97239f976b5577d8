//! What a caller asks for and what it gets.

use crate::Caller;
use chancery_domain::{Fingerprint, HowEnded, IdempotencyKey, Nanos, RateLimitStatus, RequestId, UnixMillis};
use chancery_engine::Turn;
use std::num::NonZeroU32;

/// One request: who asks, under which id, for what.
#[derive(Clone, Debug)]
pub struct Call {
    pub caller: Caller,
    pub request_id: RequestId,
    pub request: GenerateRequest,
    /// With it, sending the same again does not run it again.
    pub idempotency: Option<Idempotency>,
}

/// The caller's own name for a request, and what the request was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    pub key: IdempotencyKey,
    pub fingerprint: Fingerprint,
}

/// What a caller asks for, already checked for form.
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    pub model: String,
    /// The conversation that is answered.
    pub turns: Vec<Turn>,
    /// None takes as many as the context and the account's tokens per minute leave room for.
    pub max_output_tokens: Option<u64>,
    pub temperature: f32,
    pub top_k: Option<NonZeroU32>,
    pub top_p: f32,
    pub min_p: f32,
    /// None draws one.
    pub seed: Option<u64>,
    pub stop: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The request that generated it, and when that was admitted. For a replay, that is an earlier one.
    pub id: RequestId,
    pub at: UnixMillis,
    pub output_text: String,
    pub ended: HowEnded,
    pub input_tokens: u32,
    pub output_tokens: u32,
    /// How many of the input tokens did not have to be computed; the bill is the same.
    pub cached_tokens: u32,
    /// Whether it was generated and billed before, for an earlier request with the same idempotency key.
    pub is_replay: bool,
    /// Where the account stands after this request; None where the limits' store did not say.
    pub rate_limit_status: Option<RateLimitStatus>,
}

/// What a request would use and cost at most, without running it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    pub input_tokens: u32,
    /// The cap, or what the context leaves room for if that is less.
    pub max_output_tokens: u32,
    pub input_cost: Nanos,
    pub max_output_cost: Nanos,
    pub max_cost: Nanos,
}
