//! `POST /clients/<id>/letters/draft`: a letter drafted from what this person chose of this record. Whoever may edit the client
//! may ask; the permit for that is what the record is read with, and only entries of that record are.
//!
//! With `Accept: text/event-stream` the draft comes as events: `delta` (`text`) as often as there is text, then `finished` (the
//! receipt) or `failed` (`words`, and `field` where it is about one). Otherwise the reply is a page with the draft in the
//! editor, and what was in it before beside it.

use super::failure::Failure;
use super::form::DraftForm;
use super::job::{Job, stream};
use super::page::{self, Outcome};
use crate::error::{PageError, no_such_client};
use crate::path::ClientNumber;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use chancery_domain::{Entry, EntryId};
use chancery_policy::EditClient;
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    ClientNumber(id): ClientNumber,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, PageError> {
    let mut form = DraftForm::parse(&body);
    let chosen = form.chosen();
    let store = &portal.store;
    let read = |permit| store.clients.read_for_letter(permit, &chosen);
    let read = portal.with_client_permit::<EditClient, _, _>(&who, id, read);
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
    page::show(&portal, &who, id, &job.entries, form, outcome).await
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

fn wants_events(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    accept.contains("text/event-stream")
}
