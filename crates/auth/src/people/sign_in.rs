//! `GET` and `POST /sign-in`: an address and its password. Whoever is refused learns nothing about which of the two was
//! wrong: an unknown address has the same words, the same work and the same bounds as a known one.

use super::form::{Onward, Posted, Problems, local_path, read_email};
use super::place::Place;
use super::throttle;
use crate::passwords::{self, HashingError};
use crate::protocol::login_hint;
use crate::signed_in::{begin_session, refuse_two_sessions, see_other};
use crate::{Provider, refused};
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use chancery_domain::{EmailAddress, LocalPath, ThrottleKey};
use chancery_store::ProviderAccount;
use chancery_web::{Cookie, ErrorPage, SentCookie, page, sent_cookie};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

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

/// Given to the browser by the page that sets a new password; anybody could write an address that says so.
pub(super) const NEW_PASSWORD_NOTICE: Cookie = Cookie { name: "password_set", path: "/sign-in" };
pub(super) const NEW_PASSWORD_NOTICE_LASTS: Duration = Duration::from_secs(5 * 60);

pub(crate) async fn show(
    State(provider): State<Arc<Provider>>,
    Onward(return_to): Onward,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    refuse_two_sessions(&headers)?;
    let has_new_password = sent_cookie(&headers, NEW_PASSWORD_NOTICE.name) != SentCookie::None;
    let hint = login_hint(&return_to);
    let template = SignInPage {
        firm_name: &provider.settings.firm_name,
        problems: Problems::default(),
        email: hint.as_ref().map_or("", EmailAddress::as_str),
        return_to: &return_to,
        has_new_password,
    };
    let mut response = page(StatusCode::OK, &template)?;
    if let Some(shown) = NEW_PASSWORD_NOTICE.take_back().filter(|_| has_new_password) {
        response.headers_mut().append(header::SET_COOKIE, shown);
    }
    Ok(response)
}

pub(crate) async fn send(
    State(provider): State<Arc<Provider>>,
    place: Place,
    headers: HeaderMap,
    Posted(fields): Posted<Fields>,
) -> Result<Response, ErrorPage> {
    refuse_two_sessions(&headers)?;
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
    provider: &Arc<Provider>,
    place: Place,
    email: &EmailAddress,
    password: &str,
) -> Result<Option<ProviderAccount>, ErrorPage> {
    let turn = throttle::take_turn(provider, &ThrottleKey::password(email, place.0)).await?;
    let account = provider
        .store
        .provider_accounts
        .provider_account_with_email(email)
        .await
        .map_err(|error| refused(&error))?;
    let kept = account.as_ref().map(|account| &account.password_hash);
    if !passwords::is_right(password, kept).await.map_err(|error| unhashed(&error))? {
        turn.was_wrong(provider, place);
        return Ok(None);
    }
    let [per_subnet, per_address_and_subnet, per_address, per_day] = ThrottleKey::password(email, place.0);
    throttle::reset(provider, per_address_and_subnet).await?;
    for key in [per_subnet, per_address, per_day] {
        throttle::refund(provider, key).await?;
    }
    Ok(account)
}

/// Too busy, or a defect.
pub(super) fn unhashed(error: &HashingError) -> ErrorPage {
    match error {
        HashingError::Busy => ErrorPage::unavailable(error.to_string()),
        HashingError::Failed(_) => ErrorPage::internal(error.to_string()),
    }
}
