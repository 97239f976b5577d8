//! `POST /clients/<id>/letters/draft`: a letter drafted from what this person chose of this record. Whoever may edit the client
//! may ask; the permit for that is what the record is read with, and only entries of that record are.
//!
//! With `Accept: text/event-stream` the draft comes as events: `delta` (`text`) as often as there is text, then `finished` (the
//! receipt) or `failed` (`words`, and `field` where it is about one). Otherwise the reply is a page with the draft in the
//! editor, and what was in it before beside it.

use super::api::Drafter;
use super::failure::Failure;
use super::fault::{Fault, Trouble};
use super::fit;
use super::form::{DraftForm, Wanted};
use super::limits::KEEP_ALIVE_PAUSE;
use super::page::{self, Outcome};
use super::prompt::Brief;
use super::receipt::Receipt;
use super::stream::{DraftStream, Step};
use crate::authority::{ClientNumber, no_such_client};
use crate::session::SignedIn;
use crate::state::Portal;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use chancery_domain::{Client, Entry, EntryId, RequestId};
use chancery_pages::Refusal;
use chancery_policy::{EditClient, ReadClient};
use chancery_store::EntriesWanted;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;

pub(crate) const PATH: &str = "/clients/{id}/letters/draft";

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    ClientNumber(id): ClientNumber,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    let mut form = DraftForm::parse(&body);
    let chosen = form.chosen();
    let store = &portal.store;
    let read = portal.on_client(&who, id, |permit: chancery_policy::Permit<EditClient>| {
        store.read_for_letter(permit, &chosen)
    });
    // Whoever may edit every client learns that there is none of this number.
    let (client, entries) = read.await?.ok_or_else(no_such_client)?;
    let job = Job {
        portal: Arc::clone(&portal),
        wanted: form.check().and_then(|wanted| all_there(&form, &entries).map(|()| wanted)),
        writer: who.person.email.to_string(),
        client,
        entries,
        request_id: who.request_id.clone(),
    };
    if wants_events(&headers) {
        return Ok(stream(job));
    }
    let outcome = match form.put_back() {
        true => Outcome::PutBack,
        false => match job.run().await {
            Ok((text, receipt)) => {
                form.replace_text(text);
                Outcome::Finished(receipt)
            }
            Err(failure) => Outcome::Failed(failure),
        },
    };
    let entries = choices(&portal, &who, &job).await?;
    page::show(&portal, &who, &job.client, &entries, &form, outcome).await
}

/// An entry that is archived, or another client's, or nobody's, is not read, and the person is told; which of these it is, is
/// not.
fn all_there(form: &DraftForm, entries: &[Entry]) -> Result<(), Failure> {
    let is_there = |id: &Option<EntryId>| id.is_some_and(|id| entries.iter().any(|entry| entry.id == id));
    match form.entries.iter().all(is_there) {
        true => Ok(()),
        false => Err(Failure::of_field(
            "entries",
            "A note that you ticked is not in this record any more. Your text is untouched; look at what is ticked, and try again.",
        )),
    }
}

/// What the panel of a page offers to read: the newest entries, and those that were chosen.
async fn choices(portal: &Portal, who: &SignedIn, job: &Job) -> Result<Vec<Entry>, Refusal> {
    let newest = EntriesWanted::Page { kind: None, is_archived: false, after: None };
    let read = portal.on_client(who, job.client.id, |permit: chancery_policy::Permit<ReadClient>| {
        portal.store.read_client(permit, &newest)
    });
    let mut entries = read.await?.ok_or_else(no_such_client)?.entries;
    let older = job.entries.iter().filter(|chosen| !entries.iter().any(|entry| entry.id == chosen.id));
    let older: Vec<Entry> = older.cloned().collect();
    entries.extend(older);
    Ok(entries)
}

fn wants_events(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    accept.contains("text/event-stream")
}

/// One draft, with everything it needs.
struct Job {
    portal: Arc<Portal>,
    wanted: Result<Wanted, Failure>,
    writer: String,
    client: Client,
    entries: Vec<Entry>,
    request_id: RequestId,
}

impl Job {
    /// Counts, and begins if all fits.
    async fn begin(&self) -> Result<DraftStream, Failure> {
        let drafter: &Drafter =
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
    async fn run(&self) -> Result<(String, Box<Receipt>), Failure> {
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
fn stream(job: Job) -> Response {
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
