//! `/userinfo`: the only endpoint that accepts access tokens. The token is read only from the header, never from a URL
//! or a form.

use super::discovery::no_store_json;
use super::scope::Scope;
use super::token::account_of;
use crate::Provider;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chancery_domain::SecretToken;
use chancery_store::ProviderError;
use serde_json::{Map, Value, json};
use std::sync::Arc;

pub(crate) async fn show(State(provider): State<Arc<Provider>>, headers: HeaderMap) -> Response {
    match read_claims(&provider, &headers).await {
        Ok(claims) => no_store_json(&Value::Object(claims)),
        Err(error) => error.into_response(),
    }
}

enum BearerError {
    /// No token was sent, so the challenge carries no error (RFC 6750, 3.1).
    Missing,
    Malformed,
    Invalid,
    Unavailable(ProviderError),
}

async fn read_claims(provider: &Provider, headers: &HeaderMap) -> Result<Map<String, Value>, BearerError> {
    let token = bearer(headers)?;
    let grant = provider.store.grants.grant_for_access_token(token.hash(), provider.clock.now()).await;
    let grant = grant.map_err(BearerError::Unavailable)?.ok_or(BearerError::Invalid)?;
    let account = account_of(provider, &grant).await.map_err(BearerError::Unavailable)?;
    let account = account.ok_or(BearerError::Invalid)?;
    let scope = Scope::parse(&grant.scope).ok_or(BearerError::Invalid)?;
    let mut claims = Map::new();
    claims.insert("sub".to_owned(), account.subject.as_str().into());
    scope.add_claims(&mut claims, account.email.as_str());
    Ok(claims)
}

fn bearer(headers: &HeaderMap) -> Result<SecretToken, BearerError> {
    let mut lines = headers.get_all(header::AUTHORIZATION).iter();
    let line = match (lines.next(), lines.next()) {
        (None, _) => return Err(BearerError::Missing),
        (Some(line), None) => line.to_str().map_err(|_| BearerError::Malformed)?,
        (Some(_), Some(_)) => return Err(BearerError::Malformed),
    };
    let (scheme, token) = line.split_once(' ').ok_or(BearerError::Malformed)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(BearerError::Missing);
    }
    SecretToken::parse(token.trim()).ok_or(BearerError::Invalid)
}

impl IntoResponse for BearerError {
    fn into_response(self) -> Response {
        let (status, code, challenge) = match self {
            Self::Missing => (StatusCode::UNAUTHORIZED, "invalid_token", "Bearer realm=\"userinfo\""),
            Self::Malformed => (
                StatusCode::BAD_REQUEST,
                "invalid_request",
                "Bearer realm=\"userinfo\", error=\"invalid_request\", error_description=\"send one header, Authorization: Bearer TOKEN\"",
            ),
            Self::Invalid => (
                StatusCode::UNAUTHORIZED,
                "invalid_token",
                "Bearer realm=\"userinfo\", error=\"invalid_token\", error_description=\"the access token is invalid or expired\"",
            ),
            Self::Unavailable(error) => {
                tracing::error!(%error, "userinfo lookup failed");
                (StatusCode::SERVICE_UNAVAILABLE, "temporarily_unavailable", "Bearer realm=\"userinfo\"")
            }
        };
        let mut response = no_store_json(&json!({"error": code}));
        *response.status_mut() = status;
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        response
    }
}
