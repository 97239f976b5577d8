//! Shared by all changes to a team member: the permit, the form, and the redirect afterwards.

use crate::error::{PageError, person_not_found};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{Person, PersonId};
use chancery_policy::{FirmResource, ManageTeam, Permit};
use chancery_web::{Confirmed, ErrorPage, PostedForm};

/// A form about one person.
#[derive(serde::Deserialize)]
pub(crate) struct PersonForm {
    pub(super) person: i64,
    /// For changes that ask.
    #[serde(default)]
    pub(super) confirmed: Confirmed,
}

/// A denial is audited before this returns. An allowed decision is audited with the change, or by `audited_form` if the form is
/// invalid.
pub(super) async fn permit_manage_team(
    portal: &Portal,
    signed_in: &SignedIn,
) -> Result<Permit<ManageTeam>, PageError> {
    portal.permit::<ManageTeam>(signed_in, FirmResource).await
}

/// Returns the permit with the form's values. If the form is invalid, audits the decision and returns the error.
pub(super) async fn audited_form<T>(
    portal: &Portal,
    permit: Permit<ManageTeam>,
    read: Result<T, PageError>,
) -> Result<(Permit<ManageTeam>, T), PageError> {
    match read {
        Ok(found) => Ok((permit, found)),
        Err(error) => {
            portal.store.people.record_team_management(permit).await?;
            Err(error)
        }
    }
}

/// The member that a form is about.
pub(super) async fn member_from_form(
    portal: &Portal,
    form: Result<PostedForm<PersonForm>, ErrorPage>,
) -> Result<Person, PageError> {
    Ok(confirmed_member(portal, form).await?.0)
}

/// With what the form confirms.
pub(super) async fn confirmed_member(
    portal: &Portal,
    form: Result<PostedForm<PersonForm>, ErrorPage>,
) -> Result<(Person, Confirmed), PageError> {
    let PostedForm(PersonForm { person, confirmed }) = form?;
    Ok((member(portal, PersonId(person)).await?, confirmed))
}

/// A person who was not removed.
pub(super) async fn member(portal: &Portal, id: PersonId) -> Result<Person, PageError> {
    let people = portal.store.people.list_people().await?;
    Ok(people.into_iter().find(|person| person.id == id).ok_or_else(person_not_found)?)
}

/// Redirects to the person's page with a confirmation.
pub(super) fn done(person: PersonId, what: &str) -> Response {
    Redirect::to(&format!("/team?person={person}&done={what}")).into_response()
}
