//! What the forms share beyond `chancery_web`: the return path and the email address.

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use chancery_domain::{EmailAddress, LocalPath};
use chancery_web::ErrorPage;
pub(crate) use chancery_web::{Confirmed, PostedForm, Problems};
use serde::Deserialize;

/// The `return_to` parameter of a link.
pub(crate) struct ReturnToParam(pub LocalPath);

#[derive(Deserialize)]
struct ReturnToQuery {
    #[serde(default)]
    return_to: String,
}

impl<S: Send + Sync> FromRequestParts<S> for ReturnToParam {
    type Rejection = ErrorPage;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ErrorPage> {
        let query = Query::<ReturnToQuery>::try_from_uri(&parts.uri);
        Ok(Self(query.map_or_else(|_| start(), |Query(query)| local_path(&query.return_to))))
    }
}

/// The typed address, posted from another page. It is no query parameter, because logs and histories contain URLs.
#[derive(Deserialize)]
pub(crate) struct TypedAddress {
    #[serde(default)]
    pub email: String,
    #[serde(default)]
    pub return_to: String,
}

/// A change that only needs to be confirmed.
#[derive(Deserialize)]
pub(crate) struct ConfirmedFields {
    #[serde(default)]
    pub confirmed: Confirmed,
}

/// Anything that is not a local path becomes the start page.
pub(crate) fn local_path(text: &str) -> LocalPath {
    LocalPath::parse(text).unwrap_or_else(start)
}

#[expect(clippy::unwrap_used, reason = "a slash is a path, whatever else is one")]
fn start() -> LocalPath {
    LocalPath::parse("/").unwrap()
}

/// Accepts an address with surrounding whitespace, as people paste it.
pub(crate) fn read_email(typed: &str) -> Result<EmailAddress, &'static str> {
    match typed.trim() {
        "" => Err("Enter your email address"),
        text => text.parse().map_err(|_| "Enter an email address like name@example.com"),
    }
}
