//! The end of every sign-in: all checks have passed, and this reply starts the session.

use crate::error::PageError;
use crate::sign_in::authentication::Authentication;
use crate::sign_in::known_browser::remember_browser;
use crate::sign_in::session;
use crate::sign_in::sign_out_cookies::ASK_AGAIN_COOKIE;
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{EmailAddress, Identity, LocalPath, Person, Role};
use chancery_store::VerifiedIdentity;

/// A person with an address of the firm, before or after the email code.
#[derive(Clone, Debug)]
pub(crate) struct AdmittedIdentity {
    pub(crate) identity: Identity,
    pub(crate) email: EmailAddress,
    /// Whether the identity provider has verified the address. `portal.partners` counts only then. Our own code proves the
    /// mailbox too, which is enough to use an invitation to it.
    pub(crate) is_email_verified: bool,
    /// The role that the firm's directory gives, if roles come from there.
    pub(crate) directory_role: Option<Role>,
    pub(crate) authentication: Authentication,
    pub(crate) return_to: LocalPath,
}

/// Starts the session after every check has passed. `extra_cookie` is another cookie to set.
pub(crate) async fn begin_session(
    portal: &Portal,
    admitted: AdmittedIdentity,
    visitor: &Visitor,
    extra_cookie: Option<HeaderValue>,
) -> Result<Response, PageError> {
    let person = update_person(portal, &admitted, visitor).await?;
    let known_browser = remember_browser(portal).await?;
    let cookies = session::start(portal, person.id, &admitted.authentication, visitor).await?;
    let mut response = Redirect::to(admitted.return_to.as_str()).into_response();
    let asked = visitor.must_ask_again.then(|| ASK_AGAIN_COOKIE.expire()).flatten();
    for cookie in cookies.into_iter().chain([known_browser]).chain(extra_cookie).chain(asked) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

/// Creates the person, or updates their address and role.
pub(crate) async fn update_person(
    portal: &Portal,
    admitted: &AdmittedIdentity,
    visitor: &Visitor,
) -> Result<Person, PageError> {
    let AdmittedIdentity { identity, email, is_email_verified, directory_role, .. } = admitted;
    let is_partner = *is_email_verified && portal.settings.partners.contains(email);
    let configured = if is_partner { Role::Partner } else { Role::Consultant };
    let verified = |role| VerifiedIdentity {
        identity: identity.clone(),
        email: email.clone(),
        role,
        origin: visitor.origin(portal.clock.now()),
    };
    let people = &portal.store.people;
    let Some(role) = directory_role.map(|role| role.max(configured)) else {
        return Ok(people.sign_in(verified(configured)).await?);
    };
    let person = people.sign_in_from_directory(verified(role)).await?;
    if person.role != role {
        tracing::warn!(person = person.id.0, %role, "the last partner keeps that role, whatever the directory says");
    }
    Ok(person)
}
