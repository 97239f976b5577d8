//! `/security/confirm`: the person proves again who they are before a change, as at a sign-in: with the password and the
//! second factor, if there is one, or with a passkey alone. The session goes on with a new token.

use super::super::client_subnet::ClientSubnet;
use super::super::form::{PostedForm, Problems, ReturnToParam, local_path};
use super::super::second_factor::{
    PASSKEY_MISSING, PASSKEY_REJECTED, account_factors, continue_after_password,
};
use super::super::sign_in::check_password;
use super::super::throttle::RequestOrigin;
use super::{BrowserSession, browser_session};
use crate::Provider;
use crate::authentication_methods::{AuthenticationMethod, AuthenticationMethods};
use crate::known_device::known_device;
use crate::passkeys;
use crate::signed_in::{begin_session, see_other, to_sign_in};
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use chancery_domain::{LocalPath, TokenHash};
use chancery_store::ProviderAccount;
use chancery_web::{ErrorPage, page};
use serde::Deserialize;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "security_confirm.html")]
struct ConfirmPage<'a> {
    firm_name: &'a str,
    email: &'a str,
    problems: Problems,
    passkey_options: Option<String>,
    return_to: &'a LocalPath,
}

#[derive(Deserialize)]
pub(super) struct PasswordFields {
    #[serde(default)]
    password: String,
    #[serde(default)]
    return_to: String,
}

#[derive(Deserialize)]
pub(super) struct PasskeyFields {
    #[serde(default)]
    credential: String,
    #[serde(default)]
    return_to: String,
}

fn ceremony_key(session: &BrowserSession) -> TokenHash {
    session.token.hash_with("passkey confirmation")
}

async fn show_page(
    provider: &Provider,
    session: &BrowserSession,
    problems: Problems,
    return_to: &LocalPath,
) -> Result<Response, ErrorPage> {
    let account = &session.signed_in.account;
    let existing = account_factors(provider, account).await?.passkeys;
    let passkey_options = match existing.is_empty() {
        true => None,
        false => {
            let subject = Some(account.subject.as_str());
            passkeys::begin_authentication(provider, ceremony_key(session), subject, &existing).await?
        }
    };
    let status = if problems.any() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let template = ConfirmPage {
        firm_name: &provider.settings.firm_name,
        email: account.email.as_str(),
        problems,
        passkey_options,
        return_to,
    };
    page(status, &template)
}

pub(super) async fn show(
    State(provider): State<Arc<Provider>>,
    ReturnToParam(return_to): ReturnToParam,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    match browser_session(&provider, &headers).await? {
        Some(session) => show_page(&provider, &session, Problems::default(), &return_to).await,
        None => Ok(to_sign_in(&return_to)),
    }
}

pub(super) async fn send_password(
    State(provider): State<Arc<Provider>>,
    subnet: ClientSubnet,
    headers: HeaderMap,
    PostedForm(fields): PostedForm<PasswordFields>,
) -> Result<Response, ErrorPage> {
    let return_to = local_path(&fields.return_to);
    let Some(session) = browser_session(&provider, &headers).await? else {
        return Ok(to_sign_in(&return_to));
    };
    if fields.password.is_empty() {
        let problems = Problems::one("password", "Enter your password");
        return show_page(&provider, &session, problems, &return_to).await;
    }
    let account = &session.signed_in.account;
    let origin =
        RequestOrigin { subnet, known_device: known_device(&provider, &headers, &account.email).await? };
    let Some(account) = check_password(&provider, origin, &account.email, &fields.password).await? else {
        let problems = Problems::one("password", "Incorrect password");
        return show_page(&provider, &session, problems, &return_to).await;
    };
    match account_factors(&provider, &account).await?.is_empty() {
        true => finish(&provider, &headers, &account, AuthenticationMethod::Password, &return_to).await,
        false => continue_after_password(&provider, &headers, &account, &return_to).await,
    }
}

pub(super) async fn send_passkey(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    PostedForm(fields): PostedForm<PasskeyFields>,
) -> Result<Response, ErrorPage> {
    let return_to = local_path(&fields.return_to);
    let Some(session) = browser_session(&provider, &headers).await? else {
        return Ok(to_sign_in(&return_to));
    };
    if fields.credential.is_empty() {
        let problems = Problems::one("passkey", PASSKEY_MISSING);
        return show_page(&provider, &session, problems, &return_to).await;
    }
    let key = ceremony_key(&session);
    let subject = passkeys::finish_authentication(&provider, key, &fields.credential).await?;
    if subject.as_deref() != Some(session.signed_in.account.subject.as_str()) {
        let problems = Problems::one("passkey", PASSKEY_REJECTED);
        return show_page(&provider, &session, problems, &return_to).await;
    }
    let account = &session.signed_in.account;
    finish(&provider, &headers, account, AuthenticationMethod::Passkey, &return_to).await
}

/// The session has only what was proved now: what it had before is as old as its last authentication.
async fn finish(
    provider: &Provider,
    headers: &HeaderMap,
    account: &ProviderAccount,
    method: AuthenticationMethod,
    return_to: &LocalPath,
) -> Result<Response, ErrorPage> {
    let methods = AuthenticationMethods::new(&[method]);
    let cookies = begin_session(provider, headers, account, &methods).await?;
    let mut response = see_other(return_to.as_str());
    cookies.append_to(&mut response);
    Ok(response)
}
