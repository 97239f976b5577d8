//! HTTP to the servers of a pool, with limits on time and size. Never follows redirects.

use super::error::{UpstreamError, UpstreamErrorKind};
use super::error_response;
use super::limits::{ERROR_BODY_TIMEOUT, IDLE_CONNECTION_TIMEOUT, MAX_ERROR_BODY_BYTES, MAX_MODELS_BYTES};
use chancery_http_client::{BodyError, client_builder, describe, read_body};
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
    http_client: reqwest::Client,
    /// Created only for https URLs: it needs the system's root certificates, which may be missing.
    https_client: OnceLock<reqwest::Client>,
}

/// A URL together with its key, so that the key never goes to another server.
#[derive(Clone, Copy)]
pub(super) struct EndpointAddress<'a> {
    pub(super) url: &'a str,
    pub(super) authorization: Option<&'a HeaderValue>,
}

impl Transport {
    pub(super) fn new(connect_timeout: Duration) -> Result<Self, TransportError> {
        let http_client = client(connect_timeout).tls_certs_only(std::iter::empty());
        Ok(Self { connect_timeout, http_client: build(http_client)?, https_client: OnceLock::new() })
    }

    /// Call this before these endpoints are used.
    pub(super) fn ensure_tls_client(&self, endpoints: &[String]) -> Result<(), TransportError> {
        if self.https_client.get().is_none() && endpoints.iter().any(|url| is_https(url)) {
            // Another thread may have created one meanwhile, which is just as good.
            let _ = self.https_client.set(build(client(self.connect_timeout))?);
        }
        Ok(())
    }

    /// Sends a job and returns the response once its head reports success.
    pub(super) async fn chat(
        &self,
        endpoint: EndpointAddress<'_>,
        body: Vec<u8>,
    ) -> Result<Response, UpstreamError> {
        let request = self.client_for(endpoint.url).post(format!("{}/chat/completions", endpoint.url));
        send(endpoint, request.header(CONTENT_TYPE, "application/json").body(body)).await
    }

    /// Fetches the server's list of models.
    pub(super) async fn models(&self, endpoint: EndpointAddress<'_>) -> Result<Vec<u8>, UpstreamError> {
        let mut response =
            send(endpoint, self.client_for(endpoint.url).get(format!("{}/models", endpoint.url))).await?;
        read_body(&mut response, MAX_MODELS_BYTES).await.map_err(|error| match error {
            BodyError::Failed(error) => from_read_error(error),
            too_large => UpstreamError::server_failure(format!("invalid /models response: {too_large}")),
        })
    }

    fn client_for(&self, url: &str) -> &reqwest::Client {
        match self.https_client.get() {
            Some(https_client) if is_https(url) => https_client,
            _ => &self.http_client,
        }
    }
}

fn is_https(url: &str) -> bool {
    url.starts_with("https://")
}

fn client(connect_timeout: Duration) -> reqwest::ClientBuilder {
    client_builder()
        .user_agent("chancery")
        .pool_idle_timeout(IDLE_CONNECTION_TIMEOUT)
        .connect_timeout(connect_timeout)
        .tcp_nodelay(true)
        // Upstream servers are on the local network. A network proxy is for what is outside.
        .no_proxy()
}

fn build(client: reqwest::ClientBuilder) -> Result<reqwest::Client, TransportError> {
    client.build().map_err(|error| TransportError(describe(error)))
}

/// The whole header, marked as sensitive.
pub(super) fn authorization(api_key: Option<&str>) -> Result<Option<HeaderValue>, TransportError> {
    let Some(key) = api_key else { return Ok(None) };
    let invalid_header = |_| TransportError("API key contains characters not allowed in a header".to_owned());
    let mut header = HeaderValue::from_str(&format!("Bearer {key}")).map_err(invalid_header)?;
    header.set_sensitive(true);
    Ok(Some(header))
}

async fn send(
    endpoint: EndpointAddress<'_>,
    request: reqwest::RequestBuilder,
) -> Result<Response, UpstreamError> {
    let request = match endpoint.authorization {
        Some(authorization) => request.header(AUTHORIZATION, authorization.clone()),
        None => request,
    };
    let response = request.send().await.map_err(from_send_error)?;
    if response.status().is_success() { Ok(response) } else { Err(from_error_response(response).await) }
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
    let kind = match (error.is_connect(), error.is_timeout()) {
        (true, _) => UpstreamErrorKind::Unreachable,
        (false, true) => UpstreamErrorKind::TimedOut,
        (false, false) => UpstreamErrorKind::ConnectionClosed,
    };
    UpstreamError::new(kind, describe(error))
}

/// Maps an error after the response head.
pub(super) fn from_read_error(error: reqwest::Error) -> UpstreamError {
    let kind = if error.is_timeout() { UpstreamErrorKind::TimedOut } else { UpstreamErrorKind::Unreachable };
    UpstreamError::new(kind, describe(error))
}
