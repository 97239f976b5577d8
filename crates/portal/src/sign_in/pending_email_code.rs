//! Half signed in: the identity provider knows who it is, and the code from the letter is still to be typed. The cookie
//! `sign_in_code` holds the half sign-in's token; the store has a hash of it, and of token and code together, so that a
//! copy of the database is worth nothing to a guesser.

use crate::failure::refused_by_store;
use crate::sign_in::emails;
use crate::sign_in::finish::Newcomer;
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use crate::when::{clock_time, seconds_until};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{EmailAddress, MailCode, SecretToken, UnixMillis};
use chancery_store::{CODE_TRIES_MEMORY, CodeSending, HalfSignIn, MAX_CODE_TRIES, MailedCode};
use chancery_web::{Cookie, Refusal, SentCookie, sent_cookie};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const CODE_COOKIE: Cookie = Cookie { name: "sign_in_code", path: "/auth" };

/// How long a code works.
pub(crate) const CODE_LASTS: Duration = Duration::from_secs(10 * 60);

/// Whether the mail server took a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posted {
    Yes,
    No,
}

/// Sends the first code, and the browser to the page that asks for it.
pub(crate) async fn begin(
    portal: &Arc<Portal>,
    newcomer: Newcomer,
    visitor: &Visitor,
) -> Result<Response, Refusal> {
    let token = SecretToken::generate(portal.randomness.as_ref());
    let code = MailCode::generate(portal.randomness.as_ref());
    let now = portal.clock.now();
    let Newcomer { identity, email, return_to } = newcomer;
    let mailed =
        MailedCode { hash: token.hash_with(code.reveal()), expires_at: expiry(now), sent: 1, sent_at: now };
    let half = HalfSignIn { identity, email: email.clone(), return_to, code: mailed, is_code_sent: false };
    let begun = portal.store.begin_half_sign_in(token.hash(), half, now).await;
    match begun.map_err(|error| refused_by_store(&error))? {
        CodeSending::Yes => {}
        CodeSending::NoTriesLeft { until } => return Err(no_tries_left(until, now)),
        CodeSending::TooMany { until } => return Err(too_many_letters(until, now)),
        CodeSending::NotBefore(_) | CodeSending::NoMore | CodeSending::Gone => return Err(over()),
    }
    // A letter that did not go out is told on the page, where it can be sent again.
    post(portal, &email, &token, &code, visitor).await?;
    let mut response = Redirect::to("/auth/code").into_response();
    response.headers_mut().append(header::SET_COOKIE, cookie(&token)?);
    Ok(response)
}

/// Sends a letter that is counted already, and puts its code in force when the mail server has it; else the store is told. It
/// is a task of its own: a letter that has gone out must have a code that works, though the browser hung up meanwhile.
pub(crate) async fn post(
    portal: &Arc<Portal>,
    to: &EmailAddress,
    token: &SecretToken,
    code: &MailCode,
    visitor: &Visitor,
) -> Result<Posted, Refusal> {
    let letter = emails::code(to, code, CODE_LASTS, visitor);
    let (token, hash) = (token.hash(), token.hash_with(code.reveal()));
    let portal = Arc::clone(portal);
    let posting = tokio::spawn(async move {
        let asked_at = portal.clock.now();
        match portal.mailer.send(&letter).await {
            Ok(()) => {
                portal.store.code_was_sent(token, hash, expiry(asked_at), asked_at).await.map(|_| Posted::Yes)
            }
            Err(error) => {
                tracing::error!(%error, "a sign-in code could not be sent");
                portal.store.code_was_not_sent(token, portal.clock.now()).await.map(|()| Posted::No)
            }
        }
    });
    let posted =
        posting.await.map_err(|error| Refusal::internal(format!("sending a code failed: {error}")))?;
    posted.map_err(|error| refused_by_store(&error))
}

/// The half sign-in that this browser has, and its token.
pub(crate) async fn of_browser(
    portal: &Portal,
    headers: &HeaderMap,
) -> Result<(SecretToken, HalfSignIn), Refusal> {
    let token = sent_token(headers).ok_or_else(over)?;
    let found = portal.store.half_sign_in(token.hash(), portal.clock.now()).await;
    let half = found.map_err(|error| refused_by_store(&error))?.ok_or_else(over)?;
    Ok((token, half))
}

fn sent_token(headers: &HeaderMap) -> Option<SecretToken> {
    match sent_cookie(headers, CODE_COOKIE.name) {
        SentCookie::One(value) => SecretToken::parse(value),
        SentCookie::None | SentCookie::Several => None,
    }
}

pub(crate) fn cookie(token: &SecretToken) -> Result<HeaderValue, Refusal> {
    let cookie = CODE_COOKIE.set(token.reveal(), Some(CODE_LASTS));
    cookie.ok_or_else(|| Refusal::internal("a sign-in's token cannot be put into a cookie"))
}

pub(crate) fn expiry(now: UnixMillis) -> UnixMillis {
    UnixMillis(now.0.saturating_add(i64::try_from(CODE_LASTS.as_millis()).unwrap_or(i64::MAX)))
}

pub(crate) fn over() -> Refusal {
    Refusal::new(
        StatusCode::GONE,
        "sign_in_over",
        "This sign-in is over",
        "Its code was used, its time has run out, too many wrong codes were typed, or it was begun in another browser.",
    )
    .advice("Start again; you get a new code.")
    .way_on("/", "Go to sign-in")
    .with_cookie(CODE_COOKIE.take_back())
}

/// For whoever typed the last wrong code.
pub(crate) fn destroyed() -> Refusal {
    let minutes = CODE_TRIES_MEMORY.as_secs() / 60;
    Refusal::new(
        StatusCode::GONE,
        "too_many_wrong_codes",
        "Too many wrong codes",
        format!(
            "{MAX_CODE_TRIES} wrong codes or more were typed for this account, so its codes no longer work."
        ),
    )
    .advice(format!(
        "In {minutes} minutes you can sign in again with a new code. We tell the account’s owner by mail."
    ))
    .way_on("/", "Go to sign-in")
    .with_cookie(CODE_COOKIE.take_back())
    .logged("the last wrong code destroyed the sign-ins of an identity")
}

pub(crate) fn no_tries_left(until: UnixMillis, now: UnixMillis) -> Refusal {
    let mut refusal = Refusal::too_many(
        "Too many wrong codes were typed for this account, so no code is sent to it for a while.",
        seconds_until(until, now),
    )
    .advice(format!("Sign in again after {}.", clock_time(until)))
    .way_on("/", "Go to sign-in")
    .with_cookie(CODE_COOKIE.take_back());
    refusal.code = "too_many_wrong_codes";
    refusal
}

fn too_many_letters(at: UnixMillis, now: UnixMillis) -> Refusal {
    let mut refusal = Refusal::too_many(
        "Very many codes were sent to your mailbox and none of them was used, so we have stopped for a while.",
        seconds_until(at, now),
    )
    .advice(format!("Sign in again after {}. If it was not you, change your password.", clock_time(at)))
    .way_on("/", "Go to sign-in");
    refusal.code = "too_many_codes";
    refusal
}
