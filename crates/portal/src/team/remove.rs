//! `POST /team/remove` removes a person from the portal, and everyone else with the same mailbox: their sessions end, also at
//! the built-in provider, and sign-in is denied. They still own their clients until a partner reassigns them. The number of
//! people must be confirmed.
//! `POST /team/restore` restores a person with their previous role. For a partner, it needs a recent authentication.

use super::member::{PersonForm, audited_form, confirmed_member, done, permit_manage_team};
use crate::error::{PageError, colleague_error};
use crate::person_names::PersonNames;
use crate::sign_in::session::SignedIn;
use crate::sign_in::sign_out;
use crate::sign_in::step_up;
use crate::state::Portal;
use axum::extract::State;
use axum::response::Response;
use chancery_domain::{Person, PersonId, Role};
use chancery_store::PersonError;
use chancery_web::{Confirmation, Confirmed, ErrorPage, PostedForm};
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<PostedForm<PersonForm>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = permit_manage_team(&portal, &signed_in).await?;
    let read = confirmed_member(&portal, form.map_err(missing_person)).await;
    let (permit, (person, confirmed)) = audited_form(&portal, permit, read).await?;
    let agreed = confirmed.clone();
    let is_confirmed = Box::new(move |count| agreed.is(count));
    let removed = match portal.store.people.remove_person(permit, person.id, is_confirmed).await {
        Err(PersonError::Unconfirmed(people)) => {
            return Err(confirmation(&portal, &signed_in, &person, &people, &confirmed).await?.into());
        }
        outcome => outcome.map_err(colleague_error)?,
    };
    for person in &removed {
        portal.store.session_revoker.end_provider_sessions(&person.identity.subject).await?;
    }
    Ok(match removed.iter().any(|person| person.id == signed_in.person.id) {
        true => sign_out::redirect_to_signed_out(&portal),
        false => done(person.id, "removed"),
    })
}

/// Names everyone who would be removed.
async fn confirmation(
    portal: &Portal,
    signed_in: &SignedIn,
    person: &Person,
    people: &[Person],
    confirmed: &Confirmed,
) -> Result<ErrorPage, PageError> {
    let names = PersonNames::read(portal).await?;
    let count = people.len() as u64;
    let reason = if count == 1 {
        "This removes:".to_owned()
    } else {
        format!("This removes {count} people with one mailbox:")
    };
    let button = if count == 1 {
        format!("Remove {}", names.text(person.id, &person.email))
    } else {
        format!("Remove {count} people")
    };
    let who = if people.iter().any(|person| person.id == signed_in.person.id) {
        "You are removing yourself: you are signed out immediately, and only another partner can restore you."
    } else {
        "They are signed out immediately and can no longer sign in. A partner can restore them."
    };
    let change = Confirmation {
        changes: people.iter().map(|person| names.full_text(person.id, &person.email)).collect(),
        count,
        action: "/team/remove",
        fields: vec![("person", person.id.to_string())],
        button,
    };
    Ok(ErrorPage::confirmation("Remove from the team?", reason, confirmed, change)
        .advice(format!("{who} Nothing is deleted. Clients stay with their owner, and only partners can open them until they are reassigned."))
        .next_link(format!("/team?person={}", person.id), "Cancel"))
}

pub(crate) async fn restore(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<PostedForm<PersonForm>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = permit_manage_team(&portal, &signed_in).await?;
    let read = person_to_restore(&portal, &signed_in, form).await;
    let (permit, person) = audited_form(&portal, permit, read).await?;
    let person = portal.store.people.restore_person(permit, person).await.map_err(colleague_error)?;
    Ok(done(person.id, "restored"))
}

/// Restoring a partner needs what making someone a partner needs.
async fn person_to_restore(
    portal: &Portal,
    signed_in: &SignedIn,
    form: Result<PostedForm<PersonForm>, ErrorPage>,
) -> Result<PersonId, PageError> {
    let PostedForm(PersonForm { person, .. }) = form.map_err(missing_person)?;
    let removed = portal.store.people.list_removed_people().await?;
    let mut partners = removed.iter().filter(|removed| removed.person.role == Role::Partner);
    if partners.any(|partner| partner.person.id.0 == person) {
        step_up::ensure_recent(portal, signed_in, &format!("/team?person={person}")).await?;
    }
    Ok(PersonId(person))
}

fn missing_person(_: ErrorPage) -> ErrorPage {
    ErrorPage::invalid_form("`person` is missing.")
}
