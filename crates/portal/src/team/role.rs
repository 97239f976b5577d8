//! `POST /team/role`: changes a person's role, effective from their next request.

use super::member::{audited_form, done, member, permit_manage_team};
use super::person_page::form_page;
use crate::error::{PageError, colleague_error};
use crate::sign_in::session::SignedIn;
use crate::sign_in::step_up;
use crate::state::Portal;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{EmailAddress, Person, PersonId, Role};
use chancery_web::{ErrorPage, PostedForm};
use std::sync::Arc;

#[derive(serde::Deserialize)]
pub(crate) struct RoleForm {
    person: i64,
    role: String,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<PostedForm<RoleForm>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = permit_manage_team(&portal, &signed_in).await?;
    let read = read(&portal, &signed_in, form).await;
    let (permit, (person, role)) = audited_form(&portal, permit, read).await?;
    let person = portal.store.people.set_role(permit, person.id, role).await.map_err(colleague_error)?;
    // Someone who is no longer a partner cannot open the team page.
    Ok(match person.id == signed_in.person.id && role == Role::Consultant {
        true => Redirect::to("/clients").into_response(),
        false => done(person.id, role.as_str()),
    })
}

async fn read(
    portal: &Portal,
    signed_in: &SignedIn,
    form: Result<PostedForm<RoleForm>, ErrorPage>,
) -> Result<(Person, Role), PageError> {
    let missing_person = || ErrorPage::invalid_form("`person` or `role` is missing.");
    let PostedForm(RoleForm { person, role }) = form.map_err(|_| missing_person())?;
    let role: Role = role.parse().map_err(|_| {
        ErrorPage::invalid_form("Invalid `role`: use `consultant` or `partner`. Nothing was changed.")
    })?;
    let person = member(portal, PersonId(person)).await?;
    if portal.settings.identity.roles.is_some() {
        return Err(role_from_directory().into());
    }
    step_up::ensure_recent(portal, signed_in, &form_page(person.id, "role")).await?;
    match role == Role::Consultant && portal.settings.partners.contains(&person.email) {
        true => Err(partner_by_configuration(&person.email).into()),
        false => Ok((person, role)),
    }
}

pub(super) fn role_from_directory() -> ErrorPage {
    let reason = "Roles come from your firm’s directory, at every sign-in. Nothing was changed.";
    ErrorPage::conflict("role_from_directory", "Role managed elsewhere", reason)
        .advice("Ask your administrator to change the person’s groups there.")
        .next_link("/team", "Go to team")
}

fn partner_by_configuration(email: &EmailAddress) -> ErrorPage {
    let reason = format!(
        "{email} is listed in portal.partners, which makes it a partner at every sign-in. Nothing was changed."
    );
    ErrorPage::conflict("partner_by_configuration", "Partner by configuration", reason)
        .advice("Ask your administrator to remove the address there and restart the portal. Then try again.")
        .next_link("/team", "Go to team")
}
