//! `POST /clients/{id}/archive` and `/restore`, and the same for entries. Nothing is ever deleted. Both are idempotent.

use super::done::CompletedChange;
use super::record_query::done_href;
use crate::error::{PageError, client_not_found, entry_not_found};
use crate::path::{ClientNumber, EntryNumber};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::ClientId;
use chancery_policy::{ArchiveClient, EditClient};
use chancery_store::SaveOutcome;
use std::sync::Arc;

pub(crate) async fn archive_client(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    ClientNumber(id): ClientNumber,
) -> Result<Response, PageError> {
    set_client(&portal, &signed_in, id, true).await
}

pub(crate) async fn restore_client(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    ClientNumber(id): ClientNumber,
) -> Result<Response, PageError> {
    set_client(&portal, &signed_in, id, false).await
}

pub(crate) async fn archive_entry(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    number: EntryNumber,
) -> Result<Response, PageError> {
    set_entry(&portal, &signed_in, number, true).await
}

pub(crate) async fn restore_entry(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    number: EntryNumber,
) -> Result<Response, PageError> {
    set_entry(&portal, &signed_in, number, false).await
}

async fn set_client(
    portal: &Portal,
    signed_in: &SignedIn,
    id: ClientId,
    is_archived: bool,
) -> Result<Response, PageError> {
    let set = |permit| portal.store.clients.set_client_archived(permit, is_archived);
    match portal.with_client_permit::<ArchiveClient, _, _>(signed_in, id, set).await? {
        SaveOutcome::Saved(_) | SaveOutcome::Conflict(_) => {
            let done = if is_archived { CompletedChange::Archived } else { CompletedChange::Restored };
            Ok(Redirect::to(&done_href(id, done)).into_response())
        }
        SaveOutcome::NotFound => Err(client_not_found().into()),
    }
}

async fn set_entry(
    portal: &Portal,
    signed_in: &SignedIn,
    number: EntryNumber,
    is_archived: bool,
) -> Result<Response, PageError> {
    let EntryNumber { client, entry } = number;
    let set = |permit| portal.store.clients.set_entry_archived(permit, entry, is_archived);
    match portal.with_client_permit::<EditClient, _, _>(signed_in, client, set).await? {
        SaveOutcome::Saved(_) | SaveOutcome::Conflict(_) => {
            let done =
                if is_archived { CompletedChange::EntryArchived } else { CompletedChange::EntryRestored };
            Ok(Redirect::to(&done_href(client, done)).into_response())
        }
        SaveOutcome::NotFound => Err(entry_not_found(client).into()),
    }
}
