//! The end of every sign-in: all checks have passed, and the session begins with this reply.

use crate::error::PageError;
use crate::sign_in::session;
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{EmailAddress, Identity, LocalPath, Role};
use chancery_store::Arrival;

/// Somebody of the firm's, before or after the code.
#[derive(Clone, Debug)]
pub(crate) struct Claimant {
    pub(crate) identity: Identity,
    pub(crate) email: EmailAddress,
    pub(crate) return_to: LocalPath,
}

/// Every check has passed: the session begins. `also` is another cookie to set.
pub(crate) async fn begin_session(
    portal: &Portal,
    claimant: Claimant,
    visitor: &Visitor,
    also: Option<HeaderValue>,
) -> Result<Response, PageError> {
    let Claimant { identity, email, return_to } = claimant;
    let role = if portal.settings.partners.contains(&email) { Role::Partner } else { Role::Consultant };
    let arrival = Arrival { identity, email, role, origin: visitor.origin(portal.clock.now()) };
    let person = portal.store.people.arrive(arrival).await?;
    let cookie = session::start(portal, person.id, visitor).await?;
    let mut response = Redirect::to(return_to.as_str()).into_response();
    for cookie in [cookie].into_iter().chain(also) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    Ok(response)
}
