//! A request that its model can run: the model is known, the cap fits, and the prompt is counted exactly and fits the
//! context. Nothing is reserved for it here.

use crate::limits::{INLINE_TEXT_BYTES, INLINE_TURNS, TOKENIZING_TURN_TIMEOUT};
use crate::{GenerateRequest, Meter, MeterError, Model};
use chancery_domain::{MoneyError, Nanos, RateLimits, UnixMillis};
use chancery_engine::{EngineError, Prompt};
use std::sync::Arc;

pub(crate) struct PreparedRequest {
    pub(crate) model: Arc<Model>,
    pub(crate) prompt: Prompt,
    /// The caller's own cap, or all there is room for; the engine also ends at the context's end, and says so.
    pub(crate) max_output_tokens: u32,
    /// When it came to be admitted.
    pub(crate) at: UnixMillis,
}

impl PreparedRequest {
    /// The cap, or what the context leaves room for if that is less.
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
            Some(asked) => match u32::try_from(asked) {
                Ok(cap) if cap <= context_tokens => Some(cap),
                _ => return Err(MeterError::CapAboveContext { asked, context_tokens }),
            },
        };
        let turns = &request.turns;
        let text_bytes: usize = turns.iter().map(|turn| turn.text.len()).sum();
        let prompt = if text_bytes <= INLINE_TEXT_BYTES && turns.len() <= INLINE_TURNS {
            model.engine.prepare(turns)?
        } else {
            let (engine, turns) = (Arc::clone(&model.engine), turns.clone());
            let permit = tokio::time::timeout(TOKENIZING_TURN_TIMEOUT, self.tokenizing_turns.acquire()).await;
            let _permit = permit.map_err(|_| EngineError::Overloaded { retry_after_s: 1 })?;
            tokio::task::spawn_blocking(move || engine.prepare(&turns))
                .await
                .map_err(|error| MeterError::Internal(error.to_string()))??
        };
        let max_output_tokens = cap.unwrap_or_else(|| {
            let context_room = context_tokens.saturating_sub(prompt.prompt_tokens());
            let minute_room = limits.tokens_per_min.saturating_sub(prompt.input_tokens);
            // Where there is no room for even one, that one is what the refusal names.
            context_room.min(minute_room).max(1)
        });
        Ok(PreparedRequest { model, prompt, max_output_tokens, at })
    }
}
