//! `POST /auth/backchannel-logout`: the identity provider ends sessions of the portal (OpenID Connect Back-Channel
//! Logout 1.0). Its server sends a signed token, without cookies; no browser is involved.
//!
//! Anyone can send anything here. A wrong token costs one signature check, or less; a subnet that sends many is
//! rejected before that. Unknown keys make the portal fetch the provider's keys at most every few seconds
//! (`discovery`).

use crate::error::PageError;
use crate::sign_in::identity::error::IdentityProviderError;
use crate::sign_in::visitor::Sender;
use crate::state::Portal;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chancery_domain::{TokenHash, UnixMillis};
use chancery_store::{LogoutTarget, ProviderLogout, ProviderLogoutOutcome};
use chancery_web::{ErrorPage, PostedForm};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::sync::Arc;

pub(crate) const PATH: &str = "/auth/backchannel-logout";

/// Logout tokens have less than two kilobytes.
pub(crate) const MAX_BODY_BYTES: usize = 16 * 1024;

/// The errors of section 2.8.
#[derive(Debug)]
struct Rejection {
    status: StatusCode,
    error: &'static str,
    description: String,
    retry_after_s: Option<u32>,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    sender: Sender,
    form: Result<PostedForm<Vec<(String, String)>>, ErrorPage>,
) -> Result<Response, PageError> {
    Ok(match end_sessions(&portal, &sender, form).await? {
        Ok(()) => (StatusCode::OK, [(header::CACHE_CONTROL, "no-store")]).into_response(),
        Err(rejection) => {
            let (status, reason) = (rejection.status.as_u16(), rejection.description.as_str());
            tracing::warn!(status, reason, "logout token rejected");
            rejection.into_response()
        }
    })
}

async fn end_sessions(
    portal: &Portal,
    sender: &Sender,
    form: Result<PostedForm<Vec<(String, String)>>, ErrorPage>,
) -> Result<Result<(), Rejection>, PageError> {
    let now = portal.clock.monotonic();
    if let Err(exceeded) = portal.logout_throttle.check(&sender.ip_address, now) {
        return Ok(Err(Rejection::too_many(exceeded.retry_after_s)));
    }
    let outcome = match logout_token(form) {
        Some(token) => portal.identity.verify_logout_token(&token).await.map_err(Rejection::from),
        None => Err(Rejection::invalid("send one `logout_token` in a form")),
    };
    let token = match outcome {
        Ok(token) => token,
        Err(rejection) => {
            // Only wrong tokens count, so that strangers cannot use up what the provider may send.
            let _ = portal.logout_throttle.count(&sender.ip_address, now);
            return Ok(Err(rejection));
        }
    };
    let target = match (token.sid, token.subject) {
        (Some(sid), subject) => LogoutTarget::ProviderSession { sid, subject },
        (None, Some(subject)) => LogoutTarget::Subject(subject),
        (None, None) => return Ok(Err(Rejection::invalid("the token has neither `sub` nor `sid`"))),
    };
    let issuer = portal.identity.issuer();
    let logout = ProviderLogout {
        token_id: token_id(issuer, &token.id),
        token_expires_at: UnixMillis(token.expires_at_s.saturating_mul(1000)),
        issuer: issuer.to_owned(),
        target,
    };
    let origin = sender.origin(portal.clock.now());
    Ok(match portal.store.sessions.end_sessions_by_provider(&logout, &origin).await? {
        ProviderLogoutOutcome::Ended(sessions) => {
            tracing::info!(sessions, "sessions ended by the identity provider");
            Ok(())
        }
        ProviderLogoutOutcome::Replayed => Err(Rejection::invalid("the token was used before")),
    })
}

/// Exactly one, because another system could read a second one.
fn logout_token(form: Result<PostedForm<Vec<(String, String)>>, ErrorPage>) -> Option<String> {
    let PostedForm(fields) = form.ok()?;
    let mut tokens = fields.into_iter().filter(|(name, _)| name == "logout_token").map(|(_, value)| value);
    match (tokens.next(), tokens.next()) {
        (Some(token), None) => Some(token),
        _ => None,
    }
}

/// The length keeps issuer and ID apart.
fn token_id(issuer: &str, id: &str) -> TokenHash {
    let length = u64::try_from(issuer.len()).unwrap_or(u64::MAX).to_be_bytes();
    TokenHash(Sha256::new().chain_update(length).chain_update(issuer).chain_update(id).finalize().into())
}

impl Rejection {
    fn invalid(description: &str) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            error: "invalid_request",
            description: description.to_owned(),
            retry_after_s: None,
        }
    }

    fn too_many(retry_after_s: u32) -> Self {
        Self {
            status: StatusCode::TOO_MANY_REQUESTS,
            error: "temporarily_unavailable",
            description: "too many wrong logout tokens came from this network".to_owned(),
            retry_after_s: Some(retry_after_s),
        }
    }
}

impl From<IdentityProviderError> for Rejection {
    fn from(error: IdentityProviderError) -> Self {
        match error {
            IdentityProviderError::Unavailable(_) | IdentityProviderError::TimedOut(_) => Self {
                status: StatusCode::SERVICE_UNAVAILABLE,
                error: "temporarily_unavailable",
                description: error.to_string(),
                retry_after_s: Some(30),
            },
            error => Self::invalid(&error.to_string()),
        }
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let body = json!({"error": self.error, "error_description": self.description}).to_string();
        let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
        let mut response = (self.status, headers, body).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
