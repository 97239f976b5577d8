//! `GET` and `POST /sign-in`: an address and its password. Whoever is refused learns nothing about which of the two was
//! wrong: an unknown address has the same words, the same work and the same bounds as a known one.

use super::form::{Onward, Posted, Problems, local_path, read_email};
use super::place::Place;
use super::throttle::{self, Tried};
use crate::passwords::{self, HashingError};
use crate::protocol::login_hint;
use crate::signed_in::{begin_session, see_other};
use crate::{Provider, refused};
use askama::Template;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use chancery_domain::{EmailAddress, LocalPath};
use chancery_pages::{Refusal, page};
use chancery_store::ProviderAccount;
use serde::Deserialize;
use std::sync::Arc;

const NOT_RIGHT: &str = "This e-mail address and password do not belong together. Check both.";

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage<'a> {
    firm_name: &'a str,
    problems: Problems,
    email: &'a str,
    return_to: &'a LocalPath,
    /// Whoever comes from setting a new password is told that it worked.
    has_new_password: bool,
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

/// Added to the address of the page by the one that sets a new password.
pub(super) const NEW_PASSWORD_MARK: &str = "&new_password=set";

pub(crate) async fn show(
    State(provider): State<Arc<Provider>>,
    Onward(return_to): Onward,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let hint = login_hint(&return_to);
    let template = SignInPage {
        firm_name: &provider.settings.firm_name,
        problems: Problems::default(),
        email: hint.as_ref().map_or("", EmailAddress::as_str),
        return_to: &return_to,
        has_new_password: query.is_some_and(|query| query.ends_with(NEW_PASSWORD_MARK)),
    };
    page(StatusCode::OK, &template)
}

pub(crate) async fn send(
    State(provider): State<Arc<Provider>>,
    place: Place,
    headers: HeaderMap,
    Posted(fields): Posted<Fields>,
) -> Result<Response, Refusal> {
    let return_to = local_path(&fields.return_to);
    let again = |problems: Problems| {
        let template = SignInPage {
            firm_name: &provider.settings.firm_name,
            problems,
            email: fields.email.trim(),
            return_to: &return_to,
            has_new_password: false,
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
        _ => return again(problems),
    };
    let Some(account) = check_password(&provider, place, &email, &fields.password).await? else {
        return again(Problems::one("password", NOT_RIGHT));
    };
    let cookie = begin_session(&provider, &headers, &account).await?;
    let mut response = see_other(return_to.as_str());
    response.headers_mut().append(header::SET_COOKIE, cookie);
    Ok(response)
}

/// The account, if the password is its own.
async fn check_password(
    provider: &Provider,
    place: Place,
    email: &EmailAddress,
    password: &str,
) -> Result<Option<ProviderAccount>, Refusal> {
    throttle::count(provider, Tried::From(place)).await?;
    throttle::count(provider, Tried::PasswordOf(email)).await?;
    let account = provider.store.provider_account_with_email(email).await.map_err(|error| refused(&error))?;
    let kept = account.as_ref().map(|account| &account.password_hash);
    if !passwords::is_right(password, kept).await.map_err(|error| unhashed(&error))? {
        return Ok(None);
    }
    throttle::forget(provider, Tried::PasswordOf(email)).await?;
    throttle::take_back(provider, Tried::From(place)).await?;
    Ok(account)
}

/// Too busy, or a defect.
pub(super) fn unhashed(error: &HashingError) -> Refusal {
    match error {
        HashingError::Busy => Refusal::unavailable(error.to_string()),
        HashingError::Failed(_) => Refusal::internal(error.to_string()),
    }
}
