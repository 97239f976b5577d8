//! The state of a request while it may have open reservations. The protocol's steps are in their own files.

use crate::logprobs::CollectedLogprobs;
use crate::prepared_request::PreparedRequest;
use crate::rate_limits::Reservation;
use crate::{Call, Meter, MeterError, Reply};
use chancery_domain::{RateLimitStatus, RequestId};
use chancery_engine::Generation;
use chancery_store::KeyClaim;
use std::pin::Pin;
use std::sync::Arc;
use tokio::time::Sleep;

/// A request that may have open reservations.
pub(super) struct OpenRequest {
    pub(super) meter: Arc<Meter>,
    pub(super) call: Call,
    pub(super) prepared: PreparedRequest,
    pub(super) rate_limit: Option<Reservation>,
    /// The status after everything was reserved.
    pub(super) rate_limit_status: Option<RateLimitStatus>,
    /// The tokens that count against the rate limit; `None` if the request does not count.
    pub(super) counted_tokens: Option<u64>,
    pub(super) store_reservations: StoreReservations,
    /// Whether the response to a reservation is missing: the reservation may have taken effect, or may still do so.
    pub(super) is_outcome_unknown: bool,
    pub(super) delivery: Delivery,
    pub(super) work: GenerationState,
}

/// Whether the caller may have read part of the reply. It decides what a drop does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    NothingDelivered,
    TextDelivered,
}

#[derive(Default)]
pub(super) enum GenerationState {
    #[default]
    None,
    Running(RunningGeneration),
    /// What is to be billed.
    Finished(Reply),
}

pub(super) struct RunningGeneration {
    pub(super) generation: Generation,
    /// The reasoning and the text so far.
    pub(super) reasoning_text: String,
    pub(super) output_text: String,
    pub(super) logprobs: CollectedLogprobs,
    /// How many events had reasoning or text. Each has at least one token.
    pub(super) pieces: u32,
    pub(super) deadline: Pin<Box<Sleep>>,
}

/// Why a request is released instead of settled.
pub(crate) enum Unbilled {
    /// The reply to an earlier request with the same idempotency key.
    Replay(Box<Reply>),
    /// The caller disconnected before the first token.
    NothingGenerated(Box<Reply>),
    Failed(MeterError),
}

impl From<MeterError> for Unbilled {
    fn from(error: MeterError) -> Self {
        Self::Failed(error)
    }
}

/// What a request has reserved in the store, or may have.
#[derive(Clone)]
pub(super) struct StoreReservations {
    pub(super) request_id: RequestId,
    pub(super) is_spending_reserved: bool,
    pub(super) claim: Option<KeyClaim>,
}

impl StoreReservations {
    pub(super) fn new(request_id: RequestId) -> Self {
        Self { request_id, is_spending_reserved: false, claim: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.is_spending_reserved && self.claim.is_none()
    }
}
