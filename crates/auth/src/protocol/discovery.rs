//! `/.well-known/openid-configuration`: the provider's metadata. It sends no CORS header: browser-only clients cannot
//! store a session safely and are not supported.

use super::limits::DISCOVERY_MAX_AGE;
use super::scope;
use crate::Provider;
use crate::authentication_methods::{ACR_MULTI_FACTOR, ACR_SINGLE_FACTOR};
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

pub(crate) async fn show(State(provider): State<Arc<Provider>>) -> Response {
    cacheable_json(&document(&provider.settings.issuer), DISCOVERY_MAX_AGE)
}

fn document(issuer: &str) -> Value {
    // A trailing slash is part of the issuer, but not of the endpoint URLs.
    let at = |path: &str| format!("{}{path}", issuer.trim_end_matches('/'));
    json!({
        "issuer": issuer,
        "authorization_endpoint": at("/authorize"),
        "token_endpoint": at("/token"),
        "userinfo_endpoint": at("/userinfo"),
        "jwks_uri": at("/jwks.json"),
        "end_session_endpoint": at("/logout"),
        "scopes_supported": scope::SUPPORTED_SCOPES,
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
        "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post", "none"],
        "claim_types_supported": ["normal"],
        "claims_supported": [
            "iss", "sub", "aud", "exp", "iat", "auth_time", "nonce", "at_hash", "sid", "amr", "acr", "email",
            "email_verified"
        ],
        "acr_values_supported": [ACR_SINGLE_FACTOR, ACR_MULTI_FACTOR],
        "code_challenge_methods_supported": ["S256"],
        "prompt_values_supported": ["none", "login", "consent", "select_account"],
        "backchannel_logout_supported": true,
        "backchannel_logout_session_supported": true,
        "authorization_response_iss_parameter_supported": true,
        "claims_parameter_supported": false,
        "request_parameter_supported": false,
        "request_uri_parameter_supported": false,
    })
}

/// JSON that may be cached for a while.
pub(super) fn cacheable_json(value: &Value, cached_for: Duration) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::CACHE_CONTROL, format!("public, max-age={}", cached_for.as_secs())),
    ];
    (headers, value.to_string()).into_response()
}

/// JSON that must not be cached.
pub(super) fn no_store_json(value: &Value) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::PRAGMA, HeaderValue::from_static("no-cache")),
    ];
    (headers, value.to_string()).into_response()
}
