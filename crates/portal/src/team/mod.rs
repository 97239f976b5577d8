//! `/team`, for partners: who works in the portal, in which role, with how many clients and sessions. Whatever is changed
//! about somebody is decided by the policy and on record before it is done.

pub(crate) mod page;
pub(crate) mod reassign;
pub(crate) mod remove;
pub(crate) mod role;
pub(crate) mod sign_out;

use crate::failure::refused_by_store;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{Person, PersonId};
use chancery_policy::{ManageTeam, TheFirm};
use chancery_store::StoreError;
use chancery_web::Refusal;

/// A form that is about one person.
#[derive(serde::Deserialize)]
pub(crate) struct AboutSomebody {
    person: i64,
}

/// May this person change something about others? Whatever the answer, it is on record when this returns.
async fn manage(portal: &Portal, who: &SignedIn) -> Result<(), Refusal> {
    let permit = portal.permit::<ManageTeam>(who, TheFirm).await?;
    portal.store.note_managing_team(permit).await.map_err(|error| refused_by_store(&error))
}

/// Somebody who was not removed.
async fn member(portal: &Portal, id: PersonId) -> Result<Person, Refusal> {
    let people = portal.store.list_people().await.map_err(|error| refused_by_store(&error))?;
    people.into_iter().find(|person| person.id == id).ok_or_else(nobody)
}

/// Back to the person's page, which says what was done.
fn done(person: PersonId, what: &str) -> Response {
    Redirect::to(&format!("/team?person={person}&done={what}")).into_response()
}

/// About somebody else than the one who asks.
fn refused(error: &StoreError) -> Refusal {
    match error {
        StoreError::NoSuchPerson(_) | StoreError::PersonRemoved(_) => nobody(),
        StoreError::LastPartner => last_partner(),
        error => refused_by_store(error),
    }
}

fn nobody() -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        "no_such_person",
        "There is nobody with this number",
        "Nobody in the team has this number, or they were removed meanwhile. Nothing was changed.",
    )
    .advice("Open the team again, and choose somebody who is there.")
    .way_on("/team", "Go to the team")
}

fn last_partner() -> Refusal {
    Refusal::new(
        StatusCode::CONFLICT,
        "last_partner",
        "The firm needs a partner",
        "This is the last one: without a partner, nobody could manage the team or read the audit. Nothing was changed.",
    )
    .advice("Make somebody else a partner first, then do this again.")
    .way_on("/team", "Go to the team")
}
