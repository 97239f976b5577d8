//! What can go wrong with a draft: what the person reads and what the log reads are apart. The words say what happened,
//! what is safe and what to do; they never name the API, its address or the key.

use axum::http::StatusCode;
use chancery_domain::RequestId;
use chancery_http_client::EventError;
use serde::Deserialize;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) trouble: Trouble,
    /// For the log: never a prompt, a text or the key.
    pub(crate) story: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Nobody has set it up.
    Off,
    /// The limits per minute are used up, or too much is waiting.
    Busy {
        retry_after_s: u32,
    },
    KeyRefused,
    NoAccount,
    BudgetSpent,
    TooLong,
    /// More than the account may use in a minute, whenever it is asked for.
    TooMuchForAMinute,
    ModelMissing,
    /// The model failed; nothing was billed.
    Failed,
    Unreachable,
    /// Not even a question was answered.
    Silent,
    /// Nothing came for too long, and we hung up.
    TookTooLong,
    /// The stream ended without its last event.
    CutOff,
    /// Whether it was billed is not known to the API itself.
    Unclear,
    /// What came is not what the API sends.
    NotUnderstood,
}

/// Where a refusal says no time.
const RETRY_AFTER_S: u32 = 30;
/// From here on a wait is told in minutes.
const MINUTES_FROM_S: u32 = 100;

/// The body of every refusal of the API, and what `response.failed` carries.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ApiRefusal {
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

impl Fault {
    pub(crate) fn new(trouble: Trouble, story: impl Into<String>) -> Self {
        Self { trouble, story: story.into() }
    }

    /// For a request that runs nothing.
    pub(super) fn of_nothing_run(self) -> Self {
        let trouble = match self.trouble {
            Trouble::TookTooLong => Trouble::Silent,
            Trouble::CutOff => Trouble::Unreachable,
            Trouble::Unclear => Trouble::Failed,
            other => other,
        };
        Self { trouble, ..self }
    }

    /// A refusal instead of a reply. The reason is not repeated in the log: it may quote what was sent.
    pub(super) fn of_refusal(status: StatusCode, error: &ApiError, retry_after_s: Option<u32>) -> Self {
        let ApiError { code, field, request_id, .. } = error;
        let busy = || Trouble::Busy { retry_after_s: retry_after_s.unwrap_or(RETRY_AFTER_S).max(1) };
        let trouble = match (status.as_u16(), code.as_str()) {
            (401, _) => Trouble::KeyRefused,
            (402, "spending_cap_reached") => Trouble::BudgetSpent,
            (402, _) => Trouble::NoAccount,
            (429, _) => busy(),
            (400, "input_too_long") | (413, _) => Trouble::TooLong,
            (400, "invalid_value") if field.as_deref() == Some("max_output_tokens") => {
                Trouble::TooMuchForAMinute
            }
            (404, "unknown_model") => Trouble::ModelMissing,
            (503, _) if retry_after_s.is_some() => busy(),
            (503, "overloaded" | "engine_restarting" | "shutting_down") => busy(),
            (500 | 503, _) => Trouble::Unclear,
            (502 | 504, _) => Trouble::Failed,
            _ => Trouble::NotUnderstood,
        };
        let field = field.as_deref().unwrap_or("none");
        Self::new(
            trouble,
            format!("it answered {status}, code {code:?}, field {field:?}, request {request_id:?}"),
        )
    }

    /// `response.failed` at the end of a stream: the same codes, without a status.
    pub(super) fn of_failed_stream(error: &ApiError) -> Self {
        let status = match error.code.as_str() {
            "rate_limited" => StatusCode::TOO_MANY_REQUESTS,
            "overloaded" | "engine_restarting" | "shutting_down" | "unavailable" => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            "engine_failed" | "engine_timeout" => StatusCode::BAD_GATEWAY,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::of_refusal(status, error, error.retry_after_s)
    }

    /// For the person.
    pub(crate) fn words(&self) -> String {
        const SAFE: &str = "Your text is untouched and nothing was billed";
        const TELL: &str = "tell the firm’s administrator";
        match self.trouble {
            Trouble::Off => format!("Drafting with the model is not set up here. Your text is untouched; write on, or {TELL}."),
            Trouble::Busy { retry_after_s } => {
                format!("The model is busy. {SAFE}; try again in {}.", wait(retry_after_s))
            }
            Trouble::KeyRefused => format!("The model no longer takes the portal’s requests. {SAFE}; {TELL}."),
            Trouble::NoAccount => format!("There is no open account that pays for drafts. {SAFE}; {TELL}."),
            Trouble::BudgetSpent => {
                format!("This month’s budget for drafts is spent. {SAFE}; write on, or ask the firm’s administrator to raise it.")
            }
            Trouble::TooLong => {
                format!("The model cannot hold all of this at once. {SAFE}; untick a note, or shorten the longest reply.")
            }
            Trouble::TooMuchForAMinute => {
                format!("This draft may take more tokens than the firm allows in a minute. {SAFE}; untick a note, or shorten the longest reply.")
            }
            Trouble::ModelMissing => format!("The model that drafts letters is not there. {SAFE}; {TELL}."),
            Trouble::Failed => format!("The model failed. {SAFE}; try again, and if it fails again, {TELL}."),
            Trouble::Unreachable => {
                format!("The model cannot be reached. {SAFE}; try again in a minute, and if it stays like this, {TELL}.")
            }
            Trouble::Silent => format!("The model does not answer. {SAFE}; try again in a minute, and if it stays like this, {TELL}."),
            Trouble::TookTooLong => {
                "The model took too long, so the draft was stopped. Your text is untouched; what it had written until then may be billed. Try again in a minute.".to_owned()
            }
            Trouble::CutOff => {
                "The draft broke off before its end. Your text is untouched; what came until then may be billed. Try again.".to_owned()
            }
            Trouble::Unclear => {
                "The draft failed at its end, and it is not known whether it was billed. Your text is untouched; the firm’s usage page tells, for partners. Try again in a minute.".to_owned()
            }
            Trouble::NotUnderstood => format!("The model’s answer could not be read. Your text is untouched; {TELL}."),
        }
    }

    /// For a page that is sent instead of a stream.
    pub(crate) fn status(&self) -> StatusCode {
        match self.trouble {
            Trouble::TooLong | Trouble::TooMuchForAMinute => StatusCode::UNPROCESSABLE_ENTITY,
            Trouble::Off
            | Trouble::Busy { .. }
            | Trouble::Unreachable
            | Trouble::NoAccount
            | Trouble::BudgetSpent => StatusCode::SERVICE_UNAVAILABLE,
            Trouble::Silent | Trouble::TookTooLong => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::BAD_GATEWAY,
        }
    }

    pub(crate) fn retry_after_s(&self) -> Option<u32> {
        match self.trouble {
            Trouble::Busy { retry_after_s } => Some(retry_after_s),
            _ => None,
        }
    }

    /// Once for each draft that failed. What somebody must put right is an error.
    pub(crate) fn log(&self, request_id: &RequestId) {
        let Self { trouble, story } = self;
        match trouble {
            Trouble::Busy { .. } | Trouble::TooLong | Trouble::TooMuchForAMinute | Trouble::BudgetSpent => {
                tracing::warn!(%request_id, ?trouble, story, "no draft: the generation API refused it");
            }
            _ => {
                tracing::error!(%request_id, ?trouble, story, "no draft: the generation API or its set-up needs a look");
            }
        }
    }
}

impl From<EventError> for Fault {
    fn from(error: EventError) -> Self {
        Self::new(Trouble::NotUnderstood, error.to_string())
    }
}

fn wait(seconds: u32) -> String {
    match seconds {
        1 => "1 second".to_owned(),
        seconds if seconds < MINUTES_FROM_S => format!("{seconds} seconds"),
        seconds => format!("{} minutes", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, code: &str, retry_after_s: Option<u32>) -> Fault {
        let error = ApiError { code: code.to_owned(), ..ApiError::default() };
        Fault::of_refusal(StatusCode::from_u16(status).unwrap(), &error, retry_after_s)
    }

    #[test]
    fn a_refusal_is_told_plainly_with_what_is_safe_and_what_to_do() {
        for (fault, words) in [
            (
                refusal(429, "rate_limited", Some(20)),
                "The model is busy. Your text is untouched and nothing was billed; try again in 20 seconds.",
            ),
            (
                refusal(503, "overloaded", Some(1)),
                "The model is busy. Your text is untouched and nothing was billed; try again in 1 second.",
            ),
            (
                refusal(429, "rate_limited", Some(121)),
                "The model is busy. Your text is untouched and nothing was billed; try again in 3 minutes.",
            ),
            (
                refusal(401, "invalid_api_key", None),
                "The model no longer takes the portal’s requests. Your text is untouched and nothing was billed; tell the firm’s administrator.",
            ),
            (
                refusal(402, "no_billing_account", None),
                "There is no open account that pays for drafts. Your text is untouched and nothing was billed; tell the firm’s administrator.",
            ),
        ] {
            assert_eq!(fault.words(), words);
        }
        assert_eq!(refusal(402, "spending_cap_reached", None).trouble, Trouble::BudgetSpent);
        assert_eq!(refusal(504, "engine_timeout", None).trouble, Trouble::Failed);
        assert_eq!(refusal(413, "request_too_large", None).trouble, Trouble::TooLong);
    }

    #[test]
    fn nothing_is_promised_about_a_bill_that_nobody_knows() {
        for fault in [refusal(503, "unavailable", None), refusal(500, "internal_error", None)] {
            assert_eq!(fault.trouble, Trouble::Unclear);
            assert!(!fault.words().contains("nothing was billed"));
        }
        assert!(refusal(503, "unavailable", Some(2)).words().contains("try again in 2 seconds"));
    }

    #[test]
    fn every_trouble_says_that_the_text_is_safe() {
        use Trouble::*;
        for trouble in [
            Off,
            Busy { retry_after_s: 5 },
            KeyRefused,
            NoAccount,
            BudgetSpent,
            TooLong,
            TooMuchForAMinute,
            ModelMissing,
            Failed,
            Unreachable,
            Silent,
            TookTooLong,
            CutOff,
            Unclear,
            NotUnderstood,
        ] {
            let words = Fault::new(trouble, "http://10.0.0.7:9 ck_secret").words();
            assert!(words.contains("Your text is untouched"), "{words}");
            assert!(!words.contains("10.0.0.7") && !words.contains("ck_"), "{words}");
        }
    }
}
