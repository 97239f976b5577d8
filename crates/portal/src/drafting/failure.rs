//! Why there is no draft, as shown to the user: an invalid field, or an error of the API.

use super::error::DraftError;
use axum::http::StatusCode;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DraftFailure {
    pub(crate) message: String,
    /// Name of the invalid form field.
    pub(crate) field: Option<&'static str>,
    pub(crate) status: StatusCode,
    pub(crate) retry_after_s: Option<u32>,
    /// For the log. `None` if only the user can fix it.
    pub(crate) error: Option<DraftError>,
}

impl DraftFailure {
    /// Something that the user must change in the editor itself.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Self { message: message.into(), field: None, status, retry_after_s: None, error: None }
    }

    pub(crate) fn for_field(field: &'static str, message: impl Into<String>) -> Self {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Self { message: message.into(), field: Some(field), status, retry_after_s: None, error: None }
    }
}

impl From<DraftError> for DraftFailure {
    fn from(error: DraftError) -> Self {
        Self {
            message: error.message(),
            field: None,
            status: error.status(),
            retry_after_s: error.retry_after_s(),
            error: Some(error),
        }
    }
}
