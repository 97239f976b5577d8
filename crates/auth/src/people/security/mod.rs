//! `/security`: what protects an account, for its owner. Changes need a recent authentication (`confirm`), the first
//! factor needs proof of the mailbox too (`email_code`), and the owner gets an email about each change.

mod authenticator;
mod confirm;
mod email_code;
mod notice;
mod overview;
mod passkey;
mod passkey_list;
mod password;
mod recovery;
mod set_up;

use crate::limits::FRESH_AUTHENTICATION;
use crate::signed_in::{SignedInAccount, see_other, session_token, signed_in, with_return_to};
use crate::{Provider, store_error_page};
use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use chancery_domain::{LocalPath, SecretToken};
use chancery_web::{Confirmation, Confirmed, ErrorPage};
use std::sync::Arc;

pub(super) fn routes() -> Router<Arc<Provider>> {
    Router::new()
        .route("/security", get(overview::show))
        .route("/security/confirm", get(confirm::show).post(confirm::send_password))
        .route("/security/confirm/passkey", post(confirm::send_passkey))
        .route(email_code::PATH, get(email_code::show).post(email_code::send))
        .route("/security/email-code/send", post(email_code::request))
        .route("/security/set-up", get(set_up::show))
        .route("/security/password", get(password::show).post(password::send))
        .route("/security/authenticator/add", get(authenticator::show).post(authenticator::send))
        .route("/security/authenticator/remove", post(authenticator::remove))
        .route("/security/passkeys/add", get(passkey::show).post(passkey::send))
        .route("/security/passkeys/rename", get(passkey_list::show_rename).post(passkey_list::rename))
        .route("/security/passkeys/remove", post(passkey_list::remove))
        .route("/security/recovery-codes", post(recovery::replace))
}

/// The person of this browser, and the token of the session. If the account has a second factor, the session was started
/// with one: a session from before cannot take it away.
struct BrowserSession {
    signed_in: SignedInAccount,
    token: SecretToken,
}

/// `None` sends the person to sign in.
async fn browser_session(
    provider: &Provider,
    headers: &HeaderMap,
) -> Result<Option<BrowserSession>, ErrorPage> {
    let (Some(signed_in), Some(token)) = (signed_in(provider, headers).await?, session_token(headers)) else {
        return Ok(None);
    };
    if signed_in.predates_factor(provider).await? {
        return Ok(None);
    }
    Ok(Some(BrowserSession { signed_in, token }))
}

/// Ends all sessions of the account but this one, after its first factor was added or one was removed: they were started
/// with less than the account needs now, or with what was removed.
async fn end_other_sessions(provider: &Provider, session: &BrowserSession) -> Result<(), ErrorPage> {
    let SignedInAccount { account, sid, .. } = &session.signed_in;
    let ended = provider.store.session_revoker.end_other_provider_sessions(&account.subject, sid).await;
    ended.map(|_| ()).map_err(store_error_page)
}

/// The session, if the person authenticated recently. Otherwise use `to_confirm`.
async fn fresh_session(
    provider: &Provider,
    headers: &HeaderMap,
) -> Result<Option<BrowserSession>, ErrorPage> {
    let session = browser_session(provider, headers).await?;
    let now = provider.clock.now();
    Ok(session.filter(|session| now <= session.signed_in.authenticated_at.after(FRESH_AUTHENTICATION)))
}

/// Asks for the password or a passkey again, and continues to `return_to`. Who is not signed in signs in.
fn to_confirm(return_to: &LocalPath) -> Response {
    see_other(&with_return_to("/security/confirm", return_to))
}

/// One of our own paths. The start page if it is too long to be carried along.
fn local(path: &str) -> LocalPath {
    super::form::local_path(path)
}

/// Asks before a factor is removed, or only recovery codes, which are added to the changes.
fn ask_before_removal(
    title: &'static str,
    mut change: Confirmation,
    recovery_codes: u64,
    confirmed: &Confirmed,
) -> ErrorPage {
    let effect = if change.changes.is_empty() {
        "You get new codes on the next page."
    } else {
        "You are signed out in all your other browsers."
    };
    change.count += recovery_codes;
    if recovery_codes > 0 {
        let plural = if recovery_codes == 1 { "" } else { "s" };
        change.changes.push(format!("{recovery_codes} recovery code{plural}"));
    }
    let reason = if change.count == 1 { "This stops working:" } else { "These stop working:" };
    ErrorPage::confirmation(title, reason, confirmed, change)
        .advice(format!("{effect} We email you about it."))
        .next_link("/security", "Cancel")
}

fn last_factor() -> ErrorPage {
    ErrorPage::new(
        StatusCode::CONFLICT,
        "last_factor",
        "This is your last second factor",
        "Your firm requires a second factor, so the last one cannot be removed. Nothing was changed.",
    )
    .advice("Add another passkey or an authenticator app first.")
    .next_link("/security", "Back to security")
}

fn passkeys_unavailable() -> ErrorPage {
    ErrorPage::new(
        StatusCode::CONFLICT,
        "passkeys_unavailable",
        "Passkeys are not available here",
        "Passkeys need a host name; this server\u{2019}s address is an IP address.",
    )
    .advice("Use an authenticator app instead.")
    .next_link("/security", "Back to security")
}
