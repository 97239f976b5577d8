//! `/forgotten-password/code`: the emailed code and the new password, on one page. It does not sign the user in:
//! signing in with the new password proves that the user knows it.

use super::client_subnet::ClientSubnet;
use super::emails;
use super::form::{PostedForm, Problems};
use super::mailbox_proof::{CodeCheck, PendingProof, ProofFlow, code_expired, pending_proof};
use super::sign_in::{NEW_PASSWORD_NOTICE, NEW_PASSWORD_NOTICE_TTL, hashing_error_page};
use super::sign_up_code::{INVALID_CODE, incorrect_code_message};
use super::throttle;
use crate::known_device::remember_device;
use crate::limits::MIN_PASSWORD_CHARS;
use crate::passwords::{self, NewPassword};
use crate::signed_in::{SESSION_COOKIE, see_other, with_return_to};
use crate::{Provider, store_error_page};
use askama::Template;
use axum::Extension;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use chancery_domain::{EmailAddress, EmailCode, EventOrigin, Identity, RequestId, ThrottleKey};
use chancery_store::ProviderAccount;
use chancery_web::{ErrorPage, page};
use serde::Deserialize;
use std::net::SocketAddr;
use std::sync::Arc;

const FLOW: ProofFlow = ProofFlow::NewPassword;

#[derive(Template)]
#[template(path = "forgotten_password_code.html")]
struct ForgottenPasswordCodePage<'a> {
    firm_name: &'a str,
    email: &'a EmailAddress,
    is_resent: bool,
    problems: Problems,
    code: &'a str,
    /// In a demo, where its email can be read.
    mail_page_url: Option<&'a str>,
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
    pending_proof: &PendingProof,
    problems: Problems,
    code: &str,
) -> Result<Response, ErrorPage> {
    let status = if problems.any() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let template = ForgottenPasswordCodePage {
        firm_name: &provider.settings.firm_name,
        email: &pending_proof.proof.email,
        is_resent: pending_proof.proof.code.sent > 1,
        problems,
        code,
        mail_page_url: provider.mailer.mail_page_url(),
    };
    page(status, &template)
}

pub(crate) async fn show(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    match pending_proof(&provider, FLOW, &headers).await? {
        Some(pending_proof) => show_page(&provider, &pending_proof, Problems::default(), ""),
        None => Ok(see_other(FLOW.start())),
    }
}

pub(crate) async fn send(
    State(provider): State<Arc<Provider>>,
    subnet: ClientSubnet,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Extension(request_id): Extension<RequestId>,
    headers: HeaderMap,
    PostedForm(fields): PostedForm<Fields>,
) -> Result<Response, ErrorPage> {
    let Some(pending_proof) = pending_proof(&provider, FLOW, &headers).await? else {
        return Err(code_expired(FLOW));
    };
    let email = &pending_proof.proof.email;
    // Check the password first, so that an invalid one does not use up the code.
    let context = provider.settings.password_context(email);
    let password = NewPassword::check(&fields.password, &context);
    let (code, password) = match (EmailCode::parse(&fields.code), password) {
        (Some(code), Ok(password)) => (code, password),
        (code, password) => {
            let mut problems = Problems::default();
            if code.is_none() {
                problems.add("code", INVALID_CODE);
            }
            if let Err(problem) = password {
                problems.add("password", problem.to_string());
            }
            return show_page(&provider, &pending_proof, problems, fields.code.trim());
        }
    };
    if let CodeCheck::Incorrect { left } = pending_proof.try_code(&provider, subnet, &code).await? {
        let problems = Problems::one("code", incorrect_code_message(left));
        return show_page(&provider, &pending_proof, problems, fields.code.trim());
    }
    let hash = passwords::hash(password, provider.randomness.as_ref())
        .await
        .map_err(|error| hashing_error_page(&error))?;
    // The code is used up only here, so a failed hash does not cost the user the code.
    let (token, code) = pending_proof.keys();
    let changed = provider.store.provider_accounts.set_proven_password(token, code, email, &hash).await;
    let Some(account) = changed.map_err(|error| store_error_page(&error))? else {
        return Err(code_expired(FLOW));
    };
    tracing::info!(address = throttle::log_id(email), "password reset");
    let (ip, at) = (Some(peer.ip().to_canonical()), provider.clock.now());
    end_portal_sessions(&provider, &account, &EventOrigin { ip, at, request_id }).await;
    // Unlock a user who was locked out by someone else's guesses. More of them cannot lock out this browser.
    for key in ThrottleKey::all_passwords(email, subnet.0) {
        throttle::reset(&provider, key).await?;
    }
    let known_device = remember_device(&provider, &headers, &account.subject).await?;
    emails::send_in_background(&provider, email.clone(), None, |to, _| Some(emails::password_changed(to)));
    let mut response = see_other(&with_return_to("/sign-in", &pending_proof.proof.return_to));
    let notice = NEW_PASSWORD_NOTICE.set("1", Some(NEW_PASSWORD_NOTICE_TTL));
    let cookies = [FLOW.cookie().expire(), SESSION_COOKIE.expire(), notice, Some(known_device)];
    for cookie in cookies.into_iter().flatten() {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

/// Someone with the old password may still be signed in to the portal. The password is already changed, so a failure
/// here must not report otherwise.
pub(super) async fn end_portal_sessions(
    provider: &Provider,
    account: &ProviderAccount,
    origin: &EventOrigin,
) {
    let identity = Identity { issuer: provider.settings.issuer.clone(), subject: account.subject.clone() };
    if let Err(error) = provider.store.session_revoker.end_sessions_of_identity(&identity, origin).await {
        tracing::error!(%error, "password changed, but ending portal sessions failed");
    }
}

pub(crate) async fn resend(
    State(provider): State<Arc<Provider>>,
    subnet: ClientSubnet,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    let Some(pending_proof) = pending_proof(&provider, FLOW, &headers).await? else {
        return Err(code_expired(FLOW));
    };
    pending_proof.resend(&provider, subnet).await?;
    Ok(see_other("/forgotten-password/code"))
}
