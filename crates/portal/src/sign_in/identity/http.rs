//! How the portal asks its identity provider: within bounds of time and size, over TLS unless the provider is on this
//! machine, and never where a reply would send it.

use super::fault::Fault;
use super::limits::{CONNECT_TIMEOUT, MAX_REPLY_BYTES, REQUEST_TIMEOUT};
use crate::error_chain::error_chain;
use openidconnect::http::StatusCode;
use openidconnect::url::{Host, Url};
use openidconnect::{AsyncHttpClient, HttpRequest, HttpResponse};
use std::pin::Pin;

pub(super) struct ProviderHttp {
    client: reqwest::Client,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum HttpFault {
    #[error("{0}")]
    Unreachable(String),
    #[error("{0}")]
    TimedOut(String),
    #[error("the reply has more than {MAX_REPLY_BYTES} bytes")]
    TooLarge,
    #[error("its address {0} is neither `https:` nor on this machine")]
    NotSafe(String),
    #[error("it answered with status {0}")]
    Failing(StatusCode),
    #[error("it answered with status {0}, and the portal follows no redirect")]
    Redirects(StatusCode),
    #[error("{0}")]
    Unusable(String),
}

impl ProviderHttp {
    pub(super) fn new(issuer: &Url) -> Result<Self, String> {
        // Whoever was first chose the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = reqwest::Client::builder()
            .user_agent("chancery-portal")
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(REQUEST_TIMEOUT);
        // A proxy of the network cannot reach what listens on this machine alone.
        let builder = if is_on_this_machine(issuer) { builder.no_proxy() } else { builder };
        Ok(Self { client: builder.build().map_err(|error| error_chain(&error))? })
    }

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpFault> {
        let request =
            reqwest::Request::try_from(request).map_err(|error| HttpFault::Unusable(error_chain(&error)))?;
        if !is_safe(request.url()) {
            return Err(HttpFault::NotSafe(origin(request.url())));
        }
        let mut reply = self.client.execute(request).await.map_err(HttpFault::of)?;
        match reply.status() {
            status if status.is_server_error() => return Err(HttpFault::Failing(status)),
            status if status.is_redirection() => return Err(HttpFault::Redirects(status)),
            _ => {}
        }
        let is_announced_too_large =
            reply.content_length().is_some_and(|bytes| bytes > MAX_REPLY_BYTES as u64);
        if is_announced_too_large {
            return Err(HttpFault::TooLarge);
        }
        let mut body = Vec::new();
        while let Some(chunk) = reply.chunk().await.map_err(HttpFault::of)? {
            if body.len() + chunk.len() > MAX_REPLY_BYTES {
                return Err(HttpFault::TooLarge);
            }
            body.extend_from_slice(&chunk);
        }
        let mut response = HttpResponse::new(body);
        *response.status_mut() = reply.status();
        *response.headers_mut() = std::mem::take(reply.headers_mut());
        Ok(response)
    }
}

impl<'c> AsyncHttpClient<'c> for ProviderHttp {
    type Error = HttpFault;
    type Future = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpFault>> + Send + 'c>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(self.send(request))
    }
}

impl HttpFault {
    fn of(error: reqwest::Error) -> Self {
        let is_timeout = error.is_timeout();
        let text = error_chain(&error.without_url());
        if is_timeout { Self::TimedOut(text) } else { Self::Unreachable(text) }
    }

    /// `what` was asked for.
    pub(super) fn fault(&self, what: &str) -> Fault {
        let text = format!("{what}: {self}");
        match self {
            Self::Unreachable(_) | Self::Failing(_) => Fault::Down(text),
            Self::TimedOut(_) => Fault::Slow(text),
            Self::TooLarge | Self::NotSafe(_) | Self::Redirects(_) | Self::Unusable(_) => Fault::Lying(text),
        }
    }
}

/// Secrets go over TLS, or do not leave this machine.
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

/// Without path and query: what is in those is nobody's business.
fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_go_over_tls_or_stay_on_this_machine() {
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
