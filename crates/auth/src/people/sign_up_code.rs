//! `/sign-up/code`: the emailed code creates the account and signs the user in.

use super::client_subnet::ClientSubnet;
use super::form::{PostedForm, Problems};
use super::mailbox_proof::{CodeCheck, PendingProof, ProofFlow, code_expired, pending_proof};
use super::second_factor::begin_single_factor_session;
use super::throttle::log_id;
use crate::signed_in::{reject_duplicate_sessions, see_other};
use crate::{Provider, store_error_page};
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use chancery_domain::{EmailAddress, EmailCode, SecretToken};
use chancery_store::{NewProviderAccount, ProviderError};
use chancery_web::{ErrorPage, page};
use serde::Deserialize;
use std::sync::Arc;

const FLOW: ProofFlow = ProofFlow::SignUp;

#[derive(Template)]
#[template(path = "sign_up_code.html")]
struct SignUpCodePage<'a> {
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
}

fn show_page(
    provider: &Provider,
    pending_proof: &PendingProof,
    problems: Problems,
    code: &str,
) -> Result<Response, ErrorPage> {
    let status = if problems.any() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let template = SignUpCodePage {
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
    headers: HeaderMap,
    PostedForm(fields): PostedForm<Fields>,
) -> Result<Response, ErrorPage> {
    let Some(pending_proof) = pending_proof(&provider, FLOW, &headers).await? else {
        return Err(code_expired(FLOW));
    };
    reject_duplicate_sessions(&headers)?;
    let render_again =
        |text: String| show_page(&provider, &pending_proof, Problems::one("code", text), fields.code.trim());
    let Some(code) = EmailCode::parse(&fields.code) else { return render_again(INVALID_CODE.to_owned()) };
    if let CodeCheck::Incorrect { left } = pending_proof.try_code(&provider, subnet, &code).await? {
        return render_again(incorrect_code_message(left));
    }
    let Some(password_hash) = pending_proof.sign_up_password().cloned() else {
        return Err(code_expired(FLOW));
    };
    let new = NewProviderAccount {
        subject: SecretToken::generate(provider.randomness.as_ref()).reveal().to_owned(),
        email: pending_proof.proof.email.clone(),
        password_hash,
        at: provider.clock.now(),
    };
    let (token, code) = pending_proof.keys();
    let account = match provider.store.provider_accounts.create_proven_account(token, code, new).await {
        Ok(Some(account)) => account,
        Ok(None) => return Err(code_expired(FLOW)),
        // A concurrent sign-up was faster. The mailbox is proved, so this may be revealed.
        Err(ProviderError::EmailTaken(_)) => return Err(account_exists_page()),
        Err(error) => return Err(store_error_page(&error)),
    };
    tracing::info!(address = log_id(&account.email), "account created");
    let return_to = &pending_proof.proof.return_to;
    let mut response = begin_single_factor_session(&provider, &headers, &account, return_to).await?;
    if let Some(expired_cookie) = FLOW.cookie().expire() {
        response.headers_mut().append(header::SET_COOKIE, expired_cookie);
    }
    Ok(response)
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
    Ok(see_other("/sign-up/code"))
}

pub(super) const INVALID_CODE: &str = "Enter the six-digit code from your latest email";

pub(super) fn incorrect_code_message(left: u32) -> String {
    let attempts = if left == 1 { "1 attempt" } else { &format!("{left} attempts") };
    format!("Incorrect code. Check your latest email and try again. {attempts} left.")
}

fn account_exists_page() -> ErrorPage {
    ErrorPage::new(
        StatusCode::CONFLICT,
        "account_exists",
        "You already have an account",
        "This address already has an account. Nothing was changed.",
    )
    .advice("Sign in with your existing password.")
    .next_link("/sign-in", "Sign in")
    .with_cookie(FLOW.cookie().expire())
}
