//! The browser's cookie with the session's token. What the token opens, `session` asks the store.

use axum::http::{HeaderMap, StatusCode};
use chancery_domain::{SecretToken, TokenHash};
use chancery_web::{Cookie, ErrorPage, SentCookie, sent_cookie};

/// It goes with the browser; how long it works, the store knows.
pub(crate) const SESSION_COOKIE: Cookie = Cookie { name: "session", path: "/" };

/// The session that the browser says is its own. Somebody may have planted one of two, so two are none.
pub(crate) fn sent_session(headers: &HeaderMap) -> Result<Option<TokenHash>, ErrorPage> {
    match sent_cookie(headers, SESSION_COOKIE.name) {
        SentCookie::Several => Err(two_sessions()),
        SentCookie::One(value) => Ok(SecretToken::parse(value).map(|token| token.hash())),
        SentCookie::None => Ok(None),
    }
}

fn two_sessions() -> ErrorPage {
    ErrorPage::new(
        StatusCode::BAD_REQUEST,
        "two_sessions",
        "Your browser sent two sessions",
        "It has two cookies named “session” for this site, and one of them is not ours. We cannot tell which, so we took \
         neither. Nothing was changed.",
    )
    .advice("Sign in again. If this page comes back, remove this site’s cookies in the browser’s settings first.")
    .next_link("/", "Go to sign-in")
    .with_cookie(SESSION_COOKIE.take_back())
    .logged("two cookies named session in one request")
}
