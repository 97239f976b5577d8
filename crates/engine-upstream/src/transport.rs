//! HTTP to the servers of a pool, with limits on time and size. Never follows redirects.
//!
//! Servers close connections without announcing it: idle ones, or even each one after its reply. A request may be sent on
//! such a connection before the close arrives here. It is then sent once more, on a new connection: another one from the
//! pool may have been closed just the same. Only if that connection ends without a response too, the server has failed.
//! Sending twice is safe, because nothing of a job has been passed on or billed before its response.

use super::error::{UpstreamError, UpstreamErrorKind};
use super::error_response;
use super::limits::{ERROR_BODY_TIMEOUT, IDLE_CONNECTION_TIMEOUT, MAX_ERROR_BODY_BYTES, MAX_MODELS_BYTES};
use chancery_http_client::{BodyError, describe, read_body};
use reqwest::Response;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use std::sync::OnceLock;
use std::time::Duration;
use tokio::time::timeout;

/// Why the HTTP client cannot be built, or cannot be used with this key.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TransportError(String);

pub(super) struct Transport {
    connect_timeout: Duration,
    http_clients: Clients,
    /// Created only for https URLs: they need the system's root certificates, which may be missing.
    https_clients: OnceLock<Clients>,
}

struct Clients {
    pooled: reqwest::Client,
    /// Opens a connection for each request and never reuses it.
    unpooled: reqwest::Client,
}

/// A URL together with its key, so that the key never goes to another server.
#[derive(Clone, Copy)]
pub(super) struct EndpointAddress<'a> {
    pub(super) url: &'a str,
    pub(super) authorization: Option<&'a HeaderValue>,
}

impl Transport {
    pub(super) fn new(connect_timeout: Duration) -> Result<Self, TransportError> {
        let http_clients =
            Clients::build(|| client_builder(connect_timeout).tls_certs_only(std::iter::empty()))?;
        Ok(Self { connect_timeout, http_clients, https_clients: OnceLock::new() })
    }

    /// Call this before these endpoints are used.
    pub(super) fn ensure_tls_client(&self, endpoints: &[String]) -> Result<(), TransportError> {
        if self.https_clients.get().is_none() && endpoints.iter().any(|url| is_https(url)) {
            // Another thread may have created them meanwhile, and those are just as good.
            let _ = self.https_clients.set(Clients::build(|| client_builder(self.connect_timeout))?);
        }
        Ok(())
    }

    /// Sends a job and returns the response once its head reports success.
    pub(super) async fn chat(
        &self,
        endpoint: EndpointAddress<'_>,
        body: Vec<u8>,
    ) -> Result<Response, UpstreamError> {
        let clients = self.clients_for(endpoint.url);
        let request = clients.pooled.post(format!("{}/chat/completions", endpoint.url));
        clients.send(endpoint, request.header(CONTENT_TYPE, "application/json").body(body)).await
    }

    /// Fetches the server's list of models.
    pub(super) async fn models(&self, endpoint: EndpointAddress<'_>) -> Result<Vec<u8>, UpstreamError> {
        let clients = self.clients_for(endpoint.url);
        let request = clients.pooled.get(format!("{}/models", endpoint.url));
        let mut response = clients.send(endpoint, request).await?;
        read_body(&mut response, MAX_MODELS_BYTES).await.map_err(|error| match error {
            BodyError::Failed(error) => from_read_error(error),
            too_large => UpstreamError::server_failure(format!("invalid /models response: {too_large}")),
        })
    }

    /// Fetches a path beside `/v1`, where servers have what is not part of OpenAI's API.
    pub(super) async fn get_from_root(
        &self,
        endpoint: EndpointAddress<'_>,
        path: &str,
        max_bytes: usize,
    ) -> Result<Vec<u8>, UpstreamError> {
        let request = self.clients_for(endpoint.url).pooled.get(root_url(endpoint.url, path));
        self.read_whole(endpoint, request, max_bytes).await
    }

    /// Sends JSON to a path beside `/v1`.
    pub(super) async fn post_to_root(
        &self,
        endpoint: EndpointAddress<'_>,
        path: &str,
        body: Vec<u8>,
        max_bytes: usize,
    ) -> Result<Vec<u8>, UpstreamError> {
        let request = self.clients_for(endpoint.url).pooled.post(root_url(endpoint.url, path));
        let request = request.header(CONTENT_TYPE, "application/json").body(body);
        self.read_whole(endpoint, request, max_bytes).await
    }

    async fn read_whole(
        &self,
        endpoint: EndpointAddress<'_>,
        request: reqwest::RequestBuilder,
        max_bytes: usize,
    ) -> Result<Vec<u8>, UpstreamError> {
        let mut response = self.clients_for(endpoint.url).send(endpoint, request).await?;
        read_body(&mut response, max_bytes).await.map_err(|error| match error {
            BodyError::Failed(error) => from_read_error(error),
            too_large => UpstreamError::server_failure(too_large.to_string()),
        })
    }

    fn clients_for(&self, url: &str) -> &Clients {
        match self.https_clients.get() {
            Some(https_clients) if is_https(url) => https_clients,
            _ => &self.http_clients,
        }
    }
}

fn root_url(url: &str, path: &str) -> String {
    format!("{}{path}", url.strip_suffix("/v1").unwrap_or(url))
}

impl Clients {
    fn build(client_builder: impl Fn() -> reqwest::ClientBuilder) -> Result<Self, TransportError> {
        let build =
            |client: reqwest::ClientBuilder| client.build().map_err(|error| TransportError(describe(error)));
        Ok(Self {
            pooled: build(client_builder())?,
            unpooled: build(client_builder().pool_max_idle_per_host(0))?,
        })
    }

    async fn send(
        &self,
        endpoint: EndpointAddress<'_>,
        request: reqwest::RequestBuilder,
    ) -> Result<Response, UpstreamError> {
        let request = match endpoint.authorization {
            Some(authorization) => request.header(AUTHORIZATION, authorization.clone()),
            None => request,
        };
        let request = request.build().map_err(from_send_error)?;
        // Shares the body.
        let resend = request.try_clone();
        let sent = self.pooled.execute(request).await.map_err(from_send_error);
        let response = match (sent, resend) {
            (Err(error), Some(resend)) if error.kind == UpstreamErrorKind::ConnectionClosed => {
                let (endpoint, error) = (endpoint.url, error.detail);
                tracing::debug!(endpoint, error, "upstream connection closed, resending on a new one");
                self.unpooled.execute(resend).await.map_err(from_send_error)
            }
            (sent, _) => sent,
        }?;
        if response.status().is_success() { Ok(response) } else { Err(from_error_response(response).await) }
    }
}

fn is_https(url: &str) -> bool {
    url.starts_with("https://")
}

fn client_builder(connect_timeout: Duration) -> reqwest::ClientBuilder {
    chancery_http_client::client_builder()
        .user_agent("chancery")
        .pool_idle_timeout(IDLE_CONNECTION_TIMEOUT)
        .connect_timeout(connect_timeout)
        .tcp_nodelay(true)
        // Upstream servers are on the local network. A network proxy is for what is outside.
        .no_proxy()
}

/// The whole header, marked as sensitive.
pub(super) fn authorization(api_key: Option<&str>) -> Result<Option<HeaderValue>, TransportError> {
    let Some(key) = api_key else { return Ok(None) };
    let invalid_header = |_| TransportError("API key contains characters not allowed in a header".to_owned());
    let mut header = HeaderValue::from_str(&format!("Bearer {key}")).map_err(invalid_header)?;
    header.set_sensitive(true);
    Ok(Some(header))
}

/// The status alone makes it an error, however much of the body arrives.
async fn from_error_response(mut response: Response) -> UpstreamError {
    let status = response.status();
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|seconds| seconds.to_str().ok());
    let retry_after_s = retry_after.and_then(|seconds| seconds.parse().ok());
    let mut body = Vec::new();
    let reading = async {
        while body.len() < MAX_ERROR_BODY_BYTES {
            let Ok(Some(chunk)) = response.chunk().await else { break };
            body.extend_from_slice(&chunk);
        }
    };
    let _ = timeout(ERROR_BODY_TIMEOUT, reading).await;
    body.truncate(MAX_ERROR_BODY_BYTES);
    error_response::read(status, retry_after_s, &String::from_utf8_lossy(&body))
}

/// Maps an error before the response head.
fn from_send_error(error: reqwest::Error) -> UpstreamError {
    let kind = match &error {
        error if error.is_connect() => UpstreamErrorKind::Unreachable,
        error if error.is_timeout() => UpstreamErrorKind::TimedOut,
        error if error.is_builder() => UpstreamErrorKind::ServerFailure,
        _ => UpstreamErrorKind::ConnectionClosed,
    };
    UpstreamError::new(kind, describe(error))
}

/// Maps an error after the response head.
pub(super) fn from_read_error(error: reqwest::Error) -> UpstreamError {
    let kind = if error.is_timeout() { UpstreamErrorKind::TimedOut } else { UpstreamErrorKind::Unreachable };
    UpstreamError::new(kind, describe(error))
}
