//! The cookie with the session token. `session` looks the token up in the store.

use axum::http::{HeaderMap, StatusCode};
use chancery_domain::{SecretToken, TokenHash};
use chancery_web::{Cookie, CookieLookup, ErrorPage, find_cookie};

/// A session cookie: it ends with the browser; the store knows its expiry.
pub(crate) const SESSION_COOKIE: Cookie = Cookie { name: "session", path: "/" };

/// The browser's session token, unchecked. Two cookies are rejected, because one of them may be planted.
pub(crate) fn sent_session(headers: &HeaderMap) -> Result<Option<TokenHash>, ErrorPage> {
    match find_cookie(headers, SESSION_COOKIE.name) {
        CookieLookup::Multiple => Err(duplicate_sessions_page()),
        CookieLookup::One(value) => Ok(SecretToken::parse(value).map(|token| token.hash())),
        CookieLookup::None => Ok(None),
    }
}

fn duplicate_sessions_page() -> ErrorPage {
    ErrorPage::new(
        StatusCode::BAD_REQUEST,
        "two_sessions",
        "Two session cookies",
        "Your browser sent two cookies named “session”, so neither was used. Nothing was changed.",
    )
    .advice("Sign in again. If this happens again, delete this site’s cookies in your browser settings.")
    .next_link("/", "Sign in")
    .with_cookie(SESSION_COOKIE.expire())
    .with_log_detail("duplicate session cookies")
}
