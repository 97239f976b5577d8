//! The events of `POST /v1/responses` with `stream: true`. The last one carries the whole response with its usage, and
//! is sent only after the usage row is on disk.

use super::response_object::{ObjectIds, OutputMessage, OutputText, ResponseObject, ResponseStatus};
use super::responses_request::EchoedRequest;
use crate::error::ApiError;
use crate::openapi::described_as;
use crate::sse::{self, EventFormat, Events};
use chancery_domain::UnixMillis;
use chancery_metering::{Reply, StreamStart};
use serde_json::{Value, json};

pub(super) struct ResponseEvents {
    echoed_request: EchoedRequest,
    /// `None` until the request is running.
    started: Option<StartedResponse>,
    next_sequence_number: u64,
}

struct StartedResponse {
    ids: ObjectIds,
    at: UnixMillis,
}

#[derive(serde::Serialize)]
struct ResponsePayload<'a> {
    response: ResponseObject<'a>,
}

/// The output is one message with one text, so both indexes are always 0.
#[derive(serde::Serialize)]
struct ItemPayload<'a> {
    output_index: u32,
    item: OutputMessage<'a>,
}

#[derive(serde::Serialize)]
struct TextPayload<'a> {
    item_id: &'a str,
    output_index: u32,
    content_index: u32,
    #[serde(flatten)]
    text: TextField<'a>,
}

#[derive(serde::Serialize)]
#[serde(untagged)]
enum TextField<'a> {
    Part { part: OutputText<'a> },
    Delta { delta: &'a str, logprobs: [(); 0] },
    Done { text: &'a str, logprobs: [(); 0] },
}

/// Writes numbered events.
struct Writer<'a> {
    next_sequence_number: &'a mut u64,
    events: &'a mut Events,
}

impl Writer<'_> {
    fn event(&mut self, name: &str, content: impl serde::Serialize) {
        self.events.sequenced(self.next_sequence_number, name, content);
    }

    fn text(&mut self, name: &str, item_id: &str, text: TextField<'_>) {
        self.event(name, TextPayload { item_id, output_index: 0, content_index: 0, text });
    }
}

impl ResponseEvents {
    pub(super) fn new(echoed_request: EchoedRequest) -> Self {
        Self { echoed_request, started: None, next_sequence_number: 0 }
    }
}

impl EventFormat for ResponseEvents {
    fn started(&mut self, started: &StreamStart, events: &mut Events) {
        let StreamStart { id, at, .. } = started;
        let StartedResponse { ids, at } =
            self.started.insert(StartedResponse { ids: ObjectIds::of(id), at: *at });
        let mut writer = Writer { next_sequence_number: &mut self.next_sequence_number, events };
        for name in ["response.created", "response.in_progress"] {
            let response = ResponseObject::new(ids, *at, &self.echoed_request, ResponseStatus::InProgress);
            writer.event(name, ResponsePayload { response });
        }
        let item = OutputMessage::in_progress(ids);
        writer.event("response.output_item.added", ItemPayload { output_index: 0, item });
        let part = TextField::Part { part: OutputText::of("") };
        writer.text("response.content_part.added", &ids.message, part);
    }

    fn text(&mut self, text: &str, events: &mut Events) {
        let Some(StartedResponse { ids, .. }) = &self.started else { return };
        let mut writer = Writer { next_sequence_number: &mut self.next_sequence_number, events };
        let delta = TextField::Delta { delta: text, logprobs: [] };
        writer.text("response.output_text.delta", &ids.message, delta);
    }

    fn ended(&mut self, reply: &Reply, events: &mut Events) {
        let Some(StartedResponse { ids, at }) = &self.started else { return };
        let mut writer = Writer { next_sequence_number: &mut self.next_sequence_number, events };
        let done = TextField::Done { text: &reply.output_text, logprobs: [] };
        writer.text("response.output_text.done", &ids.message, done);
        let part = TextField::Part { part: OutputText::of(&reply.output_text) };
        writer.text("response.content_part.done", &ids.message, part);
        let item = OutputMessage::ended(ids, reply);
        writer.event("response.output_item.done", ItemPayload { output_index: 0, item });
        let name =
            if sse::is_complete(reply.stop_reason) { "response.completed" } else { "response.incomplete" };
        let response = ResponseObject::new(ids, *at, &self.echoed_request, ResponseStatus::Ended(reply));
        writer.event(name, ResponsePayload { response });
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        let Some(StartedResponse { ids, at }) = &self.started else { return };
        let mut writer = Writer { next_sequence_number: &mut self.next_sequence_number, events };
        let response = ResponseObject::new(ids, *at, &self.echoed_request, ResponseStatus::Failed(error));
        writer.event("response.failed", ResponsePayload { response });
    }
}

/// Schema of one event in `/openapi.json`.
pub(super) struct ResponsesEvent;

described_as!(ResponsesEvent => event_schemas());

fn event_schemas() -> Value {
    let events = [
        ("response.created", "First: the request is admitted."),
        ("response.in_progress", "The work has begun."),
        ("response.output_item.added", "The message has begun."),
        ("response.content_part.added", "Its text has begun."),
        ("response.output_text.delta", "A piece of the text, as it comes; any number of them."),
        ("response.output_text.done", "The whole text."),
        ("response.content_part.done", "The text as a part of its message."),
        ("response.output_item.done", "The whole message."),
        ("response.completed", "Last, where the model ended the reply: the whole response with its usage."),
        (
            "response.incomplete",
            "Last, where a limit cut the reply short: the whole response with its usage.",
        ),
        ("response.failed", "Last, where it failed after the stream had begun; nothing is billed."),
    ];
    let event = |(name, when)| {
        let data = json!({
            "type": "object",
            "properties": { "type": { "type": "string", "enum": [name] }, "sequence_number": { "type": "integer", "minimum": 0 } },
            "required": ["type", "sequence_number"],
        });
        sse::event_schema(name, when, &data)
    };
    json!({ "description": "One event of the stream.", "oneOf": events.map(event) })
}
