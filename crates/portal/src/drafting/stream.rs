//! A draft as a stream. Dropping it closes the connection to the API, which stops the model within one step and bills what
//! was generated until then.

use super::error::{ApiError, DraftError, DraftErrorKind};
use super::limits::{DraftTimeouts, MAX_DRAFT_BYTES, MAX_EVENT_BYTES, MAX_STREAM_BYTES};
use super::model_offer::ModelOffer;
use super::receipt::Receipt;
use chancery_domain::BilledTokens;
use chancery_http_client::{EventReader, describe};
use serde::Deserialize;
use std::collections::VecDeque;
use std::pin::Pin;
use tokio::time::{Sleep, sleep};

/// An item of the stream: any number of texts, then one of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DraftEvent {
    Text(String),
    Finished(Box<Receipt>),
    Failed(DraftError),
}

pub(crate) struct DraftStream {
    reply: reqwest::Response,
    model_offer: ModelOffer,
    timeouts: DraftTimeouts,
    events: EventReader,
    steps: VecDeque<DraftEvent>,
    bytes: usize,
    text_bytes: usize,
    idle_timeout: Pin<Box<Sleep>>,
    total: Pin<Box<Sleep>>,
    is_done: bool,
}

#[derive(Deserialize)]
struct Delta {
    delta: String,
}

#[derive(Deserialize)]
struct CompletedEvent {
    response: CompletedResponse,
}

#[derive(Deserialize)]
struct CompletedResponse {
    stop_reason: String,
    usage: Usage,
}

#[derive(Deserialize)]
struct Usage {
    input_tokens: u32,
    #[serde(default)]
    input_tokens_details: InputTokensDetails,
    output_tokens: u32,
}

#[derive(Default, Deserialize)]
struct InputTokensDetails {
    #[serde(default)]
    cached_tokens: u32,
}

#[derive(Deserialize)]
struct FailedEvent {
    response: FailedResponse,
}

#[derive(Deserialize)]
struct FailedResponse {
    error: ApiError,
}

impl DraftStream {
    pub(super) fn new(reply: reqwest::Response, model_offer: ModelOffer, timeouts: DraftTimeouts) -> Self {
        Self {
            reply,
            model_offer,
            timeouts,
            events: EventReader::new(MAX_EVENT_BYTES),
            steps: VecDeque::new(),
            bytes: 0,
            text_bytes: 0,
            idle_timeout: Box::pin(sleep(timeouts.idle)),
            total: Box::pin(sleep(timeouts.total)),
            is_done: false,
        }
    }

    /// Returns `None` after the end. Cancel-safe: nothing is lost if the caller stops waiting and calls again.
    pub(crate) async fn next(&mut self) -> Option<DraftEvent> {
        loop {
            if let Some(step) = self.steps.pop_front() {
                if !matches!(step, DraftEvent::Text(_)) {
                    self.is_done = true;
                    self.steps.clear();
                }
                return Some(step);
            }
            if self.is_done {
                return None;
            }
            if let Err(error) = self.read().await {
                self.steps.push_back(DraftEvent::Failed(error));
            }
        }
    }

    async fn read(&mut self) -> Result<(), DraftError> {
        let too_long = |what: &str| DraftError::new(DraftErrorKind::TimedOut, what.to_owned());
        let chunk = tokio::select! {
            chunk = self.reply.chunk() => chunk,
            () = &mut self.idle_timeout => return Err(too_long("idle timeout during a draft")),
            () = &mut self.total => return Err(too_long("draft exceeded the total timeout")),
        };
        let cut_off = |detail: String| DraftError::new(DraftErrorKind::StreamInterrupted, detail);
        let chunk = match chunk {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return Err(cut_off("stream ended before its final event".to_owned())),
            Err(error) => return Err(cut_off(describe(error))),
        };
        self.idle_timeout = Box::pin(sleep(self.timeouts.idle));
        self.bytes += chunk.len();
        if self.bytes > MAX_STREAM_BYTES {
            return Err(invalid_reply(format!("draft stream exceeds {MAX_STREAM_BYTES} bytes")));
        }
        let Self { events, steps, model_offer, text_bytes, .. } = self;
        events.read(&chunk, |name, data| {
            steps.extend(step(name, data, model_offer, text_bytes)?);
            Ok(())
        })
    }
}

fn step(
    name: &str,
    data: &str,
    model_offer: &ModelOffer,
    text_bytes: &mut usize,
) -> Result<Option<DraftEvent>, DraftError> {
    match name {
        "response.output_text.delta" => {
            let Delta { delta } = parsed(name, data)?;
            *text_bytes += delta.len();
            if *text_bytes > MAX_DRAFT_BYTES {
                return Err(invalid_reply(format!("draft text exceeds {MAX_DRAFT_BYTES} bytes")));
            }
            Ok(Some(DraftEvent::Text(delta)))
        }
        "response.completed" | "response.incomplete" => {
            let CompletedEvent { response: CompletedResponse { stop_reason, usage } } = parsed(name, data)?;
            let cached_tokens = usage.input_tokens_details.cached_tokens;
            let tokens = BilledTokens::new(usage.input_tokens, cached_tokens, usage.output_tokens)
                .map_err(|error| invalid_reply(error.to_string()))?;
            let receipt = Receipt::new(model_offer, &stop_reason, tokens)
                .map_err(|error| invalid_reply(error.to_string()))?;
            Ok(Some(DraftEvent::Finished(Box::new(receipt))))
        }
        "response.failed" => {
            let FailedEvent { response } = parsed(name, data)?;
            Ok(Some(DraftEvent::Failed(DraftError::from_failed_event(&response.error))))
        }
        // Events that repeat the text, and events that a later version adds.
        _ => Ok(None),
    }
}

/// The error omits the data, which may be part of a letter, to keep it out of the log.
fn parsed<T: for<'a> Deserialize<'a>>(name: &str, data: &str) -> Result<T, DraftError> {
    serde_json::from_str(data).map_err(|_| invalid_reply(format!("invalid data in event {name}")))
}

fn invalid_reply(detail: String) -> DraftError {
    DraftError::new(DraftErrorKind::InvalidReply, detail)
}
