//! Runs one draft or edit: to its end, for a page, or as an event stream, for a script. Dropping it at any point closes the
//! connection to the API, which stops the model.

use super::api::{Drafter, Prompt};
use super::cleaner::{Cleaner, ReplyForm};
use super::composer::{Composer, Composition, Task};
use super::error::{DraftError, DraftErrorKind};
use super::failure::DraftFailure;
use super::fit;
use super::form::{DraftRequest, JobRequest};
use super::limits::KEEP_ALIVE_INTERVAL;
use super::model_offer::ModelOffer;
use super::placeholders::LetterNames;
use super::prompt::Brief;
use super::receipt::Receipt;
use super::rewrite::{RewriteRequest, rewrite_prompt, split_passage};
use super::skeleton::{Skeleton, one_line, reader, subject};
use super::stream::{DraftEvent, DraftStream};
use crate::state::Portal;
use crate::time_format::{LocalTime, long_day};
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use chancery_domain::{Client, Entry, RequestId};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;

pub(crate) struct DraftJob {
    pub(crate) portal: Arc<Portal>,
    pub(crate) request: Result<JobRequest, DraftFailure>,
    pub(crate) writer: String,
    /// The writer's time.
    pub(crate) local: LocalTime,
    pub(crate) client: Client,
    pub(crate) entries: Vec<Entry>,
    pub(crate) request_id: RequestId,
}

/// A draft that the model is writing.
struct RunningDraft {
    stream: DraftStream,
    composer: Composer,
    /// A title for a letter that has none; `None` for an edit.
    title: Option<String>,
}

/// The end of a draft or an edit that was billed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FinishedDraft {
    pub(super) receipt: Box<Receipt>,
    pub(super) composition: Composition,
    /// A title for a letter that has none; `None` for an edit.
    pub(super) title: Option<String>,
}

impl DraftJob {
    /// Counts tokens, and starts the draft if everything fits.
    async fn begin(&self) -> Result<RunningDraft, DraftFailure> {
        let drafter = self
            .portal
            .drafter
            .as_ref()
            .ok_or_else(|| DraftError::new(DraftErrorKind::NotConfigured, "drafting is not set up"))?;
        let request = self.request.clone()?;
        let model_offer = drafter.current_offer().await?;
        let (prompt, composer, title) = match &request {
            JobRequest::Draft(request) => {
                let (prompt, composer) = self.prepare_draft(drafter, &model_offer, request).await?;
                // Newest first.
                let entry_title = self.entries.first().map(|entry| entry.title.as_str());
                (prompt, composer, Some(subject(entry_title, &request.purpose)))
            }
            JobRequest::Rewrite(request) => {
                let (prompt, composer) = self.prepare_rewrite(drafter, &model_offer, request).await?;
                (prompt, composer, None)
            }
        };
        let stream = drafter.draft(&model_offer, &prompt).await?;
        Ok(RunningDraft { stream, composer, title })
    }

    fn names(&self) -> LetterNames {
        LetterNames {
            writer: one_line(&self.writer),
            firm: one_line(&self.portal.settings.firm_name),
            reader: reader(self.client.details.contact.as_str(), self.client.name.as_str()),
        }
    }

    async fn prepare_draft(
        &self,
        drafter: &Drafter,
        model_offer: &ModelOffer,
        request: &DraftRequest,
    ) -> Result<(Prompt, Composer), DraftFailure> {
        let DraftRequest { purpose, max_output_tokens, attempt } = request;
        let brief = Brief {
            firm_name: &self.portal.settings.firm_name,
            writer: &self.writer,
            purpose,
            local: &self.local,
            client: &self.client,
            entries: &self.entries,
            max_output_tokens: *max_output_tokens,
            size: model_offer.size(),
            attempt: *attempt,
        };
        let prompt = fit::fit_prompt(drafter, model_offer, &brief).await?;
        let names = self.names();
        let (form, frame) = match model_offer.size().tuning().has_skeleton {
            true => (ReplyForm::Body, Skeleton::new(&names.reader, &names.writer, &names.firm)),
            false => (ReplyForm::Letter, Skeleton::default()),
        };
        let sources = self.sources(purpose, &prompt);
        let cleaner = Cleaner::new(form, names, purpose);
        let cleaner = match form {
            ReplyForm::Body => cleaner.without_example(&sources.join("\n")),
            ReplyForm::Letter | ReplyForm::Passage => cleaner,
        };
        Ok((prompt, Composer::new(cleaner, frame, Task::Draft { sources })))
    }

    /// Texts whose figures may be in the letter.
    fn sources(&self, purpose: &str, prompt: &Prompt) -> Vec<String> {
        let mut sources = vec![
            purpose.to_owned(),
            prompt.input.clone(),
            long_day(self.local.today()),
            self.writer.clone(),
            self.portal.settings.firm_name.clone(),
        ];
        // A smaller model does not read these, but the letter may name them.
        let Client { name, details, .. } = &self.client;
        let details_text = [
            name.as_str(),
            details.contact.as_str(),
            details.address.as_str(),
            details.email.as_str(),
            details.telephone.as_str(),
        ];
        sources.extend(details_text.map(str::to_owned));
        sources.extend(details.since.map(long_day));
        let currency = self.portal.settings.invoice_terms.currency;
        for entry in &self.entries {
            sources.push(entry.title.as_str().to_owned());
            sources.push(long_day(self.local.day(entry.at)));
            sources.extend(entry.dispute.due.map(long_day));
            sources.extend(entry.dispute.amount.map(|amount| currency.to_decimal_string(amount)));
        }
        sources
    }

    async fn prepare_rewrite(
        &self,
        drafter: &Drafter,
        model_offer: &ModelOffer,
        request: &RewriteRequest,
    ) -> Result<(Prompt, Composer), DraftFailure> {
        let (frame, passage) = split_passage(&request.selected);
        let prompt = rewrite_prompt(request, passage, &self.writer, &self.portal.settings.firm_name);
        if !fit::fits(drafter, model_offer, &prompt).await? {
            return Err(DraftFailure::invalid(
                "The text is too long for the model. Your text is untouched and nothing was billed; select a shorter passage.",
            ));
        }
        let cleaner = Cleaner::new(ReplyForm::Passage, self.names(), "");
        let task = Task::Rewrite { passage: passage.to_owned() };
        Ok((prompt, Composer::new(cleaner, frame, task)))
    }

    /// Runs the draft to its end, for a page.
    pub(super) async fn run(&self) -> Result<(JobRequest, FinishedDraft), DraftFailure> {
        let drafted = async {
            let request = self.request.clone();
            let mut draft = self.begin().await?;
            loop {
                match draft.stream.next().await {
                    Some(DraftEvent::Text(more)) => {
                        draft.composer.push(&more);
                    }
                    Some(DraftEvent::Finished(receipt)) => return Ok((request?, draft.finish(receipt))),
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

impl RunningDraft {
    fn finish(&mut self, receipt: Box<Receipt>) -> FinishedDraft {
        let composition = self.composer.finish(&receipt.stop_reason);
        FinishedDraft { receipt, composition, title: self.title.take() }
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
    Running(Box<RunningDraft>),
    Over,
}

impl Events {
    async fn next(&mut self) -> Option<String> {
        match &mut self.stage {
            StreamStage::Beginning => match self.job.begin().await {
                Ok(draft) => {
                    let begun = format!(": begun\n\n{}", delta(draft.composer.opening()));
                    self.stage = StreamStage::Running(Box::new(draft));
                    Some(begun)
                }
                Err(failure) => Some(self.failed(&failure)),
            },
            StreamStage::Running(draft) => {
                match tokio::time::timeout(KEEP_ALIVE_INTERVAL, draft.stream.next()).await {
                    Err(_) => Some(": keep-alive\n\n".to_owned()),
                    Ok(Some(DraftEvent::Text(text))) => {
                        let released = draft.composer.push(&text);
                        // Text that is withheld, or is no part of the letter, still shows that the model works.
                        Some(if released.is_empty() { ": writing\n\n".to_owned() } else { delta(&released) })
                    }
                    Ok(Some(DraftEvent::Finished(receipt))) => {
                        let finished = draft.finish(receipt);
                        self.stage = StreamStage::Over;
                        Some(format!("{}{}", delta(&finished.composition.rest), finished_event(&finished)))
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

/// Nothing for no text.
fn delta(text: &str) -> String {
    if text.is_empty() { String::new() } else { event("delta", &json!({ "text": text })) }
}

fn finished_event(finished: &FinishedDraft) -> String {
    let FinishedDraft { receipt, composition, title } = finished;
    let Receipt { model, stop_reason, input_tokens, output_tokens, cost, text: words, .. } = &**receipt;
    let Composition { text, unfinished, checks, .. } = composition;
    event(
        "finished",
        &json!({
            "model": model,
            "stop_reason": stop_reason,
            "is_unfinished": unfinished.is_some(),
            "unfinished": unfinished,
            "checks": checks,
            "text": text,
            "title": title,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "cost": cost.to_string(),
            "words": words,
        }),
    )
}

/// JSON contains no line breaks outside strings, and within strings they are escaped.
fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}
