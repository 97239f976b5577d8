//! Somebody comes back from the identity provider.
//!
//! 1. Who it is, issuer and subject say; the address never does. Two identities with one address are two people.
//! 2. The address must be one of the firm's, by the domain's own rule (`EmailAddress`), or nobody comes in.
//! 3. Its mailbox must be proved: the provider says so, or a code from our own letter does, whatever `second_factor` says.
//! 4. With a second factor a code is asked for in any case.
//! 5. Only then is the person made, or known again with the address as it is now, and the session begins with this reply.

use crate::error::PageError;
use crate::settings::SecondFactor;
use crate::sign_in::admission::{Claimant, begin_session};
use crate::sign_in::links::someone_else_url;
use crate::sign_in::pending_email_code;
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use axum::http::StatusCode;
use axum::response::Response;
use chancery_domain::{EmailAddress, Identity, LocalPath};
use chancery_web::ErrorPage;
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

pub(crate) async fn sign_in(
    portal: &Arc<Portal>,
    proven: Proven,
    visitor: &Visitor,
) -> Result<Response, PageError> {
    let Proven { identity, email, is_email_verified, return_to } = proven;
    let email = admit(portal, email.as_deref(), &return_to)?;
    let claimant = Claimant { identity, email, return_to };
    if is_email_verified && portal.settings.second_factor == SecondFactor::None {
        begin_session(portal, claimant, visitor, None).await
    } else {
        pending_email_code::begin(portal, claimant, visitor).await
    }
}

/// The sign-up rule's first half: an address of the firm's.
fn admit(portal: &Portal, claim: Option<&str>, return_to: &LocalPath) -> Result<EmailAddress, ErrorPage> {
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
    Err(ErrorPage::new(
        StatusCode::FORBIDDEN,
        "address_not_admitted",
        "This portal is not for this address",
        format!("{said} Only people with an @{} address can sign in here.", settings.company_domain),
    )
    .advice(format!(
        "If you have one, sign in with that account. Should {host} not ask which one, sign out there first."
    ))
    .next_link(someone_else_url(return_to), "Sign in as someone else")
    .other_link(portal.end_session_url(), "Sign out at the sign-in service")
    .logged("a sign-up was refused: the address is not one of the firm's"))
}
