//! Sessions with the provider itself. The browser holds a random token in the `__Host-auth_session` cookie, and only its
//! hash is stored. Each sign-in creates a new one.

use crate::authentication_methods::AuthenticationMethods;
use crate::known_device::remember_device;
use crate::limits::SESSION_TIMES;
use crate::passwords::{self, HashingError, NewPassword, PasswordContext, PasswordError};
use crate::{Provider, store_error_page};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chancery_domain::{Clock, EmailAddress, LocalPath, Randomness, SecretToken, UnixMillis};
use chancery_store::{NewProviderAccount, NewProviderSession, ProviderAccount, ProviderError, ProviderStore};
use chancery_web::{Cookie, CookieLookup, ErrorPage, cookie_values, find_cookie};

pub(crate) const SESSION_COOKIE: Cookie = Cookie { name: "__Host-auth_session", path: "/" };

pub(crate) struct SignedInAccount {
    pub account: ProviderAccount,
    /// When and how the user authenticated.
    pub authenticated_at: UnixMillis,
    pub methods: AuthenticationMethods,
    /// The `sid` claim.
    pub sid: String,
}

impl SignedInAccount {
    /// Whether the firm requires a second factor, and this session was started without one.
    pub(crate) fn lacks_required_factor(&self, provider: &Provider) -> bool {
        provider.settings.requires_second_factor() && !self.methods.is_multi_factor()
    }

    /// Whether the account has a second factor, and this session was started without one: before it was added.
    pub(crate) async fn predates_factor(&self, provider: &Provider) -> Result<bool, ErrorPage> {
        if self.methods.is_multi_factor() {
            return Ok(false);
        }
        let factors = provider.store.second_factors.account_factors(&self.account.subject).await;
        Ok(!factors.map_err(store_error_page)?.is_empty())
    }
}

/// The account signed in in this browser, if any. Two cookies with this name are rejected, because one of them is not
/// ours.
pub(crate) async fn signed_in(
    provider: &Provider,
    headers: &HeaderMap,
) -> Result<Option<SignedInAccount>, ErrorPage> {
    reject_duplicate_sessions(headers)?;
    let Some(token) = session_token(headers) else { return Ok(None) };
    let now = provider.clock.now();
    let session = provider.store.provider_sessions.provider_session(token.hash(), SESSION_TIMES, now).await;
    let session = session.map_err(|error| store_error_page(&error))?;
    Ok(session.map(|session| SignedInAccount {
        account: session.account,
        authenticated_at: session.started_at,
        methods: AuthenticationMethods::from_stored(session.amr),
        sid: session.sid,
    }))
}

pub(crate) fn session_token(headers: &HeaderMap) -> Option<SecretToken> {
    match find_cookie(headers, SESSION_COOKIE.name) {
        CookieLookup::One(value) => SecretToken::parse(value),
        CookieLookup::None | CookieLookup::Multiple => None,
    }
}

/// Called before anything that a second cookie would defeat. Without this error, the browser would be asked to sign in
/// forever.
pub(crate) fn reject_duplicate_sessions(headers: &HeaderMap) -> Result<(), ErrorPage> {
    if find_cookie(headers, SESSION_COOKIE.name) != CookieLookup::Multiple {
        return Ok(());
    }
    let rejection = ErrorPage::new(
        StatusCode::BAD_REQUEST,
        "two_sessions",
        "Two session cookies",
        "Your browser sent two cookies named \u{201c}__Host-auth_session\u{201d}, so neither was used. Nothing was changed.",
    );
    Err(rejection
        .advice(
            "Sign in again. If this happens again, delete this site\u{2019}s cookies in your browser settings.",
        )
        .next_link("/sign-in", "Sign in")
        .with_cookie(SESSION_COOKIE.expire())
        .with_log_detail("duplicate session cookies"))
}

/// Redirects to the sign-in page, which continues to `return_to` afterwards.
pub(crate) fn to_sign_in(return_to: &LocalPath) -> Response {
    see_other(&with_return_to("/sign-in", return_to))
}

/// Redirects to the set-up of a second factor, which continues to `return_to` afterwards.
pub(crate) fn to_second_factor_set_up(return_to: &LocalPath) -> Response {
    see_other(&with_return_to("/security/set-up", return_to))
}

/// Adds `return_to` to a path.
pub(crate) fn with_return_to(path: &str, return_to: &LocalPath) -> String {
    // A local path contains only visible ASCII, so only characters with a meaning in a query need escaping.
    let mut value = String::with_capacity(return_to.as_str().len());
    for c in return_to.as_str().chars() {
        match c {
            '%' | '&' | '+' | '#' | '=' | '?' | '"' | '\'' | '<' | '>' | ';' => {
                value.push_str(&format!("%{:02X}", u32::from(c)));
            }
            other => value.push(other),
        }
    }
    format!("{path}?return_to={value}")
}

pub(crate) fn see_other(location: &str) -> Response {
    // Our paths are visible ASCII. If one ever is not, fall back to the start page.
    let location = HeaderValue::from_str(location).unwrap_or(HeaderValue::from_static("/"));
    (StatusCode::SEE_OTHER, [(header::LOCATION, location)]).into_response()
}

/// The cookies of a browser that has just signed in.
pub(crate) struct SignInCookies([HeaderValue; 2]);

impl SignInCookies {
    pub(crate) fn append_to(self, response: &mut Response) {
        for cookie in self.0 {
            response.headers_mut().append(header::SET_COOKIE, cookie);
        }
    }
}

/// Starts a session for this browser with a new token, so that a planted one is worthless (session fixation), and remembers
/// the browser. The previous session ends if it is another person's. If it is this person's, it goes on with its `sid`:
/// applications that ask for credentials again (`prompt=login`, `max_age`) must not be signed out by it.
pub(crate) async fn begin_session(
    provider: &Provider,
    headers: &HeaderMap,
    account: &ProviderAccount,
    methods: &AuthenticationMethods,
) -> Result<SignInCookies, ErrorPage> {
    let sessions = &provider.store.provider_sessions;
    let token = SecretToken::generate(provider.randomness.as_ref());
    let new = NewProviderSession {
        token: token.hash(),
        subject: account.subject.clone(),
        password_version: account.password_version,
        sid: SecretToken::generate(provider.randomness.as_ref()).reveal().to_owned(),
        amr: methods.as_str().to_owned(),
        at: provider.clock.now(),
    };
    let mut is_continued = false;
    for previous in cookie_values(headers, SESSION_COOKIE.name).filter_map(SecretToken::parse) {
        if !is_continued {
            let continued = sessions.continue_provider_session(previous.hash(), &new).await;
            is_continued = continued.map_err(|error| store_error_page(&error))?;
            if is_continued {
                continue;
            }
        }
        sessions.end_provider_session(previous.hash()).await.map_err(|error| store_error_page(&error))?;
    }
    if !is_continued {
        sessions.start_provider_session(new).await.map_err(|error| store_error_page(&error))?;
    }
    let session = session_cookie(&token)?;
    Ok(SignInCookies([session, remember_device(provider, headers, &account.subject).await?]))
}

pub(crate) fn session_cookie(token: &SecretToken) -> Result<HeaderValue, ErrorPage> {
    let cookie = SESSION_COOKIE.set(token.reveal(), None);
    cookie.ok_or_else(|| ErrorPage::internal("the session token does not fit in a header"))
}

/// Records how and when the person of this browser's session authenticated. The session stays.
pub(crate) async fn reauthenticate(
    provider: &Provider,
    headers: &HeaderMap,
    methods: &AuthenticationMethods,
    at: UnixMillis,
) -> Result<(), ErrorPage> {
    let Some(token) = session_token(headers) else { return Ok(()) };
    let sessions = &provider.store.provider_sessions;
    let recorded = sessions.reauthenticate_provider_session(token.hash(), methods.as_str(), at).await;
    recorded.map_err(|error| store_error_page(&error))
}

/// Ends the session on the server; if the browser sent several cookies, all of their sessions. The response deletes the
/// cookie.
pub(crate) async fn end_session(provider: &Provider, headers: &HeaderMap) -> Result<(), ErrorPage> {
    for token in cookie_values(headers, SESSION_COOKIE.name).filter_map(SecretToken::parse) {
        provider
            .store
            .provider_sessions
            .end_provider_session(token.hash())
            .await
            .map_err(|error| store_error_page(&error))?;
    }
    Ok(())
}

/// Why an account could not be created.
#[derive(Debug, thiserror::Error)]
pub enum AddAccountError {
    #[error("{0}")]
    Password(#[from] PasswordError),
    #[error(transparent)]
    Hashing(#[from] HashingError),
    #[error(transparent)]
    Store(#[from] ProviderError),
}

/// Creates an account without email verification: the caller vouches for the mailbox.
pub async fn add_account(
    store: &ProviderStore,
    randomness: &dyn Randomness,
    clock: &dyn Clock,
    firm_name: &str,
    email: &EmailAddress,
    password: &str,
) -> Result<ProviderAccount, AddAccountError> {
    let password = NewPassword::check(password, &PasswordContext { email, firm_name })?;
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
        fn return_to_round_trips_through_the_query(rest in "[!-~]{0,80}") {
            if let Some(path) = LocalPath::parse(&format!("/{rest}")) {
                let uri: Uri = with_return_to("/sign-in", &path).parse().unwrap();
                let query: Query<HashMap<String, String>> = Query::try_from_uri(&uri).unwrap();
                prop_assert_eq!(query.get("return_to").map(String::as_str), Some(path.as_str()));
                prop_assert_eq!(query.len(), 1);
            }
        }
    }

    #[test]
    fn duplicate_session_cookies_sign_nobody_in() {
        let token = "a".repeat(43);
        let with = |line: &str| {
            let headers = HeaderMap::from_iter([(header::COOKIE, HeaderValue::from_str(line).unwrap())]);
            session_token(&headers).is_some()
        };
        assert!(with(&format!("__Host-auth_session={token}; other=1")));
        assert!(!with(&format!("__Host-auth_session={token}; __Host-auth_session={token}")));
        assert!(!with("__Host-auth_session=short"));
        assert!(!with(&format!("session={token}")) && !with(&format!("auth_session={token}")));
    }
}
