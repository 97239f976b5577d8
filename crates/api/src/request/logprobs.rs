//! The fields that ask for log probabilities. Every path has `top_logprobs`; what it goes with differs.

use super::field_types::{Boolean, Integer};
use super::fields::Fields;
use crate::error::{ApiError, ApiResult};
use chancery_engine::MAX_TOP_LOGPROBS;

const TOP_LOGPROBS: Integer = Integer { min: 0, max: Some(MAX_TOP_LOGPROBS as u64) };

/// `logprobs` and `top_logprobs`, as in Chat Completions. Returns how many likely tokens to report with every token;
/// `None` reports no log probabilities.
pub(crate) fn logprobs(fields: &mut Fields) -> ApiResult<Option<u8>> {
    let is_requested = fields.with_default(
        "logprobs",
        &Boolean,
        false,
        "Whether the reply has the log probability of each of its tokens.",
    )?;
    top_logprobs(fields, is_requested, "logprobs: true")
}

/// `top_logprobs`, which needs the field that asks for log probabilities, as `requirement` writes it.
pub(crate) fn top_logprobs(
    fields: &mut Fields,
    is_requested: bool,
    requirement: &str,
) -> ApiResult<Option<u8>> {
    let count = fields.with_default(
        "top_logprobs",
        &TOP_LOGPROBS,
        0,
        format_args!(
            "How many of the most likely tokens to report with each token; above 0 only with `{requirement}`."
        ),
    )?;
    fields.check(|| match is_requested || count == 0 {
        true => Ok(()),
        false => {
            let reason = format!("`top_logprobs` requires `{requirement}`; set it, or remove `top_logprobs`");
            Err(ApiError::invalid_value("top_logprobs", reason))
        }
    })?;
    Ok(is_requested.then(|| u8::try_from(count).unwrap_or(MAX_TOP_LOGPROBS)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Json;

    fn read(body: &str) -> ApiResult<Option<u8>> {
        Fields::read("", Json::parse(body.as_bytes()).unwrap(), logprobs)
    }

    #[test]
    fn logprobs_are_reported_only_where_asked_for() {
        for (body, expected) in [
            ("{}", None),
            (r#"{"logprobs":false}"#, None),
            (r#"{"logprobs":null,"top_logprobs":null}"#, None),
            (r#"{"top_logprobs":0}"#, None),
            (r#"{"logprobs":true}"#, Some(0)),
            (r#"{"logprobs":true,"top_logprobs":20}"#, Some(20)),
        ] {
            assert_eq!(read(body).unwrap(), expected, "{body}");
        }
    }

    #[test]
    fn top_logprobs_without_logprobs_is_rejected_with_the_fix() {
        for body in [r#"{"top_logprobs":1}"#, r#"{"logprobs":false,"top_logprobs":5}"#] {
            let error = read(body).unwrap_err();
            assert_eq!((error.code, error.field.as_deref()), ("invalid_value", Some("top_logprobs")));
            let reason = "`top_logprobs` requires `logprobs: true`; set it, or remove `top_logprobs`";
            assert_eq!(error.reason, reason);
        }
        let error = read(r#"{"logprobs":true,"top_logprobs":21}"#).unwrap_err();
        assert_eq!(error.reason, "`top_logprobs` must be from 0 to 20");
    }
}
