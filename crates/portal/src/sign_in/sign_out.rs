//! `POST /auth/sign-out` ends the session on the server and in the browser, and then the one at the identity provider:
//! the browser goes there with the ID token as a hint (OpenID Connect RP-Initiated Logout), and comes back to
//! `signed_out`.
//!
//! A provider without such an endpoint, or one that does not come back, keeps its session. The cookie
//! `__Host-ask_again` then makes the next sign-in ask for credentials, so that the next person at this computer does
//! not get in.
//!
//! A program gets the provider's sign-out URL in the reply, and goes there itself.

use crate::error::PageError;
use crate::sign_in::authentication;
use crate::sign_in::session::{MaybeSignedIn, SignedIn};
use crate::sign_in::session_cookie::{expired_cookies, sent_token};
use crate::sign_in::sign_out_cookies::{
    ASK_AGAIN_COOKIE, ASK_AGAIN_TTL, STATE_COOKIE, STATE_TTL, with_cookies,
};
use crate::sign_in::signed_out;
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::SecretToken;
use chancery_store::{DbError, PersonError};
use chancery_web::wants_json;
use serde_json::json;
use std::sync::Arc;

/// Succeeds even if the browser's session has already ended.
pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    MaybeSignedIn(signed_in): MaybeSignedIn,
    visitor: Visitor,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let Some(signed_in) = signed_in else { return Ok(redirect_to_signed_out(&portal)) };
    let id_token = id_token(&portal, &signed_in, &headers).await?;
    let origin = visitor.origin(portal.clock.now());
    portal.store.sessions.end_session(signed_in.person.id, signed_in.session.id, &origin).await?;
    // The portal's session has ended. What follows may fail.
    let state = SecretToken::generate(portal.randomness.as_ref());
    let end_session = portal.identity.end_session(id_token.as_deref(), state.reveal()).await;
    if wants_json(&headers) {
        let url = end_session.map(|end_session| end_session.url);
        let state = url.as_ref().and_then(|_| STATE_COOKIE.set(state.reveal(), Some(STATE_TTL)));
        let body = Json(json!({ "provider_sign_out_url": url }));
        let response = (StatusCode::SEE_OTHER, [(header::LOCATION, "/signed-out")], body).into_response();
        return Ok(with_cookies(response, ended_cookies(&portal).chain(state)));
    }
    let Some(end_session) = end_session else { return Ok(redirect_to_signed_out(&portal)) };
    let response = match end_session.is_at_issuer {
        true => Redirect::to(&end_session.url).into_response(),
        // Browsers stop redirects from a form to an origin that the content security policy does not name.
        false => signed_out::leave_for(&portal, &end_session.url)?,
    };
    let state = STATE_COOKIE.set(state.reveal(), Some(STATE_TTL));
    Ok(with_cookies(response, ended_cookies(&portal).chain(state)))
}

/// For a browser whose session has ended here, and perhaps not at the provider.
pub(crate) fn redirect_to_signed_out(portal: &Portal) -> Response {
    with_cookies(Redirect::to("/signed-out").into_response(), ended_cookies(portal))
}

fn ended_cookies(portal: &Portal) -> impl Iterator<Item = HeaderValue> {
    expired_cookies(portal.settings.bind_session).chain(ASK_AGAIN_COOKIE.set("1", Some(ASK_AGAIN_TTL)))
}

/// `None` if the session has no ID token, or one that the store cannot decrypt. Only the browser's cookie decrypts it.
async fn id_token(
    portal: &Portal,
    signed_in: &SignedIn,
    headers: &HeaderMap,
) -> Result<Option<String>, PageError> {
    let stored = match portal.store.sessions.stored_id_token(signed_in.token).await {
        // The session must end all the same.
        Err(PersonError::Database(DbError::Secret(error))) => {
            tracing::error!(%error, "signing out without the ID token");
            None
        }
        stored => stored?,
    };
    Ok(match (stored, sent_token(headers)?) {
        (Some(stored), Some(token)) => authentication::open(&token, &stored),
        _ => None,
    })
}
