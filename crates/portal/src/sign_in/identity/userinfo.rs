//! The provider's userinfo endpoint, which supplies claims that the ID token lacks.

use super::error::IdentityProviderError;
use super::http::{JSON, ProviderHttp};
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Method, Request, StatusCode, Url};
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Deserialize)]
struct UserInfo {
    sub: String,
    #[serde(flatten)]
    claims: Map<String, Value>,
}

/// Rejects claims about anyone but `subject`: the access token may have been swapped for another person's.
pub(super) async fn claims(
    url: &Url,
    http: &ProviderHttp,
    access_token: &str,
    subject: &str,
) -> Result<Map<String, Value>, IdentityProviderError> {
    let rejected = |why: &str| IdentityProviderError::InvalidResponse(format!("userinfo: {why}"));
    let mut authorization = HeaderValue::from_str(&format!("Bearer {access_token}"))
        .map_err(|_| rejected("the access token cannot be sent in a header"))?;
    authorization.set_sensitive(true);
    let mut request = Request::new(Method::GET, url.clone());
    request.headers_mut().insert(AUTHORIZATION, authorization);
    let reply = http.send(request).await.map_err(|error| error.error("userinfo"))?;
    if reply.status != StatusCode::OK {
        return Err(rejected(&format!("status {}", reply.status)));
    }
    if reply.is_of_type(&[JSON]) != Some(true) {
        return Err(rejected("the reply is not `application/json`"));
    }
    let info: UserInfo = serde_json::from_slice(&reply.body)
        .map_err(|error| rejected(&format!("invalid reply at column {}", error.column())))?;
    if info.sub != subject {
        return Err(rejected("`sub` does not match the ID token"));
    }
    Ok(info.claims)
}
