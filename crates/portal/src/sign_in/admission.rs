//! The end of every sign-in: all checks have passed, and this reply starts the session.

use crate::error::PageError;
use crate::sign_in::session;
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{EmailAddress, Identity, LocalPath, Role};
use chancery_store::VerifiedIdentity;

/// A person with an address of the firm, before or after the email code.
#[derive(Clone, Debug)]
pub(crate) struct AdmittedIdentity {
    pub(crate) identity: Identity,
    pub(crate) email: EmailAddress,
    pub(crate) return_to: LocalPath,
}

/// Starts the session after every check has passed. `extra_cookie` is another cookie to set.
pub(crate) async fn begin_session(
    portal: &Portal,
    admitted: AdmittedIdentity,
    visitor: &Visitor,
    extra_cookie: Option<HeaderValue>,
) -> Result<Response, PageError> {
    let AdmittedIdentity { identity, email, return_to } = admitted;
    let role = if portal.settings.partners.contains(&email) { Role::Partner } else { Role::Consultant };
    let verified = VerifiedIdentity { identity, email, role, origin: visitor.origin(portal.clock.now()) };
    let person = portal.store.people.sign_in(verified).await?;
    let cookie = session::start(portal, person.id, visitor).await?;
    let mut response = Redirect::to(return_to.as_str()).into_response();
    for cookie in [cookie].into_iter().chain(extra_cookie) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    Ok(response)
}
