//! The portal as a client of the generation API: over HTTP within bounds of time and size, never where a reply would send
//! it. What it asks for: the models, a count, a draft.

use super::fault::{ApiRefusal, Fault, Trouble};
use super::limits::{
    IDLE_CONNECTION_KEPT, MAX_REPLY_BYTES, OFFER_MAX_AGE, OFFER_RETRY_AFTER, PATIENCE, Patience,
};
use super::offer::{Models, Offer};
use super::settings::DraftingSettings;
use super::stream::DraftStream;
use axum::http::header::RETRY_AFTER;
use chancery_domain::Clock;
use chancery_http_client::{BodyError, client_builder, describe, read_body};
use reqwest::{RequestBuilder, Response};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Why there can be no client of the API; the text says what is wrong.
#[derive(Debug, thiserror::Error)]
#[error("portal.drafting.api_url cannot be used: {0}")]
pub struct DraftingError(String);

/// What the model is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prompt {
    pub(crate) instructions: String,
    pub(crate) input: String,
    pub(crate) max_output_tokens: u32,
}

/// What a prompt would take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Count {
    pub(crate) input_tokens: u32,
    /// What was asked for, or what the context leaves room for.
    pub(crate) max_output_tokens: u32,
}

pub(crate) struct Drafter {
    settings: DraftingSettings,
    http: reqwest::Client,
    patience: Patience,
    clock: Arc<dyn Clock>,
    remembered: tokio::sync::Mutex<Option<Remembered>>,
}

struct Remembered {
    at: Instant,
    offer: Result<Offer, Fault>,
}

impl Drafter {
    /// The API is asked for nothing yet; it may be down, or start later.
    pub(crate) fn new(settings: DraftingSettings, clock: Arc<dyn Clock>) -> Result<Self, DraftingError> {
        Self::with_patience(settings, clock, PATIENCE)
    }

    pub(super) fn with_patience(
        settings: DraftingSettings,
        clock: Arc<dyn Clock>,
        patience: Patience,
    ) -> Result<Self, DraftingError> {
        let url = reqwest::Url::parse(&settings.api_url).map_err(|error| DraftingError(error.to_string()))?;
        let builder = client_builder()
            .user_agent("chancery-portal")
            .pool_idle_timeout(IDLE_CONNECTION_KEPT)
            .connect_timeout(patience.connect);
        // A proxy of the network cannot reach what listens on this machine alone.
        let builder = if url.scheme() == "http" { builder.no_proxy() } else { builder };
        let http = builder.build().map_err(|error| DraftingError(describe(error)))?;
        Ok(Self { settings, http, patience, clock, remembered: tokio::sync::Mutex::default() })
    }

    /// The model and its prices, as they were within the last minute.
    pub(crate) async fn offer(&self) -> Result<Offer, Fault> {
        let mut remembered = self.remembered.lock().await;
        let now = self.clock.monotonic();
        if let Some(Remembered { at, offer }) = &*remembered {
            let max_age = if offer.is_ok() { OFFER_MAX_AGE } else { OFFER_RETRY_AFTER };
            if now.saturating_duration_since(*at) < max_age {
                return offer.clone();
            }
        }
        let offer = self.ask_for_offer().await;
        *remembered = Some(Remembered { at: now, offer: offer.clone() });
        offer
    }

    async fn ask_for_offer(&self) -> Result<Offer, Fault> {
        let request = self.http.get(self.url("/v1/models"));
        let models: Models = self.whole_reply(request).await?;
        Offer::choose(models, self.settings.model.as_deref())
    }

    /// Runs nothing and costs nothing.
    pub(crate) async fn count(&self, offer: &Offer, prompt: &Prompt) -> Result<Count, Fault> {
        let body = body(offer, prompt, false);
        self.whole_reply(self.http.post(self.url("/v1/tokens")).json(&body)).await
    }

    /// Begins a draft, at the prices of this moment.
    pub(crate) async fn draft(&self, prompt: &Prompt) -> Result<DraftStream, Fault> {
        let offer = self.ask_for_offer().await?;
        let request = self.http.post(self.url("/v1/generate")).json(&body(&offer, prompt, true));
        let reply = self.send(request, self.patience.beginning).await?;
        let kind =
            reply.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            let story = format!("a draft came as {kind:?} and not as events");
            return Err(Fault::new(Trouble::NotUnderstood, story));
        }
        Ok(DraftStream::new(reply, offer, self.patience))
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.settings.api_url)
    }

    /// Of a request that runs nothing, so that nothing is billed however it fails.
    async fn whole_reply<T: for<'a> Deserialize<'a>>(&self, request: RequestBuilder) -> Result<T, Fault> {
        let patience = self.patience.reply;
        let reply = async {
            let reply = self.send(request, patience).await?;
            within(patience, read(reply)).await?
        };
        let body = reply.await.map_err(Fault::of_nothing_run)?;
        let unreadable = "a reply is not the JSON that it should be";
        serde_json::from_slice(&body).map_err(|_| Fault::new(Trouble::NotUnderstood, unreadable))
    }

    /// Until the head of the reply; a refusal is a fault.
    async fn send(&self, request: RequestBuilder, patience: Duration) -> Result<Response, Fault> {
        let sending = request.bearer_auth(&self.settings.api_key).send();
        let reply = within(patience, sending).await?.map_err(of_failed_sending)?;
        let status = reply.status();
        if status.is_success() {
            return Ok(reply);
        }
        let retry_after = reply.headers().get(RETRY_AFTER).and_then(|seconds| seconds.to_str().ok());
        let retry_after_s = retry_after.and_then(|seconds| seconds.parse().ok());
        // A proxy in between may refuse in words of its own; then the status has to do.
        let body = match within(self.patience.reply, read(reply)).await {
            Ok(Ok(body)) => serde_json::from_slice(&body).unwrap_or_default(),
            _ => ApiRefusal::default(),
        };
        Err(Fault::of_refusal(status, &body.error, retry_after_s))
    }
}

fn body(offer: &Offer, prompt: &Prompt, stream: bool) -> serde_json::Value {
    let Prompt { instructions, input, max_output_tokens } = prompt;
    json!({
        "model": offer.model,
        "instructions": instructions,
        "input": input,
        "max_output_tokens": max_output_tokens,
        "stream": stream,
    })
}

async fn within<T>(patience: Duration, work: impl Future<Output = T>) -> Result<T, Fault> {
    let timed = tokio::time::timeout(patience, work).await;
    timed
        .map_err(|_| Fault::new(Trouble::TookTooLong, format!("no reply within {} ms", patience.as_millis())))
}

async fn read(mut reply: Response) -> Result<Vec<u8>, Fault> {
    read_body(&mut reply, MAX_REPLY_BYTES).await.map_err(|error| match error {
        BodyError::Failed(error) => of_failed_sending(error),
        too_large => Fault::new(Trouble::NotUnderstood, format!("a reply cannot be used: {too_large}")),
    })
}

fn of_failed_sending(error: reqwest::Error) -> Fault {
    let trouble = match &error {
        error if error.is_connect() => Trouble::Unreachable,
        error if error.is_timeout() => Trouble::TookTooLong,
        _ => Trouble::CutOff,
    };
    Fault::new(trouble, describe(error))
}
