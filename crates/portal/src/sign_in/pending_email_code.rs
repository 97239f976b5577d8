//! Half signed in: the identity provider knows who it is, and the code from the letter is still to be typed. The cookie
//! `sign_in_code` holds the half sign-in's token; the store has a hash of it, and of token and code together, so that a
//! copy of the database is worth nothing to a guesser.

use crate::error::PageError;
use crate::sign_in::admission::Claimant;
use crate::sign_in::emails;
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use crate::when::{clock_time, seconds_until};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{EmailAddress, MailCode, SecretToken, UnixMillis};
use chancery_store::{CODE_TRIES_MEMORY, CodeSending, HalfSignIn, MAX_CODE_TRIES, MailedCode};
use chancery_web::{Cookie, ErrorPage, SentCookie, sent_cookie};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const CODE_COOKIE: Cookie = Cookie { name: "sign_in_code", path: "/auth" };

/// How long a code works.
pub(crate) const CODE_LASTS: Duration = Duration::from_secs(10 * 60);

/// Whether the mail server took an email.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    Accepted,
    Failed,
}

/// Sends the first code, and the browser to the page that asks for it.
pub(crate) async fn begin(
    portal: &Arc<Portal>,
    claimant: Claimant,
    visitor: &Visitor,
) -> Result<Response, PageError> {
    let token = SecretToken::generate(portal.randomness.as_ref());
    let code = MailCode::generate(portal.randomness.as_ref());
    let now = portal.clock.now();
    let Claimant { identity, email, return_to } = claimant;
    let mailed =
        MailedCode { hash: token.hash_with(code.reveal()), expires_at: expiry(now), sent: 1, sent_at: now };
    let half = HalfSignIn { identity, email: email.clone(), return_to, code: mailed, is_code_sent: false };
    match portal.store.sign_ins.begin_half_sign_in(token.hash(), half, now).await? {
        CodeSending::Yes => {}
        CodeSending::NoTriesLeft { until } => return Err(no_tries_left(until, now).into()),
        CodeSending::TooMany { until } => return Err(too_many_letters(until, now).into()),
        CodeSending::NotBefore(_) | CodeSending::NoMore | CodeSending::Gone => return Err(over().into()),
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
) -> Result<Delivery, PageError> {
    let letter = emails::code(to, code, CODE_LASTS, visitor);
    let (token, hash) = (token.hash(), token.hash_with(code.reveal()));
    let portal = Arc::clone(portal);
    let posted = tokio::spawn(async move {
        let asked_at = portal.clock.now();
        match portal.mailer.send(&letter).await {
            Ok(()) => portal
                .store
                .sign_ins
                .code_was_sent(token, hash, expiry(asked_at), asked_at)
                .await
                .map(|_| Delivery::Accepted),
            Err(error) => {
                tracing::error!(%error, "a sign-in code could not be sent");
                portal
                    .store
                    .sign_ins
                    .code_was_not_sent(token, portal.clock.now())
                    .await
                    .map(|()| Delivery::Failed)
            }
        }
    });
    Ok(posted.await??)
}

/// The half sign-in that this browser has, and its token.
pub(crate) async fn of_browser(
    portal: &Portal,
    headers: &HeaderMap,
) -> Result<(SecretToken, HalfSignIn), PageError> {
    let token = sent_token(headers).ok_or_else(over)?;
    let found = portal.store.sign_ins.half_sign_in(token.hash(), portal.clock.now()).await?;
    let half = found.ok_or_else(over)?;
    Ok((token, half))
}

fn sent_token(headers: &HeaderMap) -> Option<SecretToken> {
    match sent_cookie(headers, CODE_COOKIE.name) {
        SentCookie::One(value) => SecretToken::parse(value),
        SentCookie::None | SentCookie::Several => None,
    }
}

pub(crate) fn cookie(token: &SecretToken) -> Result<HeaderValue, ErrorPage> {
    let cookie = CODE_COOKIE.set(token.reveal(), Some(CODE_LASTS));
    cookie.ok_or_else(|| ErrorPage::internal("a sign-in's token cannot be put into a cookie"))
}

pub(crate) fn expiry(now: UnixMillis) -> UnixMillis {
    UnixMillis(now.0.saturating_add(i64::try_from(CODE_LASTS.as_millis()).unwrap_or(i64::MAX)))
}

pub(crate) fn over() -> ErrorPage {
    ErrorPage::new(
        StatusCode::GONE,
        "sign_in_over",
        "This sign-in is over",
        "Its code was used, its time has run out, too many wrong codes were typed, or it was begun in another browser.",
    )
    .advice("Start again; you get a new code.")
    .next_link("/", "Go to sign-in")
    .with_cookie(CODE_COOKIE.take_back())
}

/// For whoever typed the last wrong code.
pub(crate) fn destroyed() -> ErrorPage {
    let minutes = CODE_TRIES_MEMORY.as_secs() / 60;
    ErrorPage::new(
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
    .next_link("/", "Go to sign-in")
    .with_cookie(CODE_COOKIE.take_back())
    .logged("the last wrong code destroyed the sign-ins of an identity")
}

pub(crate) fn no_tries_left(until: UnixMillis, now: UnixMillis) -> ErrorPage {
    let mut page = ErrorPage::too_many(
        "Too many wrong codes were typed for this account, so no code is sent to it for a while.",
        seconds_until(until, now),
    )
    .advice(format!("Sign in again after {}.", clock_time(until)))
    .next_link("/", "Go to sign-in")
    .with_cookie(CODE_COOKIE.take_back());
    page.code = "too_many_wrong_codes";
    page
}

fn too_many_letters(at: UnixMillis, now: UnixMillis) -> ErrorPage {
    let mut page = ErrorPage::too_many(
        "Very many codes were sent to your mailbox and none of them was used, so we have stopped for a while.",
        seconds_until(at, now),
    )
    .advice(format!("Sign in again after {}. If it was not you, change your password.", clock_time(at)))
    .next_link("/", "Go to sign-in");
    page.code = "too_many_codes";
    page
}
