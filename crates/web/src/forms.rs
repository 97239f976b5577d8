//! Forms, in one way everywhere: `Posted` is what was sent, the feature's own type reads it and names the problems of its
//! fields, and `Form` is what the page shows again, with everything that was typed.

use crate::error_page::ErrorPage;
use crate::problems::Problems;
use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;

/// A form that was sent. What no form of ours would send is rejected as a whole.
pub struct Posted<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Posted<T> {
    type Rejection = ErrorPage;

    async fn from_request(request: Request, state: &S) -> Result<Self, ErrorPage> {
        match axum::Form::from_request(request, state).await {
            Ok(axum::Form(fields)) => Ok(Self(fields)),
            Err(error) => Err(ErrorPage::bad_form("The form cannot be read.").logged(error.to_string())),
        }
    }
}

/// A form as a page shows it: as it was typed, and what is wrong with it.
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

/// Of a list to choose from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub value: String,
    pub words: String,
    pub is_chosen: bool,
}

impl Choice {
    pub fn new(value: impl Into<String>, words: impl Into<String>, is_chosen: bool) -> Self {
        Self { value: value.into(), words: words.into(), is_chosen }
    }
}

/// The two halves of an e-mail address, between which a line may break.
pub fn address_halves(email: &str) -> (&str, &str) {
    email.split_at(email.find('@').map_or(0, |at| at + 1))
}
