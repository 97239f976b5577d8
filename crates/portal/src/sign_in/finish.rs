//! Finishes a sign-in after the identity provider.
//!
//! 1. Issuer and subject identify the person, never the address. Two identities with one address are two people.
//! 2. The address must belong to the firm, by the domain's own rule (`EmailAddress`); otherwise the sign-in is rejected.
//! 3. The mailbox must be verified: by the provider, or by a code in our own email, whatever `second_factor` says.
//! 4. With a second factor, a code is always required.
//! 5. Only then is the person created, or updated with the current address, and this reply starts the session.

use crate::error::PageError;
use crate::settings::SecondFactor;
use crate::sign_in::admission::{AdmittedIdentity, begin_session};
use crate::sign_in::links::someone_else_url;
use crate::sign_in::pending_email_code;
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use axum::http::StatusCode;
use axum::response::Response;
use chancery_domain::{EmailAddress, Identity, LocalPath};
use chancery_web::ErrorPage;
use std::sync::Arc;

/// What the identity provider has asserted.
#[derive(Clone, Debug)]
pub(crate) struct AuthenticatedIdentity {
    pub(crate) identity: Identity,
    /// The claim, if it is a string.
    pub(crate) email: Option<String>,
    pub(crate) is_email_verified: bool,
    pub(crate) return_to: LocalPath,
}

pub(crate) async fn sign_in(
    portal: &Arc<Portal>,
    authenticated: AuthenticatedIdentity,
    visitor: &Visitor,
) -> Result<Response, PageError> {
    let AuthenticatedIdentity { identity, email, is_email_verified, return_to } = authenticated;
    let email = ensure_company_address(portal, email.as_deref(), &return_to)?;
    let admitted = AdmittedIdentity { identity, email, return_to };
    if is_email_verified && portal.settings.second_factor == SecondFactor::None {
        begin_session(portal, admitted, visitor, None).await
    } else {
        pending_email_code::begin(portal, admitted, visitor).await
    }
}

/// The first half of the sign-up rule: the address belongs to the firm.
fn ensure_company_address(
    portal: &Portal,
    claim: Option<&str>,
    return_to: &LocalPath,
) -> Result<EmailAddress, ErrorPage> {
    let settings = &portal.settings;
    let address = claim.map(str::parse::<EmailAddress>);
    let problem = match address {
        Some(Ok(address)) if address.has_domain(&settings.company_domain) => return Ok(address),
        Some(Ok(address)) => format!("You signed in as {address}."),
        // Do not show an ambiguous address: it is probably forged.
        Some(Err(_)) => "Your email address is not valid here.".to_owned(),
        None => "The sign-in service did not send your email address.".to_owned(),
    };
    let host = settings.identity.host();
    Err(ErrorPage::new(
        StatusCode::FORBIDDEN,
        "address_not_admitted",
        "Address not allowed",
        format!("{problem} Only @{} addresses can sign in here.", settings.company_domain),
    )
    .advice(format!("Sign in with another account. If {host} does not ask which one, sign out there first."))
    .next_link(someone_else_url(return_to), "Sign in as someone else")
    .other_link(portal.end_session_url(), "Sign out of the sign-in service")
    .with_log_detail("sign-in rejected: address outside the company domain"))
}
