//! Every error of the API. `ApiError` separates what the caller sees (status, code, reason, field) from what goes to
//! the log (`internal`). Only `boundary` serializes it, because it knows the request id.

mod limits;

use crate::body_bytes::BodyBytesExceeded;
use crate::idempotency::KEY_NAME;
use crate::json::truncate;
use crate::openapi::errors::AnyCode;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use chancery_domain::{LimitScope, RateLimitStatus};
use chancery_engine::EngineError;
use chancery_metering::MeterError;
use chancery_store::DbError;
use limits::{LimitName, ReachedLimit};

/// `Retry-After` when the database is unreachable or the process is shutting down.
const UNAVAILABLE_RETRY_AFTER_S: u32 = 2;

/// `Retry-After` when too much waits to be received or tokenized.
const BUSY_RETRY_AFTER_S: u32 = 1;

/// `Retry-After` when a receipt waits for the next checkpoint, which is signed every minute.
const CHECKPOINT_RETRY_AFTER_S: u32 = 60;

/// `Retry-After` when a request with the same idempotency key is still running.
const IN_FLIGHT_RETRY_AFTER_S: u32 = 3;

pub(crate) type ApiResult<T> = Result<T, ApiError>;

#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub status: StatusCode,
    pub code: &'static str,
    pub reason: String,
    pub field: Option<String>,
    pub limit: Option<ReachedLimit>,
    pub retry_after_s: Option<u32>,
    /// Tells clients with automatic retries not to retry.
    pub is_not_retryable: bool,
    /// Rate-limit status, if the failed check returned one.
    pub rate_limit_status: Option<Box<RateLimitStatus>>,
    /// Detail for the log only, never sent to the caller.
    pub internal: Option<String>,
}

/// The body of every refusal.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(crate) struct ErrorBody<'a> {
    error: ErrorFields<'a>,
}

/// What went wrong.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(crate) struct ErrorFields<'a> {
    #[schema(value_type = AnyCode)]
    code: &'static str,
    /// The same for people, with what to do about it.
    reason: &'a str,
    /// The field, parameter or header that it is about, where it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    field: Option<&'a str>,
    /// Whose limit it is, where a limit rejects: `key` or `account`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, examples("key"))]
    scope: Option<&'static str>,
    /// Which limit it is: `requests_per_minute`, `tokens_per_minute` or `spend_per_month`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, examples("tokens_per_minute"))]
    limit: Option<&'static str>,
    /// After how many seconds to try again; only in a stream that has begun, where no header can say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    retry_after_s: Option<u32>,
    /// The same as the header `x-request-id`.
    request_id: &'a str,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, reason: impl Into<String>) -> Self {
        Self {
            status,
            code,
            reason: reason.into(),
            field: None,
            limit: None,
            retry_after_s: None,
            is_not_retryable: false,
            rate_limit_status: None,
            internal: None,
        }
    }

    pub(crate) fn with_field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    fn with_limit(self, scope: LimitScope, name: LimitName) -> Self {
        Self { limit: Some(ReachedLimit { scope, name }), ..self }
    }

    /// Renames a field, for endpoints that call it something else.
    pub(crate) fn rename_field(mut self, field: &str, name: &str) -> Self {
        if self.field.as_deref() == Some(field) {
            self.field = Some(name.to_owned());
        }
        self.reason = self.reason.replace(&format!("`{field}`"), &format!("`{name}`"));
        self
    }

    fn retry_after_s(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// A retry could be billed again or take just as long, so a person must decide.
    fn not_retryable(self) -> Self {
        Self { retry_after_s: None, is_not_retryable: true, ..self }
    }

    fn with_internal(mut self, internal: impl Into<String>) -> Self {
        self.internal = Some(internal.into());
        self
    }

    pub(crate) fn malformed(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed_request", reason)
    }

    pub(crate) fn missing_field(field: &str, what: &str, similar_field: Option<&str>) -> Self {
        let hint = similar_field.map(|name| format!(" (you sent `{name}`)")).unwrap_or_default();
        let reason = format!("missing required field `{field}`{hint}; it must be {what}");
        Self::new(StatusCode::BAD_REQUEST, "missing_field", reason).with_field(field)
    }

    pub(crate) fn invalid_value(field: &str, reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_value", reason).with_field(field)
    }

    pub(crate) fn body_timeout(timeout_s: u64) -> Self {
        let reason = format!("request body not received within {timeout_s} seconds; send it again");
        Self::new(StatusCode::REQUEST_TIMEOUT, "malformed_request", reason)
    }

    pub(crate) fn body_too_large(max_body_bytes: usize) -> Self {
        let reason = format!("request body larger than {max_body_bytes} bytes; send less text");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", reason)
    }

    pub(crate) fn body_bytes_exceeded(exceeded: BodyBytesExceeded) -> Self {
        let limit = match exceeded {
            BodyBytesExceeded::Account { max_bytes } => {
                format!("this account has {max_bytes} bytes of requests in flight, its limit")
            }
            BodyBytesExceeded::Uploads { max_uploads } => {
                format!("this account uploads {max_uploads} requests at once, its limit")
            }
            BodyBytesExceeded::Total => "the server has too many bytes of requests in flight".to_owned(),
        };
        let reason = format!("{limit}; try again when some have ended (nothing was billed)");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", reason).retry_after_s(BUSY_RETRY_AFTER_S)
    }

    pub(crate) fn unsupported_media_type(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", reason)
    }

    pub(crate) fn browser_request() -> Self {
        let reason = "browser requests are not allowed, because they expose the API key; call the API from your server";
        Self::new(StatusCode::FORBIDDEN, "browser_request", reason)
    }

    pub(crate) fn not_found(path: &str) -> Self {
        let known = [
            "/v1/generate",
            "/v1/models",
            "/v1/tokens",
            "/v1/usage",
            "/v1/key",
            "/v1/receipts/{request_id}",
            "/v1/responses",
            "/v1/responses/input_tokens",
            "/v1/chat/completions",
            "/openapi.json",
            "/docs",
        ];
        let hint = match chancery_domain::closest_match(path, known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("available: {}", known.map(|path| format!("`{path}`")).join(", ")),
        };
        Self::new(StatusCode::NOT_FOUND, "not_found", format!("unknown path; {hint}"))
    }

    pub(crate) fn no_such_request() -> Self {
        let reason = "no request of this account has this id; use the `id` of a reply";
        Self::new(StatusCode::NOT_FOUND, "not_found", reason).with_field("request_id")
    }

    pub(crate) fn not_yet_logged() -> Self {
        let reason = "the request is billed, and no signed checkpoint covers it yet; try again in a minute";
        Self::new(StatusCode::NOT_FOUND, "not_yet_logged", reason).retry_after_s(CHECKPOINT_RETRY_AFTER_S)
    }

    pub(crate) fn method_not_allowed(method: &Method, path: &str) -> Self {
        let reason = format!("{method} is not allowed for `{path}`; see the `Allow` header");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", reason)
    }

    pub(crate) fn shutting_down() -> Self {
        let reason = "server is shutting down; try again shortly";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", reason)
            .retry_after_s(UNAVAILABLE_RETRY_AFTER_S)
    }

    pub(crate) fn internal(internal: impl Into<String>) -> Self {
        let reason = "internal error; see the server log for this request ID";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", reason).with_internal(internal)
    }

    pub(crate) fn body(&self, request_id: &str) -> Vec<u8> {
        // Strings and a fixed shape always serialize.
        serde_json::to_vec(&ErrorBody { error: self.fields(request_id) }).unwrap_or_default()
    }

    fn fields<'a>(&'a self, request_id: &'a str) -> ErrorFields<'a> {
        let field = self.field.as_deref();
        let scope = self.limit.map(|limit| limit.scope.as_str());
        let limit = self.limit.map(|limit| limit.name.as_str());
        let (code, reason) = (self.code, self.reason.as_str());
        ErrorFields { code, reason, field, scope, limit, retry_after_s: None, request_id }
    }

    pub(crate) fn fields_in_stream<'a>(&'a self, request_id: &'a str) -> ErrorFields<'a> {
        ErrorFields { retry_after_s: self.retry_after_s, ..self.fields(request_id) }
    }
}

impl From<MeterError> for ApiError {
    fn from(error: MeterError) -> Self {
        let log = error.to_string();
        match error {
            MeterError::InvalidKey => Self::new(
                StatusCode::UNAUTHORIZED,
                "invalid_api_key",
                "invalid API key; send a valid one as `Authorization: Bearer KEY`",
            ),
            MeterError::NoBillingAccount => Self::new(
                StatusCode::PAYMENT_REQUIRED,
                "no_billing_account",
                "this key has no open billing account; ask the operator to attach one",
            ),
            MeterError::UnknownModel(name) => Self::new(
                StatusCode::NOT_FOUND,
                "unknown_model",
                format!("unknown model {:?}; see `GET /v1/models`", truncate(&name)),
            )
            .with_field("model"),
            MeterError::ModelNotAllowed(name) => Self::new(
                StatusCode::FORBIDDEN,
                "model_not_allowed",
                format!("this key may not use the model {:?}; see `GET /v1/models`", truncate(&name)),
            )
            .with_field("model"),
            MeterError::MaxTokensAboveContext { context_tokens, .. } => Self::invalid_value(
                "max_output_tokens",
                format!("`max_output_tokens` must be from 1 to {context_tokens}, the model's context length"),
            ),
            MeterError::TooManyLogprobs { max_logprob_tokens, .. } => Self::invalid_value(
                "max_output_tokens",
                format!(
                    "`max_output_tokens` must be from 1 to {max_logprob_tokens} with this `top_logprobs`; lower one of them"
                ),
            ),
            MeterError::SpendingCapReached(reached) => Self::spending_cap_reached(&reached),
            MeterError::RateLimited { rejection, tokens } => Self::rate_limited(&rejection, tokens),
            MeterError::ReadsRateLimited(rejection) => Self::reads_rate_limited(&rejection),
            MeterError::TokenizeQueueFull => {
                Self::from_engine(&EngineError::Overloaded { retry_after_s: BUSY_RETRY_AFTER_S })
            }
            MeterError::ExceedsTokenLimit { input_tokens, max_output_tokens, scope, limit } => {
                Self::exceeds_token_limit(input_tokens, max_output_tokens, scope, limit)
            }
            MeterError::IdempotencyInFlight => Self::idempotency_in_flight(),
            MeterError::IdempotencyMismatch => Self::idempotency_mismatch(),
            MeterError::Limiter(_) => Self::limiter_unavailable(log),
            MeterError::Engine(error) => Self::from_engine(&error),
            MeterError::Database(error) => Self::from_database(&error),
            MeterError::Ledger(error) => Self::internal(error.to_string()),
            MeterError::Account(error) => Self::internal(error.to_string()),
            MeterError::UsageNotRecorded { error, has_key: true } => Self::from(*error),
            MeterError::UsageNotRecorded { error, has_key: false } => Self::from(*error).not_retryable(),
            MeterError::ShuttingDown => Self::shutting_down(),
            MeterError::ClientDisconnected | MeterError::Money(_) | MeterError::Internal(_) => {
                Self::internal(log)
            }
        }
    }
}

impl ApiError {
    fn idempotency_in_flight() -> Self {
        let reason = format!(
            "a request with this `{KEY_NAME}` is still running; retry shortly to get its reply (billed once)"
        );
        Self::new(StatusCode::CONFLICT, "idempotency_in_flight", reason)
            .with_field(KEY_NAME)
            .retry_after_s(IN_FLIGHT_RETRY_AFTER_S)
    }

    fn idempotency_mismatch() -> Self {
        let reason = format!(
            "this `{KEY_NAME}` was used for a different path or body; use a new key for this request"
        );
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "idempotency_mismatch", reason).with_field(KEY_NAME)
    }

    fn limiter_unavailable(log: String) -> Self {
        let reason = "rate limits are temporarily unavailable; try again";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", reason)
            .retry_after_s(UNAVAILABLE_RETRY_AFTER_S)
            .with_internal(log)
    }

    fn from_engine(error: &EngineError) -> Self {
        match *error {
            EngineError::InputTooLong { prompt_tokens, context_tokens } => Self::new(
                StatusCode::BAD_REQUEST,
                "input_too_long",
                match prompt_tokens {
                    Some(prompt_tokens) => format!(
                        "the prompt has {prompt_tokens} tokens and the model's context is {context_tokens} (one is needed for the \
                         reply); shorten the input"
                    ),
                    None => format!(
                        "the prompt exceeds the model's context of {context_tokens} tokens (one is needed for \
                         the reply); shorten the input"
                    ),
                },
            )
            .with_field("input"),
            EngineError::InputRejected { ref reason } => Self::new(
                StatusCode::BAD_REQUEST,
                "invalid_value",
                match reason {
                    Some(reason) => format!("rejected by the model's server: {reason}"),
                    None => "rejected by the model's server; remove options that the model \
                             does not support"
                        .to_owned(),
                },
            ),
            EngineError::TurnsRejected(_) => Self::invalid_value(
                "input",
                "this model's chat template does not support this order of roles; alternate `user` and `assistant`, \
                 starting with `user`",
            ),
            EngineError::Overloaded { retry_after_s } => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "overloaded",
                "the server is overloaded; try again later (nothing was billed)",
            )
            .retry_after_s(retry_after_s),
            EngineError::Restarting { retry_after_s } => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "engine_restarting",
                "the model is restarting; try again (nothing was billed)",
            )
            .retry_after_s(retry_after_s),
            EngineError::ShuttingDown => Self::shutting_down(),
            EngineError::TimedOut => Self::new(
                StatusCode::GATEWAY_TIMEOUT,
                "engine_timeout",
                "generation timed out (nothing was billed); lower `max_output_tokens`, or shorten the input",
            )
            .not_retryable(),
            EngineError::Failed(_) => Self::new(
                StatusCode::BAD_GATEWAY,
                "engine_failed",
                "the model failed on this request (nothing was billed); try again once",
            )
            .with_internal(error.to_string()),
        }
    }

    fn from_database(error: &DbError) -> Self {
        match error {
            DbError::Unavailable(_) | DbError::DiskFull(_) | DbError::ReadOnly(_) => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "unavailable",
                "the database is temporarily unavailable; try again",
            )
            .retry_after_s(UNAVAILABLE_RETRY_AFTER_S)
            .with_internal(error.to_string()),
            // Any other error is about how the store is used or what it contains, so it is a bug on our side.
            _ => Self::internal(error.to_string()),
        }
    }
}

/// Sets only the status and the headers. `boundary` writes the body, because it knows the request id.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        let headers = response.headers_mut();
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert("www-authenticate", HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert("retry-after", HeaderValue::from(seconds));
        }
        if self.is_not_retryable {
            // OpenAI's clients honor this header.
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        if let Some(rate_limit_status) = &self.rate_limit_status {
            response.extensions_mut().insert(**rate_limit_status);
        }
        response.extensions_mut().insert(self);
        response
    }
}
