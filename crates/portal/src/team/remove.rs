//! `POST /team/remove` removes a person from the portal: their sessions end, and sign-in is denied. They still own their clients
//! until a partner reassigns them. `POST /team/restore` restores the person with their previous role.

use super::member::{PersonForm, audited_form, done, member_from_form, permit_manage_team};
use crate::error::{PageError, colleague_error};
use crate::sign_in::session::SignedIn;
use crate::sign_in::sign_out;
use crate::state::Portal;
use axum::extract::State;
use axum::response::Response;
use chancery_domain::PersonId;
use chancery_web::{ErrorPage, PostedForm};
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<PostedForm<PersonForm>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = permit_manage_team(&portal, &signed_in).await?;
    let read = member_from_form(&portal, form.map_err(missing_person)).await;
    let (permit, person) = audited_form(&portal, permit, read).await?;
    portal.store.people.remove_person(permit, person.id).await.map_err(colleague_error)?;
    portal.store.session_revoker.end_provider_sessions(&person.identity.subject).await?;
    Ok(match person.id == signed_in.person.id {
        true => sign_out::redirect_to_signed_out(),
        false => done(person.id, "removed"),
    })
}

pub(crate) async fn restore(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<PostedForm<PersonForm>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = permit_manage_team(&portal, &signed_in).await?;
    let read = form.map_err(|error| missing_person(error).into());
    let (permit, PostedForm(PersonForm { person })) = audited_form(&portal, permit, read).await?;
    let person =
        portal.store.people.restore_person(permit, PersonId(person)).await.map_err(colleague_error)?;
    Ok(done(person.id, "restored"))
}

fn missing_person(_: ErrorPage) -> ErrorPage {
    ErrorPage::invalid_form("`person` is missing.")
}
