//! A streamed reply from a server, read within limits. Text is buffered until it is taken: before the first text is
//! passed on, another server's reply may still replace this one.

use super::chat::{Chunk, DONE, ServerFinishReason, Usage};
use super::error::{UpstreamError, UpstreamErrorKind};
use super::limits::{DRAIN_TIMEOUT, MAX_BYTES_PER_TOKEN, MAX_EVENT_BYTES, USAGE_TIMEOUT};
use super::transport::from_read_error;
use chancery_http_client::EventReader;
use reqwest::Response;
use std::time::Duration;
use tokio::time::timeout;

/// Limits on a reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyLimits {
    /// The cap that was sent to the server.
    pub(super) max_tokens: u32,
    /// Between two signs of activity.
    pub(super) idle: Duration,
    /// Whether to keep the text for counting.
    pub(super) retains_text: bool,
}

/// What has arrived so far.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// The whole text, if it is kept for counting.
    pub(super) text: String,
    text_bytes: usize,
    /// Events with text. Each has at least one token.
    pub(super) text_chunks: u32,
    pub(super) finish_reason: Option<ServerFinishReason>,
    /// The latest usage report.
    pub(super) usage: Option<Usage>,
    /// Whether that report came at or after the end, and so covers the whole reply.
    is_usage_final: bool,
    /// Whether the model has been active, even if only on reasoning that is not passed on.
    has_activity: bool,
    is_done: bool,
}

pub(super) struct Reply {
    response: Response,
    events: EventReader,
    reply_limits: ReplyLimits,
    pub(super) received: Received,
    /// Text not yet taken.
    pending_text: String,
}

impl Reply {
    pub(super) fn new(response: Response, reply_limits: ReplyLimits) -> Self {
        Self {
            response,
            events: EventReader::new(MAX_EVENT_BYTES),
            reply_limits,
            received: Received::default(),
            pending_text: String::new(),
        }
    }

    pub(super) fn max_tokens(&self) -> u32 {
        self.reply_limits.max_tokens
    }

    /// Hands over the text since the last call.
    pub(super) fn take_text(&mut self, take: impl FnOnce(&str)) {
        if !self.pending_text.is_empty() {
            take(&self.pending_text);
            self.pending_text.clear();
        }
    }

    /// Reads until the first activity of the model, or the end.
    pub(super) async fn wait_for_activity(&mut self) -> Result<(), UpstreamError> {
        while !self.received.has_activity && self.received.finish_reason.is_none() {
            self.read_chunk().await?;
        }
        Ok(())
    }

    /// Reads on until the first text, or the end if there is none.
    pub(super) async fn wait_for_text(&mut self) -> Result<(), UpstreamError> {
        while self.received.text_chunks == 0 && self.received.finish_reason.is_none() {
            self.read_with_idle_timeout().await?;
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

    /// The text is complete; waits only for the server's usage. If it does not come, the caller decides.
    pub(super) async fn wait_for_usage(&mut self) {
        let counting = async { while !self.is_counted() && self.read_chunk().await.is_ok() {} };
        let _ = timeout(USAGE_TIMEOUT, counting).await;
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
        let Self { response, events, reply_limits, received, pending_text } = self;
        match response.chunk().await.map_err(from_read_error)? {
            Some(bytes) => {
                events.read(&bytes, |_, data| received.handle_event(data, *reply_limits, pending_text))
            }
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
        pending_text: &mut String,
    ) -> Result<(), UpstreamError> {
        if data == DONE {
            if self.finish_reason.is_none() {
                return Err(UpstreamError::server_failure("response ended without a finish_reason"));
            }
            self.is_done = true;
            return Ok(());
        }
        let chunk = Chunk::parse(data)?;
        if let Some(text) = chunk.text().filter(|_| self.finish_reason.is_none()) {
            self.push_text(text, reply_limits)?;
            pending_text.push_str(text);
        }
        self.has_activity |= self.text_chunks > 0 || chunk.has_reasoning();
        self.finish_reason = self.finish_reason.or(chunk.finish_reason()?);
        if let Some(usage) = chunk.usage() {
            self.usage = Some(usage);
            self.is_usage_final = self.finish_reason.is_some();
        }
        Ok(())
    }

    fn push_text(&mut self, text: &str, reply_limits: ReplyLimits) -> Result<(), UpstreamError> {
        let max_bytes =
            (reply_limits.max_tokens as usize).saturating_add(1).saturating_mul(MAX_BYTES_PER_TOKEN);
        self.text_bytes = self.text_bytes.saturating_add(text.len());
        if self.text_bytes > max_bytes {
            let max_tokens = reply_limits.max_tokens;
            return Err(UpstreamError::server_failure(format!(
                "response for at most {max_tokens} tokens exceeds {max_bytes} bytes"
            )));
        }
        if reply_limits.retains_text {
            self.text.push_str(text);
        }
        self.text_chunks = self.text_chunks.saturating_add(1);
        Ok(())
    }
}
