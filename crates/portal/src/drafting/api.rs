//! HTTP client of the generation API, with limits on time and size and without redirects. It requests the models, a token count, or
//! a draft. Another installation's API may be older: if it rejects one of the optional fields, the draft is requested once more
//! without them.

use super::error::{ApiErrorBody, DraftError, DraftErrorKind};
use super::limits::{
    DRAFT_TIMEOUTS, DraftTimeouts, MAX_ATTEMPTS, MAX_REPLY_BYTES, OFFER_MAX_AGE, OFFER_RETRY_AFTER,
    POOL_IDLE_TIMEOUT,
};
use super::model_offer::{ModelOffer, Models};
use super::settings::DraftingSettings;
use super::stream::DraftStream;
use super::tuning::GenerationOptions;
use axum::http::header::RETRY_AFTER;
use chancery_domain::Clock;
use chancery_http_client::{BodyError, OwnCertificates, client_builder_trusting, describe, read_body};
use reqwest::{RequestBuilder, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Names are for servers elsewhere; an address is on this machine or beside it.
fn is_ip_address(url: &reqwest::Url) -> bool {
    url.host_str().is_some_and(|host| host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok())
}

/// The API client cannot be built; the text says why.
#[derive(Debug, thiserror::Error)]
#[error("invalid portal.drafting.api_url: {0}")]
pub struct DraftingConfigError(String);

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prompt {
    pub(crate) instructions: String,
    pub(crate) input: String,
    pub(crate) max_output_tokens: u32,
    pub(crate) options: GenerationOptions,
}

/// Reply of `/v1/tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Count {
    pub(crate) input_tokens: u32,
    /// The requested maximum, or what the context leaves room for.
    pub(crate) max_output_tokens: u32,
}

pub(crate) struct Drafter {
    settings: DraftingSettings,
    http: reqwest::Client,
    timeouts: DraftTimeouts,
    clock: Arc<dyn Clock>,
    cached: tokio::sync::Mutex<Option<CachedOffer>>,
}

struct CachedOffer {
    at: Instant,
    model_offer: Result<ModelOffer, DraftError>,
}

impl Drafter {
    /// Sends no request: the API may be down, or start later.
    pub(crate) fn new(
        settings: DraftingSettings,
        own_certificates: &OwnCertificates,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, DraftingConfigError> {
        Self::with_timeouts(settings, own_certificates, clock, DRAFT_TIMEOUTS)
    }

    pub(super) fn with_timeouts(
        settings: DraftingSettings,
        own_certificates: &OwnCertificates,
        clock: Arc<dyn Clock>,
        timeouts: DraftTimeouts,
    ) -> Result<Self, DraftingConfigError> {
        let url =
            reqwest::Url::parse(&settings.api_url).map_err(|error| DraftingConfigError(error.to_string()))?;
        let builder = client_builder_trusting(own_certificates)
            .user_agent("chancery-portal")
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .connect_timeout(timeouts.connect);
        // A network proxy cannot reach a server that listens on this machine only.
        let is_local = url.scheme() == "http" || is_ip_address(&url);
        let builder = if is_local { builder.no_proxy() } else { builder };
        let http = builder.build().map_err(|error| DraftingConfigError(describe(error)))?;
        Ok(Self { settings, http, timeouts, clock, cached: tokio::sync::Mutex::default() })
    }

    /// The model and its prices, at most a minute old.
    pub(crate) async fn model_offer(&self) -> Result<ModelOffer, DraftError> {
        let mut cached = self.cached.lock().await;
        let now = self.clock.monotonic();
        if let Some(CachedOffer { at, model_offer }) = &*cached {
            let max_age = if model_offer.is_ok() { OFFER_MAX_AGE } else { OFFER_RETRY_AFTER };
            if now.saturating_duration_since(*at) < max_age {
                return model_offer.clone();
            }
        }
        let model_offer = self.fetch_offer().await;
        *cached = Some(CachedOffer { at: now, model_offer: model_offer.clone() });
        model_offer
    }

    /// The model and its prices as they are now. Panels show them from now on.
    pub(crate) async fn current_offer(&self) -> Result<ModelOffer, DraftError> {
        let model_offer = self.fetch_offer().await;
        let mut cached = self.cached.lock().await;
        *cached = Some(CachedOffer { at: self.clock.monotonic(), model_offer: model_offer.clone() });
        model_offer
    }

    async fn fetch_offer(&self) -> Result<ModelOffer, DraftError> {
        let request = self.http.get(self.url("/v1/models"));
        let models: Models = self.fetch_json(request).await?;
        ModelOffer::choose(models, self.settings.model.as_deref())
    }

    /// Counts tokens only; generates and bills nothing.
    pub(crate) async fn count(&self, model_offer: &ModelOffer, prompt: &Prompt) -> Result<Count, DraftError> {
        let body = required_fields(model_offer, prompt, false);
        self.fetch_json(self.http.post(self.url("/v1/tokens")).json(&body)).await
    }

    /// Starts a draft with this model, at these prices.
    pub(crate) async fn draft(
        &self,
        model_offer: &ModelOffer,
        prompt: &Prompt,
    ) -> Result<DraftStream, DraftError> {
        let mut body = required_fields(model_offer, prompt, true);
        body.extend(prompt.options.fields());
        let mut attempt = 1;
        let reply = loop {
            let request = self.http.post(self.url("/v1/generate")).json(&body);
            match self.send(request, self.timeouts.start).await {
                // The API rejects the request before it generates anything.
                Err(DraftError { kind: DraftErrorKind::UnsupportedField, detail })
                    if attempt < MAX_ATTEMPTS =>
                {
                    tracing::warn!(
                        detail,
                        "generation api does not support a drafting option, retrying without"
                    );
                    attempt += 1;
                    body = required_fields(model_offer, prompt, true);
                }
                other => break other?,
            }
        };
        let kind =
            reply.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            let detail = format!("unexpected content type {kind:?} for a draft");
            return Err(DraftError::new(DraftErrorKind::InvalidReply, detail));
        }
        Ok(DraftStream::new(reply, model_offer.clone(), self.timeouts))
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.settings.api_url)
    }

    /// For requests that generate nothing, so that nothing is billed however they fail.
    async fn fetch_json<T: for<'a> Deserialize<'a>>(&self, request: RequestBuilder) -> Result<T, DraftError> {
        let timeout = self.timeouts.reply;
        let reply = async {
            let reply = self.send(request, timeout).await?;
            with_timeout(timeout, read(reply)).await?
        };
        let body = reply.await.map_err(DraftError::without_billing)?;
        let invalid_json = "invalid JSON in a reply";
        serde_json::from_slice(&body).map_err(|_| DraftError::new(DraftErrorKind::InvalidReply, invalid_json))
    }

    /// Waits for the response headers. An error status becomes a `DraftError`.
    async fn send(&self, request: RequestBuilder, timeout: Duration) -> Result<Response, DraftError> {
        let sending = request.bearer_auth(&self.settings.api_key).send();
        let reply = with_timeout(timeout, sending).await?.map_err(from_send_error)?;
        let status = reply.status();
        if status.is_success() {
            return Ok(reply);
        }
        let retry_after = reply.headers().get(RETRY_AFTER).and_then(|seconds| seconds.to_str().ok());
        let retry_after_s = retry_after.and_then(|seconds| seconds.parse().ok());
        // A proxy in between may send an error body of its own; then only the status counts.
        let body = match with_timeout(self.timeouts.reply, read(reply)).await {
            Ok(Ok(body)) => serde_json::from_slice(&body).unwrap_or_default(),
            _ => ApiErrorBody::default(),
        };
        Err(DraftError::from_error_reply(status, &body.error, retry_after_s))
    }
}

/// What every version of the API knows.
fn required_fields(model_offer: &ModelOffer, prompt: &Prompt, stream: bool) -> Map<String, Value> {
    let Prompt { instructions, input, max_output_tokens, .. } = prompt;
    Map::from_iter([
        ("model".to_owned(), json!(model_offer.model)),
        ("instructions".to_owned(), json!(instructions)),
        ("input".to_owned(), json!(input)),
        ("max_output_tokens".to_owned(), json!(max_output_tokens)),
        ("stream".to_owned(), json!(stream)),
    ])
}

async fn with_timeout<T>(timeout: Duration, work: impl Future<Output = T>) -> Result<T, DraftError> {
    let timed = tokio::time::timeout(timeout, work).await;
    timed.map_err(|_| {
        DraftError::new(DraftErrorKind::TimedOut, format!("no reply within {} ms", timeout.as_millis()))
    })
}

async fn read(mut reply: Response) -> Result<Vec<u8>, DraftError> {
    read_body(&mut reply, MAX_REPLY_BYTES).await.map_err(|error| match error {
        BodyError::Failed(error) => from_send_error(error),
        too_large => DraftError::new(DraftErrorKind::InvalidReply, format!("reply rejected: {too_large}")),
    })
}

fn from_send_error(error: reqwest::Error) -> DraftError {
    let kind = match &error {
        error if error.is_connect() => DraftErrorKind::Unreachable,
        error if error.is_timeout() => DraftErrorKind::TimedOut,
        _ => DraftErrorKind::StreamInterrupted,
    };
    DraftError::new(kind, describe(error))
}
