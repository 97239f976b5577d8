//! `POST /clients/{id}/archive` and `/restore`, and the same for an entry: archives something, or restores it. Nothing is ever
//! removed. Where it is so already, that is as good.

use super::done::Done;
use super::record_query::done_href;
use crate::error::{PageError, no_such_client, no_such_entry};
use crate::path::{ClientNumber, EntryNumber};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::ClientId;
use chancery_policy::{ArchiveClient, EditClient};
use chancery_store::Changed;
use std::sync::Arc;

pub(crate) async fn archive_client(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    ClientNumber(id): ClientNumber,
) -> Result<Response, PageError> {
    set_client(&portal, &who, id, true).await
}

pub(crate) async fn restore_client(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    ClientNumber(id): ClientNumber,
) -> Result<Response, PageError> {
    set_client(&portal, &who, id, false).await
}

pub(crate) async fn archive_entry(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    number: EntryNumber,
) -> Result<Response, PageError> {
    set_entry(&portal, &who, number, true).await
}

pub(crate) async fn restore_entry(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    number: EntryNumber,
) -> Result<Response, PageError> {
    set_entry(&portal, &who, number, false).await
}

async fn set_client(
    portal: &Portal,
    who: &SignedIn,
    id: ClientId,
    is_archived: bool,
) -> Result<Response, PageError> {
    let set = |permit| portal.store.clients.set_client_archived(permit, is_archived);
    match portal.with_client_permit::<ArchiveClient, _, _>(who, id, set).await? {
        Changed::Saved(_) | Changed::Conflict(_) => {
            let done = if is_archived { Done::Archived } else { Done::Restored };
            Ok(Redirect::to(&done_href(id, done)).into_response())
        }
        Changed::Gone => Err(no_such_client().into()),
    }
}

async fn set_entry(
    portal: &Portal,
    who: &SignedIn,
    number: EntryNumber,
    is_archived: bool,
) -> Result<Response, PageError> {
    let EntryNumber { client, entry } = number;
    let set = |permit| portal.store.clients.set_entry_archived(permit, entry, is_archived);
    match portal.with_client_permit::<EditClient, _, _>(who, client, set).await? {
        Changed::Saved(_) | Changed::Conflict(_) => {
            let done = if is_archived { Done::EntryArchived } else { Done::EntryRestored };
            Ok(Redirect::to(&done_href(client, done)).into_response())
        }
        Changed::Gone => Err(no_such_entry(client).into()),
    }
}
