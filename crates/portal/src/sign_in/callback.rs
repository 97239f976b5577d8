//! `GET /auth/callback`: the browser is back from the identity provider.
//!
//! 1. The reply must carry a `state` that this browser (cookie `sign_in`) began less than ten minutes ago. It is taken then
//!    and there: whatever comes of it, it cannot be used again.
//! 2. The reply must be of the configured issuer (RFC 9207).
//! 3. An error of the provider's becomes a page that says what to do.
//! 4. Otherwise the provider must prove who signed in (`identity`), and the person is signed in (`finish`).
//!
//! A refused callback changes nothing about a session that the browser has.

use crate::error::PageError;
use crate::sign_in::begin::SIGN_IN_COOKIE;
use crate::sign_in::finish::{self, Proven};
use crate::sign_in::identity::fault::Fault;
use crate::sign_in::identity::provider::Secrets;
use crate::sign_in::links::{SIGN_IN_AGAIN, sign_in_url, start};
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use chancery_domain::{Identity, LocalPath, SecretToken};
use chancery_web::{ErrorPage, Link, SentCookie, sent_cookie};
use std::sync::Arc;

/// Longer ones are nobody's.
const MAX_CODE_BYTES: usize = 4_096;
/// Of what the provider says about an error, this much goes to the log.
const MAX_LOGGED_CHARS: usize = 200;

/// What the browser brought from the provider. Nobody has checked it yet.
#[derive(Debug, Default, PartialEq, Eq)]
struct Reply {
    state: Option<String>,
    code: Option<String>,
    issuer: Option<String>,
    error: Option<String>,
    error_description: Option<String>,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    visitor: Visitor,
    headers: HeaderMap,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, PageError> {
    let reply = Reply::read(query).map_err(|why| not_ours(why, start()))?;
    let (Some(state), SentCookie::One(browser)) = (&reply.state, sent_cookie(&headers, SIGN_IN_COOKIE.name))
    else {
        let why = "it has no `state`, or its browser sends no cookie `sign_in`, or several";
        return Err(not_ours(why, start()).into());
    };
    let Some(browser) = SecretToken::parse(browser) else {
        return Err(not_ours("its browser's cookie `sign_in` was never one of ours", start()).into());
    };
    let taken = portal.store.sign_ins.take_sign_in(browser.hash_with(state), portal.clock.now()).await?;
    let Some(sign_in) = taken else { return Err(over(&start()?).into()) };

    let return_to = sign_in.return_to;
    let refused = |fault: Fault| fault.error_page(&return_to);
    portal.identity.check_issuer(reply.issuer.as_deref()).await.map_err(refused)?;
    if let Some(error) = &reply.error {
        return Err(provider_error(error, reply.error_description.as_deref(), &return_to).into());
    }
    let Some(code) = reply.code.filter(|code| !code.is_empty() && code.len() <= MAX_CODE_BYTES) else {
        return Err(not_ours("it has neither a usable `code` nor an `error`", Ok(return_to)).into());
    };
    let secrets = Secrets { state, nonce: &sign_in.nonce, pkce_verifier: &sign_in.pkce_verifier };
    let evidence = portal.identity.prove(code, &secrets).await.map_err(refused)?;
    let identity = Identity { issuer: portal.identity.issuer().to_owned(), subject: evidence.subject };
    let proven =
        Proven { identity, email: evidence.email, is_email_verified: evidence.is_email_verified, return_to };
    finish::sign_in(&portal, proven, &visitor).await
}

impl Reply {
    /// A parameter that is there twice could mean one thing to us and another to somebody else.
    fn read(query: Vec<(String, String)>) -> Result<Self, &'static str> {
        let mut reply = Self::default();
        for (name, value) in query {
            let place = match name.as_str() {
                "state" => &mut reply.state,
                "code" => &mut reply.code,
                "iss" => &mut reply.issuer,
                "error" => &mut reply.error,
                "error_description" => &mut reply.error_description,
                _ => continue,
            };
            if place.replace(value).is_some() {
                return Err("it has a parameter twice");
            }
        }
        Ok(reply)
    }
}

fn not_ours(why: &str, return_to: Result<LocalPath, ErrorPage>) -> ErrorPage {
    let mut page = ErrorPage::new(
        StatusCode::BAD_REQUEST,
        "sign_in_not_begun_here",
        "This sign-in cannot be finished here",
        "It was not begun in this browser, or the browser did not keep the cookie that goes with it. Nothing was changed.",
    )
    .advice("Begin again in this browser. If that does not help, allow cookies for this site.")
    .logged(format!("the callback is refused: {why}"));
    page.next_link = return_to.ok().map(|path| Link { href: sign_in_url(&path), label: SIGN_IN_AGAIN });
    page
}

fn over(return_to: &LocalPath) -> ErrorPage {
    ErrorPage::new(
        StatusCode::GONE,
        "sign_in_over",
        "This sign-in is over",
        "It was finished before, it was begun more than ten minutes ago, or not in this browser. Nothing was changed.",
    )
    .advice("Begin again; it takes a moment.")
    .next_link(sign_in_url(return_to), SIGN_IN_AGAIN)
    .logged("the callback is refused: its `state` was not begun in this browser, was used before, or is too old")
}

/// RFC 6749 section 4.1.2.1 and OpenID Connect Core section 3.1.2.6 name the errors.
fn provider_error(error: &str, description: Option<&str>, return_to: &LocalPath) -> ErrorPage {
    let said = loggable(error, description);
    let page = match error {
        "access_denied" => ErrorPage::new(
            StatusCode::FORBIDDEN,
            "access_denied",
            "You were not signed in",
            "The sign-in was cancelled, or the sign-in service does not let you use this portal.",
        )
        .advice("To sign in, begin again and agree to share your address. If you did agree, ask the firm's administrator."),
        "login_required" | "interaction_required" | "consent_required" | "account_selection_required" => {
            ErrorPage::new(
                StatusCode::FORBIDDEN,
                "sign_in_unfinished",
                "You were not signed in",
                "The sign-in service needs something more from you.",
            )
            .advice("Begin again, and answer what it asks.")
        }
        "temporarily_unavailable" | "server_error" => {
            return Fault::Down(format!("the callback says {said}")).error_page(return_to);
        }
        _ => return Fault::RefusesPortal(format!("the callback says {said}")).error_page(return_to),
    };
    page.next_link(sign_in_url(return_to), SIGN_IN_AGAIN)
        .logged(format!("the identity provider signed nobody in: the callback says {said}"))
}

/// One short line, whatever was sent.
fn loggable(error: &str, description: Option<&str>) -> String {
    let line = |text: &str| -> String {
        text.chars().map(|sign| if sign.is_control() { ' ' } else { sign }).take(MAX_LOGGED_CHARS).collect()
    };
    match description {
        None => format!("`{}`", line(error)),
        Some(description) => format!("`{}`: {}", line(error), line(description)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_parameter_that_is_there_twice_is_refused() {
        for name in ["state", "code", "iss", "error"] {
            assert!(Reply::read(pairs(&[(name, "a"), ("other", "x"), (name, "a")])).is_err(), "{name}");
        }
        let reply = Reply::read(pairs(&[("code", "c"), ("other", "x"), ("other", "y")])).unwrap();
        assert_eq!(reply.code.as_deref(), Some("c"));
    }

    #[test]
    fn what_a_provider_says_is_one_short_line_in_the_log() {
        let said = loggable("x\ny", Some(&"\r\n2026 forged line".repeat(50)));
        assert!(said.lines().count() == 1 && said.chars().count() < 300, "{said}");
    }
}
