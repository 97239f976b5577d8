//! HTTP client for the identity provider, with limits on time and size. It uses TLS unless the provider is on this machine, and
//! follows no redirects.

use super::error::IdentityProviderError;
use super::limits::{CONNECT_TIMEOUT, MAX_REPLY_BYTES, REQUEST_TIMEOUT};
use chancery_http_client::{BodyError, OwnCertificates, client_builder_trusting, describe, read_body};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Request, StatusCode, Url};
use serde::de::DeserializeOwned;
use std::net::IpAddr;

pub(super) const JSON: &str = "application/json";

/// Which part of a reply is invalid, and why. The reason can quote the reply.
type JsonError = serde_path_to_error::Error<serde_json::Error>;

pub(super) struct ProviderHttp {
    client: reqwest::Client,
}

/// A complete reply, with a status below 300 or a client error.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    content_type: Option<HeaderValue>,
    pub(super) body: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    #[error("{0}")]
    Unreachable(String),
    #[error("{0}")]
    TimedOut(String),
    #[error("reply exceeds {MAX_REPLY_BYTES} bytes")]
    TooLarge,
    #[error("{0} is neither `https:` nor loopback")]
    Insecure(String),
    #[error("status {0}")]
    ServerError(StatusCode),
    #[error("status {0}; redirects are not followed")]
    Redirected(StatusCode),
}

impl ProviderHttp {
    pub(super) fn new(issuer: &Url, own_certificates: &OwnCertificates) -> Result<Self, String> {
        let builder = client_builder_trusting(own_certificates)
            .user_agent("chancery-portal")
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(REQUEST_TIMEOUT);
        // A network proxy cannot reach a server that listens on this machine only.
        let builder = if is_on_this_machine(issuer) { builder.no_proxy() } else { builder };
        Ok(Self { client: builder.build().map_err(describe)? })
    }

    pub(super) async fn get(&self, url: &Url) -> Result<Reply, HttpError> {
        self.send(Request::new(Method::GET, url.clone())).await
    }

    pub(super) async fn send(&self, mut request: Request) -> Result<Reply, HttpError> {
        if !is_safe(request.url()) {
            return Err(HttpError::Insecure(origin(request.url())));
        }
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(JSON));
        let mut reply = self.client.execute(request).await.map_err(HttpError::of)?;
        let status = reply.status();
        if status.is_server_error() {
            return Err(HttpError::ServerError(status));
        }
        if status.is_redirection() {
            return Err(HttpError::Redirected(status));
        }
        let body = read_body(&mut reply, MAX_REPLY_BYTES).await.map_err(|error| match error {
            BodyError::TooLarge { .. } => HttpError::TooLarge,
            BodyError::Failed(error) => HttpError::of(error),
        })?;
        Ok(Reply { status, content_type: reply.headers_mut().remove(CONTENT_TYPE), body })
    }
}

impl Reply {
    /// Whether the reply says that it is of one of these media types; `None` if it does not say.
    pub(super) fn is_of_type(&self, media_types: &[&str]) -> Option<bool> {
        let content_type = self.content_type.as_ref()?.to_str().unwrap_or_default();
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        Some(media_types.iter().any(|accepted| accepted.eq_ignore_ascii_case(media_type)))
    }

    /// Accepts a reply that does not say what it is.
    pub(super) fn check_type(&self, media_types: &[&str]) -> Result<(), String> {
        match &self.content_type {
            Some(content_type) if self.is_of_type(media_types) == Some(false) => {
                Err(format!("Unexpected response Content-Type: {content_type:?}, should be `{JSON}`"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, JsonError> {
        serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_slice(&self.body))
    }
}

impl HttpError {
    fn of(error: reqwest::Error) -> Self {
        let is_timeout = error.is_timeout();
        let text = describe(error);
        if is_timeout { Self::TimedOut(text) } else { Self::Unreachable(text) }
    }

    /// `what` names the request.
    pub(super) fn error(&self, what: &str) -> IdentityProviderError {
        let text = format!("{what}: {self}");
        match self {
            Self::Unreachable(_) | Self::ServerError(_) => IdentityProviderError::Unavailable(text),
            Self::TimedOut(_) => IdentityProviderError::TimedOut(text),
            Self::TooLarge | Self::Insecure(_) | Self::Redirected(_) => {
                IdentityProviderError::InvalidResponse(text)
            }
        }
    }
}

/// Secrets are sent over TLS only, or within this machine.
pub(super) fn is_safe(url: &Url) -> bool {
    url.scheme() == "https" || (url.scheme() == "http" && is_on_this_machine(url))
}

fn is_on_this_machine(url: &Url) -> bool {
    let Some(host) = url.host_str() else { return false };
    // An IPv6 address is in brackets.
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Omits path and query, which may contain secrets.
fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_urls_require_tls_except_loopback() {
        let safe = |url: &str| is_safe(&Url::parse(url).unwrap());
        for url in
            ["https://id.example.com/token", "http://localhost:1/", "http://127.3.2.1/", "http://[::1]:8/"]
        {
            assert!(safe(url), "{url}");
        }
        for url in [
            "http://id.example.com/token",
            "http://localhost.evil.example/",
            "http://127.0.0.1.evil.example/",
            "http://10.0.0.1/",
            "ftp://127.0.0.1/",
            "file:///etc/passwd",
        ] {
            assert!(!safe(url), "{url}");
        }
    }
}
