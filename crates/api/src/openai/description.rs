//! The bodies that these paths take and the events that they send, for `/openapi.json`. What is not offered is described by
//! the same tables that refuse it.

use super::chat_request::{self, MAX_SEED, MIN_SEED};
use super::echoed::{MAX_METADATA_ENTRIES, MAX_METADATA_NAME_CHARS, MAX_METADATA_VALUE_CHARS};
use super::messages::{BESIDE_TEXT, CHAT, Dialect, RESPONSES, ROLES};
use super::responses_request;
use super::unsupported::{Harmless, NotOffered, TOOL_CHOICES};
use crate::generation_request::MIN_OUTPUT_TOKENS;
use crate::openapi::generation_body;
use crate::request::sampling::MAX_TEMPERATURE;
use chancery_engine::MAX_TURNS;
use serde_json::{Map, Value, json};
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::schema::ObjectBuilder;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

pub(crate) struct ResponsesRequest;
pub(crate) struct InputTokensRequest;
pub(crate) struct ChatRequest;
pub(crate) struct ResponsesEvent;
pub(crate) struct ChatEvent;

macro_rules! described_as {
    ($($name:ident => $schema:expr),+ $(,)?) => {
        $(
            impl ToSchema for $name {}

            impl PartialSchema for $name {
                fn schema() -> RefOr<Schema> {
                    of_value($schema)
                }
            }
        )+
    };
}

described_as!(
    ResponsesRequest => object(&responses_fields(), &["model", "input"], &responses_example()),
    InputTokensRequest => object(&counting_fields(), &["model", "input"], &responses_example()),
    ChatRequest => object(&chat_fields(), &["model", "messages"], &chat_example()),
    ResponsesEvent => responses_event(),
    ChatEvent => chat_event(),
);

/// Said of every field that a table refuses.
pub(crate) const NOT_OFFERED: &str = "Not offered: only a value that asks for nothing is taken.";

/// A schema as it stands: `utoipa` keeps what it has no word for.
fn of_value(schema: Value) -> RefOr<Schema> {
    let Value::Object(keywords) = schema else { return ObjectBuilder::new().into() };
    let any_kind = ObjectBuilder::new().schema_type(utoipa::openapi::schema::SchemaType::AnyValue);
    any_kind.extensions(Some(Extensions::from_iter(keywords))).into()
}

fn object(properties: &Map<String, Value>, required: &[&str], example: &Value) -> Value {
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
        "description": "Fields that are not offered are taken only with a value that asks for nothing, and refused by name with any other.",
        "examples": [example],
    })
}

fn responses_example() -> Value {
    json!({ "model": "smollm2-135m", "instructions": "Answer in one short sentence.", "input": "What is a ledger?" })
}

fn chat_example() -> Value {
    json!({ "model": "smollm2-135m", "messages": [{ "role": "user", "content": "What is a ledger?" }] })
}

fn fields<const N: usize>(described: [(&str, Value); N]) -> Map<String, Value> {
    described.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect()
}

fn counting_fields() -> Map<String, Value> {
    let mut described = conversation_fields();
    described.extend(not_offered(responses_request::NOT_OFFERED_FOR_COUNTING));
    described
}

fn conversation_fields() -> Map<String, Value> {
    let input = json!({
        "oneOf": [{ "type": "string" }, messages(&RESPONSES)],
        "description": format!("What to answer: a text, or up to {MAX_TURNS} messages. It may be empty if `instructions` is not."),
    });
    let mut described = fields([
        ("model", model()),
        ("instructions", optional("string", "Goes before the input, as a system turn.")),
        ("input", input),
        ("parallel_tool_calls", optional("boolean", "There are no tools, so it changes nothing.")),
        ("tool_choice", tool_choice()),
    ]);
    described.extend(not_offered(responses_request::NOT_OFFERED));
    described
}

fn responses_fields() -> Map<String, Value> {
    let mut described = conversation_fields();
    described.extend(running_fields());
    described.extend(fields([(
        "max_output_tokens",
        cap("Cap on the length of the reply, in tokens; left out, what the context leaves room for."),
    )]));
    described.extend(not_offered(responses_request::NOT_OFFERED_FOR_RUNNING));
    described
}

fn chat_fields() -> Map<String, Value> {
    let mut options = not_offered(chat_request::STREAM_OPTIONS_NOT_OFFERED);
    options.extend(fields([
        ("include_usage", optional("boolean", "Whether a last chunk tells the usage.")),
        (
            "continuous_usage_stats",
            optional("boolean", "With `include_usage`: whether the first chunk tells the prompt's tokens."),
        ),
    ]));
    let mut described = running_fields();
    let seed = json!({
        "type": ["integer", "null"],
        "minimum": MIN_SEED,
        "maximum": MAX_SEED,
        "description": "The same request with the same seed draws the same text.",
    });
    let mut turns = messages(&CHAT);
    turns["minItems"] = json!(1);
    turns["description"] =
        json!(format!("The conversation: up to {MAX_TURNS} messages, of which one at least has text."));
    described.extend(fields([
        ("model", model()),
        ("messages", turns),
        (
            "max_completion_tokens",
            cap("Cap on the length of the reply, in tokens; left out, what the context leaves room for."),
        ),
        (
            "max_tokens",
            cap("The name of before for `max_completion_tokens`; where both are sent, they are the same."),
        ),
        ("seed", seed),
        ("stop", generation_body::stop_value()),
        (
            "stream_options",
            json!({
                "type": ["object", "null"],
                "properties": options,
                "additionalProperties": false,
                "description": "Only with `stream: true`.",
            }),
        ),
        ("parallel_tool_calls", optional("boolean", "There are no tools, so it changes nothing.")),
        ("tool_choice", tool_choice()),
    ]));
    described.extend(not_offered(chat_request::NOT_OFFERED));
    described
}

/// What both families take alike for running.
fn running_fields() -> Map<String, Value> {
    let metadata = json!({
        "type": ["object", "null"],
        "maxProperties": MAX_METADATA_ENTRIES,
        "propertyNames": { "maxLength": MAX_METADATA_NAME_CHARS },
        "additionalProperties": { "type": "string", "maxLength": MAX_METADATA_VALUE_CHARS },
        "description": "Notes of your own; the reply repeats them.",
    });
    let repeated = "An identifier of your own; it changes nothing about the text.";
    fields([
        ("stream", optional("boolean", "Whether to send the text as it comes, as Server-Sent Events.")),
        (
            "temperature",
            json!({
                "type": ["number", "null"],
                "minimum": 0,
                "maximum": MAX_TEMPERATURE,
                "default": super::DEFAULT_TEMPERATURE,
                "description": "At 0 the same request gives the same text.",
            }),
        ),
        (
            "top_p",
            json!({
                "type": ["number", "null"],
                "exclusiveMinimum": 0,
                "maximum": 1,
                "default": 1,
                "description": "Only the likeliest tokens that together hold this share of the probability stay.",
            }),
        ),
        ("metadata", metadata),
        ("user", optional("string", repeated)),
        ("safety_identifier", optional("string", repeated)),
        ("prompt_cache_key", optional("string", repeated)),
    ])
}

fn model() -> Value {
    json!({ "type": "string", "description": "Which model runs the job: a name from `GET /v1/models`." })
}

fn optional(kind: &str, meaning: &str) -> Value {
    json!({ "type": [kind, "null"], "description": meaning })
}

fn cap(meaning: &str) -> Value {
    json!({ "type": ["integer", "null"], "minimum": MIN_OUTPUT_TOKENS, "description": meaning })
}

fn tool_choice() -> Value {
    Harmless::Words(TOOL_CHOICES).schema()
}

fn messages(dialect: &Dialect) -> Value {
    let mut part = not_offered(BESIDE_TEXT);
    part.extend(fields([
        ("type", json!({ "type": "string", "enum": dialect.text_parts })),
        ("text", json!({ "type": "string" })),
    ]));
    let parts = json!({
        "type": "array",
        "items": { "type": "object", "properties": part, "required": ["type", "text"], "additionalProperties": false },
    });
    let mut message = not_offered(dialect.beside);
    message.extend(
        dialect.identifiers.iter().map(|name| ((*name).to_owned(), json!({ "type": ["string", "null"] }))),
    );
    message.extend(fields([
        ("role", json!({ "type": "string", "enum": ROLES })),
        ("content", json!({ "oneOf": [{ "type": "string" }, parts] })),
    ]));
    json!({
        "type": "array",
        "items": { "type": "object", "properties": message, "required": ["role", "content"], "additionalProperties": false },
    })
}

fn not_offered(table: &[NotOffered]) -> Map<String, Value> {
    table.iter().map(|NotOffered(name, harmless)| ((*name).to_owned(), harmless.schema())).collect()
}

impl Harmless {
    fn schema(&self) -> Value {
        let only = |values: Vec<Value>| json!({ "enum": values });
        let words = |words: &[&str]| words.iter().map(|word| json!(word)).collect::<Vec<_>>();
        let mut schema = match self {
            Self::Nothing => json!({ "type": "null" }),
            Self::False => only(vec![json!(false), Value::Null]),
            Self::Zero => only(vec![json!(0), Value::Null]),
            Self::One => only(vec![json!(1), Value::Null]),
            Self::AnyCount => json!({ "type": ["integer", "null"], "minimum": 0 }),
            Self::Empty => json!({ "type": ["array", "object", "null"], "maxItems": 0, "maxProperties": 0 }),
            Self::Words(taken) => only([words(taken), vec![Value::Null]].concat()),
            Self::ListOf(taken) => json!({ "type": ["array", "null"], "items": { "enum": words(taken) } }),
            Self::Object(table) => json!({
                "type": ["object", "null"],
                "properties": not_offered(table),
                "additionalProperties": false,
            }),
        };
        schema["description"] = json!(NOT_OFFERED);
        schema
    }
}

fn responses_event() -> Value {
    let event = |(name, when): (&str, &str)| {
        json!({
            "type": "object",
            "description": when,
            "properties": {
                "event": { "type": "string", "enum": [name] },
                "data": { "type": "string", "contentMediaType": "application/json", "contentSchema": {
                    "type": "object",
                    "properties": { "type": { "type": "string", "enum": [name] }, "sequence_number": { "type": "integer", "minimum": 0 } },
                    "required": ["type", "sequence_number"],
                }},
            },
            "required": ["event", "data"],
        })
    };
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
    json!({ "description": "One event of the stream.", "oneOf": events.map(event) })
}

fn chat_event() -> Value {
    json!({
        "type": "object",
        "description": "One event of the stream, without a name: a `chat.completion.chunk`, or an error in place of all that \
                        would follow; the last is `[DONE]`.",
        "properties": { "data": { "type": "string" } },
        "required": ["data"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ApiError;
    use std::collections::BTreeSet;

    /// The names that a parser knows, as it tells them to who sends none of them.
    fn known(refusal: Option<ApiError>) -> BTreeSet<String> {
        let reason = refusal.unwrap().reason;
        reason.split_once("the known ones are ").unwrap().1.split(", ").map(str::to_owned).collect()
    }

    fn with_unknown_field(mut example: Value) -> Vec<u8> {
        example["qqqqqqqqqqqqqqqqqqqqqqqq"] = json!(1);
        example.to_string().into_bytes()
    }

    #[test]
    fn the_described_fields_are_those_that_the_parsers_know() {
        // Nobody is pointed to what is not offered.
        let is_offered = |schema: &Value| schema["description"] != NOT_OFFERED;
        let names = |described: Map<String, Value>| {
            let offered = described.into_iter().filter(|(_, schema)| is_offered(schema));
            offered.map(|(name, _)| name).collect::<BTreeSet<_>>()
        };
        let body = with_unknown_field(responses_example());
        assert_eq!(names(responses_fields()), known(responses_request::parse(&body).err()));
        assert_eq!(names(counting_fields()), known(responses_request::parse_for_counting(&body).err()));
        let body = with_unknown_field(chat_example());
        assert_eq!(names(chat_fields()), known(chat_request::parse(&body).err()));
    }

    #[test]
    fn the_examples_are_taken_as_they_are() {
        assert!(responses_request::parse(responses_example().to_string().as_bytes()).is_ok());
        assert!(chat_request::parse(chat_example().to_string().as_bytes()).is_ok());
    }
}
