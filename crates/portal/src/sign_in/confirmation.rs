//! The return from the identity provider for a session that goes on: the person authenticated again (step-up), or the
//! provider confirmed that they are still signed in there (recheck).
//!
//! It must be the same person, who must meet everything that a sign-in requires. Otherwise the session ends. After a
//! step-up the session has a new token, because it may do more than before. Where a sign-in asks for an emailed code, a
//! step-up does too: then the code starts a new session in place of this one.

use crate::error::PageError;
use crate::sign_in::admission::{AdmittedIdentity, update_person};
use crate::sign_in::finish::{self, AuthenticatedIdentity};
use crate::sign_in::links::sign_in_url;
use crate::sign_in::pending_email_code;
use crate::sign_in::session::SignedIn;
use crate::sign_in::session_cookie::{SessionSecrets, expired_cookies};
use crate::sign_in::sign_out_cookies::with_cookies;
use crate::sign_in::step_up::{is_recent_for_page, not_confirmed_page};
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{LocalPath, SecretToken};
use chancery_store::{RenewedSession, SignInPurpose};
use std::sync::Arc;

/// `sent` is the session's token, from the browser's cookie.
pub(crate) async fn confirm(
    portal: &Arc<Portal>,
    signed_in: &SignedIn,
    sent: &SecretToken,
    authenticated: AuthenticatedIdentity,
    purpose: SignInPurpose,
    visitor: &Visitor,
) -> Result<Response, PageError> {
    let now = portal.clock.now();
    let is_step_up = purpose == SignInPurpose::StepUp;
    if is_step_up && !authenticated.authentication.at.is_some_and(|at| is_recent_for_page(at, now)) {
        let host = portal.settings.identity.host();
        return Err(not_confirmed_page(&host, &authenticated.return_to).into());
    }
    let needs_code = is_step_up && finish::needs_code(portal, &authenticated);
    let admitted = match finish::admit(portal, authenticated) {
        Ok(admitted) => admitted,
        Err(error) => {
            end(portal, signed_in, visitor).await?;
            return Err(error.into());
        }
    };
    if needs_code {
        return pending_email_code::begin(portal, admitted, visitor).await;
    }
    match admitted.is_email_verified {
        true => update_person(portal, &admitted, visitor).await?,
        // An address that only our code could verify stays as it is until the next sign-in. The role follows at once.
        false => {
            let email = signed_in.person.email.clone();
            update_person(portal, &AdmittedIdentity { email, ..admitted.clone() }, visitor).await?
        }
    };
    let secrets = is_step_up
        .then(|| SessionSecrets::generate(portal.settings.bind_session, portal.randomness.as_ref()));
    let token = secrets.as_ref().map_or(sent, |secrets| &secrets.token);
    let known_at = signed_in.session.authenticated_at;
    let renewed = RenewedSession {
        person: signed_in.person.id,
        old_token: sent.hash(),
        token: token.hash(),
        binding: secrets.as_ref().and_then(SessionSecrets::binding_hash),
        authentication: admitted.authentication.seal(token, known_at, portal.randomness.as_ref()),
        confirmed_at: now,
        step_up: is_step_up.then(|| visitor.origin(now)),
    };
    if !portal.store.sessions.renew_session(renewed).await? {
        // It ended while the browser was at the provider.
        return Ok(Redirect::to(&sign_in_url(&admitted.return_to)).into_response());
    }
    let cookies = secrets.map_or_else(|| Ok(Vec::new()), |secrets| secrets.cookies())?;
    Ok(with_cookies(Redirect::to(admitted.return_to.as_str()).into_response(), cookies))
}

/// The provider no longer knows the person, or knows another one: the session ends, and a sign-in follows.
pub(crate) async fn end_and_sign_in(
    portal: &Portal,
    signed_in: Option<&SignedIn>,
    return_to: &LocalPath,
    visitor: &Visitor,
) -> Result<Response, PageError> {
    if let Some(signed_in) = signed_in {
        end(portal, signed_in, visitor).await?;
    }
    let response = Redirect::to(&sign_in_url(return_to)).into_response();
    Ok(with_cookies(response, expired_cookies(portal.settings.bind_session)))
}

pub(crate) async fn end(portal: &Portal, signed_in: &SignedIn, visitor: &Visitor) -> Result<(), PageError> {
    let origin = visitor.origin(portal.clock.now());
    portal.store.sessions.end_session(signed_in.person.id, signed_in.session.id, &origin).await?;
    Ok(())
}
