//! What is known of a request while anything of it may be open. What is done with it is in the files of the steps.

use crate::prepared_request::PreparedRequest;
use crate::rate_limits::Reservation;
use crate::{Call, Meter, MeterError, Reply};
use chancery_domain::{RateLimitStatus, RequestId};
use chancery_engine::Generation;
use chancery_store::Claim;
use std::sync::Arc;

/// A request of which something may still be open.
pub(super) struct OpenRequest {
    pub(super) meter: Arc<Meter>,
    pub(super) call: Call,
    pub(super) prepared: PreparedRequest,
    pub(super) rate_limit: Option<Reservation>,
    /// Where the account stood when everything was reserved.
    pub(super) rate_limit_status: Option<RateLimitStatus>,
    /// The tokens with which the request counts in its minute; None where it does not count.
    pub(super) counted_tokens: Option<u64>,
    pub(super) in_store: StoreReservations,
    /// Whether something was asked for whose answer did not come: it may be reserved, or come to be.
    pub(super) is_answer_lost: bool,
    pub(super) delivery: Delivery,
    pub(super) work: Work,
}

/// Whether a caller may have read some of the reply. It decides what a drop does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    NothingLeft,
    TextLeft,
}

#[derive(Default)]
pub(super) enum Work {
    #[default]
    None,
    Running {
        generation: Generation,
        output_text: String,
    },
    /// What is to be billed.
    Ended(Reply),
}

/// Why a request is released instead of settled.
pub(crate) enum Unbilled {
    /// The reply to an earlier request with the same idempotency key.
    Replay(Box<Reply>),
    /// The caller hung up before the first token.
    NothingGenerated(Box<Reply>),
    Failed(MeterError),
}

impl From<MeterError> for Unbilled {
    fn from(error: MeterError) -> Self {
        Self::Failed(error)
    }
}

/// What a request has, or may have, reserved in the store.
#[derive(Clone)]
pub(super) struct StoreReservations {
    pub(super) request_id: RequestId,
    /// Of its account's spending cap.
    pub(super) is_spending_reserved: bool,
    pub(super) claim: Option<Claim>,
}

impl StoreReservations {
    pub(super) fn of(request_id: RequestId) -> Self {
        Self { request_id, is_spending_reserved: false, claim: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.is_spending_reserved && self.claim.is_none()
    }
}
