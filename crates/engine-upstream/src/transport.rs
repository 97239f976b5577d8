//! HTTP to the servers of a pool, with limits on time and size. Never follows redirects, and uses no proxy: upstream servers are
//! on the local network.
//!
//! Servers close connections without announcing it: idle ones, or even each one after its reply. A request may be sent on
//! such a connection before the close arrives here. It is then sent once more, on a new connection: another one from the
//! pool may have been closed just the same. Only if that connection ends without a response too, the server has failed.
//! Sending twice is safe, because nothing of a job has been passed on or billed before its response. A close that comes later
//! than that of an idle connection can ends a job that the server has begun. It is not sent again here: a whole reply has no
//! head before its end, and would be generated twice.

use super::error::{UpstreamError, UpstreamErrorKind};
use super::error_response;
use super::limits::{
    ERROR_BODY_TIMEOUT, IDLE_CONNECTION_TIMEOUT, MAX_ERROR_BODY_BYTES, MAX_IDLE_CLOSE_DELAY, MAX_MODELS_BYTES,
};
use chancery_domain::Clock;
use chancery_http_client::{Connections, Connector, ReadError, SendError, ServerResponse, error_chain};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT,
};
use hyper::{Method, Request, Uri};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use tokio::time::timeout;

/// Why the HTTP client cannot be built, or cannot be used with this key.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TransportError(String);

pub(super) struct Transport {
    connect_timeout: Duration,
    clock: Arc<dyn Clock>,
    http: Connector,
    /// Created only for https URLs: they need the system's root certificates, which may be missing.
    https: OnceLock<Connector>,
    servers: RwLock<HashMap<String, Arc<Server>>>,
}

/// A server's connections, and what all requests to it have in common.
struct Server {
    clock: Arc<dyn Clock>,
    connections: Arc<Connections>,
    headers: HeaderMap,
    chat_path: Uri,
    models_path: Uri,
}

/// A URL together with its key, so that the key never goes to another server.
#[derive(Clone, Copy)]
pub(super) struct EndpointAddress<'a> {
    pub(super) url: &'a str,
    pub(super) authorization: Option<&'a HeaderValue>,
}

impl Transport {
    pub(super) fn new(connect_timeout: Duration, clock: Arc<dyn Clock>) -> Self {
        let http = Connector::http(connect_timeout);
        Self { connect_timeout, clock, http, https: OnceLock::new(), servers: RwLock::default() }
    }

    /// Call this before these endpoints are used. Closes the idle connections to all others.
    pub(super) fn prepare(&self, endpoints: &[String]) -> Result<(), TransportError> {
        if self.https.get().is_none() && endpoints.iter().any(|url| is_https(url)) {
            let https = Connector::https(self.connect_timeout)
                .map_err(|error| TransportError(format!("cannot use TLS: {}", error_chain(&error))))?;
            // Another thread may have created it meanwhile, and that is just as good.
            let _ = self.https.set(https);
        }
        for url in endpoints {
            self.server(url)?;
        }
        let mut servers = self.servers.write().unwrap_or_else(PoisonError::into_inner);
        servers.retain(|url, _| endpoints.contains(url));
        Ok(())
    }

    /// Sends a job and returns the response once its head reports success.
    pub(super) async fn chat(
        &self,
        endpoint: EndpointAddress<'_>,
        body: Bytes,
    ) -> Result<ServerResponse, UpstreamError> {
        let server = self.server_of(endpoint)?;
        server.send(endpoint, Some(&body), &server.chat_path).await
    }

    /// Fetches the server's list of models.
    pub(super) async fn models(&self, endpoint: EndpointAddress<'_>) -> Result<Bytes, UpstreamError> {
        let server = self.server_of(endpoint)?;
        let mut response = server.send(endpoint, None, &server.models_path).await?;
        response.read_body(MAX_MODELS_BYTES).await.map_err(|error| match error {
            ReadError::Failed(error) => from_read_error(&error),
            too_large => UpstreamError::server_failure(format!("invalid /models response: {too_large}")),
        })
    }

    /// Fetches a path beside `/v1`, where servers have what is not part of OpenAI's API.
    pub(super) async fn get_from_root(
        &self,
        endpoint: EndpointAddress<'_>,
        path: &str,
        max_bytes: usize,
    ) -> Result<Bytes, UpstreamError> {
        self.read_from_root(endpoint, path, None, max_bytes).await
    }

    /// Sends JSON to a path beside `/v1`.
    pub(super) async fn post_to_root(
        &self,
        endpoint: EndpointAddress<'_>,
        path: &str,
        body: Vec<u8>,
        max_bytes: usize,
    ) -> Result<Bytes, UpstreamError> {
        self.read_from_root(endpoint, path, Some(body.into()), max_bytes).await
    }

    async fn read_from_root(
        &self,
        endpoint: EndpointAddress<'_>,
        path: &str,
        body: Option<Bytes>,
        max_bytes: usize,
    ) -> Result<Bytes, UpstreamError> {
        let server = self.server_of(endpoint)?;
        let root = endpoint.url.strip_suffix("/v1").unwrap_or(endpoint.url);
        let uri = path_of(root, path).map_err(|error| UpstreamError::server_failure(error.to_string()))?;
        let mut response = server.send(endpoint, body.as_ref(), &uri).await?;
        read_whole(&mut response, max_bytes).await
    }

    fn server_of(&self, endpoint: EndpointAddress<'_>) -> Result<Arc<Server>, UpstreamError> {
        self.server(endpoint.url).map_err(|error| UpstreamError::server_failure(error.to_string()))
    }

    /// Creates it if necessary: a removed server may still have to finish its jobs.
    fn server(&self, url: &str) -> Result<Arc<Server>, TransportError> {
        if let Some(server) = self.servers.read().unwrap_or_else(PoisonError::into_inner).get(url) {
            return Ok(Arc::clone(server));
        }
        let connector = match self.https.get() {
            Some(https) if is_https(url) => https.clone(),
            _ => self.http.clone(),
        };
        let server = Arc::new(Server::new(url, connector, Arc::clone(&self.clock))?);
        let mut servers = self.servers.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have created it meanwhile.
        Ok(Arc::clone(servers.entry(url.to_owned()).or_insert(server)))
    }
}

impl Server {
    fn new(url: &str, connector: Connector, clock: Arc<dyn Clock>) -> Result<Self, TransportError> {
        let invalid = || TransportError(format!("invalid URL {url:?}"));
        let uri: Uri = url.parse().map_err(|_| invalid())?;
        let host = uri.host().ok_or_else(invalid)?;
        let default_port = if is_https(url) { 443 } else { 80 };
        let host = match uri.port_u16() {
            Some(port) if port != default_port => format!("{host}:{port}"),
            _ => host.to_owned(),
        };
        let mut headers = HeaderMap::with_capacity(5);
        headers.insert(HOST, HeaderValue::from_str(&host).map_err(|_| invalid())?);
        headers.insert(USER_AGENT, HeaderValue::from_static("chancery"));
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        let chat_path = path_of(url, "/chat/completions")?;
        let models_path = path_of(url, "/models")?;
        let connections = Connections::new(connector, uri, IDLE_CONNECTION_TIMEOUT, Arc::clone(&clock));
        Ok(Self { clock, connections: Arc::new(connections), headers, chat_path, models_path })
    }

    fn request(
        &self,
        authorization: Option<&HeaderValue>,
        body: Option<&Bytes>,
        path: &Uri,
    ) -> Request<Full<Bytes>> {
        let mut request = Request::new(body.cloned().map_or_else(Full::default, Full::new));
        let headers = request.headers_mut();
        headers.clone_from(&self.headers);
        if let Some(authorization) = authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        if body.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            *request.method_mut() = Method::POST;
        }
        *request.uri_mut() = path.clone();
        request
    }

    /// Posts the body, or gets the path if there is none.
    async fn send(
        &self,
        endpoint: EndpointAddress<'_>,
        body: Option<&Bytes>,
        path: &Uri,
    ) -> Result<ServerResponse, UpstreamError> {
        let request = || self.request(endpoint.authorization, body, path);
        let sent_at = self.clock.monotonic();
        let may_have_been_idle =
            || self.clock.monotonic().saturating_duration_since(sent_at) < MAX_IDLE_CLOSE_DELAY;
        let sent = match self.connections.send(request()).await {
            Err(SendError::Closed(error)) if may_have_been_idle() => {
                let (endpoint, error) = (endpoint.url, error_chain(&error));
                tracing::debug!(endpoint, error, "upstream connection closed, resending on a new one");
                self.connections.send_on_new_connection(request()).await
            }
            sent => sent,
        };
        let response = sent.map_err(|error| from_send_error(&error))?;
        if response.status.is_success() { Ok(response) } else { Err(from_error_response(response).await) }
    }
}

/// The path of a URL, with more after it.
fn path_of(url: &str, more: &str) -> Result<Uri, TransportError> {
    let invalid = || TransportError(format!("invalid URL {url:?}"));
    let uri: Uri = format!("{url}{more}").parse().map_err(|_| invalid())?;
    uri.path_and_query().cloned().map(Uri::from).ok_or_else(invalid)
}

fn is_https(url: &str) -> bool {
    url.starts_with("https://")
}

/// Reads the body of a response that is not a list of models.
pub(super) async fn read_whole(
    response: &mut ServerResponse,
    max_bytes: usize,
) -> Result<Bytes, UpstreamError> {
    response.read_body(max_bytes).await.map_err(|error| match error {
        ReadError::Failed(error) => from_read_error(&error),
        too_large => UpstreamError::server_failure(too_large.to_string()),
    })
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
async fn from_error_response(mut response: ServerResponse) -> UpstreamError {
    let retry_after = response.headers.get(RETRY_AFTER).and_then(|seconds| seconds.to_str().ok());
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
    error_response::read(response.status, retry_after_s, &String::from_utf8_lossy(&body))
}

/// Maps an error before the response head.
fn from_send_error(error: &SendError) -> UpstreamError {
    let kind = match error {
        SendError::Connect(_) => UpstreamErrorKind::Unreachable,
        SendError::Closed(_) => UpstreamErrorKind::ConnectionClosed,
    };
    UpstreamError::new(kind, error.to_string())
}

/// Maps an error after the response head.
pub(super) fn from_read_error(error: &hyper::Error) -> UpstreamError {
    UpstreamError::new(UpstreamErrorKind::Unreachable, error_chain(error))
}
