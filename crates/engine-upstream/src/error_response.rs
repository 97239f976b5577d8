//! Interprets error responses of servers. Pure.

use super::cache_salt::CACHE_SALT_FIELD;
use super::chat::CONTINUOUS_USAGE_OPTION;
use super::chunk::error_code_suffix;
use super::error::{ErrorResponse, UpstreamError, UpstreamErrorKind};
use super::limits::MAX_REASON_CHARS;
use super::sampling_params::names_in;
use hyper::StatusCode;

/// Texts that mean the prompt is too long: vLLM's and SGLang's, llama-server's, and OpenAI's code.
const CONTEXT_EXCEEDED_MARKERS: [&str; 5] = [
    "maximum context length",
    "context_length_exceeded",
    "exceed_context_size",
    "longer than the model's context",
    "input_too_long",
];

/// Texts that follow the prompt's token count: vLLM's current and older wording, and SGLang's.
const PROMPT_TOKENS_SUFFIXES: [&str; 3] =
    [" input tokens", " in the messages", " tokens from the input messages"];

pub(super) fn read(status: StatusCode, retry_after_s: Option<u32>, body: &str) -> UpstreamError {
    let kind = match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            UpstreamErrorKind::Busy { retry_after_s }
        }
        StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT => UpstreamErrorKind::TimedOut,
        // The key, credit, URL or model is misconfigured, so this server cannot be used at all.
        StatusCode::UNAUTHORIZED
        | StatusCode::PAYMENT_REQUIRED
        | StatusCode::FORBIDDEN
        | StatusCode::NOT_FOUND => UpstreamErrorKind::ServerFailure,
        _ if CONTEXT_EXCEEDED_MARKERS.iter().any(|marker| body.contains(marker)) => {
            UpstreamErrorKind::ContextExceeded
        }
        StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY => {
            UpstreamErrorKind::Rejected
        }
        _ => UpstreamErrorKind::ServerFailure,
    };
    let response: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    let message = [&response["error"]["message"], &response["message"], &response["detail"]];
    let message = message.into_iter().find_map(serde_json::Value::as_str);
    let error_response = ErrorResponse {
        status: status.as_u16(),
        reason: message.and_then(caller_message),
        prompt_tokens: prompt_tokens(body),
        names_continuous_usage: body.contains(CONTINUOUS_USAGE_OPTION),
        names_cache_salt: body.contains(CACHE_SALT_FIELD),
        named_params: names_in(body),
    };
    let detail = format!("HTTP status {}{}", status.as_u16(), error_code_suffix(&response["error"]));
    UpstreamError { error_response: Some(error_response), ..UpstreamError::new(kind, detail) }
}

/// Shortens a message to one line. Returns `None` if it has a character that is rare in sentences but common in URLs,
/// paths and code: a server's internals are not for callers.
fn caller_message(message: &str) -> Option<String> {
    let words: Vec<&str> = message.split_whitespace().collect();
    let line: String = words.join(" ").chars().take(MAX_REASON_CHARS).collect();
    let is_plain =
        |character: char| character.is_alphanumeric() || " .,:;'\"`()[]{}<>=+-_%!?*".contains(character);
    (!line.is_empty() && line.chars().all(is_plain)).then_some(line)
}

fn prompt_tokens(body: &str) -> Option<u32> {
    PROMPT_TOKENS_SUFFIXES.iter().find_map(|suffix| {
        let (before, _) = body.split_once(suffix)?;
        let digits = before.bytes().rev().take_while(u8::is_ascii_digit).count();
        before[before.len() - digits..].parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(status: u16, body: &str) -> UpstreamError {
        read(StatusCode::from_u16(status).unwrap(), None, body)
    }

    #[test]
    fn each_status_maps_to_its_error_kind() {
        for (status, kind) in [
            (400, UpstreamErrorKind::Rejected),
            (401, UpstreamErrorKind::ServerFailure),
            (402, UpstreamErrorKind::ServerFailure),
            (403, UpstreamErrorKind::ServerFailure),
            (404, UpstreamErrorKind::ServerFailure),
            (405, UpstreamErrorKind::ServerFailure),
            (408, UpstreamErrorKind::TimedOut),
            (413, UpstreamErrorKind::Rejected),
            (422, UpstreamErrorKind::Rejected),
            (429, UpstreamErrorKind::Busy { retry_after_s: None }),
            (307, UpstreamErrorKind::ServerFailure),
            (500, UpstreamErrorKind::ServerFailure),
            (503, UpstreamErrorKind::Busy { retry_after_s: None }),
            (504, UpstreamErrorKind::TimedOut),
        ] {
            assert_eq!(rejected(status, "").kind, kind, "{status}");
        }
    }

    #[test]
    fn prompt_token_count_is_parsed_from_context_errors() {
        for message in [
            "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (1234 in the messages, \
             3766 in the completion).",
            "'max_tokens' is too large: 4096. This model's maximum context length is 4096 tokens and your request has 1234 \
             input tokens (4096 > 4096 - 1234).",
            "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of \
             5000 tokens: 1234 tokens from the input messages and 3766 tokens for the completion.",
        ] {
            let error = rejected(400, &serde_json::json!({"error": {"message": message}}).to_string());
            assert_eq!(error.kind, UpstreamErrorKind::ContextExceeded);
            assert_eq!(error.error_response.unwrap().prompt_tokens, Some(1_234), "{message}");
        }
        assert_eq!(prompt_tokens("there are input tokens and 99999999999 input tokens"), None);
    }

    #[test]
    fn error_reason_is_forwarded_without_server_internals() {
        let reason = |message: &str| {
            let body = serde_json::json!({"error": {"message": message}}).to_string();
            rejected(400, &body).error_response.unwrap().reason
        };
        assert_eq!(
            reason("top_p must be in (0, 1],\n got 3.0.").as_deref(),
            Some("top_p must be in (0, 1], got 3.0.")
        );
        for internal in ["see http://10.0.0.7:8000", "File \"/opt/vllm/x.py\"", "a@b", "", "C:\\models"] {
            assert_eq!(reason(internal), None, "{internal}");
        }
        assert_eq!(reason(&"x".repeat(10_000)).unwrap().len(), MAX_REASON_CHARS);
        let plain = rejected(422, r#"{"detail":"no system turn, please"}"#).error_response.unwrap();
        assert_eq!(plain.reason.as_deref(), Some("no system turn, please"));
    }
}
