//! A reply as Server-Sent Events. Text is sent as it is generated. The last event is sent only after the usage row is
//! on disk, because `GenerationStream` reports the end only then. An `EventFormat` defines what the events look like.
//!
//! A caller slower than the model receives the accumulated text in one event, so at most one reply is buffered. When
//! the caller disconnects, the stream is dropped and the generation is cancelled.

use crate::access_log::StreamOutcome;
use crate::error::ApiError;
use crate::idempotency;
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use chancery_domain::StopReason;
use chancery_engine::TokenLogprobs;
use chancery_metering::{GenerationStream, Reply, StreamEvent, StreamStart};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

/// Interval without events after which a comment is sent, so that no proxy closes the connection as idle.
pub(crate) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// The wire format of one family of events.
pub(crate) trait EventFormat: Send + 'static {
    fn started(&mut self, started: &StreamStart, events: &mut Events);
    /// What the model reasons before its answer. A format may write nothing.
    fn reasoning(&mut self, text: &str, events: &mut Events);
    /// The text since the last event. Log probabilities that come late have an empty one.
    fn text(&mut self, text: &str, logprobs: &[TokenLogprobs], events: &mut Events);
    fn ended(&mut self, reply: &Reply, events: &mut Events);
    fn failed(&mut self, error: &ApiError, events: &mut Events);
}

/// Encoded events waiting to be sent. Axum's `Sse` writes the same bytes, but with a buffer and a frame per event. Here
/// events that are sent together, such as the last four of a stream, are one write.
#[derive(Default)]
pub(crate) struct Events(Vec<u8>);

impl Events {
    /// Strings and fixed shapes always serialize, and the JSON contains no line breaks.
    pub(crate) fn named(&mut self, name: &str, data: &impl serde::Serialize) {
        self.0.extend_from_slice(b"event: ");
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b'\n');
        self.unnamed(data);
    }

    /// Adds an event with its name and a sequence number, so that callers can detect a missing event.
    pub(crate) fn sequenced(
        &mut self,
        next_sequence_number: &mut u64,
        name: &str,
        content: impl serde::Serialize,
    ) {
        #[derive(serde::Serialize)]
        struct Numbered<'a, Content> {
            r#type: &'a str,
            sequence_number: u64,
            #[serde(flatten)]
            content: Content,
        }
        self.named(name, &Numbered { r#type: name, sequence_number: *next_sequence_number, content });
        *next_sequence_number += 1;
    }

    pub(crate) fn unnamed(&mut self, data: &impl serde::Serialize) {
        self.0.extend_from_slice(b"data: ");
        let _ = serde_json::to_writer(&mut self.0, data);
        self.0.extend_from_slice(b"\n\n");
    }

    /// Adds single-line data that is not JSON.
    pub(crate) fn raw(&mut self, data: &str) {
        self.0.extend_from_slice(format!("data: {data}\n\n").as_bytes());
    }

    fn comment(&mut self, text: &str) {
        self.0.extend_from_slice(format!(": {text}\n\n").as_bytes());
    }
}

/// Streams a request that is already running.
pub(crate) fn stream_response(running: GenerationStream, mut format: impl EventFormat) -> Response {
    let rate_limit_status = running.start().rate_limit_status.map(Extension);
    // The listener reads it: a slow reader has more time while the text is still being generated.
    let work = Extension(running.work());
    let replayed = idempotency::mark(running.start().is_replay);
    let outcome = StreamOutcome::default();
    let mut first = Events::default();
    format.started(running.start(), &mut first);
    let stream =
        EventStream { running, format, first: Some(first), outcome: outcome.clone(), has_ended: false };
    let body = Body::from_stream(futures_util::stream::unfold(stream, async |mut stream| {
        let events = stream.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(events.0)), stream))
    }));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        // nginx and similar proxies would buffer the events otherwise.
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, replayed, rate_limit_status, work, Extension(outcome), body).into_response()
}

struct EventStream<Format> {
    running: GenerationStream,
    format: Format,
    first: Option<Events>,
    outcome: StreamOutcome,
    has_ended: bool,
}

impl<Format: EventFormat> EventStream<Format> {
    async fn next(&mut self) -> Option<Events> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        if self.has_ended {
            return None;
        }
        let mut events = Events::default();
        // One interval for all events that the format writes nothing for, so that the caller still gets a comment.
        let mut keep_alive = pin!(tokio::time::sleep(KEEP_ALIVE_INTERVAL));
        while events.0.is_empty() {
            tokio::select! {
                event = self.running.next() => self.write(event, &mut events),
                () = &mut keep_alive => events.comment("keep-alive"),
            }
        }
        Some(events)
    }

    fn write(&mut self, event: StreamEvent, events: &mut Events) {
        match event {
            StreamEvent::Reasoning(text) => self.format.reasoning(&text, events),
            StreamEvent::Text { text, logprobs } => self.format.text(&text, &logprobs, events),
            StreamEvent::Ended(ended) => {
                self.has_ended = true;
                let failure = match ended {
                    Ok(reply) => {
                        self.format.ended(&reply, events);
                        None
                    }
                    Err(error) => {
                        let error = ApiError::from(error);
                        self.format.failed(&error, events);
                        Some(error)
                    }
                };
                self.outcome.set(failure);
            }
        }
    }
}

/// Whether nothing cut the reply short. `Cancelled` means the caller disconnected, which only a replay reports.
pub(crate) fn is_complete(stop_reason: StopReason) -> bool {
    match stop_reason {
        StopReason::Complete | StopReason::StopSequence => true,
        StopReason::MaxOutputTokens
        | StopReason::ContextLength
        | StopReason::Cancelled
        | StopReason::Deadline
        | StopReason::ContentFilter
        | StopReason::Repetition => false,
    }
}

/// Schema of one event in `/openapi.json`. OpenAPI 3.1 does not define what the schema of an event stream describes. We
/// follow 3.2 and response validators: it describes one event, with its name and its single-line data.
pub(crate) fn event_schema(name: &str, when: &str, data: &Value) -> Value {
    json!({
        "type": "object",
        "description": when,
        "properties": {
            "event": { "type": "string", "enum": [name] },
            "data": { "type": "string", "contentMediaType": "application/json", "contentSchema": data },
        },
        "required": ["event", "data"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_data_is_one_line_whatever_its_text() {
        let mut events = Events::default();
        events
            .named("response.output_text.delta", &serde_json::json!({ "delta": "a\nb\r\ndata: c\u{2028}" }));
        events.comment("keep-alive");
        assert_eq!(
            String::from_utf8(events.0).unwrap(),
            "event: response.output_text.delta\ndata: {\"delta\":\"a\\nb\\r\\ndata: c\u{2028}\"}\n\n: keep-alive\n\n"
        );
    }
}
