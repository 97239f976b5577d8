//! `POST /clients/{id}/reassign`: gives a client another owner. For partners.

use super::done::Done;
use super::record_query::done_href;
use crate::error::{PageError, no_such_client};
use crate::path::ClientNumber;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::PersonId;
use chancery_policy::ReassignClient;
use chancery_store::{Changed, ClientError};
use chancery_web::{ErrorPage, Posted};
use serde::Deserialize;
use std::sync::Arc;

#[derive(Deserialize)]
pub(crate) struct Chosen {
    /// A person's number.
    #[serde(default)]
    owner: String,
}

enum Given {
    Away,
    /// Nothing was changed, and nothing is said to be.
    AlreadyTheirs,
    NoPerson,
    NoClient,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    ClientNumber(id): ClientNumber,
    Posted(Chosen { owner }): Posted<Chosen>,
) -> Result<Response, PageError> {
    if owner.is_empty() {
        return Err(ErrorPage::bad_form("`owner` is empty. Choose whose client it is to be.").into());
    }
    let unclear = |_| ErrorPage::bad_form("`owner` is not the number of a person.");
    let to = PersonId(owner.parse().map_err(unclear)?);
    let give = async |permit| {
        let is_theirs = portal.store.clients.owner_of(id).await? == Some(to);
        match portal.store.clients.reassign_client(permit, to).await {
            Ok(Changed::Gone) => Ok(Given::NoClient),
            // Whoever was removed still has what is theirs.
            Ok(_) | Err(ClientError::NoSuchPerson(_)) if is_theirs => Ok(Given::AlreadyTheirs),
            Ok(_) => Ok(Given::Away),
            Err(ClientError::NoSuchPerson(_)) => Ok(Given::NoPerson),
            Err(error) => Err(error),
        }
    };
    match portal.with_client_permit::<ReassignClient, _, _>(&who, id, give).await? {
        Given::Away => Ok(Redirect::to(&done_href(id, Done::Reassigned)).into_response()),
        Given::AlreadyTheirs => Ok(Redirect::to(&format!("/clients/{id}")).into_response()),
        Given::NoClient => Err(no_such_client().into()),
        Given::NoPerson => Err(ErrorPage::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "no_such_person",
            "This person is not in the portal",
            "`owner` is nobody who is in the portal now. The client’s owner was not changed.",
        )
        .advice("Go back, load the page again, and choose somebody else.")
        .next_link(format!("/clients/{id}"), "Go to the client")
        .into()),
    }
}
