//! `/sign-in/passkey`: a passkey alone signs in. The browser finds the passkeys of this site; no address is typed.

use super::client_subnet::ClientSubnet;
use super::form::{PostedForm, Problems, ReturnToParam, local_path};
use super::second_factor::{PASSKEY_MISSING, PASSKEY_REJECTED};
use super::throttle;
use crate::authentication_methods::{AuthenticationMethod, AuthenticationMethods};
use crate::known_device::device_of_anyone;
use crate::limits::CEREMONY_TTL;
use crate::passkeys;
use crate::signed_in::{begin_session, reject_duplicate_sessions, see_other, to_sign_in};
use crate::{Provider, store_error_page};
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use chancery_domain::{LocalPath, SecretToken, ThrottleKey};
use chancery_web::{Cookie, CookieLookup, ErrorPage, Navigation, find_cookie, page};
use serde::Deserialize;
use std::sync::Arc;

/// Holds the token of the challenge.
const COOKIE: Cookie = Cookie { name: "__Host-passkey_sign_in", path: "/" };

#[derive(Template)]
#[template(path = "passkey_sign_in.html")]
struct PasskeySignInPage<'a> {
    firm_name: &'a str,
    problems: Problems,
    return_to: &'a LocalPath,
    options: String,
}

#[derive(Deserialize)]
pub(crate) struct Fields {
    #[serde(default)]
    credential: String,
    #[serde(default)]
    return_to: String,
}

pub(crate) async fn show(
    _: Navigation,
    State(provider): State<Arc<Provider>>,
    subnet: ClientSubnet,
    ReturnToParam(return_to): ReturnToParam,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    reject_duplicate_sessions(&headers)?;
    show_page(&provider, subnet, &headers, Problems::default(), &return_to).await
}

/// Shows the page with a new challenge.
async fn show_page(
    provider: &Provider,
    subnet: ClientSubnet,
    headers: &HeaderMap,
    problems: Problems,
    return_to: &LocalPath,
) -> Result<Response, ErrorPage> {
    let own = device_of_anyone(provider, headers).await?.map(ThrottleKey::PasskeyChallengePerDevice);
    let key = match own {
        Some(own) if throttle::check(provider, &[own]).await.is_ok() => own,
        _ => ThrottleKey::PasskeyChallengePerSubnet(subnet.0),
    };
    throttle::count(provider, Some(subnet), &[key]).await?;
    let token = SecretToken::generate(provider.randomness.as_ref());
    let options = passkeys::begin_authentication(provider, token.hash(), None, &[]).await?;
    let Some(options) = options else { return Ok(to_sign_in(return_to)) };
    let status = if problems.any() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let firm_name = &provider.settings.firm_name;
    let mut response = page(status, &PasskeySignInPage { firm_name, problems, return_to, options })?;
    let cookie = COOKIE.set(token.reveal(), Some(CEREMONY_TTL));
    let cookie = cookie.ok_or_else(|| ErrorPage::internal("the challenge token does not fit in a header"))?;
    response.headers_mut().append(header::SET_COOKIE, cookie);
    Ok(response)
}

pub(crate) async fn send(
    State(provider): State<Arc<Provider>>,
    subnet: ClientSubnet,
    headers: HeaderMap,
    PostedForm(fields): PostedForm<Fields>,
) -> Result<Response, ErrorPage> {
    reject_duplicate_sessions(&headers)?;
    let return_to = local_path(&fields.return_to);
    if fields.credential.is_empty() {
        let problems = Problems::one("passkey", PASSKEY_MISSING);
        return show_page(&provider, subnet, &headers, problems, &return_to).await;
    }
    let token = match find_cookie(&headers, COOKIE.name) {
        CookieLookup::One(value) => SecretToken::parse(value),
        CookieLookup::None | CookieLookup::Multiple => None,
    };
    let subject = match token {
        Some(token) => passkeys::finish_authentication(&provider, token.hash(), &fields.credential).await?,
        None => None,
    };
    let account = match subject {
        Some(subject) => {
            provider.store.provider_accounts.provider_account(&subject).await.map_err(store_error_page)?
        }
        None => None,
    };
    let Some(account) = account else {
        let problems = Problems::one("passkey", PASSKEY_REJECTED);
        return show_page(&provider, subnet, &headers, problems, &return_to).await;
    };
    tracing::info!(address = throttle::log_id(&account.email), "passkey accepted");
    let methods = AuthenticationMethods::new(&[AuthenticationMethod::Passkey]);
    let cookies = begin_session(&provider, &headers, &account, &methods).await?;
    let mut response = see_other(return_to.as_str());
    cookies.append_to(&mut response);
    if let Some(expired_cookie) = COOKIE.expire() {
        response.headers_mut().append(header::SET_COOKIE, expired_cookie);
    }
    Ok(response)
}
