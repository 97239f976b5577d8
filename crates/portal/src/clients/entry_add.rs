//! `POST /clients/{id}/entries`: a new note, dispute or letter.

use super::done::Done;
use super::entry_form::{EntryForm, EntryTyped};
use super::record::{self, Open, Showing};
use super::record_query::{View, done_href};
use crate::error::PageError;
use crate::path::ClientNumber;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{ClientId, EntryKind};
use chancery_policy::EditClient;
use chancery_store::{ClientError, NewEntry};
use chancery_web::{ErrorPage, Notice, Posted};
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    ClientNumber(id): ClientNumber,
    Posted(typed): Posted<EntryTyped>,
) -> Result<Response, PageError> {
    let kind: EntryKind =
        typed.kind.parse().map_err(|error| ErrorPage::bad_form(format!("`kind` is not right: {error}.")))?;
    let read = match typed.read(kind, portal.clock.now()) {
        Ok(read) => read,
        Err(problems) => {
            portal.ensure_allowed_on_client::<EditClient>(&who, id).await?;
            let form = EntryForm { problems, ..EntryForm::typed(kind, None, typed) };
            return put_right(&portal, &who, id, form, None).await;
        }
    };
    let new = NewEntry {
        kind,
        title: read.title,
        text: read.text,
        at: read.at,
        author: who.person.id,
        is_open: read.is_open,
        is_archived: false,
    };
    let add = async |permit| match portal.store.clients.add_entry(permit, new.clone()).await {
        Err(ClientError::TooManyEntries { max, .. }) => Ok(Err(max)),
        outcome => outcome.map(Ok),
    };
    match portal.with_client_permit::<EditClient, _, _>(&who, id, add).await? {
        Ok(entry) => {
            let href = format!("{}#entry-{}", done_href(id, Done::Added(kind)), entry.id);
            Ok(Redirect::to(&href).into_response())
        }
        Err(max) => {
            let words = format!(
                "This record has {max} entries, which is the most. Begin another client for what is new."
            );
            let notice = Notice::warning("Not saved.", words);
            put_right(&portal, &who, id, EntryForm::typed(kind, None, typed), Some(notice)).await
        }
    }
}

/// The record with everything that was typed still in its form.
async fn put_right(
    portal: &Portal,
    who: &SignedIn,
    id: ClientId,
    form: EntryForm,
    notice: Option<Notice>,
) -> Result<Response, PageError> {
    let (view, status) = (View::default(), StatusCode::UNPROCESSABLE_ENTITY);
    record::show(portal, who, id, Showing { view, open: Open::Entry(form), notice, status }).await
}
