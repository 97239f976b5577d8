//! One draft from its brief to its end: whole, for a page, or as events, for a script. Whoever drops it, wherever it is, hangs up on
//! the API, and the model stops.

use super::failure::Failure;
use super::fault::{Fault, Trouble};
use super::fit;
use super::form::Wanted;
use super::limits::KEEP_ALIVE_PAUSE;
use super::prompt::Brief;
use super::receipt::Receipt;
use super::stream::{DraftStream, Step};
use crate::state::Portal;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use chancery_domain::{Client, Entry, RequestId};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;

/// One draft, with everything it needs.
pub(crate) struct Job {
    pub(crate) portal: Arc<Portal>,
    pub(crate) wanted: Result<Wanted, Failure>,
    pub(crate) writer: String,
    pub(crate) client: Client,
    pub(crate) entries: Vec<Entry>,
    pub(crate) request_id: RequestId,
}

impl Job {
    /// Counts, and begins if all fits.
    async fn begin(&self) -> Result<DraftStream, Failure> {
        let drafter =
            self.portal.drafter.as_ref().ok_or_else(|| Fault::new(Trouble::Off, "drafting is not set up"))?;
        let wanted = self.wanted.clone()?;
        let brief = Brief {
            firm_name: &self.portal.settings.firm_name,
            writer: &self.writer,
            purpose: &wanted.purpose,
            today: self.portal.clock.now(),
            client: &self.client,
            entries: &self.entries,
            max_output_tokens: wanted.max_output_tokens,
        };
        let prompt = fit::fitted(drafter, &brief).await?;
        Ok(drafter.draft(&prompt).await?)
    }

    /// All of it, for a page.
    pub(super) async fn run(&self) -> Result<(String, Box<Receipt>), Failure> {
        let drafted = async {
            let mut draft = self.begin().await?;
            let mut text = String::new();
            loop {
                match draft.next().await {
                    Some(Step::Text(more)) => text += &more,
                    Some(Step::Finished(receipt)) => return Ok((text, receipt)),
                    Some(Step::Failed(fault)) => return Err(fault.into()),
                    None => return Err(Fault::new(Trouble::CutOff, "a draft without an end").into()),
                }
            }
        };
        let drafted: Result<_, Failure> = drafted.await;
        drafted.inspect_err(|failure| self.log(failure))
    }

    fn log(&self, failure: &Failure) {
        if let Some(fault) = &failure.fault {
            fault.log(&self.request_id);
        }
    }
}

/// The reply as events. A browser that hangs up drops it, wherever it is, and the model stops.
pub(crate) fn stream(job: Job) -> Response {
    let events = Events { job, stage: Stage::Beginning };
    let body = Body::from_stream(futures_util::stream::unfold(events, async |mut events| {
        let bytes = events.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(bytes)), events))
    }));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        // Proxies of the nginx family would gather the events otherwise.
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, body).into_response()
}

struct Events {
    job: Job,
    stage: Stage,
}

enum Stage {
    Beginning,
    Running(Box<DraftStream>),
    Over,
}

impl Events {
    async fn next(&mut self) -> Option<String> {
        match &mut self.stage {
            Stage::Beginning => match self.job.begin().await {
                Ok(draft) => {
                    self.stage = Stage::Running(Box::new(draft));
                    Some(": begun\n\n".to_owned())
                }
                Err(failure) => Some(self.failed(&failure)),
            },
            Stage::Running(draft) => match tokio::time::timeout(KEEP_ALIVE_PAUSE, draft.next()).await {
                Err(_) => Some(": keep-alive\n\n".to_owned()),
                Ok(Some(Step::Text(text))) => Some(event("delta", &json!({ "text": text }))),
                Ok(Some(Step::Finished(receipt))) => {
                    self.stage = Stage::Over;
                    Some(finished(&receipt))
                }
                Ok(Some(Step::Failed(fault))) => Some(self.failed(&fault.into())),
                Ok(None) => None,
            },
            Stage::Over => None,
        }
    }

    fn failed(&mut self, failure: &Failure) -> String {
        self.job.log(failure);
        self.stage = Stage::Over;
        let Failure { words, field, retry_after_s, .. } = failure;
        event("failed", &json!({ "words": words, "field": field, "retry_after_s": retry_after_s }))
    }
}

fn finished(receipt: &Receipt) -> String {
    let Receipt { model, stop_reason, input_tokens, output_tokens, cost, words, .. } = receipt;
    event(
        "finished",
        &json!({
            "model": model,
            "stop_reason": stop_reason,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "cost": cost.to_string(),
            "words": words,
        }),
    )
}

/// JSON has no line ends outside its strings, and within them they are escaped.
fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}
