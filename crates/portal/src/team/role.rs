//! `POST /team/role`: makes somebody a consultant or a partner, from their next request on.

use super::member::{allowed_form, done, manage, member};
use crate::error::{PageError, about_colleague};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{EmailAddress, Person, PersonId, Role};
use chancery_web::{ErrorPage, Posted};
use std::sync::Arc;

#[derive(serde::Deserialize)]
pub(crate) struct Chosen {
    person: i64,
    role: String,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<Posted<Chosen>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = manage(&portal, &signed_in).await?;
    let read = read(&portal, form).await;
    let (permit, (person, role)) = allowed_form(&portal, permit, read).await?;
    let person = portal.store.people.set_role(permit, person.id, role).await.map_err(about_colleague)?;
    // Whoever is no partner any more has no team to go back to.
    Ok(match person.id == signed_in.person.id && role == Role::Consultant {
        true => Redirect::to("/clients").into_response(),
        false => done(person.id, role.as_str()),
    })
}

async fn read(portal: &Portal, form: Result<Posted<Chosen>, ErrorPage>) -> Result<(Person, Role), PageError> {
    let unclear = || ErrorPage::bad_form("It does not say who (`person`) is to have which role (`role`).");
    let Posted(Chosen { person, role }) = form.map_err(|_| unclear())?;
    let role: Role = role.parse().map_err(|_| {
        ErrorPage::bad_form(
            "There is no such role: `role` is `consultant` or `partner`. Nothing was changed.",
        )
    })?;
    let person = member(portal, PersonId(person)).await?;
    match role == Role::Consultant && portal.settings.partners.contains(&person.email) {
        true => Err(partner_by_configuration(&person.email).into()),
        false => Ok((person, role)),
    }
}

fn partner_by_configuration(email: &EmailAddress) -> ErrorPage {
    let reason = format!(
        "{email} is listed in portal.partners, so the next sign-in would make a partner again. Nothing was changed."
    );
    ErrorPage::conflict("partner_by_configuration", "The configuration makes this person a partner", reason)
    .advice("Ask the firm's administrator to take the address out there and to start the portal anew, then do this again.")
    .next_link("/team", "Go to the team")
}
