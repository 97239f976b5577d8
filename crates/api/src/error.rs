//! Every refusal of the API. An `ApiError` carries what the caller reads (status, code, reason, field) apart from what
//! the log reads (`internal`). It is turned into bytes at one place, `boundary`, which knows the request's id.

use crate::idempotency::KEY_NAME;
use crate::json::shorten;
use crate::openapi::errors::AnyCode;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use chancery_domain::{Nanos, RateLimitStatus, RateLimits, Refusal};
use chancery_engine::EngineError;
use chancery_metering::{CapReached, MeterError};
use chancery_store::DbError;

/// How long a caller should wait when the database cannot be reached or the process is stopping, in seconds.
const RETRY_UNAVAILABLE_S: u32 = 2;

/// How long a caller should wait for a request of its own that is still running, in seconds.
const RETRY_IN_FLIGHT_S: u32 = 3;

pub(crate) type ApiResult<T> = Result<T, ApiError>;

#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub status: StatusCode,
    pub code: &'static str,
    pub reason: String,
    pub field: Option<String>,
    pub retry_after_s: Option<u32>,
    /// Whether clients that send again by themselves must not.
    pub must_not_be_repeated: bool,
    /// Where the account stands, where the refusal came with it.
    pub rate_limit_status: Option<Box<RateLimitStatus>>,
    /// What only the log may say.
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
            retry_after_s: None,
            must_not_be_repeated: false,
            rate_limit_status: None,
            internal: None,
        }
    }

    pub(crate) fn at_field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// For a path where a field has another name.
    pub(crate) fn calling(mut self, field: &str, name: &str) -> Self {
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

    /// Sending it again may bill it again, or take as long again; a person must decide.
    fn not_to_be_repeated(self) -> Self {
        Self { retry_after_s: None, must_not_be_repeated: true, ..self }
    }

    fn logged_as(mut self, internal: impl Into<String>) -> Self {
        self.internal = Some(internal.into());
        self
    }

    pub(crate) fn malformed(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed_request", reason)
    }

    pub(crate) fn missing_field(field: &str, what: &str, sent_instead: Option<&str>) -> Self {
        let hint = sent_instead.map(|name| format!(" (you sent `{name}`)")).unwrap_or_default();
        let reason = format!("`{field}` is missing{hint}; it is required and must be {what}");
        Self::new(StatusCode::BAD_REQUEST, "missing_field", reason).at_field(field)
    }

    pub(crate) fn invalid_value(field: &str, reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_value", reason).at_field(field)
    }

    pub(crate) fn too_slow(timeout_s: u64) -> Self {
        let reason = format!("the body did not arrive within {timeout_s} seconds; send it again");
        Self::new(StatusCode::REQUEST_TIMEOUT, "malformed_request", reason)
    }

    pub(crate) fn too_large(max_body_bytes: usize) -> Self {
        let reason = format!("the body is larger than {max_body_bytes} bytes; send less text");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", reason)
    }

    pub(crate) fn unsupported_media_type(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", reason)
    }

    pub(crate) fn browser_request() -> Self {
        let reason = "this request comes from a browser, and an API key does not belong in one; call the API from your server";
        Self::new(StatusCode::FORBIDDEN, "browser_request", reason)
    }

    pub(crate) fn not_found(path: &str) -> Self {
        let known = [
            "/v1/generate",
            "/v1/models",
            "/v1/tokens",
            "/v1/usage",
            "/v1/responses",
            "/v1/responses/input_tokens",
            "/v1/chat/completions",
            "/openapi.json",
            "/docs",
        ];
        let hint = match chancery_domain::nearest(path, known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("there are {}", known.map(|path| format!("`{path}`")).join(", ")),
        };
        Self::new(StatusCode::NOT_FOUND, "not_found", format!("there is nothing at this path; {hint}"))
    }

    pub(crate) fn method_not_allowed(method: &Method, path: &str) -> Self {
        let reason = format!("`{path}` does not take {method}; the header `Allow` says what it takes");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", reason)
    }

    pub(crate) fn shutting_down() -> Self {
        let reason = "the server is shutting down; try again in a moment";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", reason).retry_after_s(RETRY_UNAVAILABLE_S)
    }

    pub(crate) fn internal(internal: impl Into<String>) -> Self {
        let reason = "something went wrong on our side; the log has the details under the request's id";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", reason).logged_as(internal)
    }

    pub(crate) fn body(&self, request_id: &str) -> Vec<u8> {
        // Strings and a fixed shape always serialize.
        serde_json::to_vec(&ErrorBody { error: self.fields(request_id) }).unwrap_or_default()
    }

    fn fields<'a>(&'a self, request_id: &'a str) -> ErrorFields<'a> {
        let field = self.field.as_deref();
        ErrorFields { code: self.code, reason: &self.reason, field, retry_after_s: None, request_id }
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
                "a valid API key is needed, sent as `Authorization: Bearer KEY`",
            ),
            MeterError::NoBillingAccount => Self::new(
                StatusCode::PAYMENT_REQUIRED,
                "no_billing_account",
                "this key bills no open account; ask the operator to attach it to one",
            ),
            MeterError::UnknownModel(name) => Self::new(
                StatusCode::NOT_FOUND,
                "unknown_model",
                format!("there is no model {:?}; `GET /v1/models` lists those there are", shorten(&name)),
            )
            .at_field("model"),
            MeterError::CapAboveContext { context_tokens, .. } => Self::invalid_value(
                "max_output_tokens",
                format!("`max_output_tokens` must be from 1 to {context_tokens}, the model's context length"),
            ),
            MeterError::SpendingCapReached(reached) => Self::spending_cap_reached(&reached),
            MeterError::RateLimited { refusal, tokens } => Self::rate_limited(&refusal, tokens),
            MeterError::NeverFits { input_tokens, max_output_tokens, limits } => {
                Self::never_fits(input_tokens, max_output_tokens, limits)
            }
            MeterError::IdempotencyInFlight => Self::idempotency_in_flight(),
            MeterError::IdempotencyMismatch => Self::idempotency_mismatch(),
            MeterError::Limiter(_) => Self::limits_unknown(log),
            MeterError::Engine(error) => Self::from_engine(&error),
            MeterError::Database(error) => Self::from_database(&error),
            MeterError::Ledger(error) => Self::internal(error.to_string()),
            MeterError::Account(error) => Self::internal(error.to_string()),
            MeterError::Unrecorded { error, has_key: true } => Self::from(*error),
            MeterError::Unrecorded { error, has_key: false } => Self::from(*error).not_to_be_repeated(),
            MeterError::ShuttingDown => Self::shutting_down(),
            MeterError::HungUp | MeterError::Money(_) | MeterError::Internal(_) => Self::internal(log),
        }
    }
}

impl ApiError {
    fn spending_cap_reached(reached: &CapReached) -> Self {
        let CapReached { cap, spent, set_aside, asked, resets_at } = reached;
        let under_way = match *set_aside {
            Nanos(0) => String::new(),
            _ => format!(" and up to {set_aside} by requests under way"),
        };
        let reason = format!(
            "this request may cost {asked}, and of the {cap} that the account may spend in a month {spent} is spent\
             {under_way}; it resets at {}, and a lower `max_output_tokens` costs less",
            resets_at.to_iso()
        );
        Self::new(StatusCode::PAYMENT_REQUIRED, "spending_cap_reached", reason)
    }

    fn rate_limited(refusal: &Refusal, tokens: u64) -> Self {
        let RateLimits { requests_per_min, tokens_per_min } = refusal.status.limits;
        let retry_after_s = refusal.retry_after_s();
        let what = match refusal.requests_wait >= refusal.tokens_wait {
            true => format!("this account's limit of {requests_per_min} requests per minute is reached"),
            false => format!(
                "this request may use {tokens} tokens, and {} of this account's {tokens_per_min} tokens per minute are left",
                refusal.status.remaining().tokens
            ),
        };
        let reason = format!("{what}; try again in {retry_after_s} seconds, nothing was billed");
        let refused = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", reason);
        Self { rate_limit_status: Some(Box::new(refusal.status)), ..refused.retry_after_s(retry_after_s) }
    }

    fn never_fits(input_tokens: u32, max_output_tokens: u32, limits: RateLimits) -> Self {
        let limit = limits.tokens_per_min;
        match limit.checked_sub(input_tokens) {
            Some(room @ 1..) => Self::invalid_value(
                "max_output_tokens",
                format!(
                    "{input_tokens} tokens of input and `max_output_tokens` {max_output_tokens} are more than this account's \
                     {limit} tokens per minute; set `max_output_tokens` to {room} or less"
                ),
            ),
            _ => Self::invalid_value(
                "input",
                format!(
                    "the texts have {input_tokens} tokens, and this account's limit is {limit} tokens per minute, at \
                     least one of them for the reply; shorten them"
                ),
            ),
        }
    }

    fn idempotency_in_flight() -> Self {
        let reason = format!(
            "a request with this `{KEY_NAME}` is still running; send the same again in a moment to get its reply, it is \
             billed once"
        );
        Self::new(StatusCode::CONFLICT, "idempotency_in_flight", reason)
            .at_field(KEY_NAME)
            .retry_after_s(RETRY_IN_FLIGHT_S)
    }

    fn idempotency_mismatch() -> Self {
        let reason = format!(
            "this `{KEY_NAME}` belongs to a request with another path or body; send that one again, or this one with a \
             key of its own"
        );
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "idempotency_mismatch", reason).at_field(KEY_NAME)
    }

    fn limits_unknown(log: String) -> Self {
        let reason = "what this account has used of its limits cannot be known at the moment, so nothing can be admitted; try again";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", reason)
            .retry_after_s(RETRY_UNAVAILABLE_S)
            .logged_as(log)
    }

    fn from_engine(error: &EngineError) -> Self {
        match *error {
            EngineError::InputTooLong { prompt_tokens, context_tokens } => Self::new(
                StatusCode::BAD_REQUEST,
                "input_too_long",
                match prompt_tokens {
                    Some(prompt_tokens) => format!(
                        "the texts make a prompt of {prompt_tokens} tokens, and the model's context holds {context_tokens}, \
                         at least one of them for the reply; shorten them"
                    ),
                    None => format!(
                        "the texts do not fit the model's context, which holds {context_tokens} tokens, at least one of \
                         them for the reply; shorten them"
                    ),
                },
            )
            .at_field("input"),
            EngineError::InputRefused { ref reason } => Self::new(
                StatusCode::BAD_REQUEST,
                "invalid_value",
                match reason {
                    Some(reason) => format!("the model's server does not take this request: {reason}"),
                    None => "the model's server does not take this request; see whether the model knows its options, and \
                             leave out those that it does not need"
                        .to_owned(),
                },
            ),
            EngineError::TurnsRefused(_) => Self::invalid_value(
                "input",
                "this model's chat template does not take turns of these roles in this order; let `user` and `assistant` \
                 alternate, beginning with `user`",
            ),
            EngineError::Overloaded { retry_after_s } => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "overloaded",
                "too much work is waiting already; try again later, nothing was billed",
            )
            .retry_after_s(retry_after_s),
            EngineError::Restarting { retry_after_s } => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "engine_restarting",
                "the model is being set up anew after a failure; try again, nothing was billed",
            )
            .retry_after_s(retry_after_s),
            EngineError::ShuttingDown => Self::shutting_down(),
            EngineError::TimedOut => Self::new(
                StatusCode::GATEWAY_TIMEOUT,
                "engine_timeout",
                "the reply was not ready in time; nothing was billed",
            )
            .not_to_be_repeated(),
            EngineError::Failed(_) => Self::new(
                StatusCode::BAD_GATEWAY,
                "engine_failed",
                "the model failed on this request; nothing was billed",
            )
            .logged_as(error.to_string()),
        }
    }

    fn from_database(error: &DbError) -> Self {
        match error {
            DbError::Unavailable(_) | DbError::DiskFull(_) | DbError::ReadOnly(_) => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "unavailable",
                "the database cannot be used at the moment, and without it no usage can be recorded; try again",
            )
            .retry_after_s(RETRY_UNAVAILABLE_S)
            .logged_as(error.to_string()),
            // Everything else is about how the store is used or what is in it: a defect of ours.
            _ => Self::internal(error.to_string()),
        }
    }
}

/// Only the status and the headers; `boundary` writes the body, because it knows the request's id.
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
        if self.must_not_be_repeated {
            // OpenAI's clients read it.
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        if let Some(rate_limit_status) = &self.rate_limit_status {
            response.extensions_mut().insert(**rate_limit_status);
        }
        response.extensions_mut().insert(self);
        response
    }
}
