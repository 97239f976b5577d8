//! Form handling: `PostedForm` is the submitted form, the feature's own type parses it and reports problems by field, and `Form` is what
//! the page shows again, with everything the user typed.

use crate::error_page::ErrorPage;
use crate::problems::Problems;
use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;

/// A submitted form. A body that none of our forms would send is rejected as a whole.
pub struct PostedForm<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for PostedForm<T> {
    type Rejection = ErrorPage;

    async fn from_request(request: Request, state: &S) -> Result<Self, ErrorPage> {
        match axum::Form::from_request(request, state).await {
            Ok(axum::Form(fields)) => Ok(Self(fields)),
            Err(error) => {
                Err(ErrorPage::invalid_form("The form is not valid.").with_log_detail(error.to_string()))
            }
        }
    }
}

/// A form as shown on a page: the typed values and their problems.
#[derive(Clone, Debug, Default)]
pub struct Form<T> {
    pub typed: T,
    pub problems: Problems,
}

impl<T> Form<T> {
    pub fn of(typed: T) -> Self {
        Self { typed, problems: Problems::default() }
    }
}

/// An option of a `<select>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub value: String,
    pub label: String,
    pub is_selected: bool,
}

impl Choice {
    pub fn new(value: impl Into<String>, label: impl Into<String>, is_selected: bool) -> Self {
        Self { value: value.into(), label: label.into(), is_selected }
    }
}

/// Splits an email address after the `@`, where a line may break.
pub fn split_email(email: &str) -> (&str, &str) {
    email.split_at(email.find('@').map_or(0, |at| at + 1))
}
