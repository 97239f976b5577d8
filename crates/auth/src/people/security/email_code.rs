//! `/security/email-code`: adding the first factor of an account needs an emailed code. Otherwise an attacker who knows
//! only the password could add a factor, and would count as the owner from then on.
//!
//! The correct code is used up, and what it proved is remembered for this session until the factor is added.

use super::super::client_subnet::ClientSubnet;
use super::super::form::{PostedForm, Problems, ReturnToParam, local_path};
use super::super::mailbox_proof::{
    CodeCheck, PendingProof, ProofFlow, begin, code_expired, pending_proof, take_email_quota,
};
use super::super::second_factor::account_factors;
use super::super::sign_up_code::{INVALID_CODE, incorrect_code_message};
use super::super::throttle::RequestOrigin;
use super::{BrowserSession, browser_session};
use crate::known_device::known_device;
use crate::limits::CEREMONY_TTL;
use crate::signed_in::{see_other, to_sign_in, with_return_to};
use crate::{Provider, store_error_page};
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use chancery_domain::{EmailAddress, EmailCode, LocalPath, TokenHash};
use chancery_store::{CeremonyKind, FactorCeremony, ProofPurpose};
use chancery_web::{ErrorPage, page};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::sync::Arc;

pub(super) const PATH: &str = "/security/email-code";
const FLOW: ProofFlow = ProofFlow::FirstFactor;
const KIND: CeremonyKind = CeremonyKind::MailboxProof;

#[derive(Template)]
#[template(path = "first_factor_code.html")]
struct EmailCodePage<'a> {
    firm_name: &'a str,
    email: &'a EmailAddress,
    /// How many codes were sent.
    sent: u32,
    problems: Problems,
    code: &'a str,
    return_to: &'a LocalPath,
    /// In a demo, where its email can be read.
    mail_page_url: Option<&'a str>,
}

#[derive(Deserialize)]
pub(super) struct RequestFields {
    #[serde(default)]
    return_to: String,
}

#[derive(Deserialize)]
pub(super) struct CodeFields {
    #[serde(default)]
    code: String,
    #[serde(default)]
    return_to: String,
}

/// The key of what was proved. It is the session's `sid`, because the token changes when the person confirms the password.
fn proof_key(session: &BrowserSession) -> TokenHash {
    let label = "mailbox proof of a session\0";
    TokenHash(Sha256::new().chain_update(label).chain_update(&session.signed_in.sid).finalize().into())
}

/// Asks for the code, and continues to `return_to`.
pub(super) fn to_email_code(return_to: &LocalPath) -> Response {
    see_other(&with_return_to(PATH, return_to))
}

/// Whether the next factor is the account's first one, and the mailbox is not proved in this session.
pub(super) async fn is_needed(provider: &Provider, session: &BrowserSession) -> Result<bool, ErrorPage> {
    let account = &session.signed_in.account;
    if !account_factors(provider, account).await?.is_empty() {
        return Ok(false);
    }
    let now = provider.clock.now();
    let found = provider.store.ceremonies.find_ceremony(proof_key(session), KIND, now).await;
    let subject = found.map_err(store_error_page)?.and_then(|proof| proof.subject);
    Ok(subject.as_deref() != Some(account.subject.as_str()))
}

/// The first factor is there: the next first one, after a reset, needs a new code.
pub(super) async fn use_up_proof(provider: &Provider, session: &BrowserSession) -> Result<(), ErrorPage> {
    let now = provider.clock.now();
    let used = provider.store.ceremonies.consume_ceremony(proof_key(session), KIND, now).await;
    used.map(|_| ()).map_err(store_error_page)
}

/// The code that this browser waits for, if it is for this account.
async fn own_proof(
    provider: &Provider,
    session: &BrowserSession,
    headers: &HeaderMap,
) -> Result<Option<PendingProof>, ErrorPage> {
    let pending = pending_proof(provider, FLOW, headers).await?;
    Ok(pending.filter(|pending| pending.proof.email == session.signed_in.account.email))
}

fn show_page(
    provider: &Provider,
    session: &BrowserSession,
    pending: Option<&PendingProof>,
    problems: Problems,
    code: &str,
    return_to: &LocalPath,
) -> Result<Response, ErrorPage> {
    let status = if problems.any() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let template = EmailCodePage {
        firm_name: &provider.settings.firm_name,
        email: &session.signed_in.account.email,
        sent: pending.map_or(0, |pending| pending.proof.code.sent),
        problems,
        code,
        return_to,
        mail_page_url: provider.mailer.mail_page_url(),
    };
    page(status, &template)
}

pub(super) async fn show(
    State(provider): State<Arc<Provider>>,
    ReturnToParam(return_to): ReturnToParam,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    let Some(session) = browser_session(&provider, &headers).await? else {
        return Ok(to_sign_in(&return_to));
    };
    if !is_needed(&provider, &session).await? {
        return Ok(see_other(return_to.as_str()));
    }
    let pending = own_proof(&provider, &session, &headers).await?;
    show_page(&provider, &session, pending.as_ref(), Problems::default(), "", &return_to)
}

/// Sends the first code, or another one.
pub(super) async fn request(
    State(provider): State<Arc<Provider>>,
    subnet: ClientSubnet,
    headers: HeaderMap,
    PostedForm(fields): PostedForm<RequestFields>,
) -> Result<Response, ErrorPage> {
    let return_to = local_path(&fields.return_to);
    let Some(session) = browser_session(&provider, &headers).await? else {
        return Ok(to_sign_in(&return_to));
    };
    if !is_needed(&provider, &session).await? {
        return Ok(see_other(return_to.as_str()));
    }
    if let Some(pending) = own_proof(&provider, &session, &headers).await? {
        pending.resend(&provider, subnet).await?;
        return Ok(to_email_code(&return_to));
    }
    let email = session.signed_in.account.email.clone();
    let origin = RequestOrigin { subnet, known_device: known_device(&provider, &headers, &email).await? };
    take_email_quota(&provider, origin, &email).await?;
    let mut response = to_email_code(&return_to);
    let cookie = begin(&provider, ProofPurpose::FirstFactor, email, return_to).await?;
    response.headers_mut().append(header::SET_COOKIE, cookie);
    Ok(response)
}

pub(super) async fn send(
    State(provider): State<Arc<Provider>>,
    subnet: ClientSubnet,
    headers: HeaderMap,
    PostedForm(fields): PostedForm<CodeFields>,
) -> Result<Response, ErrorPage> {
    let return_to = local_path(&fields.return_to);
    let Some(session) = browser_session(&provider, &headers).await? else {
        return Ok(to_sign_in(&return_to));
    };
    let Some(pending) = own_proof(&provider, &session, &headers).await? else {
        return Err(code_expired(FLOW));
    };
    let show_again = |text: String| {
        let problems = Problems::one("code", text);
        show_page(&provider, &session, Some(&pending), problems, fields.code.trim(), &return_to)
    };
    let Some(code) = EmailCode::parse(&fields.code) else { return show_again(INVALID_CODE.to_owned()) };
    if let CodeCheck::Incorrect { left } = pending.try_code(&provider, subnet, &code).await? {
        return show_again(incorrect_code_message(left));
    }
    let (token, code) = pending.keys();
    let consumed = provider.store.proofs.consume_proof(token, code).await;
    // A concurrent request of this browser was faster.
    if !consumed.map_err(store_error_page)? {
        return Err(code_expired(FLOW));
    }
    let proof = FactorCeremony {
        kind: KIND,
        subject: Some(session.signed_in.account.subject.clone()),
        state: String::new(),
        expires_at: provider.clock.now().after(CEREMONY_TTL),
    };
    let proved = provider.store.ceremonies.begin_ceremony(proof_key(&session), &proof).await;
    proved.map_err(store_error_page)?;
    let mut response = see_other(return_to.as_str());
    if let Some(expired_cookie) = FLOW.cookie().expire() {
        response.headers_mut().append(header::SET_COOKIE, expired_cookie);
    }
    Ok(response)
}
