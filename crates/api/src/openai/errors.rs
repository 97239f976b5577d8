//! Errors in the format that OpenAI's clients expect. Statuses are the same as on all other paths. So are the codes,
//! except a few for which such clients look for OpenAI's name.

use crate::error::ApiError;
use axum::http::StatusCode;

/// Everything below these paths uses OpenAI's error format, including 404s.
const PATHS: [&str; 5] =
    ["/v1/responses", "/v1/chat", "/v1/completions", "/v1/embeddings", "/v1/moderations"];

pub(crate) fn is_openai_path(path: &str) -> bool {
    PATHS
        .iter()
        .any(|root| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// The body of every refusal on the paths that OpenAI's clients call.
#[derive(serde::Serialize, utoipa::ToSchema)]
#[schema(as = OpenAiErrorBody)]
pub(crate) struct Body<'a> {
    error: Fields<'a>,
}

/// What went wrong.
#[derive(serde::Serialize, utoipa::ToSchema)]
#[schema(as = OpenAiError)]
struct Fields<'a> {
    /// For people, with what to do about it.
    message: &'a str,
    /// The family's own class of the error.
    r#type: &'static str,
    /// The field that it is about, where it is about one.
    #[schema(required)]
    param: Option<&'a str>,
    /// What went wrong, for programs; new codes may come.
    code: &'static str,
    /// Whose limit it is, where a limit rejects: `key` or `account`. OpenAI has no such field.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, examples("key"))]
    scope: Option<&'static str>,
    /// Which limit it is: `requests_per_minute`, `tokens_per_minute` or `spend_per_month`. OpenAI has no such field.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, examples("tokens_per_minute"))]
    limit: Option<&'static str>,
}

pub(crate) fn body(error: &ApiError) -> Vec<u8> {
    // Strings and a fixed shape always serialize.
    serde_json::to_vec(&Body { error: fields(error) }).unwrap_or_default()
}

/// The error that ends a failed stream of chunks.
pub(super) fn chunk(error: &ApiError) -> impl serde::Serialize {
    Body { error: fields(error) }
}

/// Why a response failed, as the response tells it.
#[derive(serde::Serialize, utoipa::ToSchema)]
#[schema(as = ResponseFailure)]
pub(super) struct Failure {
    /// One of the few that the clients' types know; what it was is in the message.
    code: &'static str,
    message: String,
}

impl Failure {
    pub(super) fn of(error: &ApiError) -> Self {
        let code = if error.status == StatusCode::TOO_MANY_REQUESTS {
            "rate_limit_exceeded"
        } else {
            "server_error"
        };
        let wait = error.retry_after_s.map(|seconds| format!(" (in {seconds} s)")).unwrap_or_default();
        Self { code, message: format!("{}: {}{wait}", error.code, error.reason) }
    }
}

fn fields(error: &ApiError) -> Fields<'_> {
    Fields {
        message: &error.reason,
        r#type: type_of(error.status),
        param: error.field.as_deref(),
        code: code_of(error.code),
        scope: error.limit.map(|limit| limit.scope.as_str()),
        limit: error.limit.map(|limit| limit.name.as_str()),
    }
}

/// Maps to OpenAI's code if clients look for one; otherwise keeps ours.
pub(crate) fn code_of(code: &'static str) -> &'static str {
    match code {
        "input_too_long" => "context_length_exceeded",
        "unknown_model" => "model_not_found",
        "rate_limited" => "rate_limit_exceeded",
        code => code,
    }
}

pub(crate) fn type_of(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::PAYMENT_REQUIRED => "insufficient_quota",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_server_error() => "server_error",
        _ => "invalid_request_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openai_error_without_a_limit_has_its_four_fields() {
        let error = ApiError::invalid_value("n", "`n` takes 1 here");
        assert_eq!(
            String::from_utf8(body(&error)).unwrap(),
            r#"{"error":{"message":"`n` takes 1 here","type":"invalid_request_error","param":"n","code":"invalid_value"}}"#
        );
        let error = ApiError::internal("a secret");
        assert!(body(&error).starts_with(br#"{"error":{"message":"internal error"#));
        assert!(body(&error).ends_with(br#""type":"server_error","param":null,"code":"internal_error"}}"#));
    }

    #[test]
    fn openai_error_format_applies_to_its_paths_and_subpaths() {
        for path in ["/v1/responses", "/v1/responses/resp_1", "/v1/chat/completions", "/v1/chat"] {
            assert!(is_openai_path(path), "{path}");
        }
        for path in ["/v1/generate", "/v1/models", "/v1/response", "/v1/responsesx", "/v1/chats", "/", ""] {
            assert!(!is_openai_path(path), "{path}");
        }
    }
}
