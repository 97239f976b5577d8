//! A request that its model can run: the model exists, the cap fits, and the prompt is counted exactly and fits the context.
//!
//! Tokenizing a long prompt is expensive and comes before its tokens can be reserved, so it is limited by itself:
//!
//! 1. A text with more bytes than the model's context can hold is rejected untokenized.
//! 2. A long prompt that is to be generated reserves its request first, without tokens. Without a request left in the minute it
//!    is rejected untokenized. From then on it counts as a request, whatever becomes of it.
//! 3. Few long prompts are tokenized at once, with permits that accounts share fairly (`fair_semaphore`). The work owns its
//!    permit, so a caller who disconnects does not free it before the work has ended.

use crate::limits::{INLINE_TEXT_BYTES, INLINE_TURNS, TOKENIZE_QUEUE_TIMEOUT};
use crate::logprobs;
use crate::rate_limits::{Decision, Reservation};
use crate::{Call, Caller, GenerateRequest, Meter, MeterError, OfferedModel};
use chancery_domain::{AccountId, MoneyError, Nanos, UnixMillis};
use chancery_engine::{EngineError, Prompt, Turn};
use std::sync::Arc;

pub(crate) struct PreparedRequest {
    pub(crate) model: Arc<OfferedModel>,
    pub(crate) prompt: Prompt,
    /// The caller's cap, or as many as fit. The engine also stops when the context is full, and reports it.
    pub(crate) max_output_tokens: u32,
    /// When admission began.
    pub(crate) at: UnixMillis,
    /// Whether it counts as a request of its minute even if it is rejected from here on.
    pub(crate) has_request_reserved: bool,
}

/// A request before its prompt is tokenized.
struct CheckedRequest {
    model: Arc<OfferedModel>,
    cap: Option<u32>,
    /// What the requested log probabilities allow; `cap` is no higher.
    max_logprob_tokens: u32,
    is_long: bool,
    at: UnixMillis,
}

impl PreparedRequest {
    /// The cap, or what the context allows if that is less.
    pub(crate) fn max_billed_output_tokens(&self) -> u32 {
        let context_tokens = self.model.engine.context_tokens();
        self.max_output_tokens.min(context_tokens.saturating_sub(self.prompt.prompt_tokens()))
    }

    /// Without any discount for cached tokens, because what is cached is known only when the work starts.
    pub(crate) fn max_cost(&self) -> Result<Nanos, MoneyError> {
        self.model.prices.max_cost(self.prompt.input_tokens, self.max_billed_output_tokens())
    }
}

impl Meter {
    /// Prepares a request to be counted. Reserves nothing and writes nothing.
    pub(crate) async fn prepare_count(
        &self,
        caller: &Caller,
        request: &GenerateRequest,
    ) -> Result<PreparedRequest, MeterError> {
        let checked = self.check(caller, request)?;
        let prompt = self.tokenize(caller.account, &checked, &request.turns).await?;
        Ok(checked.prepared(prompt, caller, false))
    }

    /// Prepares a request to be generated. Reserves the request of a long prompt.
    pub(crate) async fn prepare_generation(&self, call: &Call) -> Result<PreparedRequest, MeterError> {
        let checked = self.check(&call.caller, &call.request)?;
        let reservation = match checked.is_long {
            true => Some(self.reserve_request(call).await?),
            false => None,
        };
        let prompt = self.tokenize(call.caller.account, &checked, &call.request.turns).await;
        if let (Err(MeterError::TokenizeQueueFull), Some(reservation)) = (&prompt, &reservation) {
            // Nothing was tokenized. If this fails, the request counts for one minute.
            let _ = self.limiter.release(reservation).await;
        }
        Ok(checked.prepared(prompt?, &call.caller, reservation.is_some()))
    }

    fn check(&self, caller: &Caller, request: &GenerateRequest) -> Result<CheckedRequest, MeterError> {
        let at = self.clock.now();
        let model = self.model_for(caller, &request.model)?;
        let context_tokens = model.engine.context_tokens();
        let max_logprob_tokens = logprobs::max_output_tokens(request.top_logprobs);
        let cap = match request.max_output_tokens {
            None => None,
            Some(requested) => match u32::try_from(requested) {
                Ok(cap) if cap > max_logprob_tokens && cap <= context_tokens => {
                    return Err(MeterError::TooManyLogprobs { requested: cap, max_logprob_tokens });
                }
                Ok(cap) if cap <= context_tokens => Some(cap),
                _ => return Err(MeterError::MaxTokensAboveContext { requested, context_tokens }),
            },
        };
        let text_bytes: usize = request.turns.iter().map(|turn| turn.text.len()).sum();
        if text_bytes > model.engine.max_prompt_bytes() {
            return Err(EngineError::InputTooLong { prompt_tokens: None, context_tokens }.into());
        }
        let is_long = text_bytes > INLINE_TEXT_BYTES || request.turns.len() > INLINE_TURNS;
        Ok(CheckedRequest { model, cap, max_logprob_tokens, is_long, at })
    }

    /// If the request is dropped after this, its reservation stays, so it counts as one request for one minute.
    async fn reserve_request(&self, call: &Call) -> Result<Reservation, MeterError> {
        let reservation = call.caller.generation(call.request_id.clone(), 0);
        match self.limiter.reserve(&reservation).await? {
            Decision::Admitted(_) => Ok(reservation),
            Decision::Rejected(rejection) => {
                Err(MeterError::RateLimited { rejection: Box::new(rejection), tokens: 0 })
            }
        }
    }

    async fn tokenize(
        &self,
        account: AccountId,
        checked: &CheckedRequest,
        turns: &[Turn],
    ) -> Result<Prompt, MeterError> {
        if !checked.is_long {
            return Ok(checked.model.engine.prepare(turns)?);
        }
        let waiting = tokio::time::timeout(TOKENIZE_QUEUE_TIMEOUT, self.tokenize_permits.acquire(account));
        let Ok(Ok(permit)) = waiting.await else { return Err(MeterError::TokenizeQueueFull) };
        let (engine, turns) = (Arc::clone(&checked.model.engine), turns.to_vec());
        let tokenized = tokio::task::spawn_blocking(move || {
            // Owned by the work: a caller who disconnects drops the future, and the work still runs.
            let _permit = permit;
            engine.prepare(&turns)
        });
        Ok(tokenized.await.map_err(|error| MeterError::Internal(error.to_string()))??)
    }
}

impl CheckedRequest {
    fn prepared(self, prompt: Prompt, caller: &Caller, has_request_reserved: bool) -> PreparedRequest {
        let max_output_tokens = self.cap.unwrap_or_else(|| {
            let context_room = self.model.engine.context_tokens().saturating_sub(prompt.prompt_tokens());
            let (_, tokens_per_min) = caller.tokens_per_min();
            let minute_room = tokens_per_min.saturating_sub(prompt.input_tokens);
            // Without room for a single token, the rejection names one.
            context_room.min(minute_room).min(self.max_logprob_tokens).max(1)
        });
        PreparedRequest { model: self.model, prompt, max_output_tokens, at: self.at, has_request_reserved }
    }
}
