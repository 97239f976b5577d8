//! The consent page names exactly what the client will receive. Its form works once, and only for the session and
//! request it was shown for, so that no other page can answer for the user.

use super::authorization_request::{AuthorizationRequest, ErrorCode};
use super::authorize::{invalid_form, redirect_with_code};
use super::limits::CONSENT_PAGE_TTL;
use super::parameters::Parameters;
use super::signing_keys::after;
use crate::people::throttle;
use crate::signed_in::{SignedInAccount, see_other, session_token, signed_in};
use crate::{Provider, store_error_page};
use askama::Template;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use chancery_domain::{SecretToken, ThrottleKey};
use chancery_store::{Consent, ConsentRequest};
use chancery_web::{ErrorPage, page};
use std::sync::Arc;

#[derive(Template)]
#[template(path = "consent.html")]
struct ConsentPage<'a> {
    firm_name: &'a str,
    client_name: &'a str,
    /// Split at the `@`, so that a long address wraps there.
    email: (&'a str, &'a str),
    shares_email: bool,
    /// The host that the browser continues to.
    destination: &'a str,
    question: &'a str,
    /// The request itself, in case the form is submitted again (`retry_authorize`).
    request: &'a str,
    other_account: &'a str,
}

pub(super) async fn ask(
    provider: &Provider,
    headers: &HeaderMap,
    request: &AuthorizationRequest,
    signed_in: &SignedInAccount,
) -> Result<Response, ErrorPage> {
    let client = provider.settings.client(&request.client_id).ok_or_else(expired_page)?;
    let session = session_token(headers).ok_or_else(expired_page)?.hash();
    let subject = &signed_in.account.subject;
    throttle::count(provider, None, &[ThrottleKey::ConsentPagePerAccount(subject)]).await?;
    let token = SecretToken::generate(provider.randomness.as_ref());
    let consent_request = ConsentRequest {
        subject: subject.clone(),
        session,
        request: request.to_query(),
        expires_at: after(provider.clock.now(), CONSENT_PAGE_TTL),
    };
    provider
        .store
        .grants
        .create_consent_request(token.hash(), consent_request)
        .await
        .map_err(|error| store_error_page(&error))?;
    let mut as_another = request.clone();
    as_another.prompt.login = true;
    as_another.sign_in_detour = None;
    let as_another = as_another.to_path();
    let destination = &request.redirect_target.redirect_uri;
    let consent_page = ConsentPage {
        firm_name: &provider.settings.firm_name,
        client_name: &client.name,
        email: signed_in.account.email.as_str().split_once('@').unwrap_or_default(),
        shares_email: request.scope.has_email,
        destination: host(destination),
        question: token.reveal(),
        request: &request.to_query(),
        other_account: as_another.as_ref().map_or("/sign-in", |path| path.as_str()),
    };
    page(StatusCode::OK, &consent_page)
}

pub(crate) async fn submit(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, ErrorPage> {
    let form = Parameters::from_form(request).await.map_err(invalid_form)?;
    let field =
        |name| form.one(name).map_err(|error| ErrorPage::invalid_form(format!("Invalid form: {error}.")));
    let is_allowed = match field("decision")? {
        Some("allow") => true,
        Some("refuse") => false,
        _ => return Err(ErrorPage::invalid_form("`decision` must be `allow` or `refuse`.")),
    };
    let token = field("question")?.and_then(SecretToken::parse).ok_or_else(expired_page)?;
    let (Some(signed_in), Some(session)) = (signed_in(&provider, &headers).await?, session_token(&headers))
    else {
        return Err(expired_page());
    };
    if signed_in.predates_factor(&provider).await? {
        return Err(expired_page());
    }
    let consent_request =
        provider.store.grants.consume_consent_request(token.hash(), provider.clock.now()).await;
    let Some(consent_request) = consent_request.map_err(|error| store_error_page(&error))? else {
        return retry_authorize(&provider, field("request")?, is_allowed);
    };
    if consent_request.subject != signed_in.account.subject
        || !consent_request.session.matches(&session.hash())
    {
        return Err(expired_page());
    }
    let parameters = Parameters::parse(&consent_request.request).map_err(invalid_form)?;
    let request = match AuthorizationRequest::read(&provider.settings, &parameters) {
        Ok(request) => request,
        Err(rejected) => return rejected.into_response_for(&provider.settings.issuer),
    };
    if !is_allowed {
        // A denial also revokes earlier consent.
        let revoked =
            provider.store.grants.revoke_consents(&consent_request.subject, &request.client_id).await;
        revoked.map_err(|error| store_error_page(&error))?;
        return Ok(access_denied(&provider, &request));
    }
    let consent = Consent {
        subject: consent_request.subject,
        client_id: request.client_id.clone(),
        scope: request.scope.as_str().to_owned(),
        at: provider.clock.now(),
    };
    provider.store.grants.save_consent(consent).await.map_err(|error| store_error_page(&error))?;
    redirect_with_code(&provider, &request, &signed_in).await
}

/// Handles a form that was submitted twice, as by a double click, or that expired. It grants nothing: `/authorize`
/// checks the stored consent again and asks again if there is none. A denial is returned directly.
fn retry_authorize(
    provider: &Provider,
    request: Option<&str>,
    is_allowed: bool,
) -> Result<Response, ErrorPage> {
    let parameters = Parameters::parse(request.ok_or_else(expired_page)?).map_err(invalid_form)?;
    let request = AuthorizationRequest::read(&provider.settings, &parameters).map_err(|_| expired_page())?;
    if !is_allowed {
        return Ok(access_denied(provider, &request));
    }
    Ok(see_other(request.to_path().ok_or_else(expired_page)?.as_str()))
}

fn access_denied(provider: &Provider, request: &AuthorizationRequest) -> Response {
    request.redirect_target.error(
        &provider.settings.issuer,
        ErrorCode::AccessDenied,
        "the user denied the request",
    )
}

/// The same page for every problem with the form, because the remedy is the same.
fn expired_page() -> ErrorPage {
    ErrorPage::new(
        StatusCode::GONE,
        "gone",
        "Page expired",
        "It was already submitted, was open too long, or belongs to another sign-in. Nothing was changed.",
    )
    .advice("Go back to the application and sign in again.")
}

/// The part of a URL that users recognize.
fn host(address: &str) -> &str {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consent_page_shows_the_redirect_host() {
        for (address, expected) in [
            ("https://portal.example.com/auth/callback", "portal.example.com"),
            ("http://localhost:8081/auth/callback", "localhost:8081"),
            ("https://portal.example.com?x", "portal.example.com"),
        ] {
            assert_eq!(host(address), expected);
        }
    }
}
