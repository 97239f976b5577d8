//! What the forms have in common: reading one, and what is wrong with its fields.

use axum::Form;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use chancery_domain::{EmailAddress, LocalPath};
pub(crate) use chancery_web::Problems;
use chancery_web::Refusal;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A form that was sent. What no form of ours would send is refused as a whole.
pub(crate) struct Posted<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Posted<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let form = Form::from_request(request, state).await;
        let Form(fields) =
            form.map_err(|error| Refusal::bad_form("The form cannot be read.").logged(error.to_string()))?;
        Ok(Self(fields))
    }
}

/// Where to go on afterwards, as a link says it.
pub(crate) struct Onward(pub LocalPath);

#[derive(Deserialize)]
struct OnwardQuery {
    #[serde(default)]
    return_to: String,
}

impl<S: Send + Sync> FromRequestParts<S> for Onward {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let query = Query::<OnwardQuery>::try_from_uri(&parts.uri);
        Ok(Self(query.map_or_else(|_| start(), |Query(query)| local_path(&query.return_to))))
    }
}

/// What is no path of ours leads to the start, wherever it wanted to go.
pub(crate) fn local_path(text: &str) -> LocalPath {
    LocalPath::parse(text).unwrap_or_else(start)
}

#[expect(clippy::unwrap_used, reason = "a slash is a path, whatever else is one")]
fn start() -> LocalPath {
    LocalPath::parse("/").unwrap()
}

/// An address as people type or paste it, with blanks around it.
pub(crate) fn read_email(typed: &str) -> Result<EmailAddress, &'static str> {
    match typed.trim() {
        "" => Err("Enter your e-mail address"),
        text => text.parse().map_err(|_| "Write your e-mail address like name@example.com"),
    }
}
