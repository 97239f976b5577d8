//! `/authorize`: decides whether a request still needs sign-in or consent, or gets its code.

use super::authorization_request::{AuthorizationRequest, ErrorCode, see_other, too_long};
use super::consent;
use super::id_token::IdTokenHint;
use super::jwks::key_error_page;
use super::limits::{ACCESS_TOKEN_TTL, AUTHORIZATION_CODE_TTL, MAX_FORM_BYTES};
use super::parameters::{FormError, Parameters, form_text};
use super::sign_in_detour;
use super::signing_keys::{after, key_ring};
use crate::people::throttle;
use crate::signed_in::{SignedInAccount, signed_in, to_second_factor_set_up, to_sign_in};
use crate::{Provider, store_error_page};
use axum::extract::{RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use chancery_domain::{SecretToken, ThrottleKey, UnixMillis};
use chancery_store::{Grant, NewAuthorizationCode};
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
        Err(rejected) => rejected.into_response_for(&provider.settings.issuer),
    }
}

/// OpenID Connect allows clients to POST the request. Our cookie is not sent with a cross-site form, so the browser is
/// redirected to the same request as a GET.
pub(crate) async fn redirect_post_to_get_handler(request: Request) -> Result<Response, ErrorPage> {
    redirect_post_to_get("/authorize", request).await
}

pub(super) async fn redirect_post_to_get(path: &str, request: Request) -> Result<Response, ErrorPage> {
    let query = form_text(request).await.map_err(invalid_form)?;
    // Characters that are invalid in a header are invalid in form encoding too.
    match query.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(see_other(&format!("{path}?{query}"))),
        false => Err(invalid_form(FormError::NotAForm)),
    }
}

pub(super) fn invalid_form(error: FormError) -> ErrorPage {
    let mut rejection = ErrorPage::invalid_form(format!("Invalid form: {error}."));
    if error == FormError::TooLong {
        rejection.status = StatusCode::PAYLOAD_TOO_LARGE;
        rejection.advice = format!("Send at most {MAX_FORM_BYTES} bytes.");
    }
    rejection
}

async fn decide(
    provider: &Provider,
    headers: &HeaderMap,
    request: AuthorizationRequest,
) -> Result<Response, ErrorPage> {
    let issuer = &provider.settings.issuer;
    let now = provider.clock.now();
    let expected = match expected_subject(provider, &request, now).await? {
        Expected::Any => None,
        Expected::Only(subject) => Some(subject),
        Expected::Unreadable => {
            let description = "id_token_hint was not issued by this provider";
            return Ok(request.redirect_target.error(issuer, ErrorCode::InvalidRequest, description));
        }
    };
    let signed_in = signed_in(provider, headers).await?;
    let sent_at = sign_in_detour::sent_at(provider, &request, now).await?;
    let mut session_state = session_state(&request, signed_in.as_ref(), expected.as_deref(), sent_at, now);
    let predates_factor = match &signed_in {
        Some(signed_in) => signed_in.predates_factor(provider).await?,
        None => false,
    };
    if predates_factor && session_state != SessionState::WrongAccount {
        session_state = SessionState::SignInRequired;
    }
    let is_signed_in = matches!(session_state, SessionState::Good | SessionState::JustSignedIn);
    let lacks_factor = signed_in.as_ref().is_some_and(|signed_in| signed_in.lacks_required_factor(provider));
    if is_signed_in && lacks_factor {
        if request.prompt.none {
            let description = "the user must set up a second factor";
            return Ok(request.redirect_target.error(issuer, ErrorCode::LoginRequired, description));
        }
        // Back to this same request afterwards: a sign-in for it is not used up yet.
        return Ok(to_second_factor_set_up(&request.to_path().ok_or_else(too_long)?));
    }
    if session_state == SessionState::JustSignedIn {
        let is_first = sign_in_detour::consume(provider, &request, now).await?;
        session_state = if is_first { SessionState::Good } else { SessionState::SignInRequired };
    }
    match (session_state, signed_in) {
        (SessionState::Good, Some(signed_in)) if needs_consent(provider, &request, &signed_in).await? => {
            match request.prompt.none {
                true => {
                    let description = "the user has not consented";
                    Ok(request.redirect_target.error(issuer, ErrorCode::ConsentRequired, description))
                }
                false => consent::ask(provider, headers, &request, &signed_in).await,
            }
        }
        (SessionState::Good, Some(signed_in)) => redirect_with_code(provider, &request, &signed_in).await,
        (SessionState::WrongAccount, _) => {
            let description = "a different user is signed in";
            Ok(request.redirect_target.error(issuer, ErrorCode::LoginRequired, description))
        }
        _ if request.prompt.none => {
            let description = "the user is not signed in";
            Ok(request.redirect_target.error(issuer, ErrorCode::LoginRequired, description))
        }
        _ => {
            let request = sign_in_detour::with_detour_mark(provider, request, now).await?;
            Ok(to_sign_in(&request.to_path().ok_or_else(too_long)?))
        }
    }
}

/// The user that the client expects.
enum Expected {
    Any,
    Only(String),
    Unreadable,
}

async fn expected_subject(
    provider: &Provider,
    request: &AuthorizationRequest,
    now: UnixMillis,
) -> Result<Expected, ErrorPage> {
    let Some(token) = &request.id_token_hint else { return Ok(Expected::Any) };
    let keys = key_ring(provider.store.as_ref(), provider.randomness.as_ref(), now).await;
    let keys = keys.map_err(key_error_page)?;
    let hint = IdTokenHint::read(token, &provider.settings.issuer, &keys);
    let hint = hint.filter(|hint| hint.client_id == request.client_id);
    Ok(hint.map_or(Expected::Unreadable, |hint| Expected::Only(hint.subject)))
}

/// Whether the current session satisfies the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionState {
    Good,
    /// Satisfied because the user signed in for this request. Valid once.
    JustSignedIn,
    SignInRequired,
    /// The user has just signed in, but is not the expected one.
    WrongAccount,
}

fn session_state(
    request: &AuthorizationRequest,
    signed_in: Option<&SignedInAccount>,
    expected: Option<&str>,
    sent_to_sign_in_at: Option<UnixMillis>,
    now: UnixMillis,
) -> SessionState {
    let Some(SignedInAccount { account, authenticated_at, .. }) = signed_in else {
        return SessionState::SignInRequired;
    };
    let has_just_signed_in = sent_to_sign_in_at.is_some_and(|sent_at| sent_at <= *authenticated_at);
    if expected.is_some_and(|expected| expected != account.subject) {
        return if has_just_signed_in { SessionState::WrongAccount } else { SessionState::SignInRequired };
    }
    let max_age = request.max_age_s.map(|seconds| Duration::from_secs(seconds.into()));
    let is_recent = max_age.is_none_or(|max_age| now <= after(*authenticated_at, max_age));
    match (is_recent && !request.prompt.login, has_just_signed_in) {
        (true, _) => SessionState::Good,
        (false, true) => SessionState::JustSignedIn,
        (false, false) => SessionState::SignInRequired,
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
    Ok(!request.scope.is_within(&allowed.map_err(|error| store_error_page(&error))?))
}

/// Redirects to the client with an authorization code.
pub(super) async fn redirect_with_code(
    provider: &Provider,
    request: &AuthorizationRequest,
    signed_in: &SignedInAccount,
) -> Result<Response, ErrorPage> {
    let key = ThrottleKey::AuthorizationCodePerAccount(&signed_in.account.subject);
    throttle::count(provider, None, &[key]).await?;
    let now = provider.clock.now();
    let code = SecretToken::generate(provider.randomness.as_ref());
    let expires_at = after(now, AUTHORIZATION_CODE_TTL);
    let grant = Grant {
        client_id: request.client_id.clone(),
        redirect_uri: request.redirect_target.redirect_uri.clone(),
        code_challenge: request.code_challenge.clone(),
        subject: signed_in.account.subject.clone(),
        password_version: signed_in.account.password_version,
        scope: request.scope.as_str().to_owned(),
        nonce: request.nonce.clone(),
        sid: signed_in.sid.clone(),
        amr: signed_in.methods.as_str().to_owned(),
        authenticated_at: signed_in.authenticated_at,
    };
    let delete_after = after(expires_at, ACCESS_TOKEN_TTL);
    let new = NewAuthorizationCode { code: code.hash(), grant, expires_at, delete_after };
    provider.store.grants.issue_code(new).await.map_err(|error| store_error_page(&error))?;
    Ok(request.redirect_target.respond(&provider.settings.issuer, &[("code", code.reveal())]))
}
