//! Requests and replies.

use crate::Caller;
use chancery_domain::{
    AccountId, Fingerprint, IdempotencyKey, KeyId, Nanos, Prices, RateLimitStatus, RequestId, StopReason,
    UnixMillis,
};
use chancery_engine::{Penalties, TokenLogprobs, Turn};
use std::num::NonZeroU32;

/// One request with its caller and id.
#[derive(Clone, Debug)]
pub struct Call {
    pub caller: Caller,
    pub request_id: RequestId,
    pub request: GenerateRequest,
    /// With it, a retry does not run the request again.
    pub idempotency: Option<Idempotency>,
}

/// The caller's key for a request, and the fingerprint of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    pub key: IdempotencyKey,
    pub fingerprint: Fingerprint,
}

/// A generation request whose form is already validated.
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    pub model: String,
    /// The conversation to answer.
    pub turns: Vec<Turn>,
    /// `None` takes as many as the context and the account's tokens per minute allow.
    pub max_output_tokens: Option<u64>,
    pub temperature: f32,
    pub top_k: Option<NonZeroU32>,
    pub top_p: f32,
    pub min_p: f32,
    pub penalties: Penalties,
    /// `None` draws a random one.
    pub seed: Option<u64>,
    pub stop: Vec<String>,
    /// Whether a reply that loops is ended.
    pub stop_on_repetition: bool,
    /// How many likely tokens to report with every token of the reply; `None` reports no log probabilities.
    pub top_logprobs: Option<u8>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The request that generated it, and when it was admitted. For a replay, that is an earlier request.
    pub id: RequestId,
    pub at: UnixMillis,
    /// What the model reasoned before its answer; empty if it did not, or did not show it.
    pub reasoning_text: String,
    pub output_text: String,
    /// Of the tokens of `output_text`; `None` if the request did not ask for them.
    pub logprobs: Option<Vec<TokenLogprobs>>,
    pub stop_reason: StopReason,
    pub input_tokens: u32,
    /// Of reasoning and text together.
    pub output_tokens: u32,
    /// How many of `output_tokens` were reasoning.
    pub reasoning_tokens: u32,
    /// Input tokens served from the cache that are billed at the price of cached input.
    pub cached_tokens: u32,
    /// Who is billed, and at which prices.
    pub account: AccountId,
    pub key: KeyId,
    pub prices: Prices,
    /// Whether it was generated and billed before, for an earlier request with the same idempotency key.
    pub is_replay: bool,
    /// The account's rate-limit status after this request; `None` if the limit store did not answer.
    pub rate_limit_status: Option<RateLimitStatus>,
}

/// The maximum that a request would use and cost, without running it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostEstimate {
    pub input_tokens: u32,
    /// The cap, or what the context allows if that is less.
    pub max_output_tokens: u32,
    pub input_cost: Nanos,
    pub max_output_cost: Nanos,
    pub max_cost: Nanos,
}
