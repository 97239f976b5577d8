//! `/forgotten-password/code`: the code from the mail and the new password, on one page. It signs nobody in: whoever set a
//! password signs in with it, and is thereby known to know it.

use super::form::{Posted, Problems};
use super::letters;
use super::mailbox_proof::{CodeTry, Errand, UnderWay, gone, under_way};
use super::place::Place;
use super::sign_in::{NEW_PASSWORD_NOTICE, NEW_PASSWORD_NOTICE_LASTS, unhashed};
use super::sign_up_code::{NOT_A_CODE, wrong_code};
use super::throttle;
use crate::limits::MIN_PASSWORD_CHARS;
use crate::passwords::{self, NewPassword};
use crate::signed_in::{SESSION_COOKIE, see_other, with_return_to};
use crate::{Provider, refused};
use askama::Template;
use axum::Extension;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use chancery_domain::{EmailAddress, EventOrigin, Identity, MailCode, RequestId, ThrottleKey};
use chancery_store::ProviderAccount;
use chancery_web::{ErrorPage, page};
use serde::Deserialize;
use std::net::SocketAddr;
use std::sync::Arc;

const ERRAND: Errand = Errand::NewPassword;

#[derive(Template)]
#[template(path = "forgotten_password_code.html")]
struct ForgottenPasswordCodePage<'a> {
    firm_name: &'a str,
    email: &'a EmailAddress,
    was_sent_again: bool,
    problems: Problems,
    code: &'a str,
}

#[derive(Deserialize)]
pub(crate) struct Fields {
    #[serde(default)]
    code: String,
    #[serde(default)]
    password: String,
}

fn show_page(
    provider: &Provider,
    under_way: &UnderWay,
    problems: Problems,
    code: &str,
) -> Result<Response, ErrorPage> {
    let status = if problems.any() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let template = ForgottenPasswordCodePage {
        firm_name: &provider.settings.firm_name,
        email: &under_way.proof.email,
        was_sent_again: under_way.proof.code.sent > 1,
        problems,
        code,
    };
    page(status, &template)
}

pub(crate) async fn show(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    match under_way(&provider, ERRAND, &headers).await? {
        Some(under_way) => show_page(&provider, &under_way, Problems::default(), ""),
        None => Ok(see_other(ERRAND.start())),
    }
}

pub(crate) async fn send(
    State(provider): State<Arc<Provider>>,
    place: Place,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Extension(request_id): Extension<RequestId>,
    headers: HeaderMap,
    Posted(fields): Posted<Fields>,
) -> Result<Response, ErrorPage> {
    let Some(under_way) = under_way(&provider, ERRAND, &headers).await? else { return Err(gone(ERRAND)) };
    let email = &under_way.proof.email;
    // The password is looked at first: a code is not used up by a password that cannot be taken.
    let (code, password) = (MailCode::parse(&fields.code), NewPassword::check(&fields.password, email));
    let (code, password) = match (code, password) {
        (Some(code), Ok(password)) => (code, password),
        (code, password) => {
            let mut problems = Problems::default();
            if code.is_none() {
                problems.add("code", NOT_A_CODE);
            }
            if let Err(problem) = password {
                problems.add("password", problem.to_string());
            }
            return show_page(&provider, &under_way, problems, fields.code.trim());
        }
    };
    if let CodeTry::Wrong { left } = under_way.try_code(&provider, place, &code).await? {
        let problems = Problems::one("code", wrong_code(left));
        return show_page(&provider, &under_way, problems, fields.code.trim());
    }
    let hash =
        passwords::hash(password, provider.randomness.as_ref()).await.map_err(|error| unhashed(&error))?;
    // The code is used up only now: a hash that failed cost nothing.
    let (token, code) = under_way.keys();
    let changed = provider.store.provider_accounts.set_proven_password(token, code, email, &hash).await;
    let Some(account) = changed.map_err(|error| refused(&error))? else { return Err(gone(ERRAND)) };
    tracing::info!(address = throttle::in_log(email), "a new password was set");
    let (ip, at) = (Some(peer.ip().to_canonical()), provider.clock.now());
    end_portal_sessions(&provider, &account, &EventOrigin { ip, at, request_id }).await;
    // Whoever was locked out by somebody else's guesses is in again.
    let [_per_subnet, of_address @ ..] = ThrottleKey::password(email, place.0);
    for key in of_address {
        throttle::reset(&provider, key).await?;
    }
    letters::send_in_background(&provider, email.clone(), |to, _| Some(letters::password_changed(to)));
    let mut response = see_other(&with_return_to("/sign-in", &under_way.proof.return_to));
    let notice = NEW_PASSWORD_NOTICE.set("1", Some(NEW_PASSWORD_NOTICE_LASTS));
    for cookie in [ERRAND.cookie().take_back(), SESSION_COOKIE.take_back(), notice].into_iter().flatten() {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

/// Whoever had the old password may be signed in to the portal by it. The password is set by now, so that a failure here
/// is no reason to say that it is not.
async fn end_portal_sessions(provider: &Provider, account: &ProviderAccount, origin: &EventOrigin) {
    let identity = Identity { issuer: provider.settings.issuer.clone(), subject: account.subject.clone() };
    if let Err(error) = provider.store.session_revoker.end_sessions_of_identity(&identity, origin).await {
        tracing::error!(%error, "a new password was set, but the portal's sessions did not end");
    }
}

pub(crate) async fn resend(
    State(provider): State<Arc<Provider>>,
    place: Place,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    let Some(under_way) = under_way(&provider, ERRAND, &headers).await? else { return Err(gone(ERRAND)) };
    under_way.resend(&provider, place).await?;
    Ok(see_other("/forgotten-password/code"))
}
