//! `GET` and `POST /sign-in`: email address and password; then the second factor, if the account has one. The error does
//! not reveal which of the two was wrong: an unknown address gets the same message, the same work and the same throttles
//! as a known one.

use super::client_subnet::ClientSubnet;
use super::form::{PostedForm, Problems, ReturnToParam, TypedAddress, local_path, read_email};
use super::second_factor::continue_after_password;
use super::throttle::{self, RequestOrigin};
use crate::known_device::known_device;
use crate::passwords::{self, HashingError};
use crate::protocol::login_hint;
use crate::signed_in::reject_duplicate_sessions;
use crate::{Provider, store_error_page};
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use chancery_domain::{AttemptKind, EmailAddress, LocalPath};
use chancery_store::ProviderAccount;
use chancery_web::{Cookie, CookieLookup, ErrorPage, find_cookie, page};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

const INCORRECT_CREDENTIALS: &str = "Incorrect email or password";

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage<'a> {
    firm_name: &'a str,
    problems: Problems,
    email: &'a str,
    return_to: &'a LocalPath,
    /// Confirms a password reset that has just happened.
    has_new_password: bool,
    has_passkeys: bool,
}

#[derive(Deserialize)]
pub(crate) struct Fields {
    #[serde(default)]
    email: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    return_to: String,
}

/// A cookie set by the password reset page. A query parameter could be forged in a link.
pub(super) const NEW_PASSWORD_NOTICE: Cookie = Cookie { name: "__Host-password_set", path: "/" };
pub(super) const NEW_PASSWORD_NOTICE_TTL: Duration = Duration::from_secs(5 * 60);

pub(crate) async fn show(
    State(provider): State<Arc<Provider>>,
    ReturnToParam(return_to): ReturnToParam,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    reject_duplicate_sessions(&headers)?;
    let has_new_password = find_cookie(&headers, NEW_PASSWORD_NOTICE.name) != CookieLookup::None;
    let hint = login_hint(&return_to);
    let template = SignInPage {
        firm_name: &provider.settings.firm_name,
        problems: Problems::default(),
        email: hint.as_ref().map_or("", EmailAddress::as_str),
        return_to: &return_to,
        has_new_password,
        has_passkeys: provider.passkeys.is_some(),
    };
    let mut response = page(StatusCode::OK, &template)?;
    if let Some(expired_cookie) = NEW_PASSWORD_NOTICE.expire().filter(|_| has_new_password) {
        response.headers_mut().append(header::SET_COOKIE, expired_cookie);
    }
    Ok(response)
}

/// The link on the sign-up page, with the address that was typed there.
pub(crate) async fn show_with_address(
    State(provider): State<Arc<Provider>>,
    PostedForm(fields): PostedForm<TypedAddress>,
) -> Result<Response, ErrorPage> {
    let template = SignInPage {
        firm_name: &provider.settings.firm_name,
        problems: Problems::default(),
        email: fields.email.trim(),
        return_to: &local_path(&fields.return_to),
        has_new_password: false,
        has_passkeys: provider.passkeys.is_some(),
    };
    page(StatusCode::OK, &template)
}

pub(crate) async fn send(
    State(provider): State<Arc<Provider>>,
    subnet: ClientSubnet,
    headers: HeaderMap,
    PostedForm(fields): PostedForm<Fields>,
) -> Result<Response, ErrorPage> {
    reject_duplicate_sessions(&headers)?;
    let return_to = local_path(&fields.return_to);
    let render_again = |problems: Problems| {
        let template = SignInPage {
            firm_name: &provider.settings.firm_name,
            problems,
            email: fields.email.trim(),
            return_to: &return_to,
            has_new_password: false,
            has_passkeys: provider.passkeys.is_some(),
        };
        page(StatusCode::UNPROCESSABLE_ENTITY, &template)
    };
    let mut problems = Problems::default();
    let email = read_email(&fields.email).map_err(|text| problems.add("email", text));
    if fields.password.is_empty() {
        problems.add("password", "Enter your password");
    }
    let email = match email {
        Ok(email) if !problems.any() => email,
        _ => return render_again(problems),
    };
    let origin = RequestOrigin { subnet, known_device: known_device(&provider, &headers, &email).await? };
    let Some(account) = check_password(&provider, origin, &email, &fields.password).await? else {
        return render_again(Problems::one("password", INCORRECT_CREDENTIALS));
    };
    continue_after_password(&provider, &headers, &account, &return_to).await
}

/// Returns the account if the password is correct.
pub(super) async fn check_password(
    provider: &Arc<Provider>,
    origin: RequestOrigin,
    email: &EmailAddress,
    password: &str,
) -> Result<Option<ProviderAccount>, ErrorPage> {
    let keys = throttle::attempt_keys(provider, AttemptKind::Password, email, origin).await?;
    let attempt = throttle::begin_attempt(provider, &keys).await?;
    let account = provider
        .store
        .provider_accounts
        .provider_account_by_email(email)
        .await
        .map_err(|error| store_error_page(&error))?;
    let stored_hash = account.as_ref().map(|account| &account.password_hash);
    if !passwords::verify(password, stored_hash).await.map_err(|error| hashing_error_page(&error))? {
        attempt.record_failure(provider, origin.subnet);
        return Ok(None);
    }
    throttle::settle_success(provider, &keys).await?;
    Ok(account)
}

/// Hashing is overloaded, or a bug.
pub(super) fn hashing_error_page(error: &HashingError) -> ErrorPage {
    match error {
        HashingError::Busy => ErrorPage::unavailable(error.to_string()),
        HashingError::Failed(_) => ErrorPage::internal(error.to_string()),
    }
}
