//! `POST /team/reset-factors`: deletes another person's passkeys, authenticator app and recovery codes at the built-in
//! provider, for someone who has lost them, and ends their sessions there and here. They are told by email. It needs a
//! recent authentication of the partner, and their number must be confirmed.

use super::member::{PersonForm, confirmed_member, done};
use super::person_page::form_page;
use super::row::pluralize;
use crate::error::PageError;
use crate::person_names::PersonNames;
use crate::sign_in::session::SignedIn;
use crate::sign_in::step_up;
use crate::state::Portal;
use axum::extract::State;
use axum::response::Response;
use chancery_alerts::{PEOPLE_EMAIL_LIFETIME, factors_reset_email, new_email_message};
use chancery_domain::Person;
use chancery_policy::{FirmResource, ResetFactors};
use chancery_store::{AccountFactors, FactorResetError};
use chancery_web::{Confirmation, Confirmed, ErrorPage, PostedForm};
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<PostedForm<PersonForm>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ResetFactors>(&signed_in, FirmResource).await?;
    let (person, confirmed) = match read(&portal, &signed_in, form).await {
        Ok(read) => read,
        Err(error) => {
            portal.store.factor_resets.record_reset_decision(permit).await?;
            return Err(error);
        }
    };
    let names = PersonNames::read(&portal).await?;
    let partner = names.full_text(signed_in.person.id, &signed_in.person.email);
    let email = factors_reset_email(&person.email, &portal.settings.firm_name, Some(&partner));
    let now = portal.clock.now();
    let expires_at = now.after(PEOPLE_EMAIL_LIFETIME);
    let notice = new_email_message(email, now, expires_at, portal.randomness.as_ref());
    let agreed = confirmed.clone();
    let is_confirmed = Box::new(move |count| agreed.is(count));
    let reset = portal.store.factor_resets.reset_factors(permit, person.id, &notice, is_confirmed).await;
    if let Err(FactorResetError::Unconfirmed(factors)) = reset {
        return Err(confirmation(&person, &names, &factors, &confirmed).into());
    }
    reset?;
    portal.store.outbox.wake_worker();
    Ok(done(person.id, "factors-reset"))
}

async fn read(
    portal: &Portal,
    signed_in: &SignedIn,
    form: Result<PostedForm<PersonForm>, ErrorPage>,
) -> Result<(Person, Confirmed), PageError> {
    let missing_person = |_| ErrorPage::invalid_form("`person` is missing.");
    let (person, confirmed) = confirmed_member(portal, form.map_err(missing_person)).await?;
    if !portal.settings.is_at_built_in_provider(&person.identity) {
        return Err(FactorResetError::NoProviderAccount.into());
    }
    step_up::ensure_recent(portal, signed_in, &form_page(person.id, "factors")).await?;
    Ok((person, confirmed))
}

/// Says what would be deleted.
fn confirmation(
    person: &Person,
    names: &PersonNames,
    factors: &AccountFactors,
    confirmed: &Confirmed,
) -> ErrorPage {
    let name = names.text(person.id, &person.email);
    let numbers = [
        (factors.passkeys.len() as u64, "passkey"),
        (u64::from(factors.totp_created_at.is_some()), "authenticator app"),
        (factors.recovery_codes, "recovery code"),
    ];
    let changes = numbers.iter().filter(|(number, _)| *number > 0);
    let reason = if factors.is_empty() {
        format!("{name} has no second factor. This only ends their sessions.")
    } else {
        format!("This deletes the second factors of {name}:")
    };
    let change = Confirmation {
        changes: changes.map(|(number, thing)| pluralize(*number, thing)).collect(),
        count: factors.count() + factors.recovery_codes,
        action: "/team/reset-factors",
        fields: vec![("person", person.id.to_string())],
        button: format!("Reset second factors of {name}"),
    };
    ErrorPage::confirmation("Reset second factors?", reason, confirmed, change)
        .advice("They are signed out here and at the sign-in service, and get an email about it.")
        .next_link(format!("/team?person={}", person.id), "Cancel")
}
