//! A request that its model can run: the model exists, the cap fits, and the prompt is counted exactly and fits the context.
//! Nothing is reserved here.

use crate::limits::{INLINE_TEXT_BYTES, INLINE_TURNS, TOKENIZE_QUEUE_TIMEOUT};
use crate::{GenerateRequest, Meter, MeterError, Model};
use chancery_domain::{MoneyError, Nanos, RateLimits, UnixMillis};
use chancery_engine::{EngineError, Prompt};
use std::sync::Arc;

pub(crate) struct PreparedRequest {
    pub(crate) model: Arc<Model>,
    pub(crate) prompt: Prompt,
    /// The caller's cap, or as many as fit. The engine also stops when the context is full, and reports it.
    pub(crate) max_output_tokens: u32,
    /// When admission began.
    pub(crate) at: UnixMillis,
}

impl PreparedRequest {
    /// The cap, or what the context allows if that is less.
    pub(crate) fn max_billed_output_tokens(&self) -> u32 {
        let context_tokens = self.model.engine.context_tokens();
        self.max_output_tokens.min(context_tokens.saturating_sub(self.prompt.prompt_tokens()))
    }

    pub(crate) fn max_cost(&self) -> Result<Nanos, MoneyError> {
        self.model.prices.cost(self.prompt.input_tokens, self.max_billed_output_tokens())
    }
}

impl Meter {
    /// Reserves nothing and writes nothing.
    pub(crate) async fn prepare(
        &self,
        request: &GenerateRequest,
        limits: RateLimits,
    ) -> Result<PreparedRequest, MeterError> {
        let at = self.clock.now();
        let model = Arc::clone(self.models.named(&request.model)?);
        let context_tokens = model.engine.context_tokens();
        let cap = match request.max_output_tokens {
            None => None,
            Some(requested) => match u32::try_from(requested) {
                Ok(cap) if cap <= context_tokens => Some(cap),
                _ => return Err(MeterError::MaxTokensAboveContext { requested, context_tokens }),
            },
        };
        let turns = &request.turns;
        let text_bytes: usize = turns.iter().map(|turn| turn.text.len()).sum();
        let prompt = if text_bytes <= INLINE_TEXT_BYTES && turns.len() <= INLINE_TURNS {
            model.engine.prepare(turns)?
        } else {
            let (engine, turns) = (Arc::clone(&model.engine), turns.clone());
            let permit = tokio::time::timeout(TOKENIZE_QUEUE_TIMEOUT, self.tokenize_permits.acquire()).await;
            let _permit = permit.map_err(|_| EngineError::Overloaded { retry_after_s: 1 })?;
            tokio::task::spawn_blocking(move || engine.prepare(&turns))
                .await
                .map_err(|error| MeterError::Internal(error.to_string()))??
        };
        let max_output_tokens = cap.unwrap_or_else(|| {
            let context_room = context_tokens.saturating_sub(prompt.prompt_tokens());
            let minute_room = limits.tokens_per_min.saturating_sub(prompt.input_tokens);
            // Without room for a single token, the rejection names one.
            context_room.min(minute_room).max(1)
        });
        Ok(PreparedRequest { model, prompt, max_output_tokens, at })
    }
}
