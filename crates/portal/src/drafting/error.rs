//! Errors of a draft, with separate text for the user and for the log. The user's text says what happened, what is safe and
//! what to do. It never names the API, its address or the key.

use super::tuning::OPTIONAL_FIELDS;
use axum::http::StatusCode;
use chancery_domain::RequestId;
use chancery_http_client::EventError;
use serde::Deserialize;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DraftError {
    pub(crate) kind: DraftErrorKind,
    /// For the log. Never contains a prompt, generated text or the key.
    pub(crate) detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DraftErrorKind {
    /// Drafting is not configured.
    NotConfigured,
    /// The rate limits are reached, or the API's queue is full.
    Busy {
        retry_after_s: u32,
    },
    KeyRejected,
    NoBillingAccount,
    SpendingCapReached,
    TooLong,
    /// More than the account's rate limit allows in any minute, so a retry cannot help.
    ExceedsTokensPerMinute,
    UnknownModel,
    /// The model failed; nothing was billed.
    Failed,
    Unreachable,
    /// A request that generates nothing timed out.
    NoReply,
    /// The draft timed out, and we closed the connection.
    TimedOut,
    /// The stream ended without its last event.
    StreamInterrupted,
    /// The API itself does not know whether it was billed.
    BillingUnknown,
    /// The API rejected an optional field of the request.
    UnsupportedField,
    /// Not a valid response of the API.
    InvalidReply,
}

/// Codes of a request with a field that the API does not know, or not with this value.
const FIELD_CODES: [&str; 2] = ["malformed_request", "invalid_value"];

/// Used if the response has no `Retry-After`.
const RETRY_AFTER_S: u32 = 30;
/// Longer waits are shown in minutes.
const MINUTES_FROM_S: u32 = 100;

/// The body of every error response of the API, and the data of `response.failed`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ApiErrorBody {
    #[serde(default)]
    pub(super) error: ApiError,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ApiError {
    #[serde(default)]
    pub(super) code: String,
    #[serde(default)]
    pub(super) field: Option<String>,
    #[serde(default)]
    pub(super) retry_after_s: Option<u32>,
    #[serde(default)]
    pub(super) request_id: String,
}

impl DraftError {
    pub(crate) fn new(kind: DraftErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into() }
    }

    /// Adjusts the error for a request that generates nothing.
    pub(super) fn without_billing(self) -> Self {
        let kind = match self.kind {
            DraftErrorKind::TimedOut => DraftErrorKind::NoReply,
            DraftErrorKind::StreamInterrupted => DraftErrorKind::Unreachable,
            DraftErrorKind::BillingUnknown => DraftErrorKind::Failed,
            other => other,
        };
        Self { kind, ..self }
    }

    /// An error response. The log omits its reason, which may quote the request.
    pub(super) fn from_error_reply(status: StatusCode, error: &ApiError, retry_after_s: Option<u32>) -> Self {
        let ApiError { code, field, request_id, .. } = error;
        let busy = || DraftErrorKind::Busy { retry_after_s: retry_after_s.unwrap_or(RETRY_AFTER_S).max(1) };
        let kind = match (status.as_u16(), code.as_str()) {
            (401, _) => DraftErrorKind::KeyRejected,
            (402, "spending_cap_reached") => DraftErrorKind::SpendingCapReached,
            (402, _) => DraftErrorKind::NoBillingAccount,
            (429, _) => busy(),
            (400, "input_too_long") | (413, _) => DraftErrorKind::TooLong,
            (400, "invalid_value") if field.as_deref() == Some("max_output_tokens") => {
                DraftErrorKind::ExceedsTokensPerMinute
            }
            (400, code)
                if FIELD_CODES.contains(&code)
                    && field.as_deref().is_some_and(|field| OPTIONAL_FIELDS.contains(&field)) =>
            {
                DraftErrorKind::UnsupportedField
            }
            (404, "unknown_model") | (403, "model_not_allowed") => DraftErrorKind::UnknownModel,
            (503, _) if retry_after_s.is_some() => busy(),
            (503, "overloaded" | "engine_restarting" | "shutting_down") => busy(),
            (500 | 503, _) => DraftErrorKind::BillingUnknown,
            (502 | 504, _) => DraftErrorKind::Failed,
            _ => DraftErrorKind::InvalidReply,
        };
        let field = field.as_deref().unwrap_or("none");
        Self::new(kind, format!("status {status}, code {code:?}, field {field:?}, request {request_id:?}"))
    }

    /// `response.failed` at the end of a stream: the same codes, but without a status.
    pub(super) fn from_failed_event(error: &ApiError) -> Self {
        let status = match error.code.as_str() {
            "rate_limited" => StatusCode::TOO_MANY_REQUESTS,
            "overloaded" | "engine_restarting" | "shutting_down" | "unavailable" => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            "engine_failed" | "engine_timeout" => StatusCode::BAD_GATEWAY,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::from_error_reply(status, error, error.retry_after_s)
    }

    /// Text for the user.
    pub(crate) fn message(&self) -> String {
        const SAFE: &str = "Your text is untouched and nothing was billed";
        const TELL: &str = "contact your administrator";
        match self.kind {
            DraftErrorKind::NotConfigured => format!("AI drafting is not set up. Your text is untouched. To turn it on, {TELL}."),
            DraftErrorKind::Busy { retry_after_s } => {
                format!("The model is busy. {SAFE}; try again in {}.", wait_text(retry_after_s))
            }
            DraftErrorKind::KeyRejected => format!("The portal’s API key was rejected. {SAFE}; {TELL}."),
            DraftErrorKind::NoBillingAccount => format!("No open account pays for drafts. {SAFE}; {TELL}."),
            DraftErrorKind::SpendingCapReached => {
                format!("This month’s spending cap for drafts is reached. {SAFE}; ask your administrator to raise it.")
            }
            DraftErrorKind::TooLong => {
                format!("The context is too long for the model. {SAFE}; select fewer entries or reduce the maximum length.")
            }
            DraftErrorKind::ExceedsTokensPerMinute => {
                format!("This draft could exceed the limit on tokens per minute. {SAFE}; select fewer entries or reduce the maximum length.")
            }
            DraftErrorKind::UnknownModel => format!("The drafting model is not available. {SAFE}; {TELL}."),
            DraftErrorKind::Failed => format!("The model failed. {SAFE}; try again. If it fails again, {TELL}."),
            DraftErrorKind::Unreachable => {
                format!("The model cannot be reached. {SAFE}; try again in a minute. If it fails again, {TELL}.")
            }
            DraftErrorKind::NoReply => format!("The model did not respond. {SAFE}; try again in a minute. If it fails again, {TELL}."),
            DraftErrorKind::TimedOut => {
                "The draft timed out. Your text is untouched. The part that was generated may be billed. Try again in a minute.".to_owned()
            }
            DraftErrorKind::StreamInterrupted => {
                "The connection was lost before the draft was complete. Your text is untouched. The part that was generated may be billed. Try again.".to_owned()
            }
            DraftErrorKind::BillingUnknown => {
                "The draft failed and may have been billed. Your text is untouched. A partner can check Usage. Try again in a minute.".to_owned()
            }
            DraftErrorKind::UnsupportedField => format!("The model’s server rejected the request. {SAFE}; {TELL}."),
            DraftErrorKind::InvalidReply => format!("The model sent an invalid reply. Your text is untouched; {TELL}."),
        }
    }

    /// Status of the page if the draft is not streamed.
    pub(crate) fn status(&self) -> StatusCode {
        match self.kind {
            DraftErrorKind::TooLong | DraftErrorKind::ExceedsTokensPerMinute => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            DraftErrorKind::NotConfigured
            | DraftErrorKind::Busy { .. }
            | DraftErrorKind::Unreachable
            | DraftErrorKind::NoBillingAccount
            | DraftErrorKind::SpendingCapReached => StatusCode::SERVICE_UNAVAILABLE,
            DraftErrorKind::NoReply | DraftErrorKind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::BAD_GATEWAY,
        }
    }

    pub(crate) fn retry_after_s(&self) -> Option<u32> {
        match self.kind {
            DraftErrorKind::Busy { retry_after_s } => Some(retry_after_s),
            _ => None,
        }
    }

    /// Called once per failed draft. Problems that an administrator must fix are logged as errors.
    pub(crate) fn log(&self, request_id: &RequestId) {
        let Self { kind, detail } = self;
        match kind {
            DraftErrorKind::Busy { .. }
            | DraftErrorKind::TooLong
            | DraftErrorKind::ExceedsTokensPerMinute
            | DraftErrorKind::SpendingCapReached => {
                tracing::warn!(%request_id, ?kind, detail, "draft rejected by the generation api");
            }
            _ => {
                tracing::error!(%request_id, ?kind, detail, "draft failed");
            }
        }
    }
}

impl From<EventError> for DraftError {
    fn from(error: EventError) -> Self {
        Self::new(DraftErrorKind::InvalidReply, error.to_string())
    }
}

fn wait_text(seconds: u32) -> String {
    match seconds {
        1 => "1 second".to_owned(),
        seconds if seconds < MINUTES_FROM_S => format!("{seconds} seconds"),
        seconds => format!("{} minutes", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejection(status: u16, code: &str, retry_after_s: Option<u32>) -> DraftError {
        let error = ApiError { code: code.to_owned(), ..ApiError::default() };
        DraftError::from_error_reply(StatusCode::from_u16(status).unwrap(), &error, retry_after_s)
    }

    #[test]
    fn draft_errors_say_what_is_safe_and_what_to_do() {
        for (error, message) in [
            (
                rejection(429, "rate_limited", Some(20)),
                "The model is busy. Your text is untouched and nothing was billed; try again in 20 seconds.",
            ),
            (
                rejection(503, "overloaded", Some(1)),
                "The model is busy. Your text is untouched and nothing was billed; try again in 1 second.",
            ),
            (
                rejection(429, "rate_limited", Some(121)),
                "The model is busy. Your text is untouched and nothing was billed; try again in 3 minutes.",
            ),
            (
                rejection(401, "invalid_api_key", None),
                "The portal’s API key was rejected. Your text is untouched and nothing was billed; contact your administrator.",
            ),
            (
                rejection(402, "no_billing_account", None),
                "No open account pays for drafts. Your text is untouched and nothing was billed; contact your administrator.",
            ),
        ] {
            assert_eq!(error.message(), message);
        }
        assert_eq!(rejection(402, "spending_cap_reached", None).kind, DraftErrorKind::SpendingCapReached);
        assert_eq!(rejection(504, "engine_timeout", None).kind, DraftErrorKind::Failed);
        assert_eq!(rejection(413, "request_too_large", None).kind, DraftErrorKind::TooLong);
    }

    #[test]
    fn unknown_billing_is_not_reported_as_unbilled() {
        for error in [rejection(503, "unavailable", None), rejection(500, "internal_error", None)] {
            assert_eq!(error.kind, DraftErrorKind::BillingUnknown);
            assert!(!error.message().contains("nothing was billed"));
        }
        assert!(rejection(503, "unavailable", Some(2)).message().contains("try again in 2 seconds"));
    }

    #[test]
    fn every_draft_error_says_the_text_is_untouched() {
        use DraftErrorKind::*;
        for kind in [
            NotConfigured,
            Busy { retry_after_s: 5 },
            KeyRejected,
            NoBillingAccount,
            SpendingCapReached,
            TooLong,
            ExceedsTokensPerMinute,
            UnknownModel,
            Failed,
            Unreachable,
            NoReply,
            TimedOut,
            StreamInterrupted,
            BillingUnknown,
            UnsupportedField,
            InvalidReply,
        ] {
            let message = DraftError::new(kind, "http://10.0.0.7:9 ck_secret").message();
            assert!(message.contains("Your text is untouched"), "{message}");
            assert!(!message.contains("10.0.0.7") && !message.contains("ck_"), "{message}");
        }
    }
}
