//! What a reply counts, and why it ended. With the model's own tokenizer: the tokens of the text that was handed on, and the
//! server's word only for the few of a character that the cap cut off, and for a text that the tokenizer gives up on. Without one: what the server counted, but no less than the
//! pieces it sent. A reply that nobody counted fails, for it could not be billed. Never more than the server was asked for,
//! which is what was set aside.

use super::chat::Finish;
use super::limits::{INLINE_TEXT_BYTES, MAX_CUT_TOKENS};
use super::run::{RunningJob, Upstream};
use super::stream::Received;
use super::template_tokens;
use chancery_engine::{Ended, EngineError, StopReason};
use std::sync::Arc;

impl RunningJob<'_> {
    pub(super) async fn ended(
        &self,
        mut received: Received,
        max_tokens: u32,
        is_cancelled: bool,
    ) -> Result<Ended, EngineError> {
        let (input_tokens, output_tokens) = match &self.upstream.counter {
            Some(_) => (None, self.counted_here(&mut received, max_tokens).await),
            None => {
                let (input_tokens, output_tokens) = self.counted_there(&received, is_cancelled)?;
                (Some(input_tokens), output_tokens)
            }
        };
        let output_tokens = output_tokens.min(max_tokens).min(self.job.max_output_tokens);
        let reason = match received.finish {
            _ if is_cancelled => StopReason::Cancelled,
            Some(Finish::Length) => self.what_was_full(&received, max_tokens, output_tokens),
            Some(Finish::StopSequence) => StopReason::StopSequence,
            Some(Finish::Stop) | None => StopReason::Complete,
        };
        let cached_tokens = received.usage.map_or(0, |usage| usage.cached_tokens);
        Ok(Ended { reason, output_tokens, cached_tokens, input_tokens })
    }

    async fn counted_here(&self, received: &mut Received, max_tokens: u32) -> u32 {
        // Whatever cannot be counted has left all the same, and is billed by what the server counted.
        let counted = match count(self.upstream, std::mem::take(&mut received.text)).await {
            Ok(counted) => counted,
            Err(error) => {
                tracing::warn!(model = self.upstream.model, %error, "a reply is billed by its server's count");
                return received.usage.map_or(0, |usage| usage.completion_tokens).max(received.pieces);
            }
        };
        let generated = received.usage.map_or(counted, |usage| usage.completion_tokens);
        let was_cut_off = received.finish == Some(Finish::Length) && generated == max_tokens;
        let is_part_of_a_character = (counted..=counted.saturating_add(MAX_CUT_TOKENS)).contains(&generated);
        if was_cut_off && is_part_of_a_character { generated } else { counted }
    }

    /// In and out.
    fn counted_there(&self, received: &Received, is_cancelled: bool) -> Result<(u32, u32), EngineError> {
        match received.usage {
            // A stop string may cut a token in two, so that one token comes in two pieces.
            Some(usage) if !self.job.stop.is_empty() && !is_cancelled => {
                Ok((usage.prompt_tokens, usage.completion_tokens))
            }
            Some(usage) => Ok((usage.prompt_tokens, usage.completion_tokens.max(received.pieces))),
            // What is known for certain: each piece had a token. The prompt's count never came, so it is given away.
            None if is_cancelled => Ok((0, received.pieces)),
            None => Err(EngineError::Failed(
                "the upstream server does not say what it counted; set `tokenizer` for this model".to_owned(),
            )),
        }
    }

    /// A reply that was cut short ran into the caller's cap, or else into the context's end.
    fn what_was_full(&self, received: &Received, max_tokens: u32, output_tokens: u32) -> StopReason {
        let generated = received.usage.map_or(0, |usage| usage.completion_tokens).max(output_tokens);
        if generated >= self.job.max_output_tokens {
            return StopReason::MaxOutputTokens;
        }
        let was_cut_to_fit = max_tokens < self.job.max_output_tokens;
        let prompt_tokens = match (&self.upstream.counter, received.usage) {
            (None, Some(usage)) => usage.prompt_tokens,
            _ => self.job.prompt.input_tokens,
        };
        let is_full =
            u64::from(prompt_tokens) + u64::from(generated) + u64::from(template_tokens(self.turns))
                >= u64::from(self.upstream.context_tokens);
        match was_cut_to_fit || is_full {
            true => StopReason::ContextLength,
            false => StopReason::MaxOutputTokens,
        }
    }
}

/// The tokens of a text; a long one is counted off the async threads. None are counted without a tokenizer.
async fn count(upstream: &Arc<Upstream>, text: String) -> Result<u32, EngineError> {
    let count = |upstream: &Upstream, text: &str| {
        upstream.counter.as_ref().map_or(Ok(0), |counter| counter.count(text))
    };
    if text.len() <= INLINE_TEXT_BYTES {
        return count(upstream, &text);
    }
    let upstream = Arc::clone(upstream);
    let counting = tokio::task::spawn_blocking(move || count(&upstream, &text));
    counting.await.map_err(|error| EngineError::Failed(error.to_string()))?
}
