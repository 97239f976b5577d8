//! HTTP client for the identity provider, with limits on time and size. It uses TLS unless the provider is on this machine, and
//! follows no redirects.

use super::error::IdentityProviderError;
use super::limits::{CONNECT_TIMEOUT, MAX_REPLY_BYTES, REQUEST_TIMEOUT};
use chancery_http_client::{BodyError, OwnCertificates, client_builder_trusting, describe, read_body};
use openidconnect::http::StatusCode;
use openidconnect::url::{Host, Url};
use openidconnect::{AsyncHttpClient, HttpRequest, HttpResponse};
use std::pin::Pin;

pub(super) struct ProviderHttp {
    client: reqwest::Client,
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
    #[error("{0}")]
    InvalidRequest(String),
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

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let request = reqwest::Request::try_from(request)
            .map_err(|error| HttpError::InvalidRequest(describe(error)))?;
        if !is_safe(request.url()) {
            return Err(HttpError::Insecure(origin(request.url())));
        }
        let mut reply = self.client.execute(request).await.map_err(HttpError::of)?;
        match reply.status() {
            status if status.is_server_error() => return Err(HttpError::ServerError(status)),
            status if status.is_redirection() => return Err(HttpError::Redirected(status)),
            _ => {}
        }
        let body = read_body(&mut reply, MAX_REPLY_BYTES).await.map_err(|error| match error {
            BodyError::TooLarge { .. } => HttpError::TooLarge,
            BodyError::Failed(error) => HttpError::of(error),
        })?;
        let mut response = HttpResponse::new(body);
        *response.status_mut() = reply.status();
        *response.headers_mut() = std::mem::take(reply.headers_mut());
        Ok(response)
    }
}

impl<'c> AsyncHttpClient<'c> for ProviderHttp {
    type Error = HttpError;
    type Future = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'c>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(self.send(request))
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
            Self::TooLarge | Self::Insecure(_) | Self::Redirected(_) | Self::InvalidRequest(_) => {
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
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
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
