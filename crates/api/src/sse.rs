//! A reply as Server-Sent Events. Text leaves as it is generated; the last event leaves only after the usage row is on
//! disk, because `Running` tells the end only then. What the events look like is an `EventFormat`'s business.
//!
//! A reader who is slower than the model finds what has piled up in one event, so what waits for it is never more than
//! one reply. A reader who hangs up drops the stream, and with it the work.

use crate::error::ApiError;
use crate::idempotency;
use crate::log_line::StreamOutcome;
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use chancery_domain::HowEnded;
use chancery_metering::{Beginning, Progress, Reply, Running};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::time::Duration;

/// After how long without an event a comment is sent, so that nobody in between takes the connection for dead.
pub(crate) const KEEP_ALIVE_PAUSE: Duration = Duration::from_secs(10);

/// How one family of events is written.
pub(crate) trait EventFormat: Send + 'static {
    fn beginning(&mut self, beginning: &Beginning, events: &mut Events);
    fn text(&mut self, text: &str, events: &mut Events);
    fn ended(&mut self, reply: &Reply, events: &mut Events);
    fn failed(&mut self, error: &ApiError, events: &mut Events);
}

/// Events on their way, as bytes. Axum's `Sse` writes the same ones, but each in a buffer and a frame of its own; here those
/// that leave together, such as a stream's last four, are one write.
#[derive(Default)]
pub(crate) struct Events(Vec<u8>);

impl Events {
    /// Strings and fixed shapes always serialize, without a line end in between.
    pub(crate) fn named(&mut self, name: &str, data: &impl serde::Serialize) {
        self.0.extend_from_slice(b"event: ");
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b'\n');
        self.unnamed(data);
    }

    /// An event that carries its name and its number, which tells a reader that none before it is missing.
    pub(crate) fn numbered(&mut self, next_number: &mut u64, name: &str, content: impl serde::Serialize) {
        #[derive(serde::Serialize)]
        struct Numbered<'a, Content> {
            r#type: &'a str,
            sequence_number: u64,
            #[serde(flatten)]
            content: Content,
        }
        self.named(name, &Numbered { r#type: name, sequence_number: *next_number, content });
        *next_number += 1;
    }

    pub(crate) fn unnamed(&mut self, data: &impl serde::Serialize) {
        self.0.extend_from_slice(b"data: ");
        let _ = serde_json::to_writer(&mut self.0, data);
        self.0.extend_from_slice(b"\n\n");
    }

    /// Data that is not JSON, on one line.
    pub(crate) fn raw(&mut self, data: &str) {
        self.0.extend_from_slice(format!("data: {data}\n\n").as_bytes());
    }

    fn comment(&mut self, text: &str) {
        self.0.extend_from_slice(format!(": {text}\n\n").as_bytes());
    }
}

/// The stream of a request whose work has begun.
pub(crate) fn respond(running: Running, mut format: impl EventFormat) -> Response {
    let standing = running.beginning().standing.map(Extension);
    let replayed = idempotency::mark(running.beginning().is_replay);
    let outcome = StreamOutcome::default();
    let mut first = Events::default();
    format.beginning(running.beginning(), &mut first);
    let stream =
        EventStream { running, format, first: Some(first), outcome: outcome.clone(), has_ended: false };
    let body = Body::from_stream(futures_util::stream::unfold(stream, async |mut stream| {
        let events = stream.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(events.0)), stream))
    }));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        // Proxies of the nginx family would gather the events otherwise.
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, replayed, standing, Extension(outcome), body).into_response()
}

struct EventStream<Format> {
    running: Running,
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
        match tokio::time::timeout(KEEP_ALIVE_PAUSE, self.running.next()).await {
            Err(_) => events.comment("keep-alive"),
            Ok(Progress::Text(text)) => self.format.text(&text, &mut events),
            Ok(Progress::Ended(ended)) => {
                self.has_ended = true;
                let failure = match ended {
                    Ok(reply) => {
                        self.format.ended(&reply, &mut events);
                        None
                    }
                    Err(error) => {
                        let error = ApiError::from(error);
                        self.format.failed(&error, &mut events);
                        Some(error)
                    }
                };
                self.outcome.is(failure);
            }
        }
        Some(events)
    }
}

/// Whether nothing cut a reply short. A hang-up, of which only a replay tells, did.
pub(crate) fn is_complete(ended: HowEnded) -> bool {
    match ended {
        HowEnded::Complete | HowEnded::StopSequence => true,
        HowEnded::MaxOutputTokens | HowEnded::ContextLength | HowEnded::Cancelled => false,
    }
}

/// One event for `/openapi.json`. OpenAPI 3.1 does not say what the schema of an event stream describes; here, as in 3.2 and
/// to those who check replies, it is one event: its name, and its data on one line.
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
    fn an_event_is_one_line_whatever_its_text_has_in_it() {
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
