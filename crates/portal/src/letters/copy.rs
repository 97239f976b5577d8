//! `POST /clients/{id}/letters/{entry}/copy`: a new draft with the same text, because a sent letter cannot be changed.

use super::page::href;
use super::send_form::read_for_change;
use crate::error::PageError;
use crate::path::EntryNumber;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{DisputeDetails, EntryKind};
use chancery_policy::EditClient;
use chancery_store::{ClientError, NewEntry, OpenedLetter};
use chancery_web::ErrorPage;
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    EntryNumber { client, entry }: EntryNumber,
) -> Result<Response, PageError> {
    let OpenedLetter { client, letter, .. } = read_for_change(&portal, &signed_in, client, entry).await?;
    let new = NewEntry {
        kind: EntryKind::DraftLetter,
        title: letter.title,
        text: letter.text,
        at: portal.clock.now(),
        author: signed_in.person.id,
        is_open: true,
        dispute: DisputeDetails::default(),
        is_archived: false,
    };
    let add = async |permit| match portal.store.clients.add_copied_entry(permit, new.clone()).await {
        Err(ClientError::TooManyEntries { max, .. }) => Ok(Err(max)),
        outcome => outcome.map(Ok),
    };
    let id = client.id;
    match portal.with_client_permit::<EditClient, _, _>(&signed_in, id, add).await? {
        Ok(copy) => {
            let href = format!("/clients/{id}?open=entry-{}#entry-{}", copy.id, copy.id);
            Ok(Redirect::to(&href).into_response())
        }
        Err(max) => {
            let reason = format!("This record is full ({max} entries). Nothing was copied.");
            let full = ErrorPage::conflict("record_full", "Record full", reason)
                .advice("Create another client for new entries.")
                .next_link(href(id, entry), "Go to letter");
            Err(full.into())
        }
    }
}
