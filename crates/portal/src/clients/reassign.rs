//! `POST /clients/{id}/reassign`: gives a client another owner. For partners.

use super::notice::Done;
use super::posted::Posted;
use super::record_query::done_href;
use crate::authority::{ClientNumber, no_such_client};
use crate::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::PersonId;
use chancery_pages::Refusal;
use chancery_policy::ReassignClient;
use chancery_store::{Changed, StoreError};
use serde::Deserialize;
use std::sync::Arc;

#[derive(Deserialize)]
pub(crate) struct Chosen {
    /// A person's number.
    owner: i64,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    ClientNumber(id): ClientNumber,
    Posted(Chosen { owner }): Posted<Chosen>,
) -> Result<Response, Refusal> {
    let give = async |permit| match portal.store.reassign_client(permit, PersonId(owner)).await {
        Err(StoreError::NoSuchPerson(_) | StoreError::PersonRemoved(_)) => Ok(None),
        outcome => outcome.map(Some),
    };
    match portal.on_client::<ReassignClient, _, _>(&who, id, give).await? {
        Some(Changed::Saved(_) | Changed::Conflict(_)) => {
            Ok(Redirect::to(&done_href(id, Done::Reassigned)).into_response())
        }
        Some(Changed::Gone) => Err(no_such_client()),
        None => Err(Refusal::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "no_such_person",
            "This person is not in the portal",
            "`owner` is nobody who is in the portal now. The client’s owner was not changed.",
        )
        .advice("Go back, load the page again, and choose somebody else.")
        .way_on(format!("/clients/{id}"), "Go to the client")),
    }
}
