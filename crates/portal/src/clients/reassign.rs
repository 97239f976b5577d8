//! `POST /clients/{id}/reassign`: changes a client's owner. For partners.

use super::done::CompletedChange;
use super::record_query::undoable_href;
use super::undo::{Undo, changed_since, parse_version};
use crate::error::{PageError, client_not_found};
use crate::path::ClientNumber;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::PersonId;
use chancery_policy::{Permit, ReassignClient};
use chancery_store::{ClientError, SaveOutcome};
use chancery_web::{ErrorPage, PostedForm};
use serde::Deserialize;
use std::sync::Arc;

#[derive(Deserialize)]
pub(crate) struct ReassignForm {
    /// A person's number.
    #[serde(default)]
    owner: String,
    /// The only version to change, for an undo. Empty: any.
    #[serde(default)]
    version: String,
}

enum ReassignOutcome {
    Reassigned(Undo),
    /// Someone has changed the client since.
    ChangedSince,
    /// Nothing changed, so no confirmation is shown.
    Unchanged,
    PersonNotFound,
    ClientNotFound,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    ClientNumber(id): ClientNumber,
    PostedForm(ReassignForm { owner, version }): PostedForm<ReassignForm>,
) -> Result<Response, PageError> {
    if owner.is_empty() {
        return Err(ErrorPage::invalid_form("`owner` is missing. Choose the new owner.").into());
    }
    let invalid_owner = |_| ErrorPage::invalid_form("`owner` must be a person’s number.");
    let to = PersonId(owner.parse().map_err(invalid_owner)?);
    let version = parse_version(&version)?;
    let reassign = async |permit: Permit<ReassignClient>| {
        let former = permit.owner();
        let is_unchanged = former == Some(to);
        match portal.store.clients.reassign_client(permit, to, version).await {
            Ok(SaveOutcome::NotFound) => Ok(ReassignOutcome::ClientNotFound),
            Ok(SaveOutcome::Conflict(_)) => Ok(ReassignOutcome::ChangedSince),
            // A removed person still owns their clients.
            Ok(_) | Err(ClientError::NoSuchPerson(_)) if is_unchanged => Ok(ReassignOutcome::Unchanged),
            Ok(SaveOutcome::Saved(saved)) => {
                // A client that was reassigned had an owner.
                let former = former.map_or(0, |former| former.0);
                Ok(ReassignOutcome::Reassigned(Undo::of_subject(saved.version, former)))
            }
            Err(ClientError::NoSuchPerson(_)) => Ok(ReassignOutcome::PersonNotFound),
            Err(error) => Err(error),
        }
    };
    match portal.with_client_permit::<ReassignClient, _, _>(&signed_in, id, reassign).await? {
        ReassignOutcome::Reassigned(undo) => {
            let href = undoable_href(id, CompletedChange::Reassigned, Some(undo));
            Ok(Redirect::to(&href).into_response())
        }
        ReassignOutcome::ChangedSince => Err(changed_since(id, format!("/clients/{id}/versions")).into()),
        ReassignOutcome::Unchanged => Ok(Redirect::to(&format!("/clients/{id}")).into_response()),
        ReassignOutcome::ClientNotFound => Err(client_not_found().into()),
        ReassignOutcome::PersonNotFound => Err(ErrorPage::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "no_such_person",
            "Person not found",
            "The new owner is not on the team. The client was not reassigned.",
        )
        .advice("Go back, reload the page and choose another person.")
        .next_link(format!("/clients/{id}"), "Go to client")
        .into()),
    }
}
