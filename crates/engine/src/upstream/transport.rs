//! HTTP to the servers of a pool: within bounds of time and size, never where a reply would send it.

use super::chat::kind_of_error;
use super::fault::{Fault, Trouble};
use super::limits::{IDLE_CONNECTION_KEPT, MAX_MODELS_BYTES, MAX_REFUSAL_BYTES};
use reqwest::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use std::error::Error;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

/// The HTTP client cannot be made; the text says why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TransportError(String);

pub(super) struct Transport {
    http: reqwest::Client,
    /// The whole header, marked as secret; it can be replaced while jobs run.
    authorization: RwLock<Option<HeaderValue>>,
}

/// Words in a refusal that say the prompt does not fit: vLLM's and SGLang's, llama-server's, and OpenAI's code for it.
const TOO_LONG: [&str; 5] = [
    "maximum context length",
    "context_length_exceeded",
    "exceed_context_size",
    "longer than the model's context",
    "input_too_long",
];

impl Transport {
    pub(super) fn new(api_key: Option<&str>, connect_timeout: Duration) -> Result<Self, TransportError> {
        // Whoever was first chose the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .user_agent("chancery")
            .redirect(reqwest::redirect::Policy::none())
            .pool_idle_timeout(IDLE_CONNECTION_KEPT)
            .connect_timeout(connect_timeout)
            .tcp_nodelay(true)
            // Generation servers stand beside this one; a proxy of the network is for what is outside.
            .no_proxy()
            .build()
            .map_err(|error| TransportError(whole_story(error)))?;
        let transport = Self { http, authorization: RwLock::new(None) };
        transport.set_api_key(api_key)?;
        Ok(transport)
    }

    pub(super) fn set_api_key(&self, api_key: Option<&str>) -> Result<(), TransportError> {
        let header = match api_key {
            None => None,
            Some(key) => {
                let mut header = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| {
                    TransportError("the API key has characters that no header takes".to_owned())
                })?;
                header.set_sensitive(true);
                Some(header)
            }
        };
        *self.authorization.write().unwrap_or_else(PoisonError::into_inner) = header;
        Ok(())
    }

    /// Sends a job, and gives the reply once its head is there and says that it went well.
    pub(super) async fn chat(&self, endpoint: &str, body: Vec<u8>) -> Result<Response, Fault> {
        let request = self.http.post(format!("{endpoint}/chat/completions"));
        self.send(request.header(CONTENT_TYPE, "application/json").body(body)).await
    }

    /// The server's list of models.
    pub(super) async fn models(&self, endpoint: &str) -> Result<Vec<u8>, Fault> {
        let reply = self.send(self.http.get(format!("{endpoint}/models"))).await?;
        read(reply, MAX_MODELS_BYTES).await
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<Response, Fault> {
        let authorization = self.authorization.read().unwrap_or_else(PoisonError::into_inner).clone();
        let request = match authorization {
            Some(authorization) => request.header(reqwest::header::AUTHORIZATION, authorization),
            None => request,
        };
        let reply = request.send().await.map_err(of_failed_sending)?;
        if reply.status().is_success() { Ok(reply) } else { Err(of_refusal(reply).await) }
    }
}

async fn read(mut reply: Response, max_bytes: usize) -> Result<Vec<u8>, Fault> {
    let mut body = Vec::new();
    while let Some(chunk) = reply.chunk().await.map_err(of_failed_sending)? {
        if body.len() + chunk.len() > max_bytes {
            return Err(Fault::broken(format!("a reply has more than {max_bytes} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

async fn of_refusal(reply: Response) -> Fault {
    let status = reply.status();
    let retry_after = reply.headers().get(RETRY_AFTER).and_then(|seconds| seconds.to_str().ok());
    let retry_after_s = retry_after.and_then(|seconds| seconds.parse().ok());
    let body = read(reply, MAX_REFUSAL_BYTES).await.unwrap_or_default();
    let body = String::from_utf8_lossy(&body);
    let trouble = match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Trouble::Busy { retry_after_s },
        StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT => Trouble::TimedOut,
        // Its key, its address or its model is not what this side was told: it can be used for nothing.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => Trouble::Broken,
        _ if TOO_LONG.iter().any(|words| body.contains(words)) => Trouble::TooLong,
        status if status.is_client_error() => Trouble::Refused,
        _ => Trouble::Broken,
    };
    let error: serde_json::Value = serde_json::from_str(&body).unwrap_or_default();
    Fault::new(trouble, format!("it answered {}{}", status.as_u16(), kind_of_error(&error["error"])))
}

pub(super) fn of_failed_sending(error: reqwest::Error) -> Fault {
    let trouble =
        if error.is_timeout() && !error.is_connect() { Trouble::TimedOut } else { Trouble::Unreachable };
    Fault::new(trouble, whole_story(error))
}

/// An error and what is behind it, on one line, without the address.
fn whole_story(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut behind = error.source();
    while let Some(error) = behind {
        text = format!("{text}: {error}");
        behind = error.source();
    }
    text
}
