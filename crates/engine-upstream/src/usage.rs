//! Counts the tokens of a reply and decides why it ended. Reasoning is output like the answer, and counted with it.
//! With the model's tokenizer, the text passed on is counted. The server's usage then serves only for the few tokens of
//! a character that the cap cut off, and for a text that the tokenizer gives up on. Without a tokenizer, the server's
//! usage counts, or else its `/tokenize`, but at least the number of pieces it sent. If the caller hangs up during a whole
//! reply, the server's report of its progress counts. Without either, the prompt is not billed, and what was reserved for
//! it counts as prefilled. A reply with text has at least one token. The output never exceeds the cap that was sent, which
//! is what was reserved.

use super::chunk::ServerFinishReason;
use super::limits::{INLINE_TEXT_BYTES, MAX_PARTIAL_CHAR_TOKENS, MAX_TOKENIZED_TURNS, TOKENIZE_TIMEOUT};
use super::run::{JobEnd, RunningJob, Upstream};
use super::stream::Received;
use super::template_tokens;
use super::tokenize;
use chancery_engine::{EngineError, Finished, StopReason};
use std::sync::Arc;
use tokio::time::timeout;

/// The tokens of one job.
struct TokenCounts {
    /// `None`: as counted before the job ran.
    input_tokens: Option<u32>,
    /// `None`: unknown.
    prompt_tokens: Option<u32>,
    /// Reasoning included.
    output_tokens: u32,
    reasoning_tokens: u32,
}

impl RunningJob<'_> {
    pub(super) async fn finish_job(&self, mut received: Received, max_tokens: u32, end: JobEnd) -> Finished {
        let counts = match &self.upstream.counter {
            Some(_) => {
                let (output_tokens, reasoning_tokens) = self.count_locally(&mut received, max_tokens).await;
                // What was counted here was reserved, whatever the server reports.
                let prompt_tokens = Some(self.job.prompt.input_tokens);
                TokenCounts { input_tokens: None, prompt_tokens, output_tokens, reasoning_tokens }
            }
            None => self.count_by_server(&received, end).await,
        };
        // Nothing has come of a whole reply whose caller hung up, so the server's own count is all there is.
        let generated_tokens = match end {
            JobEnd::Cancelled if received.text_chunks == 0 => received.generated_tokens,
            _ => 0,
        };
        let output_tokens = counts
            .output_tokens
            .max(u32::from(received.text_chunks > 0))
            .max(generated_tokens)
            .min(max_tokens)
            .min(self.job.max_output_tokens);
        let reason = match (end, received.finish_reason) {
            (JobEnd::Cancelled, _) => StopReason::Cancelled,
            (JobEnd::DeadlineExceeded, _) => StopReason::Deadline,
            (JobEnd::Repetition, _) => StopReason::Repetition,
            (JobEnd::OverCap, _) | (JobEnd::Completed, Some(ServerFinishReason::Length)) => {
                self.length_stop_reason(&received, max_tokens, output_tokens, counts.prompt_tokens)
            }
            (JobEnd::Completed, Some(ServerFinishReason::StopSequence)) => StopReason::StopSequence,
            (JobEnd::Completed, Some(ServerFinishReason::ContentFilter)) => StopReason::ContentFilter,
            (JobEnd::Completed, Some(ServerFinishReason::Stop) | None) => StopReason::Complete,
        };
        // Reported only where no other account can have computed them.
        let cached_tokens = received.usage.map_or(0, |usage| usage.cached_tokens);
        // The meter does not bill what ended early without any output.
        let is_billed = output_tokens > 0 || !matches!(reason, StopReason::Cancelled | StopReason::Deadline);
        let billed_cached_tokens = if is_billed { self.record_billed(cached_tokens).await } else { 0 };
        Finished {
            reason,
            output_tokens,
            cached_tokens,
            billed_cached_tokens,
            reasoning_tokens: counts.reasoning_tokens.min(output_tokens),
            prefilled_tokens: self.prefilled_tokens(counts.prompt_tokens),
            input_tokens: counts.input_tokens,
        }
    }

    /// Records that the job is billed. Returns how many of its cached tokens the account has paid for before: at most
    /// those of the longest beginning of the conversation, in whole turns, that was part of a billed job. Without a
    /// tokenizer they cannot be counted, so there are none.
    async fn record_billed(&self, cached_tokens: u32) -> u32 {
        if self.upstream.counter.is_none() {
            return 0;
        }
        let billed_turns = self.upstream.billed_prefixes.record_billed(self.job.account, self.turns);
        if billed_turns == 0 || cached_tokens == 0 {
            return 0;
        }
        let prompt = &self.job.prompt;
        // The rest is usually shorter than what was billed before, so it is what is counted again.
        let mut billed_tokens = prompt.input_tokens;
        for turn in self.turns.iter().skip(billed_turns) {
            match count(self.upstream, turn.text.clone()).await {
                Ok(tokens) => billed_tokens = billed_tokens.saturating_sub(tokens),
                Err(_) => return 0,
            }
        }
        billed_tokens.saturating_add(prompt.scaffolding_tokens()).min(cached_tokens)
    }

    /// A server that got the job may have computed its whole prompt. If the prompt's tokens are unknown, the reserved
    /// ones count.
    fn prefilled_tokens(&self, prompt_tokens: Option<u32>) -> u32 {
        let reserved = self.job.prompt.input_tokens;
        match self.sent_to() {
            Some(_) => prompt_tokens.map_or(reserved, |tokens| tokens.min(reserved)),
            None => 0,
        }
    }

    /// Returns all output tokens, and those of them that are reasoning.
    async fn count_locally(&self, received: &mut Received, max_tokens: u32) -> (u32, u32) {
        let (reasoning, text) = (std::mem::take(&mut received.reasoning), std::mem::take(&mut received.text));
        // Text that cannot be counted has been sent anyway, so it is billed by the server's usage.
        let (counted, reasoning_tokens) = match count_output(self.upstream, reasoning, text).await {
            Ok(counts) => counts,
            Err(error) => {
                tracing::warn!(model = self.upstream.model, %error, "billing the server's token count");
                let output_tokens = min_output_tokens(received);
                return (output_tokens, reported_reasoning(received, output_tokens));
            }
        };
        let generated = received.usage.map_or(counted, |usage| usage.completion_tokens);
        let was_cut_off =
            received.finish_reason == Some(ServerFinishReason::Length) && generated == max_tokens;
        let is_part_of_a_character =
            (counted..=counted.saturating_add(MAX_PARTIAL_CHAR_TOKENS)).contains(&generated);
        let output_tokens = if was_cut_off && is_part_of_a_character { generated } else { counted };
        (output_tokens, reasoning_tokens)
    }

    /// By its usage, if that covers the reply, or else by its `/tokenize`. Prompt and reply are counted concurrently,
    /// so that both together take no longer than the limit.
    async fn count_by_server(&self, received: &Received, end: JobEnd) -> TokenCounts {
        let is_covered = received.is_usage_current || received.text_chunks == 0;
        let reported_prompt = received.usage.and_then(|usage| self.known_prompt_tokens(usage.prompt_tokens));
        let reported_output = received.usage.filter(|_| is_covered).map(|usage| usage.completion_tokens);
        let prompt = async {
            match reported_prompt {
                Some(tokens) => Some(tokens),
                None => timeout(TOKENIZE_TIMEOUT, self.tokenize_prompt()).await.ok().flatten(),
            }
        };
        let output = async {
            match reported_output {
                Some(tokens) => Some(tokens),
                None => timeout(TOKENIZE_TIMEOUT, self.tokenize_output(received)).await.ok().flatten(),
            }
        };
        let (prompt_tokens, generated) = tokio::join!(prompt, output);
        let output_tokens = match generated {
            // A stop string may split a token, so that one token arrives in two pieces.
            Some(tokens) if tokens > 0 && !self.job.stop.is_empty() && end == JobEnd::Completed => tokens,
            // Each piece had at least one token.
            Some(tokens) => tokens.max(received.text_chunks),
            None => min_output_tokens(received),
        };
        let reasoning_tokens = reported_reasoning(received, output_tokens);
        TokenCounts {
            input_tokens: Some(prompt_tokens.unwrap_or(0)),
            prompt_tokens,
            output_tokens,
            reasoning_tokens,
        }
    }

    /// Some servers report 0 where they did not count.
    fn known_prompt_tokens(&self, reported: u32) -> Option<u32> {
        let is_empty = self.turns.iter().all(|turn| turn.text.is_empty());
        (reported > 0 || is_empty).then_some(reported)
    }

    async fn tokenize_output(&self, received: &Received) -> Option<u32> {
        let (reasoning_tokens, text_tokens) =
            tokio::join!(self.tokenize(&received.reasoning), self.tokenize(&received.text));
        Some(reasoning_tokens?.saturating_add(text_tokens?))
    }

    /// Counts each text on its own, as a local tokenizer does. A long conversation is counted as one text, which
    /// differs by a few tokens.
    async fn tokenize_prompt(&self) -> Option<u32> {
        let texts = || self.turns.iter().map(|turn| turn.text.as_str()).filter(|text| !text.is_empty());
        if texts().count() > MAX_TOKENIZED_TURNS {
            return self.tokenize(&texts().collect::<String>()).await;
        }
        let mut sum = self.tokenize("").await?;
        for text in texts() {
            sum = sum.saturating_add(self.tokenize(text).await?);
        }
        Some(sum)
    }

    /// Counts a text on the server that the job was sent to. Returns `None` if that is not possible.
    async fn tokenize(&self, text: &str) -> Option<u32> {
        let endpoint = self.sent_to()?;
        let format = endpoint.capabilities.tokenize_format()?;
        if text.is_empty() {
            return Some(0);
        }
        let upstream = self.upstream;
        match tokenize::count(&upstream.transport, &endpoint, &upstream.upstream_model, format, text).await {
            Ok(tokens) => Some(tokens),
            Err(error) => {
                let (model, endpoint) = (&upstream.model, &endpoint.url);
                tracing::warn!(model, endpoint, error = error.detail, "server cannot count tokens");
                None
            }
        }
    }

    /// Whether a reply was cut short by the caller's cap or by the end of the context.
    fn length_stop_reason(
        &self,
        received: &Received,
        max_tokens: u32,
        output_tokens: u32,
        prompt_tokens: Option<u32>,
    ) -> StopReason {
        let generated = received.usage.map_or(0, |usage| usage.completion_tokens).max(output_tokens);
        if generated >= self.job.max_output_tokens {
            return StopReason::MaxOutputTokens;
        }
        let was_cut_to_fit = max_tokens < self.job.max_output_tokens;
        let prompt_tokens = match (&self.upstream.counter, prompt_tokens) {
            (None, Some(prompt_tokens)) => prompt_tokens,
            (Some(_), _) => self.job.prompt.input_tokens,
            // Nothing shows that the context is full.
            (None, None) => 0,
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

/// What is certain of a reply that cannot be counted: each piece has a token, and a whole reply, which is one piece, those that its
/// server has reported.
fn min_output_tokens(received: &Received) -> u32 {
    let reported = received.usage.map_or(0, |usage| usage.completion_tokens);
    reported.max(received.text_chunks).max(received.generated_tokens)
}

/// How many of the output tokens were reasoning: by the server's report, or else by the pieces it sent.
fn reported_reasoning(received: &Received, output_tokens: u32) -> u32 {
    let has_answer = received.text_chunks > received.reasoning_chunks;
    let reported = received.usage.and_then(|usage| usage.reasoning_tokens);
    match reported {
        Some(reported) => reported,
        None if !has_answer && received.reasoning_chunks > 0 => output_tokens,
        None => received.reasoning_chunks,
    }
}

/// Returns the tokens of both together, and those of the reasoning.
pub(super) async fn count_output(
    upstream: &Arc<Upstream>,
    reasoning: String,
    text: String,
) -> Result<(u32, u32), EngineError> {
    let reasoning_tokens = count(upstream, reasoning).await?;
    Ok((reasoning_tokens.saturating_add(count(upstream, text).await?), reasoning_tokens))
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
