//! The consent page: it names exactly what the application learns. Its form works once, and only in the session and for
//! the request that it was shown for, so that no other page can answer in the person's name.

use super::authorization_request::{AuthorizationRequest, ErrorCode};
use super::authorize::{bad_form, give_code};
use super::limits::CONSENT_PAGE_LIFE;
use super::parameters::Parameters;
use super::signing_keys::after;
use crate::people::throttle;
use crate::signed_in::{SignedInAccount, see_other, session_token, signed_in};
use crate::{Provider, refused};
use askama::Template;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use chancery_domain::{SecretToken, ThrottleKey};
use chancery_store::{Consent, ConsentQuestion};
use chancery_web::{ErrorPage, page};
use std::sync::Arc;

#[derive(Template)]
#[template(path = "consent.html")]
struct ConsentPage<'a> {
    firm_name: &'a str,
    client_name: &'a str,
    /// Before and after the `@`, so that a long one breaks there.
    email: (&'a str, &'a str),
    learns_email: bool,
    /// Where the browser goes on.
    destination: &'a str,
    question: &'a str,
    /// What is asked for, for a form that is sent again (`asked_again`).
    request: &'a str,
    other_account: &'a str,
}

pub(super) async fn ask(
    provider: &Provider,
    headers: &HeaderMap,
    request: &AuthorizationRequest,
    signed_in: &SignedInAccount,
) -> Result<Response, ErrorPage> {
    let client = provider.settings.client(&request.client_id).ok_or_else(stale)?;
    let session = session_token(headers).ok_or_else(stale)?.hash();
    let subject = &signed_in.account.subject;
    throttle::count(provider, None, &[ThrottleKey::ConsentPagePerAccount(subject)]).await?;
    let token = SecretToken::generate(provider.randomness.as_ref());
    let question = ConsentQuestion {
        subject: subject.clone(),
        session,
        request: request.to_query(),
        expires_at: after(provider.clock.now(), CONSENT_PAGE_LIFE),
    };
    provider.store.grants.ask_for_consent(token.hash(), question).await.map_err(|error| refused(&error))?;
    let mut as_another = request.clone();
    as_another.prompt.login = true;
    as_another.detour = None;
    let as_another = as_another.to_path();
    let destination = &request.return_address.redirect_uri;
    let consent_page = ConsentPage {
        firm_name: &provider.settings.firm_name,
        client_name: &client.name,
        email: signed_in.account.email.as_str().split_once('@').unwrap_or_default(),
        learns_email: request.scope.has_email,
        destination: host(destination),
        question: token.reveal(),
        request: &request.to_query(),
        other_account: as_another.as_ref().map_or("/sign-in", |path| path.as_str()),
    };
    page(StatusCode::OK, &consent_page)
}

pub(crate) async fn answer(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, ErrorPage> {
    let form = Parameters::of_form(request).await.map_err(bad_form)?;
    let field = |name| form.one(name).map_err(|flaw| ErrorPage::bad_form(format!("In the form, {flaw}.")));
    let is_allowed = match field("decision")? {
        Some("allow") => true,
        Some("refuse") => false,
        _ => return Err(ErrorPage::bad_form("The form must say decision=allow or decision=refuse.")),
    };
    let token = field("question")?.and_then(SecretToken::parse).ok_or_else(stale)?;
    let (Some(signed_in), Some(session)) = (signed_in(&provider, &headers).await?, session_token(&headers))
    else {
        return Err(stale());
    };
    let question = provider.store.grants.take_consent_question(token.hash(), provider.clock.now()).await;
    let Some(question) = question.map_err(|error| refused(&error))? else {
        return asked_again(&provider, field("request")?, is_allowed);
    };
    if question.subject != signed_in.account.subject || !question.session.matches(&session.hash()) {
        return Err(stale());
    }
    let parameters = Parameters::parse(&question.request).map_err(bad_form)?;
    let request = match AuthorizationRequest::read(&provider.settings, &parameters) {
        Ok(request) => request,
        Err(rejected) => return rejected.into_reply(&provider.settings.issuer),
    };
    if !is_allowed {
        // Whoever says no means it, whatever they said before.
        let forgotten = provider.store.grants.forget_consents(&question.subject, &request.client_id).await;
        forgotten.map_err(|error| refused(&error))?;
        return Ok(refusal(&provider, &request));
    }
    let consent = Consent {
        subject: question.subject,
        client_id: request.client_id.clone(),
        scope: request.scope.as_str().to_owned(),
        at: provider.clock.now(),
    };
    provider.store.grants.remember_consent(consent).await.map_err(|error| refused(&error))?;
    give_code(&provider, &request, &signed_in).await
}

/// The form was sent twice, as by a double click, or stood open too long. Nothing is allowed by it: whether it was before,
/// the request finds out anew, and asks anew where it was not. A refusal needs no question.
fn asked_again(provider: &Provider, request: Option<&str>, is_allowed: bool) -> Result<Response, ErrorPage> {
    let parameters = Parameters::parse(request.ok_or_else(stale)?).map_err(bad_form)?;
    let request = AuthorizationRequest::read(&provider.settings, &parameters).map_err(|_| stale())?;
    if !is_allowed {
        return Ok(refusal(provider, &request));
    }
    Ok(see_other(request.to_path().ok_or_else(stale)?.as_str()))
}

fn refusal(provider: &Provider, request: &AuthorizationRequest) -> Response {
    request.return_address.error(&provider.settings.issuer, ErrorCode::AccessDenied, "the person refused")
}

/// The same whatever was wrong with the form: there is one thing to do.
fn stale() -> ErrorPage {
    ErrorPage::new(
        StatusCode::GONE,
        "gone",
        "This page is out of date",
        "It was answered already, stood open too long, or belongs to another sign-in. Nothing was changed.",
    )
    .advice("Go back to the application and sign in again.")
}

/// What a person knows an address by.
fn host(address: &str) -> &str {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_known_by_its_host() {
        for (address, expected) in [
            ("https://portal.example.com/auth/callback", "portal.example.com"),
            ("http://localhost:8081/auth/callback", "localhost:8081"),
            ("https://portal.example.com?x", "portal.example.com"),
        ] {
            assert_eq!(host(address), expected);
        }
    }
}
