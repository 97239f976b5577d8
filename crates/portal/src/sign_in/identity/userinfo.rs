//! The provider's userinfo endpoint, which is asked for the address where the ID token has none.

use super::fault::Fault;
use super::http::ProviderHttp;
use super::id_token::EmailClaims;
use openidconnect::http::{HeaderValue, Method, Request, StatusCode, header};
use openidconnect::{AccessToken, AsyncHttpClient, UserInfoUrl};
use serde::Deserialize;

#[derive(Deserialize)]
struct UserInfo {
    sub: String,
    #[serde(flatten)]
    email: EmailClaims,
}

/// What is said of anybody but `subject` is refused: the access token may have been swapped for another's.
pub(super) async fn email_claims(
    url: &UserInfoUrl,
    http: &ProviderHttp,
    access_token: &AccessToken,
    subject: &str,
) -> Result<EmailClaims, Fault> {
    let refused = |why: &str| Fault::Lying(format!("userinfo: {why}"));
    let mut authorization = HeaderValue::from_str(&format!("Bearer {}", access_token.secret()))
        .map_err(|_| refused("the access token cannot be sent in a header"))?;
    authorization.set_sensitive(true);
    let request = Request::builder()
        .method(Method::GET)
        .uri(url.as_str())
        .header(header::ACCEPT, "application/json")
        .header(header::AUTHORIZATION, authorization)
        .body(Vec::new())
        .map_err(|_| refused("its address cannot be asked"))?;
    let reply = http.call(request).await.map_err(|fault| fault.fault("userinfo"))?;
    if reply.status() != StatusCode::OK {
        return Err(refused(&format!("it answered with status {}", reply.status())));
    }
    let content_type = reply.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let is_json = content_type.is_some_and(|text| {
        text.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
    });
    if !is_json {
        return Err(refused("its reply is not `application/json`"));
    }
    let info: UserInfo = serde_json::from_slice(reply.body())
        .map_err(|error| refused(&format!("its reply cannot be read, at column {}", error.column())))?;
    if info.sub != subject {
        return Err(refused("its `sub` is not the ID token's"));
    }
    Ok(info.email)
}
