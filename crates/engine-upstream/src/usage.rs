//! Counts the tokens of a reply and decides why it ended. With the model's tokenizer, the text passed on is counted.
//! The server's usage then serves only for the few tokens of a character that the cap cut off, and for a text that the
//! tokenizer gives up on. Without a tokenizer, the server's usage counts, but at least the number of pieces it sent. A
//! reply without any count fails, because it could not be billed. The count never exceeds the cap that was sent, which
//! is what was reserved.

use super::chat::ServerFinishReason;
use super::limits::{INLINE_TEXT_BYTES, MAX_PARTIAL_CHAR_TOKENS};
use super::run::{RunningJob, Upstream};
use super::stream::Received;
use super::template_tokens;
use chancery_engine::{EngineError, Finished, StopReason};
use std::sync::Arc;

impl RunningJob<'_> {
    pub(super) async fn finish_job(
        &self,
        mut received: Received,
        max_tokens: u32,
        is_cancelled: bool,
    ) -> Result<Finished, EngineError> {
        let (input_tokens, output_tokens) = match &self.upstream.counter {
            Some(_) => (None, self.count_locally(&mut received, max_tokens).await),
            None => {
                let (input_tokens, output_tokens) = self.server_usage(&received, is_cancelled)?;
                (Some(input_tokens), output_tokens)
            }
        };
        let output_tokens = output_tokens.min(max_tokens).min(self.job.max_output_tokens);
        let reason = match received.finish_reason {
            _ if is_cancelled => StopReason::Cancelled,
            Some(ServerFinishReason::Length) => self.length_stop_reason(&received, max_tokens, output_tokens),
            Some(ServerFinishReason::StopSequence) => StopReason::StopSequence,
            Some(ServerFinishReason::Stop) | None => StopReason::Complete,
        };
        let cached_tokens = received.usage.map_or(0, |usage| usage.cached_tokens);
        Ok(Finished { reason, output_tokens, cached_tokens, input_tokens })
    }

    async fn count_locally(&self, received: &mut Received, max_tokens: u32) -> u32 {
        // Text that cannot be counted has been sent anyway, so it is billed by the server's usage.
        let counted = match count(self.upstream, std::mem::take(&mut received.text)).await {
            Ok(counted) => counted,
            Err(error) => {
                tracing::warn!(model = self.upstream.model, %error, "billing the server's token count");
                return received.usage.map_or(0, |usage| usage.completion_tokens).max(received.text_chunks);
            }
        };
        let generated = received.usage.map_or(counted, |usage| usage.completion_tokens);
        let was_cut_off =
            received.finish_reason == Some(ServerFinishReason::Length) && generated == max_tokens;
        let is_part_of_a_character =
            (counted..=counted.saturating_add(MAX_PARTIAL_CHAR_TOKENS)).contains(&generated);
        if was_cut_off && is_part_of_a_character { generated } else { counted }
    }

    /// Returns input and output tokens.
    fn server_usage(&self, received: &Received, is_cancelled: bool) -> Result<(u32, u32), EngineError> {
        match received.usage {
            // A stop string may split a token, so that one token arrives in two pieces.
            Some(usage) if !self.job.stop.is_empty() && !is_cancelled => {
                Ok((usage.prompt_tokens, usage.completion_tokens))
            }
            Some(usage) => Ok((usage.prompt_tokens, usage.completion_tokens.max(received.text_chunks))),
            // Each piece had at least one token. The prompt's count never arrived, so the prompt is free.
            None if is_cancelled => Ok((0, received.text_chunks)),
            None => Err(EngineError::Failed(
                "upstream server reported no usage; set `tokenizer` for this model".to_owned(),
            )),
        }
    }

    /// Whether a reply was cut short by the caller's cap or by the end of the context.
    fn length_stop_reason(&self, received: &Received, max_tokens: u32, output_tokens: u32) -> StopReason {
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

/// Counts the tokens of a text, off the async threads if it is long. Returns 0 without a tokenizer.
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
