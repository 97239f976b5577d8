//! The cookies of a session. `session` looks the tokens up in the store.
//!
//! The cookie `session` alone suffices. With `portal.bind_session`, a second cookie must match it. Browsers accept one
//! whose name starts with `__Host-` from this very host only, so a sibling subdomain that plants a `session` gains
//! nothing.

use axum::http::{HeaderMap, HeaderValue, StatusCode};
use chancery_domain::{Randomness, SecretToken, TokenHash};
use chancery_web::{Cookie, CookieLookup, ErrorPage, find_cookie};

/// A session cookie: it ends with the browser; the store knows its expiry.
pub(crate) const SESSION_COOKIE: Cookie = Cookie { name: "session", path: "/" };
pub(crate) const BINDING_COOKIE: Cookie = Cookie { name: "__Host-session_binding", path: "/" };

/// The new secrets of a session.
pub(crate) struct SessionSecrets {
    pub(crate) token: SecretToken,
    binding: Option<SecretToken>,
}

impl SessionSecrets {
    pub(crate) fn generate(is_bound: bool, randomness: &dyn Randomness) -> Self {
        let token = SecretToken::generate(randomness);
        Self { token, binding: is_bound.then(|| SecretToken::generate(randomness)) }
    }

    pub(crate) fn binding_hash(&self) -> Option<TokenHash> {
        self.binding.as_ref().map(SecretToken::hash)
    }

    pub(crate) fn cookies(&self) -> Result<Vec<HeaderValue>, ErrorPage> {
        let session = Some(SESSION_COOKIE.set(self.token.reveal(), None));
        let binding = self.binding.as_ref().map(|binding| BINDING_COOKIE.set(binding.reveal(), None));
        let cookies: Option<Vec<_>> = session.into_iter().chain(binding).collect();
        cookies.ok_or_else(|| ErrorPage::internal("the session token does not fit in a cookie"))
    }
}

/// Deletes the cookies of a session that has ended.
pub(crate) fn expired_cookies(is_bound: bool) -> impl Iterator<Item = HeaderValue> {
    let binding = is_bound.then_some(BINDING_COOKIE);
    [SESSION_COOKIE].into_iter().chain(binding).filter_map(|cookie| cookie.expire())
}

/// The browser's session token, unchecked. Two cookies are rejected, because one of them may be planted.
pub(crate) fn sent_token(headers: &HeaderMap) -> Result<Option<SecretToken>, ErrorPage> {
    match find_cookie(headers, SESSION_COOKIE.name) {
        CookieLookup::Multiple => Err(duplicate_sessions_page()),
        CookieLookup::One(value) => Ok(SecretToken::parse(value)),
        CookieLookup::None => Ok(None),
    }
}

pub(crate) fn sent_session(headers: &HeaderMap) -> Result<Option<TokenHash>, ErrorPage> {
    Ok(sent_token(headers)?.map(|token| token.hash()))
}

/// The second cookie, unchecked.
pub(crate) fn sent_binding(headers: &HeaderMap) -> Option<TokenHash> {
    match find_cookie(headers, BINDING_COOKIE.name) {
        CookieLookup::One(value) => SecretToken::parse(value).map(|binding| binding.hash()),
        CookieLookup::None | CookieLookup::Multiple => None,
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
