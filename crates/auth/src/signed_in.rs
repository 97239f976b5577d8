//! Who is signed in to the provider itself. A browser holds a random token in the cookie `auth_session`; only its hash is
//! kept, and each sign-in has a new one.

use crate::limits::SESSION_TIMES;
use crate::passwords::{self, HashingError, NewPassword, PasswordProblem};
use crate::{Provider, refused};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chancery_domain::{Clock, EmailAddress, LocalPath, Randomness, SecretToken, UnixMillis};
use chancery_store::{NewProviderAccount, NewProviderSession, ProviderAccount, ProviderError, ProviderStore};
use chancery_web::{Cookie, ErrorPage, SentCookie, sent_cookie, sent_cookies};

pub(crate) const SESSION_COOKIE: Cookie = Cookie { name: "auth_session", path: "/" };

pub(crate) struct SignedInAccount {
    pub account: ProviderAccount,
    /// When the password was typed.
    pub authenticated_at: UnixMillis,
}

/// Whose browser this is, if it is signed in. Two cookies of the name are refused: one of them is not ours.
pub(crate) async fn signed_in(
    provider: &Provider,
    headers: &HeaderMap,
) -> Result<Option<SignedInAccount>, ErrorPage> {
    refuse_two_sessions(headers)?;
    let Some(token) = session_token(headers) else { return Ok(None) };
    let now = provider.clock.now();
    let session = provider.store.provider_sessions.provider_session(token.hash(), SESSION_TIMES, now).await;
    let session = session.map_err(|error| refused(&error))?;
    Ok(session
        .map(|session| SignedInAccount { account: session.account, authenticated_at: session.started_at }))
}

pub(crate) fn session_token(headers: &HeaderMap) -> Option<SecretToken> {
    match sent_cookie(headers, SESSION_COOKIE.name) {
        SentCookie::One(value) => SecretToken::parse(value),
        SentCookie::None | SentCookie::Several => None,
    }
}

/// Before anything that a second session would undo: a browser that sends two is told so, instead of signing in for ever.
pub(crate) fn refuse_two_sessions(headers: &HeaderMap) -> Result<(), ErrorPage> {
    if sent_cookie(headers, SESSION_COOKIE.name) != SentCookie::Several {
        return Ok(());
    }
    let refusal = ErrorPage::new(
        StatusCode::BAD_REQUEST,
        "two_sessions",
        "Your browser sent two sessions",
        "It has two cookies named \u{201c}auth_session\u{201d} for this site, and one of them is not ours. We cannot tell \
         which, so we took neither. Nothing was changed.",
    );
    Err(refusal
        .advice(
            "Sign in again. If this page comes back, remove this site\u{2019}s cookies in the browser\u{2019}s settings \
             first.",
        )
        .next_link("/sign-in", "Go to sign-in")
        .with_cookie(SESSION_COOKIE.take_back())
        .logged("two cookies named auth_session in one request"))
}

/// To the sign-in page, which leads to `return_to` when it is done.
pub(crate) fn to_sign_in(return_to: &LocalPath) -> Response {
    see_other(&with_return_to("/sign-in", return_to))
}

/// A path that knows where to go on afterwards.
pub(crate) fn with_return_to(path: &str, return_to: &LocalPath) -> String {
    // A local path has only visible ASCII; these are the ones that mean something in a query.
    let mut value = String::with_capacity(return_to.as_str().len());
    for letter in return_to.as_str().chars() {
        match letter {
            '%' | '&' | '+' | '#' | '=' | '?' | '"' | '\'' | '<' | '>' | ';' => {
                value.push_str(&format!("%{:02X}", u32::from(letter)));
            }
            other => value.push(other),
        }
    }
    format!("{path}?return_to={value}")
}

pub(crate) fn see_other(location: &str) -> Response {
    // A path of ours is visible ASCII; should one ever not be, the start page is a place to go on from.
    let location = HeaderValue::from_str(location).unwrap_or(HeaderValue::from_static("/"));
    (StatusCode::SEE_OTHER, [(header::LOCATION, location)]).into_response()
}

/// Begins a session of its own for this browser, whatever it had before: a token that somebody planted is worth nothing,
/// and the browser's last session ends.
pub(crate) async fn begin_session(
    provider: &Provider,
    headers: &HeaderMap,
    account: &ProviderAccount,
) -> Result<HeaderValue, ErrorPage> {
    end_session(provider, headers).await?;
    let token = SecretToken::generate(provider.randomness.as_ref());
    let new = NewProviderSession {
        token: token.hash(),
        subject: account.subject.clone(),
        password_version: account.password_version,
        at: provider.clock.now(),
    };
    provider.store.provider_sessions.start_provider_session(new).await.map_err(|error| refused(&error))?;
    SESSION_COOKIE
        .set(token.reveal(), None)
        .ok_or_else(|| ErrorPage::internal("a session's token does not fit a header"))
}

/// Ends it on the server, and where the browser sent several, all of them; the reply takes the cookie back.
pub(crate) async fn end_session(provider: &Provider, headers: &HeaderMap) -> Result<(), ErrorPage> {
    for token in sent_cookies(headers, SESSION_COOKIE.name).filter_map(SecretToken::parse) {
        provider
            .store
            .provider_sessions
            .end_provider_session(token.hash())
            .await
            .map_err(|error| refused(&error))?;
    }
    Ok(())
}

/// Why there is no new account.
#[derive(Debug, thiserror::Error)]
pub enum AddAccountError {
    #[error("{0}")]
    Password(#[from] PasswordProblem),
    #[error(transparent)]
    Hashing(#[from] HashingError),
    #[error(transparent)]
    Store(#[from] ProviderError),
}

/// Makes an account without a letter: whoever calls this vouches for the mailbox.
pub async fn add_account(
    store: &ProviderStore,
    randomness: &dyn Randomness,
    clock: &dyn Clock,
    email: &EmailAddress,
    password: &str,
) -> Result<ProviderAccount, AddAccountError> {
    let password = NewPassword::check(password, email)?;
    let password_hash = passwords::hash(password, randomness).await?;
    let new = NewProviderAccount {
        subject: SecretToken::generate(randomness).reveal().to_owned(),
        email: email.clone(),
        password_hash,
        at: clock.now(),
    };
    Ok(store.provider_accounts.create_provider_account(new).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::extract::Query;
    use axum::http::Uri;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn a_path_comes_back_from_the_query_as_it_went_in(rest in "[!-~]{0,80}") {
            if let Some(path) = LocalPath::parse(&format!("/{rest}")) {
                let uri: Uri = with_return_to("/sign-in", &path).parse().unwrap();
                let query: Query<HashMap<String, String>> = Query::try_from_uri(&uri).unwrap();
                prop_assert_eq!(query.get("return_to").map(String::as_str), Some(path.as_str()));
                prop_assert_eq!(query.len(), 1);
            }
        }
    }

    #[test]
    fn a_planted_second_cookie_signs_nobody_in() {
        let token = "a".repeat(43);
        let with = |line: &str| {
            let headers = HeaderMap::from_iter([(header::COOKIE, HeaderValue::from_str(line).unwrap())]);
            session_token(&headers).is_some()
        };
        assert!(with(&format!("auth_session={token}; other=1")));
        assert!(!with(&format!("auth_session={token}; auth_session={token}")));
        assert!(!with("auth_session=short"));
        assert!(!with(&format!("session={token}")));
    }
}
