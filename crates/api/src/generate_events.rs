//! The events of `POST /v1/generate` with `stream: true`, named as in the Responses API.
//!
//! The order is `response.created`, `response.output_text.delta` for each piece of text, `response.output_text.done`
//! with the whole text, and finally `response.completed`, `response.incomplete` (cut short by a limit) or
//! `response.failed`. The last event carries the error, or the same reply with usage as without `stream`.

use crate::error::{ApiError, ErrorFields};
use crate::generate::GenerateReply;
use crate::logprobs::{self, TokenLogprobs};
use crate::openapi::schema_of_value;
use crate::sse::{self, EventFormat, Events};
use chancery_metering::{Reply, StreamStart};
use serde_json::{Value, json};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

pub(crate) struct GenerateEvents {
    id: String,
    model: String,
    has_receipt: bool,
    has_logprobs: bool,
    next_sequence_number: u64,
}

#[derive(serde::Serialize)]
#[serde(rename_all = "snake_case")]
enum Content<'a> {
    #[serde(rename = "response")]
    StreamStarted(StreamStarted<'a>),
    #[serde(rename = "response")]
    Ended(GenerateReply<'a>),
    #[serde(rename = "response")]
    Failed(Failed<'a>),
}

/// A piece of the text, or all of it.
#[derive(serde::Serialize)]
struct TextContent<'a> {
    #[serde(flatten)]
    text: TextField<'a>,
    /// Absent if the request did not ask for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<TokenLogprobs<'a>>>,
}

#[derive(serde::Serialize)]
#[serde(rename_all = "snake_case")]
enum TextField<'a> {
    Delta(&'a str),
    Text(&'a str),
}

/// What is known before the first piece of text.
#[derive(serde::Serialize, utoipa::ToSchema)]
#[schema(as = Begun)]
pub(crate) struct StreamStarted<'a> {
    /// The request's id in the ledger.
    id: &'a str,
    /// The model that runs.
    model: &'a str,
    usage: InputCount,
}

/// The token meter at the beginning.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(crate) struct InputCount {
    /// Tokens counted in.
    input_tokens: u32,
}

/// A reply that failed; nothing is billed for it.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(crate) struct Failed<'a> {
    /// The request's id.
    id: &'a str,
    /// The model that ran.
    model: &'a str,
    error: ErrorFields<'a>,
}

impl GenerateEvents {
    pub(crate) fn new(model: String, has_receipt: bool) -> Self {
        Self { id: String::new(), model, has_receipt, has_logprobs: false, next_sequence_number: 0 }
    }
}

impl EventFormat for GenerateEvents {
    fn started(&mut self, started: &StreamStart, events: &mut Events) {
        self.id = started.id.to_string();
        self.has_logprobs = started.has_logprobs;
        let usage = InputCount { input_tokens: started.input_tokens };
        let created = StreamStarted { id: &self.id, model: &self.model, usage };
        events.sequenced(&mut self.next_sequence_number, "response.created", Content::StreamStarted(created));
    }

    /// Reasoning is no part of the text. The last event has its token count.
    fn reasoning(&mut self, _: &str, _: &mut Events) {}

    fn text(&mut self, text: &str, logprobs: &[chancery_engine::TokenLogprobs], events: &mut Events) {
        let logprobs = self.has_logprobs.then(|| logprobs::of(logprobs));
        let content = TextContent { text: TextField::Delta(text), logprobs };
        events.sequenced(&mut self.next_sequence_number, "response.output_text.delta", content);
    }

    fn ended(&mut self, reply: &Reply, events: &mut Events) {
        let logprobs = reply.logprobs.as_deref().map(logprobs::of);
        let content = TextContent { text: TextField::Text(&reply.output_text), logprobs };
        events.sequenced(&mut self.next_sequence_number, "response.output_text.done", content);
        let name =
            if sse::is_complete(reply.stop_reason) { "response.completed" } else { "response.incomplete" };
        let reply = GenerateReply::of(reply, &self.model, self.has_receipt);
        events.sequenced(&mut self.next_sequence_number, name, Content::Ended(reply));
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        let failed = Failed { id: &self.id, model: &self.model, error: error.fields_in_stream(&self.id) };
        events.sequenced(&mut self.next_sequence_number, "response.failed", Content::Failed(failed));
    }
}

/// Schema of one event in `/openapi.json`.
pub(crate) struct GenerateEvent;

/// Documentation of one event.
struct EventDescription {
    name: &'static str,
    schema_name: &'static str,
    when: &'static str,
    /// The field that carries the event's payload.
    field: &'static str,
    content: fn() -> Value,
    /// Of `logprobs`, if the event has them where the request asks for them.
    logprobs: Option<&'static str>,
}

const EVENTS: [EventDescription; 6] = [
    EventDescription {
        name: "response.created",
        schema_name: "GenerateCreatedEvent",
        when: "First: the request is admitted and its input counted.",
        field: "response",
        content: || reference(&StreamStarted::name()),
        logprobs: None,
    },
    EventDescription {
        name: "response.output_text.delta",
        schema_name: "GenerateDeltaEvent",
        when: "A piece of the text, as it comes; any number of them.",
        field: "delta",
        content: || json!({ "type": "string", "description": "The piece; all pieces together are the whole text. Empty where `logprobs` come after their text." }),
        logprobs: Some("Where the request has `logprobs: true`: those of the tokens since the last piece."),
    },
    EventDescription {
        name: "response.output_text.done",
        schema_name: "GenerateTextEvent",
        when: "The text is finished.",
        field: "text",
        content: || json!({ "type": "string", "description": "The whole text." }),
        logprobs: Some("Where the request has `logprobs: true`: those of all tokens."),
    },
    EventDescription {
        name: "response.completed",
        schema_name: "GenerateCompletedEvent",
        when: "Last, where the model or a stop string ended the reply: the same reply as without `stream`.",
        field: "response",
        content: || reference(&GenerateReply::name()),
        logprobs: None,
    },
    EventDescription {
        name: "response.incomplete",
        schema_name: "GenerateIncompleteEvent",
        when: "Last, where a limit cut the reply short: the same reply as without `stream`.",
        field: "response",
        content: || reference(&GenerateReply::name()),
        logprobs: None,
    },
    EventDescription {
        name: "response.failed",
        schema_name: "GenerateFailedEvent",
        when: "Last, where the reply failed after the stream had begun; nothing is billed.",
        field: "response",
        content: || reference(&Failed::name()),
        logprobs: None,
    },
];

fn reference(schema_name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema_name}") })
}

impl EventDescription {
    fn data(&self) -> Value {
        let mut data = json!({
            "type": "object",
            "description": self.when,
            "properties": {
                "type": { "type": "string", "enum": [self.name], "description": "The event's name again." },
                "sequence_number": { "type": "integer", "minimum": 0, "description": "Counts the events of a stream from 0." },
                self.field: (self.content)(),
            },
            "required": ["type", "sequence_number", self.field],
        });
        if let Some(description) = self.logprobs {
            let items = reference(&TokenLogprobs::name());
            data["properties"]["logprobs"] =
                json!({ "type": "array", "items": items, "description": description });
        }
        data
    }
}

impl ToSchema for GenerateEvent {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        StreamStarted::schemas(schemas);
        schemas.push((StreamStarted::name().into(), StreamStarted::schema()));
        Failed::schemas(schemas);
        schemas.push((Failed::name().into(), Failed::schema()));
        schemas
            .extend(EVENTS.iter().map(|event| (event.schema_name.to_owned(), schema_of_value(event.data()))));
    }
}

impl PartialSchema for GenerateEvent {
    fn schema() -> RefOr<Schema> {
        let event = |event: &EventDescription| {
            sse::event_schema(event.name, event.when, &reference(event.schema_name))
        };
        schema_of_value(json!({
            "description": "One event of the stream. Its data is one line of JSON; lines that begin with `:` only keep the connection alive.",
            "oneOf": EVENTS.iter().map(event).collect::<Vec<_>>(),
        }))
    }
}
