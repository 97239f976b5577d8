//! What the forms have in common beyond `chancery_web`'s: where to go on, and the address that is typed.

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use chancery_domain::{EmailAddress, LocalPath};
use chancery_web::ErrorPage;
pub(crate) use chancery_web::{Posted, Problems};
use serde::Deserialize;

/// Where to go on afterwards, as a link says it.
pub(crate) struct Onward(pub LocalPath);

#[derive(Deserialize)]
struct OnwardQuery {
    #[serde(default)]
    return_to: String,
}

impl<S: Send + Sync> FromRequestParts<S> for Onward {
    type Rejection = ErrorPage;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ErrorPage> {
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
