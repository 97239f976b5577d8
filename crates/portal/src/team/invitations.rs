//! `POST /team/invitations`: invites an address of the firm by email, with a role. `…/resend` sends the email again,
//! `…/cancel` withdraws it. The first sign-in with that address uses the invitation.

use super::invite_form::InviteInput;
use super::page::{INVITE_PAGE, Team};
use super::role::role_from_directory;
use crate::error::PageError;
use crate::person_names::PersonNames;
use crate::sign_in::session::SignedIn;
use crate::sign_in::step_up;
use crate::state::Portal;
use crate::time_format::{LocalTime, day_and_time, seconds_until};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_alerts::{PEOPLE_EMAIL_LIFETIME, invitation_email, new_email_message};
use chancery_domain::{EmailAddress, Role};
use chancery_policy::{FirmResource, InvitePerson, Permit};
use chancery_store::{INVITATION_LIFETIME, InvitationError, MAX_INVITATIONS, NewInvitation, NewMessage};
use chancery_web::{ErrorPage, Form, PostedForm, Problems};
use serde::Deserialize;
use std::sync::Arc;

/// A form about one invitation.
#[derive(Deserialize)]
pub(crate) struct InvitationForm {
    email: String,
}

pub(crate) async fn invite(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<PostedForm<InviteInput>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<InvitePerson>(&signed_in, FirmResource).await?;
    let typed = match form {
        Ok(PostedForm(typed)) => typed,
        Err(error) => return Err(invalid(&portal, permit, error).await?.into()),
    };
    let (email, role) = match typed.read(&portal) {
        Ok(read) => read,
        Err(problems) => {
            portal.store.invitations.record_invitation_decision(permit).await?;
            return show_problems(&portal, &signed_in, typed, problems).await;
        }
    };
    if role == Role::Partner
        && let Err(error) = ensure_may_offer_partner(&portal, &signed_in).await
    {
        portal.store.invitations.record_invitation_decision(permit).await?;
        return Err(error);
    }
    let message = message(&portal, &signed_in, &email).await?;
    let new = NewInvitation { email, role, message };
    match portal.store.invitations.invite_person(permit, &new).await {
        Ok(()) => Ok(done(&portal, "invited")),
        Err(error) => {
            let local = signed_in.local_time(&portal);
            let problem = problem_text(error, &local)?;
            show_problems(&portal, &signed_in, typed, Problems::one("email", problem)).await
        }
    }
}

/// Offering the role of a partner needs what making someone a partner needs.
async fn ensure_may_offer_partner(portal: &Portal, signed_in: &SignedIn) -> Result<(), PageError> {
    if portal.settings.identity.roles.is_some() {
        return Err(role_from_directory().into());
    }
    step_up::ensure_recent(portal, signed_in, INVITE_PAGE).await
}

pub(crate) async fn resend(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<PostedForm<InvitationForm>, ErrorPage>,
) -> Result<Response, PageError> {
    let (permit, email) = permit_and_address(&portal, &signed_in, form).await?;
    let pending = portal.store.invitations.list_invitations(portal.clock.now()).await?;
    let offers_partner = pending.iter().any(|own| own.email == email && own.role == Role::Partner);
    // It renews the offer, so it needs what making it needs.
    if offers_partner && let Err(error) = step_up::ensure_recent(&portal, &signed_in, INVITE_PAGE).await {
        portal.store.invitations.record_invitation_decision(permit).await?;
        return Err(error);
    }
    let message = message(&portal, &signed_in, &email).await?;
    portal.store.invitations.resend_invitation(permit, &email, &message).await.map_err(
        |error| match error {
            InvitationError::TooManyEmails { until, .. } => {
                let local = signed_in.local_time(&portal);
                too_many_emails(&email, &day_and_time(until, &local), seconds_until(until, local.now)).into()
            }
            error => PageError::from(error),
        },
    )?;
    Ok(done(&portal, "resent"))
}

pub(crate) async fn cancel(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<PostedForm<InvitationForm>, ErrorPage>,
) -> Result<Response, PageError> {
    let (permit, email) = permit_and_address(&portal, &signed_in, form).await?;
    portal.store.invitations.cancel_invitation(permit, &email).await?;
    Ok(done(&portal, "canceled"))
}

/// A denial is audited before this returns. An allowed decision is audited with the change, or here if the form is
/// invalid.
async fn permit_and_address(
    portal: &Portal,
    signed_in: &SignedIn,
    form: Result<PostedForm<InvitationForm>, ErrorPage>,
) -> Result<(Permit<InvitePerson>, EmailAddress), PageError> {
    let permit = portal.permit::<InvitePerson>(signed_in, FirmResource).await?;
    let email = form.ok().and_then(|PostedForm(InvitationForm { email })| email.parse().ok());
    match email {
        Some(email) => Ok((permit, email)),
        None => {
            let missing = ErrorPage::invalid_form("`email` is missing or not an address.");
            Err(invalid(portal, permit, missing).await?.into())
        }
    }
}

/// Audits the decision for a form that cannot be read.
async fn invalid(
    portal: &Portal,
    permit: Permit<InvitePerson>,
    error: ErrorPage,
) -> Result<ErrorPage, PageError> {
    portal.store.invitations.record_invitation_decision(permit).await?;
    Ok(error)
}

/// The email, which the store enqueues with the invitation.
async fn message(portal: &Portal, signed_in: &SignedIn, to: &EmailAddress) -> Result<NewMessage, PageError> {
    let (settings, now) = (&portal.settings, portal.clock.now());
    let names = PersonNames::read(portal).await?;
    let partner = names.full_text(signed_in.person.id, &signed_in.person.email);
    let expires_at = now.after(INVITATION_LIFETIME);
    let email = invitation_email(to, &settings.firm_name, &settings.public_url, Some(&partner), expires_at);
    Ok(new_email_message(email, now, now.after(PEOPLE_EMAIL_LIFETIME), portal.randomness.as_ref()))
}

/// Sends the email and returns to the team page.
fn done(portal: &Portal, what: &str) -> Response {
    portal.store.outbox.wake_worker();
    Redirect::to(&format!("/team?done={what}#invitations")).into_response()
}

async fn show_problems(
    portal: &Portal,
    signed_in: &SignedIn,
    typed: InviteInput,
    problems: Problems,
) -> Result<Response, PageError> {
    let form = Form { typed, problems };
    let team = Team::read(portal, signed_in).await?;
    team.show(portal, signed_in, form, None, StatusCode::UNPROCESSABLE_ENTITY).await
}

/// What is wrong with the address. Other errors are pages of their own.
fn problem_text(error: InvitationError, local: &LocalTime) -> Result<String, PageError> {
    Ok(match error {
        InvitationError::AlreadyOnTeam(email) => format!("{email} is already on the team"),
        InvitationError::PersonRemoved(email) => {
            format!("{email} belongs to a person who was removed. Restore that person below")
        }
        InvitationError::TooManyEmails { email, until } => {
            let until = day_and_time(until, local);
            format!("Too many invitations were sent to {email}. Try again after {until}")
        }
        InvitationError::TooManyInvitations => {
            format!("There are {MAX_INVITATIONS} unused invitations. Cancel some first")
        }
        error => return Err(error.into()),
    })
}

fn too_many_emails(email: &EmailAddress, until: &str, retry_after_s: u32) -> ErrorPage {
    let reason = format!("Too many invitations were sent to {email}. Nothing was sent.");
    let mut page = ErrorPage::too_many_requests(reason, retry_after_s)
        .advice(format!("Try again after {until}."))
        .next_link("/team#invitations", "Go to invitations");
    page.code = "too_many_invitations";
    page
}
