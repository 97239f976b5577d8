//! The events of `POST /v1/generate` with `stream: true`, by the names of the Responses API:
//!
//! `response.created`, then `response.output_text.delta` for each piece of text, `response.output_text.done` with all of
//! it, and last `response.completed`, `response.incomplete` (cut short by a limit) or `response.failed`. The last one
//! carries the whole reply with its usage, as a request without `stream` would have got it, or the error.

use crate::error::{ApiError, ErrorFields};
use crate::generate::GenerateReply;
use crate::sse::{EventFormat, Events};
use chancery_domain::HowEnded;
use chancery_metering::{Beginning, Reply};

pub(crate) struct GenerateEvents {
    id: String,
    model: String,
    next_number: u64,
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
#[serde(rename_all = "snake_case")]
enum Content<'a> {
    Delta(&'a str),
    Text(&'a str),
    #[serde(rename = "response")]
    Begun(Begun<'a>),
    #[serde(rename = "response")]
    Ended(GenerateReply<'a>),
    #[serde(rename = "response")]
    Failed(Failed<'a>),
}

/// What is known before the first piece of text.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(crate) struct Begun<'a> {
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
    pub(crate) fn new(model: String) -> Self {
        Self { id: String::new(), model, next_number: 0 }
    }
}

/// Writes an event and counts it.
fn write(next_number: &mut u64, name: &str, content: Content<'_>, events: &mut Events) {
    let sequence_number = *next_number;
    *next_number += 1;
    events.named(name, &Event { r#type: name, sequence_number, content });
}

impl EventFormat for GenerateEvents {
    fn beginning(&mut self, beginning: &Beginning, events: &mut Events) {
        self.id = beginning.id.to_string();
        let usage = InputCount { input_tokens: beginning.input_tokens };
        let begun = Begun { id: &self.id, model: &self.model, usage };
        write(&mut self.next_number, "response.created", Content::Begun(begun), events);
    }

    fn text(&mut self, text: &str, events: &mut Events) {
        write(&mut self.next_number, "response.output_text.delta", Content::Delta(text), events);
    }

    fn ended(&mut self, reply: &Reply, events: &mut Events) {
        let text = Content::Text(&reply.output_text);
        write(&mut self.next_number, "response.output_text.done", text, events);
        let name = match reply.ended {
            HowEnded::Complete | HowEnded::StopSequence => "response.completed",
            HowEnded::MaxOutputTokens | HowEnded::ContextLength | HowEnded::Cancelled => {
                "response.incomplete"
            }
        };
        let reply = GenerateReply::of(reply, &self.model);
        write(&mut self.next_number, name, Content::Ended(reply), events);
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        let failed = Failed { id: &self.id, model: &self.model, error: error.fields_in_stream(&self.id) };
        write(&mut self.next_number, "response.failed", Content::Failed(failed), events);
    }
}
