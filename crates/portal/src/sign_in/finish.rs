//! Somebody comes back from the identity provider.
//!
//! 1. Who it is, issuer and subject say; the address never does. Two identities with one address are two people.
//! 2. The address must be one of the firm's, by the domain's own rule (`EmailAddress`), or nobody comes in.
//! 3. Its mailbox must be proved: the provider says so, or a code from our own letter does, whatever `second_factor` says.
//! 4. With a second factor a code is asked for in any case.
//! 5. Only then is the person made, or known again with the address as it is now, and the session begins with this reply.

pub(crate) use crate::sign_in::visitor::Visitor;

use crate::failure::refused_by_store;
use crate::sign_in::begin::someone_else_url;
use crate::sign_in::pending_email_code;
use crate::sign_in::session;
use crate::state::{Portal, SecondFactor};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{EmailAddress, Identity, LocalPath, Role};
use chancery_store::Arrival;
use chancery_web::Refusal;
use std::sync::Arc;

/// What the identity provider has proved.
#[derive(Clone, Debug)]
pub(crate) struct Proven {
    pub(crate) identity: Identity,
    /// The claim, if it is a string.
    pub(crate) email: Option<String>,
    pub(crate) is_email_verified: bool,
    pub(crate) return_to: LocalPath,
}

/// Somebody of the firm's, before or after the code.
#[derive(Clone, Debug)]
pub(crate) struct Newcomer {
    pub(crate) identity: Identity,
    pub(crate) email: EmailAddress,
    pub(crate) return_to: LocalPath,
}

pub(crate) async fn arrive(
    portal: &Arc<Portal>,
    proven: Proven,
    visitor: &Visitor,
) -> Result<Response, Refusal> {
    let Proven { identity, email, is_email_verified, return_to } = proven;
    let email = admit(portal, email.as_deref(), &return_to)?;
    let newcomer = Newcomer { identity, email, return_to };
    if is_email_verified && portal.settings.second_factor == SecondFactor::None {
        let_in(portal, newcomer, visitor, None).await
    } else {
        pending_email_code::begin(portal, newcomer, visitor).await
    }
}

/// Every check has passed: the session begins. `also` is another cookie to set.
pub(crate) async fn let_in(
    portal: &Portal,
    newcomer: Newcomer,
    visitor: &Visitor,
    also: Option<HeaderValue>,
) -> Result<Response, Refusal> {
    let Newcomer { identity, email, return_to } = newcomer;
    let role = if portal.settings.partners.contains(&email) { Role::Partner } else { Role::Consultant };
    let arrival = Arrival { identity, email, role, origin: visitor.origin(portal.clock.now()) };
    let person = portal.store.arrive(arrival).await.map_err(|error| refused_by_store(&error))?;
    let cookie = session::start(portal, person.id, visitor).await?;
    let mut response = Redirect::to(return_to.as_str()).into_response();
    for cookie in [cookie].into_iter().chain(also) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

/// The sign-up rule's first half: an address of the firm's.
fn admit(portal: &Portal, claim: Option<&str>, return_to: &LocalPath) -> Result<EmailAddress, Refusal> {
    let settings = &portal.settings;
    let address = claim.map(str::parse::<EmailAddress>);
    let said = match address {
        Some(Ok(address)) if address.is_at(&settings.company_domain) => return Ok(address),
        Some(Ok(address)) => format!("You signed in as {address}."),
        // What cannot be read in one way only is not shown: somebody made it so.
        Some(Err(_)) => "The address that you signed in with is not a plain one.".to_owned(),
        None => "The sign-in service did not say what your e-mail address is.".to_owned(),
    };
    let host = settings.identity.host();
    Err(Refusal::new(
        StatusCode::FORBIDDEN,
        "address_not_admitted",
        "This portal is not for this address",
        format!("{said} Only people with an @{} address can sign in here.", settings.company_domain),
    )
    .advice(format!(
        "If you have one, sign in with that account. Should {host} not ask which one, sign out there first."
    ))
    .way_on(someone_else_url(return_to), "Sign in as someone else")
    .other_way(portal.end_session_url(), "Sign out at the sign-in service")
    .logged("a sign-up was refused: the address is not one of the firm's"))
}
