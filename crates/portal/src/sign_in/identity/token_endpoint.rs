//! The provider's token endpoint, which exchanges a code for an ID token and an access token (RFC 6749, sections 4.1.3 and 5).

use super::error::IdentityProviderError;
use super::http::{JSON, ProviderHttp, Reply};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use form_urlencoded::{Serializer, byte_serialize};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, InvalidHeaderValue};
use reqwest::{Method, Request, StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// How the portal authenticates, if it has a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientAuthentication {
    /// `client_secret_basic`
    Header,
    /// `client_secret_post`
    Form,
}

pub(super) struct CodeExchange<'a> {
    pub(super) client_id: &'a str,
    pub(super) client_secret: Option<&'a str>,
    pub(super) authentication: ClientAuthentication,
    pub(super) redirect_url: &'a str,
    pub(super) code: &'a str,
    pub(super) pkce_verifier: &'a str,
}

#[derive(Deserialize)]
pub(super) struct Tokens {
    pub(super) access_token: String,
    token_type: String,
    pub(super) id_token: Option<String>,
}

/// An error response.
#[derive(Deserialize)]
struct Rejection {
    error: String,
}

impl CodeExchange<'_> {
    pub(super) async fn send(&self, url: &Url, http: &ProviderHttp) -> Result<Tokens, IdentityProviderError> {
        let invalid = |why: &str| IdentityProviderError::InvalidResponse(format!("the token endpoint{why}"));
        let request = self.request(url).map_err(|error| invalid(&format!(": {error}")))?;
        let reply = http.send(request).await.map_err(|error| error.error("the token endpoint"))?;
        if reply.status != StatusCode::OK {
            if reply.body.is_empty() {
                return Err(invalid(": server returned empty error response"));
            }
            return Err(parse::<Rejection>(&reply)?.into_error());
        }
        reply.check_type(&[JSON]).map_err(|why| invalid(&format!(": {why}")))?;
        if reply.body.is_empty() {
            return Err(invalid(": server returned empty response body"));
        }
        let tokens: Tokens = parse(&reply)?;
        if !tokens.token_type.eq_ignore_ascii_case("bearer") {
            return Err(invalid("'s `token_type` is not `Bearer`"));
        }
        Ok(tokens)
    }

    /// The client secret is sent in the header or in the form, never in both.
    fn request(&self, url: &Url) -> Result<Request, InvalidHeaderValue> {
        let mut request = Request::new(Method::POST, url.clone());
        let mut form = Serializer::new(String::new());
        form.extend_pairs([
            ("grant_type", "authorization_code"),
            ("code", self.code),
            ("code_verifier", self.pkce_verifier),
            ("redirect_uri", self.redirect_url),
        ]);
        match self.client_secret {
            Some(secret) if self.authentication == ClientAuthentication::Header => {
                request.headers_mut().insert(AUTHORIZATION, basic(self.client_id, secret)?);
            }
            secret => {
                form.append_pair("client_id", self.client_id);
                form.extend_pairs(secret.map(|secret| ("client_secret", secret)));
            }
        }
        let content_type = HeaderValue::from_static("application/x-www-form-urlencoded");
        request.headers_mut().insert(CONTENT_TYPE, content_type);
        *request.body_mut() = Some(form.finish().into());
        Ok(request)
    }
}

/// RFC 6749, section 2.3.1: both parts are encoded like a form first.
fn basic(client_id: &str, secret: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    let encode = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
    let credentials = BASE64_STANDARD.encode(format!("{}:{}", encode(client_id), encode(secret)));
    let mut header = HeaderValue::from_str(&format!("Basic {credentials}"))?;
    header.set_sensitive(true);
    Ok(header)
}

/// Omits the reason, which can quote a token.
fn parse<T: DeserializeOwned>(reply: &Reply) -> Result<T, IdentityProviderError> {
    reply.json().map_err(|error| {
        IdentityProviderError::InvalidResponse(format!("invalid token reply at `{}`", error.path()))
    })
}

impl Rejection {
    fn into_error(self) -> IdentityProviderError {
        let code: String = self.error.chars().filter(char::is_ascii_graphic).take(40).collect();
        let text = format!("the token endpoint answered `{code}`");
        match self.error.as_str() {
            "invalid_grant" => IdentityProviderError::CodeExpired(text),
            _ => IdentityProviderError::ClientRejected(text),
        }
    }
}
