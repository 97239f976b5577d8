//! Stops a reply whose server goes past the cap it was sent. Some servers hold only the answer to the cap, and not the
//! reasoning before it. No more than the cap is billed, so tokens past it would be free.

use super::limits::{CAP_CHECK_FRACTION, CAP_SLACK_CHUNKS, CAP_SLACK_STOP_FRACTION};
use super::run::RunningJob;
use super::stream::Received;
use super::usage::count_output;

/// When to count a running reply next: not before it can be over its cap, and then each time it is a fraction longer. A
/// token has at least one byte, and a piece mostly one token.
pub(super) struct CapCheck {
    next_at_bytes: usize,
    next_at_tokens: u32,
}

impl CapCheck {
    pub(super) fn new(max_tokens: u32) -> Self {
        Self { next_at_bytes: max_tokens as usize, next_at_tokens: max_tokens }
    }

    fn is_due(&self, received: &Received) -> bool {
        received.text_bytes > self.next_at_bytes || likely_tokens(received) > self.next_at_tokens
    }

    /// Waits for as much text as the rest of the cap may have.
    fn schedule(&mut self, received: &Received, remaining_tokens: u32) {
        let bytes = received.text_bytes;
        let more = (remaining_tokens as usize).max(bytes / CAP_CHECK_FRACTION as usize);
        self.next_at_bytes = bytes.saturating_add(more);
        let tokens = likely_tokens(received);
        if tokens > self.next_at_tokens {
            self.next_at_tokens = tokens.saturating_add(tokens / CAP_CHECK_FRACTION);
        }
    }
}

/// By the server's usage and the pieces.
fn likely_tokens(received: &Received) -> u32 {
    let reported = received.usage.map_or(0, |usage| usage.completion_tokens);
    reported.max(received.text_chunks.saturating_sub(CAP_SLACK_CHUNKS))
}

impl RunningJob<'_> {
    /// Whether the reply so far, reasoning included, has more tokens than the cap. With a tokenizer they are counted
    /// now and then; a text that it gives up on, and every text without one, by the server's usage and the pieces.
    pub(super) async fn is_over_cap(
        &self,
        received: &Received,
        max_tokens: u32,
        check: &mut CapCheck,
    ) -> bool {
        if self.upstream.counter.is_none() {
            return self.is_over_cap_by_pieces(received, max_tokens);
        }
        if !check.is_due(received) {
            return false;
        }
        match count_output(self.upstream, received.reasoning.clone(), received.text.clone()).await {
            Ok((counted, _)) => {
                check.schedule(received, max_tokens.saturating_sub(counted));
                counted > max_tokens
            }
            Err(_) => {
                check.schedule(received, 0);
                self.is_over_cap_by_pieces(received, max_tokens)
            }
        }
    }

    fn is_over_cap_by_pieces(&self, received: &Received, max_tokens: u32) -> bool {
        // A stop string may split a token, so that one token arrives in two pieces.
        let split_tokens = if self.job.stop.is_empty() { 0 } else { max_tokens / CAP_SLACK_STOP_FRACTION };
        let max_chunks = max_tokens.saturating_add(split_tokens).saturating_add(CAP_SLACK_CHUNKS);
        let reported = received.usage.map_or(0, |usage| usage.completion_tokens);
        reported > max_tokens || received.text_chunks > max_chunks
    }
}
