//! `/team`, for partners: who works in the portal, in which role, with how many clients and sessions. Whatever is changed
//! about somebody is decided by the policy, and on record with the change.

pub(crate) mod page;
pub(crate) mod reassign;
pub(crate) mod remove;
pub(crate) mod role;
pub(crate) mod sign_out;

use crate::failure::refused_by_store;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::Form;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{Person, PersonId};
use chancery_policy::{ManageTeam, Permit, TheFirm};
use chancery_store::StoreError;
use chancery_web::Refusal;

/// A form that is about one person.
#[derive(serde::Deserialize)]
pub(crate) struct AboutSomebody {
    person: i64,
}

/// May this person change something about others? A denial is on record when this returns; what is allowed goes on record
/// with the change, or by `found` where a form leads to none.
async fn manage(portal: &Portal, who: &SignedIn) -> Result<Permit<ManageTeam>, Refusal> {
    portal.permit::<ManageTeam>(who, TheFirm).await
}

/// The permit together with what the form says, or what is wrong with the form, which leaves the decision on record.
async fn found<T>(
    portal: &Portal,
    permit: Permit<ManageTeam>,
    read: Result<T, Refusal>,
) -> Result<(Permit<ManageTeam>, T), Refusal> {
    match read {
        Ok(found) => Ok((permit, found)),
        Err(refusal) => {
            let recorded = portal.store.note_managing_team(permit).await;
            recorded.map_err(|error| refused_by_store(&error))?;
            Err(refusal)
        }
    }
}

/// Somebody who was not removed.
async fn member(portal: &Portal, id: PersonId) -> Result<Person, Refusal> {
    let people = portal.store.list_people().await.map_err(|error| refused_by_store(&error))?;
    people.into_iter().find(|person| person.id == id).ok_or_else(nobody)
}

/// The member that a form is about.
async fn form_member(portal: &Portal, form: Result<Form<AboutSomebody>, Refusal>) -> Result<Person, Refusal> {
    let Form(AboutSomebody { person }) = form?;
    member(portal, PersonId(person)).await
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
