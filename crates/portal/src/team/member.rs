//! What every change of somebody in the team begins and ends with.

use crate::error::{PageError, no_such_colleague};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{Person, PersonId};
use chancery_policy::{ManageTeam, Permit, TheFirm};
use chancery_web::{ErrorPage, Posted};

/// A form that is about one person.
#[derive(serde::Deserialize)]
pub(crate) struct AboutSomebody {
    pub(super) person: i64,
}

/// May this person change something about others? A denial is on record when this returns; what is allowed goes on record
/// with the change, or by `allowed_form` where a form leads to none.
pub(super) async fn manage(portal: &Portal, who: &SignedIn) -> Result<Permit<ManageTeam>, PageError> {
    portal.permit::<ManageTeam>(who, TheFirm).await
}

/// The permit together with what the form says, or what is wrong with the form, which leaves the decision on record.
pub(super) async fn allowed_form<T>(
    portal: &Portal,
    permit: Permit<ManageTeam>,
    read: Result<T, PageError>,
) -> Result<(Permit<ManageTeam>, T), PageError> {
    match read {
        Ok(found) => Ok((permit, found)),
        Err(error) => {
            portal.store.people.note_managing_team(permit).await?;
            Err(error)
        }
    }
}

/// The member that a form is about.
pub(super) async fn form_member(
    portal: &Portal,
    form: Result<Posted<AboutSomebody>, ErrorPage>,
) -> Result<Person, PageError> {
    let Posted(AboutSomebody { person }) = form?;
    member(portal, PersonId(person)).await
}

/// Somebody who was not removed.
pub(super) async fn member(portal: &Portal, id: PersonId) -> Result<Person, PageError> {
    let people = portal.store.people.list_people().await?;
    Ok(people.into_iter().find(|person| person.id == id).ok_or_else(no_such_colleague)?)
}

/// Back to the person's page, which says what was done.
pub(super) fn done(person: PersonId, what: &str) -> Response {
    Redirect::to(&format!("/team?person={person}&done={what}")).into_response()
}
