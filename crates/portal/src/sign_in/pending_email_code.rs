//! A pending sign-in: the identity provider has identified the person, and the code from the email is still to be
//! entered. The cookie `__Host-sign_in_code` holds the sign-in's token. The store has only hashes: of the token, and of
//! token and code together, so that a copy of the database does not help to guess the code. Only the email contains it.

use crate::error::PageError;
use crate::sign_in::admission::AdmittedIdentity;
use crate::sign_in::authentication::UNKNOWN_TIME;
use crate::sign_in::emails;
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use crate::time_format::{clock_text, seconds_until, utc_text};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{
    EmailAddress, EmailCode, MAX_WRONG_CODES, SecretToken, UnixMillis, WRONG_CODE_LOCKOUT,
};
use chancery_store::{CodeEmailOutcome, PendingEmailCode, SentEmailCode};
use chancery_web::{Cookie, CookieLookup, ErrorPage, find_cookie};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const CODE_COOKIE: Cookie = Cookie { name: "__Host-sign_in_code", path: "/" };

/// How long a code works.
pub(crate) const CODE_TTL: Duration = Duration::from_secs(10 * 60);

/// Whether the mail server accepted an email.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    Accepted,
    Failed,
}

/// Sends the first code, and redirects the browser to the page that asks for it.
pub(crate) async fn begin(
    portal: &Arc<Portal>,
    admitted: AdmittedIdentity,
    visitor: &Visitor,
) -> Result<Response, PageError> {
    let token = SecretToken::generate(portal.randomness.as_ref());
    let code = EmailCode::generate(portal.randomness.as_ref());
    let now = portal.clock.now();
    let AdmittedIdentity { identity, email, is_email_verified, directory_role, authentication, return_to } =
        admitted;
    let sent_code = SentEmailCode {
        hash: token.hash_with(code.reveal()),
        expires_at: expiry(now),
        sent: 1,
        sent_at: now,
    };
    let pending = PendingEmailCode {
        identity,
        email: email.clone(),
        is_email_verified,
        directory_role,
        authentication: authentication.seal(&token, UNKNOWN_TIME, portal.randomness.as_ref()),
        return_to,
        code: sent_code,
        is_email_sent: false,
    };
    match portal.store.sign_ins.begin_pending_email_code(token.hash(), pending, now).await? {
        CodeEmailOutcome::Allowed => {}
        CodeEmailOutcome::LockedOut { until } => return Err(lockout_active_page(until, now).into()),
        CodeEmailOutcome::TooMany { until } => return Err(too_many_emails_page(until, now).into()),
        CodeEmailOutcome::TooManyToday { until } => return Err(too_many_today_page(until, now).into()),
        CodeEmailOutcome::TooSoon(_) | CodeEmailOutcome::SignInLimitReached | CodeEmailOutcome::Gone => {
            return Err(expired_page().into());
        }
    }
    // If the email was not sent, the page says so and offers to send it again.
    send_code(portal, &email, &token, &code, visitor).await?;
    let mut response = Redirect::to("/auth/code").into_response();
    response.headers_mut().append(header::SET_COOKIE, cookie(&token)?);
    Ok(response)
}

/// Sends an email that is already counted. Its code becomes valid when the mail server accepts it; otherwise the email is marked
/// as unsent. Runs in its own task, because the code of a sent email must work even if the browser disconnects meanwhile.
pub(crate) async fn send_code(
    portal: &Arc<Portal>,
    to: &EmailAddress,
    token: &SecretToken,
    code: &EmailCode,
    visitor: &Visitor,
) -> Result<Delivery, PageError> {
    let message = emails::code(to, code, CODE_TTL, visitor);
    let (token, hash) = (token.hash(), token.hash_with(code.reveal()));
    let portal = Arc::clone(portal);
    let delivery = tokio::spawn(async move {
        let sent_at = portal.clock.now();
        // If it is not sent, the page says so and offers to send another one.
        match portal.mailer.send_now(&message).await {
            Ok(()) => portal
                .store
                .sign_ins
                .mark_code_sent(token, hash, expiry(sent_at), sent_at)
                .await
                .map(|_| Delivery::Accepted),
            Err(error) => {
                tracing::error!(%error, "sign-in code email not sent");
                portal
                    .store
                    .sign_ins
                    .mark_code_unsent(token, portal.clock.now())
                    .await
                    .map(|()| Delivery::Failed)
            }
        }
    });
    Ok(delivery.await??)
}

/// The browser's pending sign-in, and its token.
pub(crate) async fn from_browser(
    portal: &Portal,
    headers: &HeaderMap,
) -> Result<(SecretToken, PendingEmailCode), PageError> {
    let token = sent_token(headers).ok_or_else(expired_page)?;
    let found = portal.store.sign_ins.pending_email_code(token.hash(), portal.clock.now()).await?;
    let pending = found.ok_or_else(expired_page)?;
    Ok((token, pending))
}

fn sent_token(headers: &HeaderMap) -> Option<SecretToken> {
    match find_cookie(headers, CODE_COOKIE.name) {
        CookieLookup::One(value) => SecretToken::parse(value),
        CookieLookup::None | CookieLookup::Multiple => None,
    }
}

pub(crate) fn cookie(token: &SecretToken) -> Result<HeaderValue, ErrorPage> {
    let cookie = CODE_COOKIE.set(token.reveal(), Some(CODE_TTL));
    cookie.ok_or_else(|| ErrorPage::internal("the sign-in token does not fit in a cookie"))
}

pub(crate) fn expiry(now: UnixMillis) -> UnixMillis {
    UnixMillis(now.0.saturating_add(i64::try_from(CODE_TTL.as_millis()).unwrap_or(i64::MAX)))
}

pub(crate) fn expired_page() -> ErrorPage {
    ErrorPage::new(
        StatusCode::GONE,
        "sign_in_over",
        "Sign-in expired",
        "The code was already used, it expired, too many incorrect codes were entered, or the sign-in was started in another browser.",
    )
    .advice("Sign in again to get a new code.")
    .next_link("/", "Sign in")
    .with_cookie(CODE_COOKIE.expire())
}

/// Shown after the last wrong code.
pub(crate) fn locked_out_page() -> ErrorPage {
    let minutes = WRONG_CODE_LOCKOUT.as_secs() / 60;
    ErrorPage::new(
        StatusCode::GONE,
        "too_many_wrong_codes",
        "Too many incorrect codes",
        format!(
            "{MAX_WRONG_CODES} incorrect codes were entered for this account, so its codes no longer work."
        ),
    )
    .advice(format!("Sign in again in {minutes} minutes. We have emailed the account’s owner."))
    .next_link("/", "Sign in")
    .with_cookie(CODE_COOKIE.expire())
    .with_log_detail("identity locked after too many wrong codes")
}

pub(crate) fn lockout_active_page(until: UnixMillis, now: UnixMillis) -> ErrorPage {
    let mut page = ErrorPage::too_many_requests(
        "Too many incorrect codes were entered for this account.",
        seconds_until(until, now),
    )
    .advice(format!("Sign in again after {}.", clock_text(until)))
    .next_link("/", "Sign in")
    .with_cookie(CODE_COOKIE.expire());
    page.code = "too_many_wrong_codes";
    page
}

fn too_many_today_page(at: UnixMillis, now: UnixMillis) -> ErrorPage {
    let reason = "No more codes can be sent to you today: the daily limit is reached.";
    let mut page = ErrorPage::too_many_requests(reason, seconds_until(at, now))
        .advice(format!(
            "Sign in again after {}. If you did not request so many codes, someone knows your password: change it now.",
            utc_text(at)
        ))
        .next_link("/", "Sign in")
        .with_log_detail("daily limit of emailed codes reached");
    page.code = "too_many_codes_today";
    page
}

fn too_many_emails_page(at: UnixMillis, now: UnixMillis) -> ErrorPage {
    let mut page =
        ErrorPage::too_many_requests("Too many unused codes were sent to you.", seconds_until(at, now))
            .advice(format!(
                "Sign in again after {}. If this was not you, change your password.",
                clock_text(at)
            ))
            .next_link("/", "Sign in");
    page.code = "too_many_codes";
    page
}
