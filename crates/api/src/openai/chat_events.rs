//! The chunks of `POST /v1/chat/completions` with `stream: true`: one with the role, one per piece of reasoning, which
//! comes first, one per piece of text, one with the finish reason, one with the usage if requested, and `[DONE]`. The chunks from the finish reason on are sent only
//! after the usage row is on disk. A stream that fails ends with the error instead of these.

use super::chat_completions::{ChoiceLogprobs, Usage, completion_id, finish_reason};
use super::chat_request::StreamOptions;
use super::errors;
use crate::error::ApiError;
use crate::openapi::described_as;
use crate::sse::{EventFormat, Events};
use chancery_engine::TokenLogprobs;
use chancery_metering::{Reply, StreamStart};
use serde_json::json;

/// Terminates the stream.
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
    /// Present only if requested. Null except in the last chunk, and in the first with `continuous_usage_stats`.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(serde::Serialize)]
struct Choice<'a> {
    index: u32,
    delta: Delta<'a>,
    /// Of the tokens since the last chunk; null if there are none.
    logprobs: Option<ChoiceLogprobs<'a>>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, serde::Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
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
    fn started(&mut self, started: &StreamStart, events: &mut Events) {
        self.id = completion_id(&started.id);
        self.created = started.at.0 / 1_000;
        // Before the end, only the prompt's token count is known.
        let reports_prompt_usage = self.options.continuous_usage_stats && started.is_counted;
        let usage = reports_prompt_usage.then(|| Usage::of_prompt(started.input_tokens));
        let delta = Delta { role: Some("assistant"), content: Some(""), ..Delta::default() };
        self.chunk(vec![Choice { index: 0, delta, logprobs: None, finish_reason: None }], usage, events);
    }

    fn reasoning(&mut self, text: &str, events: &mut Events) {
        self.delta(Delta { reasoning_content: Some(text), ..Delta::default() }, None, events);
    }

    fn text(&mut self, text: &str, logprobs: &[TokenLogprobs], events: &mut Events) {
        let delta = Delta { content: Some(text), ..Delta::default() };
        let logprobs = (!logprobs.is_empty()).then(|| ChoiceLogprobs::of(logprobs));
        self.chunk(vec![Choice { index: 0, delta, logprobs, finish_reason: None }], None, events);
    }

    fn ended(&mut self, reply: &Reply, events: &mut Events) {
        self.delta(Delta::default(), Some(finish_reason(reply.stop_reason)), events);
        if self.options.include_usage {
            self.chunk(Vec::new(), Some(Usage::of(reply)), events);
        }
        events.raw(DONE);
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        events.unnamed(&errors::chunk(error));
    }
}

/// Schema of one event in `/openapi.json`.
pub(super) struct ChatEvent;

described_as!(ChatEvent => json!({
    "type": "object",
    "description": "One event of the stream, without a name: a `chat.completion.chunk`, or an error in place of all that \
                    would follow; the last is `[DONE]`.",
    "properties": { "data": { "type": "string" } },
    "required": ["data"],
}));
