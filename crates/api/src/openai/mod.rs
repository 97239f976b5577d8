//! The paths that OpenAI's own clients call: `POST /v1/responses`, `POST /v1/responses/input_tokens` and
//! `POST /v1/chat/completions`. Text in, text out; the same admission, limits and bill as `POST /v1/generate`.
//!
//! What those paths know elsewhere and is not offered here is refused by its name, never ignored: a caller who counts on
//! it must not be left to find out from the text. Fields that ask for nothing (`n: 1`, `tools: []`) are taken.

pub(crate) mod chat_completions;
mod chat_events;
pub(crate) mod chat_request;
mod echoed;
mod errors;
pub(crate) mod input_tokens;
mod messages;
mod response_events;
mod response_object;
pub(crate) mod responses;
pub(crate) mod responses_request;
mod unsupported;

pub(crate) use errors::{
    Body as ErrorBody, body as error_body, code_of as error_code_of, is_of_family, type_of as error_type_of,
};
pub(crate) use unsupported::ABOUT_UNSUPPORTED;

use crate::request::Integer;
use chancery_domain::RequestId;
use chancery_engine::Turn;
use chancery_metering::GenerateRequest;

/// Those paths' default, which is not that of `POST /v1/generate`: their callers are used to it.
const DEFAULT_TEMPERATURE: f32 = 1.0;

const MAX_OUTPUT_TOKENS: Integer = Integer { min: 1, max: None };

/// What the schemas of both families' bodies say alike.
const ABOUT_BODY: &str = "Fields that are not offered are taken only with a value that asks for nothing, and refused by name with any other.";
const ABOUT_CAP: &str =
    "Cap on the length of the reply, in tokens; left out, what the context leaves room for.";
const ABOUT_STREAM: &str = "Whether to send the text as it comes, as Server-Sent Events.";
const ABOUT_TEMPERATURE: &str = "At 0 the same request gives the same text.";
const ABOUT_TOP_P: &str = "Only the likeliest tokens that together hold this share of the probability stay.";

/// A request with nothing but what is counted in; the rest as where it is left out.
fn plain_request(model: String, turns: Vec<Turn>) -> GenerateRequest {
    GenerateRequest {
        model,
        turns,
        max_output_tokens: None,
        temperature: DEFAULT_TEMPERATURE,
        top_k: None,
        top_p: 1.0,
        min_p: 0.0,
        seed: None,
        stop: Vec::new(),
    }
}

/// A request's id under the name that a family of objects gives it. What follows the prefix is the same, so that what
/// a caller has names the request in the log and the ledger too.
fn id_with_prefix(prefix: &str, id: &RequestId) -> String {
    let id = id.as_str();
    format!("{prefix}{}", id.strip_prefix("req_").unwrap_or(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_named_after_its_request() {
        let id = RequestId::from_stored("req_01kxa6y0rc4t3c8v1m5q9e2f7z".to_owned());
        assert_eq!(id_with_prefix("resp_", &id), "resp_01kxa6y0rc4t3c8v1m5q9e2f7z");
        assert_eq!(id_with_prefix("chatcmpl-", &id), "chatcmpl-01kxa6y0rc4t3c8v1m5q9e2f7z");
    }
}
