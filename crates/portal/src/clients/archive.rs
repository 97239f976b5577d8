//! `POST /clients/{id}/archive` and `/restore`, and the same for entries. Nothing is ever deleted. Both are idempotent.
//! With a version they are an undo, which changes nothing else.

use super::done::CompletedChange;
use super::record_query::undoable_href;
use super::undo::{Undo, changed_since, parse_version};
use crate::error::{PageError, client_not_found, entry_not_found};
use crate::path::{ClientNumber, EntryNumber};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::ClientId;
use chancery_policy::{ArchiveClient, EditClient};
use chancery_store::{ArchiveChange, SaveOutcome};
use chancery_web::PostedForm;
use serde::Deserialize;
use std::sync::Arc;

#[derive(Deserialize)]
pub(crate) struct ArchiveForm {
    /// The only version to change, for an undo. Empty: any.
    #[serde(default)]
    version: String,
}

impl ArchiveForm {
    fn read(&self, is_archived: bool) -> Result<ArchiveChange, PageError> {
        Ok(ArchiveChange { is_archived, version: parse_version(&self.version)? })
    }
}

pub(crate) async fn archive_client(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    ClientNumber(id): ClientNumber,
    PostedForm(form): PostedForm<ArchiveForm>,
) -> Result<Response, PageError> {
    set_client(&portal, &signed_in, id, form.read(true)?).await
}

pub(crate) async fn restore_client(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    ClientNumber(id): ClientNumber,
    PostedForm(form): PostedForm<ArchiveForm>,
) -> Result<Response, PageError> {
    set_client(&portal, &signed_in, id, form.read(false)?).await
}

pub(crate) async fn archive_entry(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    number: EntryNumber,
    PostedForm(form): PostedForm<ArchiveForm>,
) -> Result<Response, PageError> {
    set_entry(&portal, &signed_in, number, form.read(true)?).await
}

pub(crate) async fn restore_entry(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    number: EntryNumber,
    PostedForm(form): PostedForm<ArchiveForm>,
) -> Result<Response, PageError> {
    set_entry(&portal, &signed_in, number, form.read(false)?).await
}

async fn set_client(
    portal: &Portal,
    signed_in: &SignedIn,
    id: ClientId,
    change: ArchiveChange,
) -> Result<Response, PageError> {
    let set = |permit| portal.store.clients.set_client_archived(permit, change);
    match portal.with_client_permit::<ArchiveClient, _, _>(signed_in, id, set).await? {
        SaveOutcome::Saved(saved) => {
            let done = if change.is_archived { CompletedChange::Archived } else { CompletedChange::Restored };
            let undo = Some(Undo::of_client(saved.version));
            Ok(Redirect::to(&undoable_href(id, done, undo)).into_response())
        }
        SaveOutcome::Conflict(_) => Err(changed_since(id, format!("/clients/{id}/versions")).into()),
        SaveOutcome::NotFound => Err(client_not_found().into()),
    }
}

async fn set_entry(
    portal: &Portal,
    signed_in: &SignedIn,
    number: EntryNumber,
    change: ArchiveChange,
) -> Result<Response, PageError> {
    let EntryNumber { client, entry } = number;
    let set = |permit| portal.store.clients.set_entry_archived(permit, entry, change);
    match portal.with_client_permit::<EditClient, _, _>(signed_in, client, set).await? {
        SaveOutcome::Saved(saved) => {
            let done = match change.is_archived {
                true => CompletedChange::EntryArchived,
                false => CompletedChange::EntryRestored,
            };
            let undo = Some(Undo::of_subject(saved.version, entry.0));
            Ok(Redirect::to(&undoable_href(client, done, undo)).into_response())
        }
        SaveOutcome::Conflict(_) => {
            Err(changed_since(client, format!("/clients/{client}/entries/{entry}/versions")).into())
        }
        SaveOutcome::NotFound => Err(entry_not_found(client).into()),
    }
}
