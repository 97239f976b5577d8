//! `/authorize`: decides what a sign-in still needs: signing in here, consent, or nothing but the code.

use super::authorization_request::{AuthorizationRequest, ErrorCode, see_other, too_long};
use super::consent;
use super::detour;
use super::id_token::Hint;
use super::jwks::keys_failed;
use super::limits::{ACCESS_TOKEN_LIFE, CODE_LIFE, MAX_FORM_BYTES};
use super::parameters::{FormFlaw, Parameters, form_text};
use super::signing_keys::{after, key_ring};
use crate::people::throttle;
use crate::signed_in::{SignedInAccount, signed_in, to_sign_in};
use crate::{Provider, refused};
use axum::extract::{RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use chancery_domain::{SecretToken, ThrottleKey, UnixMillis};
use chancery_store::{Grant, NewCode};
use chancery_web::ErrorPage;
use std::sync::Arc;
use std::time::Duration;

pub(crate) async fn show(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, ErrorPage> {
    let parameters = Parameters::parse(query.as_deref().unwrap_or_default()).map_err(|_| too_long())?;
    match AuthorizationRequest::read(&provider.settings, &parameters) {
        Ok(request) => decide(&provider, &headers, request).await,
        Err(rejected) => rejected.into_reply(&provider.settings.issuer),
    }
}

/// OpenID Connect lets applications post the request. Our cookie does not come with a form of another site, so the browser
/// is told to ask again as if it had followed a link.
pub(crate) async fn as_link(request: Request) -> Result<Response, ErrorPage> {
    posted_as_link("/authorize", request).await
}

pub(super) async fn posted_as_link(path: &str, request: Request) -> Result<Response, ErrorPage> {
    let query = form_text(request).await.map_err(bad_form)?;
    // What a header may not hold is no form encoding either.
    match query.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(see_other(&format!("{path}?{query}"))),
        false => Err(bad_form(FormFlaw::NotAForm)),
    }
}

pub(super) fn bad_form(flaw: FormFlaw) -> ErrorPage {
    let mut refusal = ErrorPage::bad_form(format!("Something is wrong with what was sent: {flaw}."));
    if flaw == FormFlaw::TooLong {
        refusal.status = StatusCode::PAYLOAD_TOO_LARGE;
        refusal.advice = format!("A form here has at most {MAX_FORM_BYTES} bytes.");
    }
    refusal
}

async fn decide(
    provider: &Provider,
    headers: &HeaderMap,
    request: AuthorizationRequest,
) -> Result<Response, ErrorPage> {
    let issuer = &provider.settings.issuer;
    let now = provider.clock.now();
    let expected = match expected_subject(provider, &request, now).await? {
        Expected::Anybody => None,
        Expected::Only(subject) => Some(subject),
        Expected::Unreadable => {
            let why = "id_token_hint is not an ID token of this provider";
            return Ok(request.return_address.error(issuer, ErrorCode::InvalidRequest, why));
        }
    };
    let signed_in = signed_in(provider, headers).await?;
    let sent_at = detour::sent_at(provider, &request, now).await?;
    let mut standing = standing(&request, signed_in.as_ref(), expected.as_deref(), sent_at, now);
    if standing == Standing::HasJustSignedIn {
        let is_first = detour::use_up(provider, &request, now).await?;
        standing = if is_first { Standing::Good } else { Standing::MustSignIn };
    }
    match (standing, signed_in) {
        (Standing::Good, Some(signed_in)) if needs_consent(provider, &request, &signed_in).await? => {
            match request.prompt.none {
                true => {
                    let why = "the person has not yet allowed this";
                    Ok(request.return_address.error(issuer, ErrorCode::ConsentRequired, why))
                }
                false => consent::ask(provider, headers, &request, &signed_in).await,
            }
        }
        (Standing::Good, Some(signed_in)) => give_code(provider, &request, &signed_in).await,
        (Standing::SomebodyElse, _) => {
            let why = "another person than the expected one has signed in";
            Ok(request.return_address.error(issuer, ErrorCode::LoginRequired, why))
        }
        _ if request.prompt.none => {
            let why = "the person must sign in first";
            Ok(request.return_address.error(issuer, ErrorCode::LoginRequired, why))
        }
        _ => {
            let request = detour::marked(provider, request, now).await?;
            Ok(to_sign_in(&request.to_path().ok_or_else(too_long)?))
        }
    }
}

/// Whom the application wants.
enum Expected {
    Anybody,
    Only(String),
    Unreadable,
}

async fn expected_subject(
    provider: &Provider,
    request: &AuthorizationRequest,
    now: UnixMillis,
) -> Result<Expected, ErrorPage> {
    let Some(token) = &request.id_token_hint else { return Ok(Expected::Anybody) };
    let keys = key_ring(provider.store.as_ref(), provider.randomness.as_ref(), now).await;
    let keys = keys.map_err(keys_failed)?;
    let hint = Hint::read(token, &provider.settings.issuer, &keys);
    let hint = hint.filter(|hint| hint.client_id == request.client_id);
    Ok(hint.map_or(Expected::Unreadable, |hint| Expected::Only(hint.subject)))
}

/// How who is signed in stands to what the application wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Good,
    /// Good, because they signed in for this very request; which counts once.
    HasJustSignedIn,
    MustSignIn,
    /// They have just been asked, and it is still not the expected person.
    SomebodyElse,
}

fn standing(
    request: &AuthorizationRequest,
    signed_in: Option<&SignedInAccount>,
    expected: Option<&str>,
    sent_to_sign_in_at: Option<UnixMillis>,
    now: UnixMillis,
) -> Standing {
    let Some(SignedInAccount { account, authenticated_at }) = signed_in else { return Standing::MustSignIn };
    let has_just_signed_in = sent_to_sign_in_at.is_some_and(|sent_at| sent_at <= *authenticated_at);
    if expected.is_some_and(|expected| expected != account.subject) {
        return if has_just_signed_in { Standing::SomebodyElse } else { Standing::MustSignIn };
    }
    let max_age = request.max_age_s.map(|seconds| Duration::from_secs(seconds.into()));
    let is_recent = max_age.is_none_or(|max_age| now <= after(*authenticated_at, max_age));
    match (is_recent && !request.prompt.login, has_just_signed_in) {
        (true, _) => Standing::Good,
        (false, true) => Standing::HasJustSignedIn,
        (false, false) => Standing::MustSignIn,
    }
}

async fn needs_consent(
    provider: &Provider,
    request: &AuthorizationRequest,
    signed_in: &SignedInAccount,
) -> Result<bool, ErrorPage> {
    if request.prompt.consent {
        return Ok(true);
    }
    let allowed = provider.store.grants.consents(&signed_in.account.subject, &request.client_id).await;
    Ok(!request.scope.is_within(&allowed.map_err(|error| refused(&error))?))
}

/// Back to the application with a code.
pub(super) async fn give_code(
    provider: &Provider,
    request: &AuthorizationRequest,
    signed_in: &SignedInAccount,
) -> Result<Response, ErrorPage> {
    let key = ThrottleKey::AuthorizationCodePerAccount(&signed_in.account.subject);
    throttle::count(provider, None, &[key]).await?;
    let now = provider.clock.now();
    let code = SecretToken::generate(provider.randomness.as_ref());
    let expires_at = after(now, CODE_LIFE);
    let grant = Grant {
        client_id: request.client_id.clone(),
        redirect_uri: request.return_address.redirect_uri.clone(),
        code_challenge: request.code_challenge.clone(),
        subject: signed_in.account.subject.clone(),
        password_version: signed_in.account.password_version,
        scope: request.scope.as_str().to_owned(),
        nonce: request.nonce.clone(),
        authenticated_at: signed_in.authenticated_at,
    };
    let forgotten_at = after(expires_at, ACCESS_TOKEN_LIFE);
    let new = NewCode { code: code.hash(), grant, expires_at, forgotten_at };
    provider.store.grants.issue_code(new).await.map_err(|error| refused(&error))?;
    Ok(request.return_address.answer(&provider.settings.issuer, &[("code", code.reveal())]))
}
