//! The provider's userinfo endpoint, which supplies claims that the ID token lacks.

use super::error::IdentityProviderError;
use super::http::ProviderHttp;
use openidconnect::http::{HeaderValue, Method, Request, StatusCode, header};
use openidconnect::{AccessToken, AsyncHttpClient, UserInfoUrl};
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
    url: &UserInfoUrl,
    http: &ProviderHttp,
    access_token: &AccessToken,
    subject: &str,
) -> Result<Map<String, Value>, IdentityProviderError> {
    let rejected = |why: &str| IdentityProviderError::InvalidResponse(format!("userinfo: {why}"));
    let mut authorization = HeaderValue::from_str(&format!("Bearer {}", access_token.secret()))
        .map_err(|_| rejected("the access token cannot be sent in a header"))?;
    authorization.set_sensitive(true);
    let request = Request::builder()
        .method(Method::GET)
        .uri(url.as_str())
        .header(header::ACCEPT, "application/json")
        .header(header::AUTHORIZATION, authorization)
        .body(Vec::new())
        .map_err(|_| rejected("invalid URL"))?;
    let reply = http.call(request).await.map_err(|error| error.error("userinfo"))?;
    if reply.status() != StatusCode::OK {
        return Err(rejected(&format!("status {}", reply.status())));
    }
    let content_type = reply.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let is_json = content_type.is_some_and(|text| {
        text.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
    });
    if !is_json {
        return Err(rejected("the reply is not `application/json`"));
    }
    let info: UserInfo = serde_json::from_slice(reply.body())
        .map_err(|error| rejected(&format!("invalid reply at column {}", error.column())))?;
    if info.sub != subject {
        return Err(rejected("`sub` does not match the ID token"));
    }
    Ok(info.claims)
}
