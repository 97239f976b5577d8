//! Why there is no draft, as the person is told: something about what they typed or chose, or a fault of the API.

use super::fault::Fault;
use axum::http::StatusCode;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) words: String,
    /// The field that it is about, by its name in the form.
    pub(crate) field: Option<&'static str>,
    pub(crate) status: StatusCode,
    pub(crate) retry_after_s: Option<u32>,
    /// For the log; None where the person alone can help it.
    pub(crate) fault: Option<Fault>,
}

impl Failure {
    pub(crate) fn of_field(field: &'static str, words: impl Into<String>) -> Self {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Self { words: words.into(), field: Some(field), status, retry_after_s: None, fault: None }
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self {
            words: fault.words(),
            field: None,
            status: fault.status(),
            retry_after_s: fault.retry_after_s(),
            fault: Some(fault),
        }
    }
}
