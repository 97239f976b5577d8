//! `include` of `POST /v1/responses`: parts of the reply that are left out unless they are listed. Only the log
//! probabilities are; there is never any encrypted reasoning, so including it changes nothing.

use crate::error::{ApiError, ApiResult};
use crate::json::{Json, truncate};
use crate::request::{FieldType, wrong_type};
use serde_json::{Value, json};

pub(super) const INCLUDED_LOGPROBS: &str = "message.output_text.logprobs";
const ALLOWED: [&str; 2] = [INCLUDED_LOGPROBS, "reasoning.encrypted_content"];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Included {
    pub has_logprobs: bool,
}

pub(super) struct IncludeList;

impl IncludeList {
    pub(super) const DESCRIPTION: &'static str =
        "With `message.output_text.logprobs`, the reply has the log probability of each of its tokens.";
}

impl FieldType for IncludeList {
    type Value = Included;
    const EXPECTED: &'static str = "an array of strings";

    fn read(&self, path: &str, value: Json) -> ApiResult<Included> {
        let items = match value {
            Json::Array(items) => items,
            other => return Err(wrong_type(path, Self::EXPECTED, &other)),
        };
        let mut included = Included::default();
        for item in items {
            match item {
                Json::String(name) if name == INCLUDED_LOGPROBS => included.has_logprobs = true,
                Json::String(name) if ALLOWED.contains(&name.as_str()) => {}
                Json::String(name) => {
                    let reason = format!(
                        "unsupported `{path}` {:?}; remove it, or use {}",
                        truncate(&name),
                        ALLOWED.join(" or ")
                    );
                    return Err(ApiError::invalid_value(path, reason));
                }
                other => return Err(wrong_type(path, Self::EXPECTED, &other)),
            }
        }
        Ok(included)
    }

    fn schema(&self) -> Value {
        json!({ "type": "array", "items": { "enum": ALLOWED } })
    }
}
