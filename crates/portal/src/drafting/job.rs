//! Runs one draft: to its end, for a page, or as an event stream, for a script. Dropping it at any point closes the connection to the
//! API, which stops the model.

use super::error::{DraftError, DraftErrorKind};
use super::failure::DraftFailure;
use super::fit;
use super::form::DraftRequest;
use super::limits::KEEP_ALIVE_INTERVAL;
use super::prompt::Brief;
use super::receipt::Receipt;
use super::stream::{DraftEvent, DraftStream};
use crate::state::Portal;
use crate::time_format::LocalTime;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use chancery_domain::{Client, Entry, RequestId};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;

pub(crate) struct DraftJob {
    pub(crate) portal: Arc<Portal>,
    pub(crate) request: Result<DraftRequest, DraftFailure>,
    pub(crate) writer: String,
    /// The writer's time.
    pub(crate) local: LocalTime,
    pub(crate) client: Client,
    pub(crate) entries: Vec<Entry>,
    pub(crate) request_id: RequestId,
}

impl DraftJob {
    /// Counts tokens, and starts the draft if everything fits.
    async fn begin(&self) -> Result<DraftStream, DraftFailure> {
        let drafter = self
            .portal
            .drafter
            .as_ref()
            .ok_or_else(|| DraftError::new(DraftErrorKind::NotConfigured, "drafting is not set up"))?;
        let request = self.request.clone()?;
        let brief = Brief {
            firm_name: &self.portal.settings.firm_name,
            writer: &self.writer,
            purpose: &request.purpose,
            local: &self.local,
            client: &self.client,
            entries: &self.entries,
            max_output_tokens: request.max_output_tokens,
        };
        let prompt = fit::fit_prompt(drafter, &brief).await?;
        Ok(drafter.draft(&prompt).await?)
    }

    /// Runs the draft to its end, for a page.
    pub(super) async fn run(&self) -> Result<(String, Box<Receipt>), DraftFailure> {
        let drafted = async {
            let mut draft = self.begin().await?;
            let mut text = String::new();
            loop {
                match draft.next().await {
                    Some(DraftEvent::Text(more)) => text += &more,
                    Some(DraftEvent::Finished(receipt)) => return Ok((text, receipt)),
                    Some(DraftEvent::Failed(error)) => return Err(error.into()),
                    None => {
                        return Err(DraftError::new(
                            DraftErrorKind::StreamInterrupted,
                            "draft ended without a final event",
                        )
                        .into());
                    }
                }
            }
        };
        let drafted: Result<_, DraftFailure> = drafted.await;
        drafted.inspect_err(|failure| self.log(failure))
    }

    fn log(&self, failure: &DraftFailure) {
        if let Some(error) = &failure.error {
            error.log(&self.request_id);
        }
    }
}

/// The draft as an event stream. If the browser disconnects, the stream is dropped, which stops the model.
pub(crate) fn stream(job: DraftJob) -> Response {
    let events = Events { job, stage: StreamStage::Beginning };
    let body = Body::from_stream(futures_util::stream::unfold(events, async |mut events| {
        let bytes = events.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(bytes)), events))
    }));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        // Otherwise nginx would buffer the events.
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, body).into_response()
}

struct Events {
    job: DraftJob,
    stage: StreamStage,
}

enum StreamStage {
    Beginning,
    Running(Box<DraftStream>),
    Over,
}

impl Events {
    async fn next(&mut self) -> Option<String> {
        match &mut self.stage {
            StreamStage::Beginning => match self.job.begin().await {
                Ok(draft) => {
                    self.stage = StreamStage::Running(Box::new(draft));
                    Some(": begun\n\n".to_owned())
                }
                Err(failure) => Some(self.failed(&failure)),
            },
            StreamStage::Running(draft) => {
                match tokio::time::timeout(KEEP_ALIVE_INTERVAL, draft.next()).await {
                    Err(_) => Some(": keep-alive\n\n".to_owned()),
                    Ok(Some(DraftEvent::Text(text))) => Some(event("delta", &json!({ "text": text }))),
                    Ok(Some(DraftEvent::Finished(receipt))) => {
                        self.stage = StreamStage::Over;
                        Some(finished(&receipt))
                    }
                    Ok(Some(DraftEvent::Failed(error))) => Some(self.failed(&error.into())),
                    Ok(None) => None,
                }
            }
            StreamStage::Over => None,
        }
    }

    fn failed(&mut self, failure: &DraftFailure) -> String {
        self.job.log(failure);
        self.stage = StreamStage::Over;
        let DraftFailure { message, field, retry_after_s, .. } = failure;
        event("failed", &json!({ "words": message, "field": field, "retry_after_s": retry_after_s }))
    }
}

fn finished(receipt: &Receipt) -> String {
    let Receipt { model, stop_reason, input_tokens, output_tokens, cost, text, .. } = receipt;
    event(
        "finished",
        &json!({
            "model": model,
            "stop_reason": stop_reason,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "cost": cost.to_string(),
            "words": text,
        }),
    )
}

/// JSON contains no line breaks outside strings, and within strings they are escaped.
fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}
