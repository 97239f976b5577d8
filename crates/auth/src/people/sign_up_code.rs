//! `/sign-up/code`: the code from the mail makes the account and signs the person in.

use super::form::{Posted, Problems};
use super::mailbox_proof::{CodeTry, Errand, UnderWay, gone, under_way};
use super::place::Place;
use super::throttle::in_log;
use crate::signed_in::{begin_session, refuse_two_sessions, see_other};
use crate::{Provider, refused};
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use chancery_domain::{EmailAddress, MailCode, SecretToken};
use chancery_store::{NewProviderAccount, ProviderError};
use chancery_web::{ErrorPage, page};
use serde::Deserialize;
use std::sync::Arc;

const ERRAND: Errand = Errand::SignUp;

#[derive(Template)]
#[template(path = "sign_up_code.html")]
struct SignUpCodePage<'a> {
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
}

fn show_page(
    provider: &Provider,
    under_way: &UnderWay,
    problems: Problems,
    code: &str,
) -> Result<Response, ErrorPage> {
    let status = if problems.any() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let template = SignUpCodePage {
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
    headers: HeaderMap,
    Posted(fields): Posted<Fields>,
) -> Result<Response, ErrorPage> {
    let Some(under_way) = under_way(&provider, ERRAND, &headers).await? else { return Err(gone(ERRAND)) };
    refuse_two_sessions(&headers)?;
    let again =
        |text: String| show_page(&provider, &under_way, Problems::one("code", text), fields.code.trim());
    let Some(code) = MailCode::parse(&fields.code) else { return again(NOT_A_CODE.to_owned()) };
    if let CodeTry::Wrong { left } = under_way.try_code(&provider, place, &code).await? {
        return again(wrong_code(left));
    }
    let Some(password_hash) = under_way.chosen_password().cloned() else { return Err(gone(ERRAND)) };
    let new = NewProviderAccount {
        subject: SecretToken::generate(provider.randomness.as_ref()).reveal().to_owned(),
        email: under_way.proof.email.clone(),
        password_hash,
        at: provider.clock.now(),
    };
    let (token, code) = under_way.keys();
    let account = match provider.store.provider_accounts.create_proven_account(token, code, new).await {
        Ok(Some(account)) => account,
        Ok(None) => return Err(gone(ERRAND)),
        // Signed up twice at once; the mailbox is proved, so this may be told.
        Err(ProviderError::EmailTaken(_)) => return Err(already_there()),
        Err(error) => return Err(refused(&error)),
    };
    tracing::info!(address = in_log(&account.email), "an account was made");
    let cookie = begin_session(&provider, &headers, &account).await?;
    let mut response = see_other(under_way.proof.return_to.as_str());
    response.headers_mut().append(header::SET_COOKIE, cookie);
    if let Some(taken_back) = ERRAND.cookie().take_back() {
        response.headers_mut().append(header::SET_COOKIE, taken_back);
    }
    Ok(response)
}

pub(crate) async fn resend(
    State(provider): State<Arc<Provider>>,
    place: Place,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    let Some(under_way) = under_way(&provider, ERRAND, &headers).await? else { return Err(gone(ERRAND)) };
    under_way.resend(&provider, place).await?;
    Ok(see_other("/sign-up/code"))
}

pub(super) const NOT_A_CODE: &str = "Enter the six digits from the message";

pub(super) fn wrong_code(left: u32) -> String {
    let tries = if left == 1 { "1 try" } else { &format!("{left} tries") };
    format!("That code is not right. Check the newest message and try again; you have {tries} left.")
}

fn already_there() -> ErrorPage {
    ErrorPage::new(
        StatusCode::CONFLICT,
        "account_exists",
        "You already have an account",
        "You have signed up with this address before. Nothing was changed.",
    )
    .advice("Sign in with the password that you chose first.")
    .next_link("/sign-in", "Sign in")
    .with_cookie(ERRAND.cookie().take_back())
}
