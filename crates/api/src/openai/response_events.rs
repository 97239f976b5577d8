//! The events of `POST /v1/responses` with `stream: true`. The last one carries the whole response with its usage, and
//! is sent only after the usage row is on disk. A reasoning item, if there is one, ends before the message begins.

use super::response_object::{
    COMPLETED, ObjectIds, OutputItem, OutputMessage, OutputText, ReasoningItem, ReasoningText,
    ResponseObject, ResponseStatus, reasoning_status,
};
use super::responses_request::EchoedRequest;
use crate::error::ApiError;
use crate::logprobs::{self, TokenLogprobs};
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
    /// The reasoning so far; empty if there is no reasoning item.
    reasoning_text: String,
    has_message: bool,
}

#[derive(serde::Serialize)]
struct ResponsePayload<'a> {
    response: ResponseObject<'a>,
}

#[derive(serde::Serialize)]
struct ItemPayload<'a> {
    output_index: u32,
    item: OutputItem<'a>,
}

/// Each item has one text, so the content index is always 0.
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
    Delta { delta: &'a str, logprobs: Vec<TokenLogprobs<'a>> },
    Done { text: &'a str, logprobs: Vec<TokenLogprobs<'a>> },
    ReasoningPart { part: ReasoningText<'a> },
    ReasoningDelta { delta: &'a str },
    ReasoningDone { text: &'a str },
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

    fn reasoning(&mut self, name: &str, started: &StartedResponse, text: TextField<'_>) {
        let (item_id, output_index) = (started.ids.reasoning.as_str(), REASONING_INDEX);
        self.event(name, TextPayload { item_id, output_index, content_index: 0, text });
    }

    fn message(&mut self, name: &str, started: &StartedResponse, text: TextField<'_>) {
        let (item_id, output_index) = (started.ids.message.as_str(), started.message_index());
        self.event(name, TextPayload { item_id, output_index, content_index: 0, text });
    }

    fn begin_reasoning(&mut self, started: &StartedResponse) {
        let item = OutputItem::Reasoning(ReasoningItem::in_progress(&started.ids));
        self.event("response.output_item.added", ItemPayload { output_index: REASONING_INDEX, item });
        let part = TextField::ReasoningPart { part: ReasoningText::of("") };
        self.reasoning("response.content_part.added", started, part);
    }

    fn end_reasoning(&mut self, started: &StartedResponse, status: &'static str) {
        let text = started.reasoning_text.as_str();
        if text.is_empty() {
            return;
        }
        self.reasoning("response.reasoning_text.done", started, TextField::ReasoningDone { text });
        let part = TextField::ReasoningPart { part: ReasoningText::of(text) };
        self.reasoning("response.content_part.done", started, part);
        let item = OutputItem::Reasoning(ReasoningItem::ended(&started.ids, text, status));
        self.event("response.output_item.done", ItemPayload { output_index: REASONING_INDEX, item });
    }

    /// Ends the reasoning first, if there was any.
    fn begin_message(&mut self, started: &mut StartedResponse, reasoning_status: &'static str) {
        if std::mem::replace(&mut started.has_message, true) {
            return;
        }
        self.end_reasoning(started, reasoning_status);
        let item = OutputItem::Message(OutputMessage::in_progress(&started.ids));
        let output_index = started.message_index();
        self.event("response.output_item.added", ItemPayload { output_index, item });
        let part = TextField::Part { part: OutputText::of("", &[]) };
        self.message("response.content_part.added", started, part);
    }
}

/// The reasoning item is always the first.
const REASONING_INDEX: u32 = 0;

impl StartedResponse {
    fn message_index(&self) -> u32 {
        if self.reasoning_text.is_empty() { 0 } else { REASONING_INDEX + 1 }
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
        let StartedResponse { ids, at, .. } = self.started.insert(StartedResponse {
            ids: ObjectIds::of(id),
            at: *at,
            reasoning_text: String::new(),
            has_message: false,
        });
        let mut writer = Writer { next_sequence_number: &mut self.next_sequence_number, events };
        for name in ["response.created", "response.in_progress"] {
            let response = ResponseObject::new(ids, *at, &self.echoed_request, ResponseStatus::InProgress);
            writer.event(name, ResponsePayload { response });
        }
    }

    /// An item that has ended cannot go on, so reasoning after the beginning of the answer is not streamed. If there was
    /// some before, the last event has all of it.
    fn reasoning(&mut self, text: &str, events: &mut Events) {
        let Some(started) = self.started.as_mut().filter(|started| !started.has_message) else { return };
        let mut writer = Writer { next_sequence_number: &mut self.next_sequence_number, events };
        if started.reasoning_text.is_empty() {
            writer.begin_reasoning(started);
        }
        started.reasoning_text.push_str(text);
        let delta = TextField::ReasoningDelta { delta: text };
        writer.reasoning("response.reasoning_text.delta", started, delta);
    }

    fn text(&mut self, text: &str, logprobs: &[chancery_engine::TokenLogprobs], events: &mut Events) {
        let Some(started) = &mut self.started else { return };
        let mut writer = Writer { next_sequence_number: &mut self.next_sequence_number, events };
        writer.begin_message(started, COMPLETED);
        let delta = TextField::Delta { delta: text, logprobs: logprobs::of(logprobs) };
        writer.message("response.output_text.delta", started, delta);
    }

    fn ended(&mut self, reply: &Reply, events: &mut Events) {
        let Some(started) = &mut self.started else { return };
        let mut writer = Writer { next_sequence_number: &mut self.next_sequence_number, events };
        writer.begin_message(started, reasoning_status(reply));
        let reply_logprobs = reply.logprobs.as_deref().unwrap_or_default();
        let done = TextField::Done { text: &reply.output_text, logprobs: logprobs::of(reply_logprobs) };
        writer.message("response.output_text.done", started, done);
        let part = TextField::Part { part: OutputText::of(&reply.output_text, reply_logprobs) };
        writer.message("response.content_part.done", started, part);
        let item = OutputItem::Message(OutputMessage::ended(&started.ids, reply));
        let output_index = started.message_index();
        writer.event("response.output_item.done", ItemPayload { output_index, item });
        let name =
            if sse::is_complete(reply.stop_reason) { "response.completed" } else { "response.incomplete" };
        let status = match started.reasoning_text.is_empty() {
            true => ResponseStatus::EndedWithoutReasoning(reply),
            false => ResponseStatus::Ended(reply),
        };
        let response = ResponseObject::new(&started.ids, started.at, &self.echoed_request, status);
        writer.event(name, ResponsePayload { response });
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        let Some(StartedResponse { ids, at, .. }) = &self.started else { return };
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
        ("response.output_item.added", "The reasoning, if there is any, or the message has begun."),
        ("response.content_part.added", "Its text has begun."),
        ("response.reasoning_text.delta", "A piece of the reasoning, as it comes; any number of them."),
        ("response.reasoning_text.done", "The whole reasoning."),
        ("response.output_text.delta", "A piece of the text, as it comes; any number of them."),
        ("response.output_text.done", "The whole text."),
        ("response.content_part.done", "The text as a part of its item."),
        ("response.output_item.done", "The whole reasoning item or message."),
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
