//! What every change of somebody in the team begins and ends with.

use crate::error::{PageError, no_such_colleague};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{Person, PersonId};
use chancery_policy::{ManageTeam, TheFirm};

/// A form that is about one person.
#[derive(serde::Deserialize)]
pub(crate) struct AboutSomebody {
    pub(super) person: i64,
}

/// May this person change something about others? Whatever the answer, it is on record when this returns.
pub(super) async fn manage(portal: &Portal, who: &SignedIn) -> Result<(), PageError> {
    let permit = portal.permit::<ManageTeam>(who, TheFirm).await?;
    Ok(portal.store.note_managing_team(permit).await?)
}

/// Somebody who was not removed.
pub(super) async fn member(portal: &Portal, id: PersonId) -> Result<Person, PageError> {
    let people = portal.store.list_people().await?;
    Ok(people.into_iter().find(|person| person.id == id).ok_or_else(no_such_colleague)?)
}

/// Back to the person's page, which says what was done.
pub(super) fn done(person: PersonId, what: &str) -> Response {
    Redirect::to(&format!("/team?person={person}&done={what}")).into_response()
}
