//! The paths that OpenAI's own clients call: `POST /v1/responses`, `POST /v1/responses/input_tokens` and `POST
//! /v1/chat/completions`. They handle text only, with the same admission, limits and billing as `POST /v1/generate`.
//!
//! Unsupported OpenAI parameters are rejected by name, never ignored: callers who rely on one must not have to discover
//! that from the output. Values that request nothing (`n: 1`, `tools: []`) are accepted.

pub(crate) mod chat_completions;
mod chat_events;
pub(crate) mod chat_request;
mod echoed;
mod errors;
mod include;
pub(crate) mod input_tokens;
mod messages;
mod response_events;
mod response_object;
pub(crate) mod responses;
pub(crate) mod responses_request;
mod unsupported;

pub(crate) use errors::{
    Body as ErrorBody, body as error_body, code_of as error_code_of, is_openai_path, type_of as error_type_of,
};
pub(crate) use unsupported::UNSUPPORTED_DESCRIPTION;

use crate::request::Integer;
use chancery_domain::RequestId;
use chancery_engine::{Penalties, Turn};
use chancery_metering::GenerateRequest;

/// OpenAI's default, which its users expect. `POST /v1/generate` has a different one.
const DEFAULT_TEMPERATURE: f32 = 1.0;

const MAX_OUTPUT_TOKENS: Integer = Integer { min: 1, max: None };

/// Schema descriptions shared by both APIs.
const BODY_DESCRIPTION: &str = "Fields that are not offered are taken only with a value that asks for nothing, and refused by name with any other.";
const MAX_TOKENS_DESCRIPTION: &str =
    "Cap on the length of the reply, in tokens; left out, what the context leaves room for.";
const STREAM_DESCRIPTION: &str = "Whether to send the text as it comes, as Server-Sent Events.";
const TEMPERATURE_DESCRIPTION: &str = "At 0 the same request gives the same text.";
const TOP_P_DESCRIPTION: &str =
    "Only the likeliest tokens that together hold this share of the probability stay.";

/// A request with defaults for everything but the model and the turns.
fn default_request(model: String, turns: Vec<Turn>) -> GenerateRequest {
    GenerateRequest {
        model,
        turns,
        max_output_tokens: None,
        temperature: DEFAULT_TEMPERATURE,
        top_k: None,
        top_p: 1.0,
        min_p: 0.0,
        penalties: Penalties::NONE,
        seed: None,
        stop: Vec::new(),
        stop_on_repetition: false,
        top_logprobs: None,
    }
}

/// Replaces the prefix of a request id with the one for this type of object. The rest stays the same, so that it also
/// finds the request in the log and the ledger.
fn id_with_prefix(prefix: &str, id: &RequestId) -> String {
    let id = id.as_str();
    format!("{prefix}{}", id.strip_prefix("req_").unwrap_or(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_id_is_derived_from_the_request_id() {
        let id = RequestId::from_stored("req_01kxa6y0rc4t3c8v1m5q9e2f7z".to_owned());
        assert_eq!(id_with_prefix("resp_", &id), "resp_01kxa6y0rc4t3c8v1m5q9e2f7z");
        assert_eq!(id_with_prefix("chatcmpl-", &id), "chatcmpl-01kxa6y0rc4t3c8v1m5q9e2f7z");
    }
}
