//! The chunks of `POST /v1/chat/completions` with `stream: true`: one that names the role, one for each piece of text, one
//! with the reason why it ended, one with the usage where it was asked for, and `[DONE]`. Everything from the reason on
//! leaves only after the usage row is on disk. A stream that fails ends with the error in place of these.

use super::chat_completions::{Usage, completion_id, finish_reason};
use super::chat_request::StreamOptions;
use super::errors;
use crate::error::ApiError;
use crate::openapi::described_as;
use crate::sse::{EventFormat, Events};
use chancery_metering::{Beginning, Reply};
use serde_json::json;

/// After it, nothing comes.
const DONE: &str = "[DONE]";

pub(super) struct ChatEvents {
    id: String,
    created: i64,
    model: String,
    options: StreamOptions,
}

#[derive(serde::Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: i64,
    model: &'a str,
    service_tier: &'static str,
    choices: Vec<Choice<'a>>,
    /// Only where it was asked for: null in every chunk but the last, and but the first where it was asked for all along.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(serde::Serialize)]
struct Choice<'a> {
    index: u32,
    delta: Delta<'a>,
    logprobs: Option<()>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, serde::Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

impl ChatEvents {
    pub(super) fn new(model: String, options: StreamOptions) -> Self {
        Self { id: String::new(), created: 0, model, options }
    }

    fn delta(&self, delta: Delta<'_>, finish_reason: Option<&'static str>, events: &mut Events) {
        self.chunk(vec![Choice { index: 0, delta, logprobs: None, finish_reason }], None, events);
    }

    fn chunk(&self, choices: Vec<Choice<'_>>, usage: Option<Usage>, events: &mut Events) {
        events.unnamed(&Chunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model,
            service_tier: "default",
            choices,
            usage: self.options.include_usage.then_some(usage),
        });
    }
}

impl EventFormat for ChatEvents {
    fn beginning(&mut self, beginning: &Beginning, events: &mut Events) {
        self.id = completion_id(&beginning.id);
        self.created = beginning.at.0 / 1_000;
        // What is known before the end is the prompt's count, and nothing generated yet.
        let is_told = self.options.continuous_usage_stats && beginning.is_counted;
        let usage = is_told.then(|| Usage::of_prompt(beginning.input_tokens));
        let delta = Delta { role: Some("assistant"), content: Some("") };
        self.chunk(vec![Choice { index: 0, delta, logprobs: None, finish_reason: None }], usage, events);
    }

    fn text(&mut self, text: &str, events: &mut Events) {
        self.delta(Delta { role: None, content: Some(text) }, None, events);
    }

    fn ended(&mut self, reply: &Reply, events: &mut Events) {
        self.delta(Delta::default(), Some(finish_reason(reply.ended)), events);
        if self.options.include_usage {
            self.chunk(Vec::new(), Some(Usage::of(reply)), events);
        }
        events.raw(DONE);
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        events.unnamed(&errors::chunk(error));
    }
}

/// One event for `/openapi.json`.
pub(super) struct ChatEvent;

described_as!(ChatEvent => json!({
    "type": "object",
    "description": "One event of the stream, without a name: a `chat.completion.chunk`, or an error in place of all that \
                    would follow; the last is `[DONE]`.",
    "properties": { "data": { "type": "string" } },
    "required": ["data"],
}));
