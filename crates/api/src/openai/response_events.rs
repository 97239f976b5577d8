//! The events of `POST /v1/responses` with `stream: true`. The last one carries the whole response with its usage, and
//! leaves only after the usage row is on disk.

use super::response_object::{Names, OutputMessage, OutputText, ResponseObject, Stage, is_complete};
use super::responses_request::Repeated;
use crate::error::ApiError;
use crate::sse::{EventFormat, Events};
use chancery_domain::UnixMillis;
use chancery_metering::{Beginning, Reply};

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
struct Event<'a, Content> {
    r#type: &'a str,
    /// Counts the events of a stream from 0, so that a reader can tell that none is missing.
    sequence_number: u64,
    #[serde(flatten)]
    content: Content,
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
        let sequence_number = *self.next_number;
        *self.next_number += 1;
        self.events.named(name, &Event { r#type: name, sequence_number, content });
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
        let name = if is_complete(reply.ended) { "response.completed" } else { "response.incomplete" };
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
