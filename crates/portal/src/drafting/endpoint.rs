//! `POST /clients/<id>/letters/draft`: drafts a letter from the entries that the user selected. `POST /clients/<id>/letters/rewrite`:
//! edits the letter in the editor, or the selected part of it. Both require permission to edit the client. The record is read with
//! that permit, so only entries of this record can be used.
//!
//! With `Accept: text/event-stream` the text is streamed as events: any number of `delta` (`text`), then `finished` (the whole
//! text, whether it is unfinished, what to check, and the receipt) or `failed` (`words`, and `field` if it concerns one).
//! Otherwise the reply is a page with the text in the editor and the previous text beside it.

use super::failure::DraftFailure;
use super::form::{DraftForm, JobRequest};
use super::job::{DraftJob, stream};
use super::page::{self, Outcome};
use crate::clients::unsaved::record_form::RecordForm;
use crate::error::{PageError, client_not_found};
use crate::path::ClientNumber;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use chancery_domain::{ClientId, Entry, EntryId, Person};
use chancery_policy::EditClient;
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    ClientNumber(id): ClientNumber,
    headers: HeaderMap,
    RecordForm { signed_in, body, .. }: RecordForm<Bytes>,
) -> Result<Response, PageError> {
    let form = DraftForm::parse(&body);
    let request = form.check().map(JobRequest::Draft);
    answer(&portal, id, &headers, &signed_in, (form, request)).await
}

pub(crate) async fn rewrite(
    State(portal): State<Arc<Portal>>,
    ClientNumber(id): ClientNumber,
    headers: HeaderMap,
    RecordForm { signed_in, body, .. }: RecordForm<Bytes>,
) -> Result<Response, PageError> {
    let form = DraftForm::parse(&body);
    let request = form.check_rewrite().map(JobRequest::Rewrite);
    answer(&portal, id, &headers, &signed_in, (form, request)).await
}

async fn answer(
    portal: &Arc<Portal>,
    id: ClientId,
    headers: &HeaderMap,
    signed_in: &SignedIn,
    (mut form, request): (DraftForm, Result<JobRequest, DraftFailure>),
) -> Result<Response, PageError> {
    let chosen = form.chosen();
    let store = &portal.store;
    let read = |permit| store.clients.read_for_draft(permit, &chosen);
    let read = portal.with_client_permit::<EditClient, _, _>(signed_in, id, read);
    // Only a user who may edit every client learns that this number does not exist.
    let (client, entries) = read.await?.ok_or_else(client_not_found)?;
    let job = DraftJob {
        portal: Arc::clone(portal),
        request: request.and_then(|request| match &request {
            JobRequest::Draft(_) => ensure_entries_exist(&form, &entries).map(|()| request),
            // An edit reads no entry.
            JobRequest::Rewrite(_) => Ok(request),
        }),
        writer: writer(&signed_in.person),
        local: signed_in.local_time(portal),
        client,
        entries,
        request_id: signed_in.request_id.clone(),
    };
    if wants_events(headers) {
        return Ok(stream(job));
    }
    let outcome = match form.put_back() {
        true => Outcome::TextRestored,
        false => match job.run().await {
            Ok((request, finished)) => {
                form.take_result(&request, &finished.composition.text, finished.title.clone());
                Outcome::Finished(finished)
            }
            Err(failure) => Outcome::Failed(failure),
        },
    };
    page::show(portal, signed_in, id, &job.entries, form, outcome).await
}

/// Who signs the letter: the name, or the address of a person without one.
fn writer(person: &Person) -> String {
    match &person.profile.name {
        Some(name) => name.to_string(),
        None => person.email.to_string(),
    }
}

/// Rejects entries that are archived, belong to another client or do not exist. The message does not reveal which of these
/// applies.
fn ensure_entries_exist(form: &DraftForm, entries: &[Entry]) -> Result<(), DraftFailure> {
    let is_there = |id: &Option<EntryId>| id.is_some_and(|id| entries.iter().any(|entry| entry.id == id));
    match form.entries.iter().all(is_there) {
        true => Ok(()),
        false => Err(DraftFailure::for_field(
            "entries",
            "A selected entry is no longer in this record. Check the selection and try again.",
        )),
    }
}

fn wants_events(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    accept.contains("text/event-stream")
}
