//! A streamed reply from a server, read within limits. Reasoning and text are buffered until they are passed on: before
//! that, another server's reply may still replace this one.

#[cfg(test)]
mod fuzz;

use super::chat::{Chunk, DONE, ServerFinishReason, Usage};
use super::error::{UpstreamError, UpstreamErrorKind};
use super::limits::{
    CANCELLED_USAGE_TIMEOUT, DRAIN_TIMEOUT, MAX_BYTES_PER_TOKEN, MAX_EVENT_BYTES, USAGE_TIMEOUT,
};
use super::transport::from_read_error;
use chancery_engine::GenerationSink;
use chancery_http_client::EventReader;
use reqwest::Response;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Limits on a reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyLimits {
    /// The cap that was sent to the server.
    pub(super) max_tokens: u32,
    /// Between two signs of activity.
    pub(super) idle: Duration,
    /// Whether to keep the text for counting.
    pub(super) retains_text: bool,
    /// Whether the server's cache is not shared between accounts. Cached tokens of a shared one reveal what others
    /// sent.
    pub(super) isolates_cache: bool,
}

/// What has arrived so far.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// The whole reasoning and the whole text, if they are kept for counting.
    pub(super) reasoning: String,
    pub(super) text: String,
    /// Of reasoning and text together.
    pub(super) text_bytes: usize,
    /// Events with text or reasoning. Each has at least one token.
    pub(super) text_chunks: u32,
    /// Those of them with nothing but reasoning.
    pub(super) reasoning_chunks: u32,
    /// Whether the job is stopped because the server went past the cap. Nothing is taken from the server then.
    pub(super) is_over_cap: bool,
    pub(super) finish_reason: Option<ServerFinishReason>,
    /// The latest usage report.
    pub(super) usage: Option<Usage>,
    /// Whether that report came at or after the end, and so covers the whole reply.
    is_usage_final: bool,
    /// Whether that report covers all text so far.
    pub(super) is_usage_current: bool,
    is_done: bool,
}

pub(super) struct Reply {
    response: Response,
    events: EventReader,
    reply_limits: ReplyLimits,
    pub(super) received: Received,
    /// What is not yet passed on, in order.
    pending: Vec<Piece>,
}

/// Consecutive output of one kind.
#[derive(Debug)]
enum Piece {
    Reasoning(String),
    Text(String),
}

impl Reply {
    pub(super) fn new(response: Response, reply_limits: ReplyLimits) -> Self {
        Self {
            response,
            events: EventReader::new(MAX_EVENT_BYTES),
            reply_limits,
            received: Received::default(),
            pending: Vec::new(),
        }
    }

    pub(super) fn max_tokens(&self) -> u32 {
        self.reply_limits.max_tokens
    }

    /// Passes on what arrived since the last call.
    pub(super) fn pass_on(&mut self, sink: &GenerationSink) {
        for piece in self.pending.drain(..) {
            match piece {
                Piece::Reasoning(text) => sink.reasoning(&text),
                Piece::Text(text) => sink.text(&text),
            }
        }
    }

    /// Reads until the first reasoning or text, or the end if there is none.
    pub(super) async fn wait_for_text(&mut self) -> Result<(), UpstreamError> {
        while self.received.text_chunks == 0 && self.received.finish_reason.is_none() {
            self.read_chunk().await?;
        }
        Ok(())
    }

    /// Reads until more data arrives.
    pub(super) async fn read_with_idle_timeout(&mut self) -> Result<(), UpstreamError> {
        let idle = self.reply_limits.idle;
        let timed_out = |_| {
            let detail = format!("no data for {} ms during the response", idle.as_millis());
            UpstreamError::new(UpstreamErrorKind::TimedOut, detail)
        };
        timeout(idle, self.read_chunk()).await.map_err(timed_out)?
    }

    /// The text is complete; waits only for the server's usage, and not for long once the job is cancelled. If it does
    /// not come, the caller decides.
    pub(super) async fn wait_for_usage(&mut self, sink: &GenerationSink) {
        let counting = async { while !self.is_counted() && self.read_chunk().await.is_ok() {} };
        let cancelled = async {
            sink.cancelled().await;
            sleep(CANCELLED_USAGE_TIMEOUT).await;
        };
        tokio::select! {
            biased;
            _ = timeout(USAGE_TIMEOUT, counting) => {}
            () = cancelled => {}
        }
    }

    /// A connection can be reused only if its response was read to the end.
    pub(super) async fn drain(mut self) {
        let reading = async { while let Ok(Some(_)) = self.response.chunk().await {} };
        let _ = timeout(DRAIN_TIMEOUT, reading).await;
    }

    fn is_counted(&self) -> bool {
        self.received.is_done || self.received.is_usage_final
    }

    async fn read_chunk(&mut self) -> Result<(), UpstreamError> {
        let Self { response, events, reply_limits, received, pending } = self;
        match response.chunk().await.map_err(from_read_error)? {
            Some(bytes) => events.read(&bytes, |_, data| received.handle_event(data, *reply_limits, pending)),
            // Some servers end without `[DONE]`. A `finish_reason` is enough.
            None if received.finish_reason.is_some() => {
                received.is_done = true;
                Ok(())
            }
            None => Err(UpstreamError::new(UpstreamErrorKind::Unreachable, "response ended early")),
        }
    }
}

impl Received {
    fn handle_event(
        &mut self,
        data: &str,
        reply_limits: ReplyLimits,
        pending: &mut Vec<Piece>,
    ) -> Result<(), UpstreamError> {
        if self.is_over_cap {
            return Ok(());
        }
        if data == DONE {
            if self.finish_reason.is_none() {
                return Err(UpstreamError::server_failure("response ended without a finish_reason"));
            }
            self.is_done = true;
            return Ok(());
        }
        let chunk = Chunk::parse(data)?;
        if self.finish_reason.is_none() {
            self.push_chunk(chunk.reasoning(), chunk.text(), reply_limits, pending)?;
        }
        self.finish_reason = self.finish_reason.or(chunk.finish_reason()?);
        if self.finish_reason == Some(ServerFinishReason::ContentFilter) && self.text_chunks == 0 {
            let detail = "content_filter before any text";
            return Err(UpstreamError::new(UpstreamErrorKind::UnsupportedFinish, detail));
        }
        if let Some(usage) = chunk.usage() {
            let cached_tokens = if reply_limits.isolates_cache { usage.cached_tokens } else { 0 };
            self.usage = Some(Usage { cached_tokens, ..usage });
            self.is_usage_current = true;
            self.is_usage_final = self.finish_reason.is_some();
        }
        Ok(())
    }

    /// Text past the byte bound is dropped. That fails the job only if nothing came before it: what was passed on
    /// cannot be taken back, so the job is stopped there and billed.
    fn push_chunk(
        &mut self,
        reasoning: Option<&str>,
        text: Option<&str>,
        reply_limits: ReplyLimits,
        pending: &mut Vec<Piece>,
    ) -> Result<(), UpstreamError> {
        if reasoning.is_none() && text.is_none() {
            return Ok(());
        }
        let bytes = reasoning.map_or(0, str::len) + text.map_or(0, str::len);
        let max_bytes =
            (reply_limits.max_tokens as usize).saturating_add(1).saturating_mul(MAX_BYTES_PER_TOKEN);
        let text_bytes = self.text_bytes.saturating_add(bytes);
        if text_bytes > max_bytes {
            if self.text_chunks > 0 {
                self.is_over_cap = true;
                return Ok(());
            }
            let max_tokens = reply_limits.max_tokens;
            return Err(UpstreamError::server_failure(format!(
                "response for at most {max_tokens} tokens exceeds {max_bytes} bytes"
            )));
        }
        self.text_bytes = text_bytes;
        if let Some(reasoning) = reasoning {
            match pending.last_mut() {
                Some(Piece::Reasoning(earlier)) => earlier.push_str(reasoning),
                _ => pending.push(Piece::Reasoning(reasoning.to_owned())),
            }
        }
        if let Some(text) = text {
            match pending.last_mut() {
                Some(Piece::Text(earlier)) => earlier.push_str(text),
                _ => pending.push(Piece::Text(text.to_owned())),
            }
        }
        if reply_limits.retains_text {
            self.reasoning.push_str(reasoning.unwrap_or_default());
            self.text.push_str(text.unwrap_or_default());
        }
        self.is_usage_current = false;
        self.text_chunks = self.text_chunks.saturating_add(1);
        if text.is_none() {
            self.reasoning_chunks = self.reasoning_chunks.saturating_add(1);
        }
        Ok(())
    }
}
