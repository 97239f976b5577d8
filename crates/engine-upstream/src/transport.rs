//! HTTP to the servers of a pool: within bounds of time and size, never where a reply would send it.

use super::fault::{Fault, Trouble};
use super::limits::{IDLE_CONNECTION_KEPT, MAX_MODELS_BYTES, MAX_REFUSAL_BYTES, REFUSAL_PATIENCE};
use super::refusal;
use chancery_http_client::{BodyError, client_builder, describe, read_body};
use reqwest::Response;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use std::sync::OnceLock;
use std::time::Duration;
use tokio::time::timeout;

/// The HTTP client cannot be made, or not used with this key; the text says why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TransportError(String);

pub(super) struct Transport {
    connect_timeout: Duration,
    without_tls: reqwest::Client,
    /// Made only where a server's address is https: it needs the machine's certificates, which there may be none of.
    with_tls: OnceLock<reqwest::Client>,
}

/// Where a request goes and the key that goes with it: never one without the other.
#[derive(Clone, Copy)]
pub(super) struct Addressee<'a> {
    pub(super) url: &'a str,
    pub(super) authorization: Option<&'a HeaderValue>,
}

impl Transport {
    pub(super) fn new(connect_timeout: Duration) -> Result<Self, TransportError> {
        let without_tls = client(connect_timeout).tls_certs_only(std::iter::empty());
        Ok(Self { connect_timeout, without_tls: built(without_tls)?, with_tls: OnceLock::new() })
    }

    /// To be called before these are used.
    pub(super) fn prepare_for(&self, endpoints: &[String]) -> Result<(), TransportError> {
        if self.with_tls.get().is_none() && endpoints.iter().any(|url| has_tls(url)) {
            // Somebody else may have made one meanwhile, which is as good.
            let _ = self.with_tls.set(built(client(self.connect_timeout))?);
        }
        Ok(())
    }

    /// Sends a job, and gives the reply once its head is there and says that it went well.
    pub(super) async fn chat(&self, to: Addressee<'_>, body: Vec<u8>) -> Result<Response, Fault> {
        let request = self.http(to.url).post(format!("{}/chat/completions", to.url));
        send(to, request.header(CONTENT_TYPE, "application/json").body(body)).await
    }

    /// The server's list of models.
    pub(super) async fn models(&self, of: Addressee<'_>) -> Result<Vec<u8>, Fault> {
        let mut reply = send(of, self.http(of.url).get(format!("{}/models", of.url))).await?;
        read_body(&mut reply, MAX_MODELS_BYTES).await.map_err(|error| match error {
            BodyError::Failed(error) => of_failed_reading(error),
            too_large => Fault::broken(format!("its list of models cannot be used: {too_large}")),
        })
    }

    fn http(&self, url: &str) -> &reqwest::Client {
        match self.with_tls.get() {
            Some(with_tls) if has_tls(url) => with_tls,
            _ => &self.without_tls,
        }
    }
}

fn has_tls(url: &str) -> bool {
    url.starts_with("https://")
}

fn client(connect_timeout: Duration) -> reqwest::ClientBuilder {
    client_builder()
        .user_agent("chancery")
        .pool_idle_timeout(IDLE_CONNECTION_KEPT)
        .connect_timeout(connect_timeout)
        .tcp_nodelay(true)
        // Generation servers stand beside this one; a proxy of the network is for what is outside.
        .no_proxy()
}

fn built(client: reqwest::ClientBuilder) -> Result<reqwest::Client, TransportError> {
    client.build().map_err(|error| TransportError(describe(error)))
}

/// The whole header, marked as secret.
pub(super) fn authorization(api_key: Option<&str>) -> Result<Option<HeaderValue>, TransportError> {
    let Some(key) = api_key else { return Ok(None) };
    let unfit = |_| TransportError("the API key has characters that no header takes".to_owned());
    let mut header = HeaderValue::from_str(&format!("Bearer {key}")).map_err(unfit)?;
    header.set_sensitive(true);
    Ok(Some(header))
}

async fn send(to: Addressee<'_>, request: reqwest::RequestBuilder) -> Result<Response, Fault> {
    let request = match to.authorization {
        Some(authorization) => request.header(AUTHORIZATION, authorization.clone()),
        None => request,
    };
    let reply = request.send().await.map_err(of_failed_sending)?;
    if reply.status().is_success() { Ok(reply) } else { Err(of_refusal(reply).await) }
}

/// A refusal is one however much of its words comes.
async fn of_refusal(mut reply: Response) -> Fault {
    let status = reply.status();
    let retry_after = reply.headers().get(RETRY_AFTER).and_then(|seconds| seconds.to_str().ok());
    let retry_after_s = retry_after.and_then(|seconds| seconds.parse().ok());
    let mut body = Vec::new();
    let reading = async {
        while body.len() < MAX_REFUSAL_BYTES {
            let Ok(Some(chunk)) = reply.chunk().await else { break };
            body.extend_from_slice(&chunk);
        }
    };
    let _ = timeout(REFUSAL_PATIENCE, reading).await;
    body.truncate(MAX_REFUSAL_BYTES);
    refusal::read(status, retry_after_s, &String::from_utf8_lossy(&body))
}

/// Before the reply's head.
fn of_failed_sending(error: reqwest::Error) -> Fault {
    let trouble = match (error.is_connect(), error.is_timeout()) {
        (true, _) => Trouble::Unreachable,
        (false, true) => Trouble::TimedOut,
        (false, false) => Trouble::Lost,
    };
    Fault::new(trouble, describe(error))
}

/// After it.
pub(super) fn of_failed_reading(error: reqwest::Error) -> Fault {
    let trouble = if error.is_timeout() { Trouble::TimedOut } else { Trouble::Unreachable };
    Fault::new(trouble, describe(error))
}
