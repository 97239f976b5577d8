//! A reply from a server, streamed or whole, read within limits. Reasoning and text are buffered until they are passed on:
//! before that, another server's reply may still replace this one.

#[cfg(test)]
mod fuzz;

use super::chunk::{Chunk, DONE, ServerFinishReason, Usage};
use super::chunk_pattern::ChunkPattern;
use super::error::{UpstreamError, UpstreamErrorKind};
use super::limits::{
    CANCELLED_USAGE_TIMEOUT, DRAIN_TIMEOUT, MAX_BYTES_PER_TOKEN, MAX_CHUNKS_WITHOUT_LOGPROBS,
    MAX_EVENT_BYTES, USAGE_TIMEOUT,
};
use super::logprobs::{ChunkText, LogprobBuffer};
use super::repetition_watch::RepetitionWatch;
use super::sampling_params::missing_logprobs;
use super::transport::from_read_error;
use super::whole_reply::{WholeEvent, WholeReply};
use chancery_engine::{GenerationSink, TokenLogprobs};
use chancery_http_client::{EventReader, ServerResponse};
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
    /// Whether the reply ends where it loops.
    pub(super) stops_on_repetition: bool,
    /// How many likely tokens the job wants for each token. `None`: no log probabilities at all.
    pub(super) top_logprobs: Option<u8>,
}

impl ReplyLimits {
    /// Of reasoning and text together.
    pub(super) fn max_text_bytes(self) -> usize {
        (self.max_tokens as usize).saturating_add(1).saturating_mul(MAX_BYTES_PER_TOKEN)
    }
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
    /// What the server says that it has generated of a whole reply, none of which has come.
    pub(super) generated_tokens: u32,
    /// Whether the job is stopped because the server went past the cap. Nothing is taken from the server then.
    pub(super) is_over_cap: bool,
    /// Whether the job is stopped because the reply loops. Nothing is taken from the server then.
    pub(super) is_looping: bool,
    repetition_watch: Option<RepetitionWatch>,
    chunk_pattern: ChunkPattern,
    logprobs: LogprobBuffer,
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
    source: Source,
    reply_limits: ReplyLimits,
    pub(super) received: Received,
    /// What is not yet passed on, in order.
    pending: Vec<Piece>,
}

enum Source {
    Stream(Box<EventStream>),
    Whole(WholeReply),
    /// A whole reply that was read.
    Ended,
}

struct EventStream {
    response: ServerResponse,
    events: EventReader,
}

/// Consecutive output of one kind.
#[derive(Debug)]
enum Piece {
    Reasoning(String),
    Text(String),
    /// Of the text before it.
    Logprobs(Vec<TokenLogprobs>),
}

impl Reply {
    pub(super) fn streamed(response: ServerResponse, reply_limits: ReplyLimits) -> Self {
        let stream = EventStream { response, events: EventReader::new(MAX_EVENT_BYTES) };
        Self::new(Source::Stream(Box::new(stream)), reply_limits)
    }

    pub(super) fn whole(whole: WholeReply, reply_limits: ReplyLimits) -> Self {
        Self::new(Source::Whole(whole), reply_limits)
    }

    fn new(source: Source, reply_limits: ReplyLimits) -> Self {
        Self { source, reply_limits, received: Received::new(reply_limits), pending: Vec::new() }
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
                Piece::Logprobs(logprobs) => sink.logprobs(logprobs),
            }
        }
    }

    /// Reads until the first reasoning or text, or the first token of a whole reply, or the end if there is none. Text whose
    /// log probabilities are requested counts once some have come: before that, another server may have to run the job.
    pub(super) async fn wait_for_text(&mut self) -> Result<(), UpstreamError> {
        let needs_logprobs = self.reply_limits.top_logprobs.is_some();
        while !self.received.has_begun(needs_logprobs) {
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

    /// The caller is gone. Of a whole reply nothing has come, so the server is asked what it has generated, before the connection
    /// is closed. If the reply comes meanwhile, it is read.
    pub(super) async fn count_after_cancel(&mut self) {
        let Self { source, reply_limits, received, pending } = self;
        let Source::Whole(whole) = source else { return };
        match whole.next_after_cancel().await {
            Some(WholeEvent::Progress(tokens)) => {
                received.generated_tokens = received.generated_tokens.max(tokens);
            }
            Some(WholeEvent::Body(body)) => {
                *source = Source::Ended;
                // A reply that cannot be read is none.
                let _ = received.handle_whole(&body, *reply_limits, pending);
            }
            None => {}
        }
    }

    /// A connection can be reused only if its response was read to the end.
    pub(super) async fn drain(self) {
        let Source::Stream(mut stream) = self.source else { return };
        let reading = async { while let Ok(Some(_)) = stream.response.chunk().await {} };
        let _ = timeout(DRAIN_TIMEOUT, reading).await;
    }

    fn is_counted(&self) -> bool {
        self.received.is_done || self.received.is_usage_final
    }

    async fn read_chunk(&mut self) -> Result<(), UpstreamError> {
        let Self { source, reply_limits, received, pending } = self;
        let ended_early = || Err(UpstreamError::new(UpstreamErrorKind::Unreachable, "response ended early"));
        match source {
            Source::Stream(stream) => {
                let EventStream { response, events } = stream.as_mut();
                match response.chunk().await.map_err(|error| from_read_error(&error))? {
                    Some(bytes) => {
                        events.read(&bytes, |_, data| received.handle_event(data, *reply_limits, pending))
                    }
                    // Some servers end without `[DONE]`. A `finish_reason` is enough.
                    None if received.finish_reason.is_some() => {
                        received.is_done = true;
                        Ok(())
                    }
                    None => ended_early(),
                }
            }
            Source::Whole(whole) => match whole.next().await? {
                WholeEvent::Progress(tokens) => {
                    received.generated_tokens = tokens;
                    Ok(())
                }
                WholeEvent::Body(body) => {
                    *source = Source::Ended;
                    received.handle_whole(&body, *reply_limits, pending)
                }
            },
            Source::Ended => ended_early(),
        }
    }
}

impl Received {
    fn new(reply_limits: ReplyLimits) -> Self {
        let ReplyLimits { max_tokens, stops_on_repetition, .. } = reply_limits;
        let repetition_watch = stops_on_repetition.then(|| RepetitionWatch::new(max_tokens));
        Self { repetition_watch, ..Self::default() }
    }

    /// Of a whole reply of which nothing has come.
    pub(super) fn only_generated(generated_tokens: u32) -> Self {
        Self { generated_tokens, ..Self::default() }
    }

    fn has_begun(&self, needs_logprobs: bool) -> bool {
        let is_over = self.finish_reason.is_some() || self.is_over_cap || self.is_looping;
        let is_generating = self.generated_tokens > 0;
        let lacks_logprobs = needs_logprobs && self.answer_chunks() > 0 && !self.has_logprobs();
        is_over || is_generating || (self.text_chunks > 0 && !lacks_logprobs)
    }

    /// Whether log probabilities have come that the job asked for.
    pub(super) fn has_logprobs(&self) -> bool {
        self.logprobs.has_any
    }

    /// Events with text of the answer.
    fn answer_chunks(&self) -> u32 {
        self.text_chunks.saturating_sub(self.reasoning_chunks)
    }

    /// A whole reply is one event, and the last.
    fn handle_whole(
        &mut self,
        body: &[u8],
        reply_limits: ReplyLimits,
        pending: &mut Vec<Piece>,
    ) -> Result<(), UpstreamError> {
        let invalid = |_| UpstreamError::server_failure("response is not valid UTF-8");
        self.handle_event(std::str::from_utf8(body).map_err(invalid)?, reply_limits, pending)?;
        if self.finish_reason.is_none() {
            return Err(UpstreamError::server_failure("response ended without a finish_reason"));
        }
        self.is_done = true;
        Ok(())
    }

    fn handle_event(
        &mut self,
        data: &str,
        reply_limits: ReplyLimits,
        pending: &mut Vec<Piece>,
    ) -> Result<(), UpstreamError> {
        if self.is_over_cap || self.is_looping {
            return Ok(());
        }
        if data == DONE {
            if self.finish_reason.is_none() {
                return Err(UpstreamError::server_failure("response ended without a finish_reason"));
            }
            self.is_done = true;
            return Ok(());
        }
        let is_running = self.finish_reason.is_none();
        if is_running
            && reply_limits.top_logprobs.is_none()
            && let Some(text) = self.chunk_pattern.text(data)
        {
            return self.push_chunk(None, Some(text), reply_limits, pending);
        }
        let chunk = Chunk::parse(data)?;
        if is_running {
            self.push_chunk(chunk.reasoning(), chunk.text(), reply_limits, pending)?;
            self.chunk_pattern.learn(data, &chunk);
        }
        self.finish_reason = self.finish_reason.or(chunk.finish_reason()?);
        if is_running {
            self.push_logprobs(&chunk, reply_limits, pending)?;
        }
        // A reply that has ended need not be stopped.
        self.is_looping &= self.finish_reason.is_none();
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
        let max_bytes = reply_limits.max_text_bytes();
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
        if let Some(watch) = &mut self.repetition_watch {
            let is_looping_reasoning = reasoning.is_some_and(|reasoning| watch.push_reasoning(reasoning));
            let is_looping_text = text.is_some_and(|text| watch.push_text(text));
            self.is_looping = is_looping_reasoning || is_looping_text;
        }
        Ok(())
    }

    /// Call this after `push_chunk`. A server that sends text without any log probabilities fails a job that asked for
    /// them: before anything was passed on, unless the model has reasoned.
    fn push_logprobs(
        &mut self,
        chunk: &Chunk<'_>,
        reply_limits: ReplyLimits,
        pending: &mut Vec<Piece>,
    ) -> Result<(), UpstreamError> {
        let Some(max_top) = reply_limits.top_logprobs.filter(|_| !self.is_over_cap) else { return Ok(()) };
        let has_reasoning = chunk.reasoning().is_some();
        let chunk_text = ChunkText {
            text: chunk.text(),
            has_reasoning,
            follows_reasoning: has_reasoning || (self.reasoning_chunks > 0 && self.answer_chunks() == 1),
            finish_reason: self.finish_reason,
        };
        let ready = self.logprobs.push(chunk.logprobs(max_top), chunk_text, reply_limits.max_tokens);
        let is_ended = self.finish_reason.is_some() && self.answer_chunks() > 0;
        let is_overdue = is_ended || self.answer_chunks() >= MAX_CHUNKS_WITHOUT_LOGPROBS;
        if is_overdue && !self.has_logprobs() {
            return Err(missing_logprobs());
        }
        if !ready.is_empty() {
            pending.push(Piece::Logprobs(ready));
        }
        Ok(())
    }
}
