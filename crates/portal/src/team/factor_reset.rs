//! `POST /team/reset-factors`: deletes another person's passkeys, authenticator app and recovery codes at the built-in
//! provider, for someone who has lost them, and ends their sessions there and here. They are told by email. It needs a
//! recent authentication of the partner.

use super::member::{PersonForm, done, member_from_form};
use super::person_page::form_page;
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
use chancery_store::FactorResetError;
use chancery_web::{ErrorPage, PostedForm};
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<PostedForm<PersonForm>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ResetFactors>(&signed_in, FirmResource).await?;
    let person = match read(&portal, &signed_in, form).await {
        Ok(person) => person,
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
    portal.store.factor_resets.reset_factors(permit, person.id, &notice).await?;
    portal.store.outbox.wake_worker();
    Ok(done(person.id, "factors-reset"))
}

async fn read(
    portal: &Portal,
    signed_in: &SignedIn,
    form: Result<PostedForm<PersonForm>, ErrorPage>,
) -> Result<Person, PageError> {
    let missing_person = |_| ErrorPage::invalid_form("`person` is missing.");
    let person = member_from_form(portal, form.map_err(missing_person)).await?;
    if !portal.settings.is_at_built_in_provider(&person.identity) {
        return Err(FactorResetError::NoProviderAccount.into());
    }
    step_up::ensure_recent(portal, signed_in, &form_page(person.id, "factors")).await?;
    Ok(person)
}
