//! `/security/password`: a new password, for who knows the current one. This browser stays signed in, with a new token;
//! all others and the portal do not.

use super::super::client_subnet::ClientSubnet;
use super::super::factor_emails::{FactorChange, notify};
use super::super::forgotten_password_code::end_portal_sessions;
use super::super::form::{PostedForm, Problems};
use super::super::sign_in::{check_password, hashing_error_page};
use super::super::throttle::{self, RequestOrigin};
use super::notice::{SecurityNotice, to_security};
use super::{browser_session, local};
use crate::known_device::{known_device, remember_device};
use crate::limits::MIN_PASSWORD_CHARS;
use crate::passwords::{self, NewPassword};
use crate::signed_in::{session_cookie, to_sign_in};
use crate::{Provider, store_error_page};
use askama::Template;
use axum::Extension;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use chancery_domain::{EventOrigin, RequestId, SecretToken};
use chancery_web::{ErrorPage, page};
use serde::Deserialize;
use std::net::SocketAddr;
use std::sync::Arc;

const PATH: &str = "/security/password";

#[derive(Template)]
#[template(path = "change_password.html")]
struct ChangePasswordPage<'a> {
    firm_name: &'a str,
    email: &'a str,
    problems: Problems,
}

#[derive(Deserialize)]
pub(super) struct Fields {
    #[serde(default)]
    current_password: String,
    /// The new one.
    #[serde(default)]
    password: String,
}

fn show_page(provider: &Provider, email: &str, problems: Problems) -> Result<Response, ErrorPage> {
    let status = if problems.any() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    page(status, &ChangePasswordPage { firm_name: &provider.settings.firm_name, email, problems })
}

pub(super) async fn show(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    match browser_session(&provider, &headers).await? {
        Some(session) => show_page(&provider, session.signed_in.account.email.as_str(), Problems::default()),
        None => Ok(to_sign_in(&local(PATH))),
    }
}

pub(super) async fn send(
    State(provider): State<Arc<Provider>>,
    subnet: ClientSubnet,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Extension(request_id): Extension<RequestId>,
    headers: HeaderMap,
    PostedForm(fields): PostedForm<Fields>,
) -> Result<Response, ErrorPage> {
    let Some(session) = browser_session(&provider, &headers).await? else {
        return Ok(to_sign_in(&local(PATH)));
    };
    let email = &session.signed_in.account.email;
    let mut problems = Problems::default();
    if fields.current_password.is_empty() {
        problems.add("current_password", "Enter your current password");
    }
    // Checked first, so that a new password that is not accepted costs no attempt.
    let new_password = NewPassword::check(&fields.password, &provider.settings.password_context(email));
    if let Err(problem) = &new_password {
        problems.add("password", problem.to_string());
    }
    let new_password = match new_password {
        Ok(new_password) if !problems.any() => new_password,
        _ => return show_page(&provider, email.as_str(), problems),
    };
    let origin = RequestOrigin { subnet, known_device: known_device(&provider, &headers, email).await? };
    let Some(account) = check_password(&provider, origin, email, &fields.current_password).await? else {
        let problems = Problems::one("current_password", "Incorrect password");
        return show_page(&provider, email.as_str(), problems);
    };
    let hash = passwords::hash(new_password, provider.randomness.as_ref())
        .await
        .map_err(|error| hashing_error_page(&error))?;
    let accounts = &provider.store.provider_accounts;
    let token = SecretToken::generate(provider.randomness.as_ref());
    let own_session = session_cookie(&token)?;
    let changed = accounts.change_password(&account, &hash, &session.signed_in.sid, token.hash()).await;
    let Some(account) = changed.map_err(store_error_page)? else {
        // Someone else changed it just now, which ended this session too.
        return Ok(to_sign_in(&local(PATH)));
    };
    tracing::info!(address = throttle::log_id(&account.email), "password changed");
    let (ip, at) = (Some(peer.ip().to_canonical()), provider.clock.now());
    end_portal_sessions(&provider, &account, &EventOrigin { ip, at, request_id }).await;
    // The change deleted all known devices. This one has just proved both passwords.
    let known_device = remember_device(&provider, &headers, &account.subject).await?;
    notify(&provider, &account.email, FactorChange::PasswordChanged);
    let mut response = to_security(SecurityNotice::PasswordChanged);
    for cookie in [own_session, known_device] {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    Ok(response)
}
