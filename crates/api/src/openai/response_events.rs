//! The events of `POST /v1/responses` with `stream: true`. The last one carries the whole response with its usage, and
//! leaves only after the usage row is on disk.

use super::response_object::{Names, OutputMessage, OutputText, ResponseObject, Stage};
use super::responses_request::Repeated;
use crate::error::ApiError;
use crate::openapi::described_as;
use crate::sse::{self, EventFormat, Events};
use chancery_domain::UnixMillis;
use chancery_metering::{Beginning, Reply};
use serde_json::{Value, json};

pub(super) struct ResponseEvents {
    repeated: Repeated,
    /// None until the work has begun.
    begun: Option<Begun>,
    next_number: u64,
}

struct Begun {
    names: Names,
    at: UnixMillis,
}

#[derive(serde::Serialize)]
struct OfResponse<'a> {
    response: ResponseObject<'a>,
}

/// There is one message with one text in it, so both places are 0.
#[derive(serde::Serialize)]
struct OfItem<'a> {
    output_index: u32,
    item: OutputMessage<'a>,
}

#[derive(serde::Serialize)]
struct OfText<'a> {
    item_id: &'a str,
    output_index: u32,
    content_index: u32,
    #[serde(flatten)]
    text: TextOf<'a>,
}

#[derive(serde::Serialize)]
#[serde(untagged)]
enum TextOf<'a> {
    Part { part: OutputText<'a> },
    Delta { delta: &'a str, logprobs: [(); 0] },
    Done { text: &'a str, logprobs: [(); 0] },
}

/// Writes events and counts them.
struct Writer<'a> {
    next_number: &'a mut u64,
    events: &'a mut Events,
}

impl Writer<'_> {
    fn event(&mut self, name: &str, content: impl serde::Serialize) {
        self.events.numbered(self.next_number, name, content);
    }

    fn text(&mut self, name: &str, item_id: &str, text: TextOf<'_>) {
        self.event(name, OfText { item_id, output_index: 0, content_index: 0, text });
    }
}

impl ResponseEvents {
    pub(super) fn new(repeated: Repeated) -> Self {
        Self { repeated, begun: None, next_number: 0 }
    }
}

impl EventFormat for ResponseEvents {
    fn beginning(&mut self, beginning: &Beginning, events: &mut Events) {
        let Beginning { id, at, .. } = beginning;
        let Begun { names, at } = self.begun.insert(Begun { names: Names::of(id), at: *at });
        let mut writer = Writer { next_number: &mut self.next_number, events };
        for name in ["response.created", "response.in_progress"] {
            let response = ResponseObject::new(names, *at, &self.repeated, Stage::InProgress);
            writer.event(name, OfResponse { response });
        }
        let item = OutputMessage::begun(names);
        writer.event("response.output_item.added", OfItem { output_index: 0, item });
        let part = TextOf::Part { part: OutputText::of("") };
        writer.text("response.content_part.added", &names.message, part);
    }

    fn text(&mut self, text: &str, events: &mut Events) {
        let Some(Begun { names, .. }) = &self.begun else { return };
        let mut writer = Writer { next_number: &mut self.next_number, events };
        let delta = TextOf::Delta { delta: text, logprobs: [] };
        writer.text("response.output_text.delta", &names.message, delta);
    }

    fn ended(&mut self, reply: &Reply, events: &mut Events) {
        let Some(Begun { names, at }) = &self.begun else { return };
        let mut writer = Writer { next_number: &mut self.next_number, events };
        let done = TextOf::Done { text: &reply.output_text, logprobs: [] };
        writer.text("response.output_text.done", &names.message, done);
        let part = TextOf::Part { part: OutputText::of(&reply.output_text) };
        writer.text("response.content_part.done", &names.message, part);
        let item = OutputMessage::ended(names, reply);
        writer.event("response.output_item.done", OfItem { output_index: 0, item });
        let name = if sse::is_complete(reply.ended) { "response.completed" } else { "response.incomplete" };
        let response = ResponseObject::new(names, *at, &self.repeated, Stage::Ended(reply));
        writer.event(name, OfResponse { response });
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        let Some(Begun { names, at }) = &self.begun else { return };
        let mut writer = Writer { next_number: &mut self.next_number, events };
        let response = ResponseObject::new(names, *at, &self.repeated, Stage::Failed(error));
        writer.event("response.failed", OfResponse { response });
    }
}

/// One event for `/openapi.json`.
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
