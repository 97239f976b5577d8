//! Finishes a sign-in after the identity provider.
//!
//! 1. Issuer and subject identify the person, never the address. Two identities with one address are two people.
//! 2. The address must belong to the firm, by the domain's own rule (`EmailAddress`); otherwise the sign-in is rejected.
//! 3. The mailbox must be verified: by the provider, or by a code in our own email, whatever `second_factor` says.
//! 4. With a second factor, a code is required; with `provider`, only if the provider has not asked for one itself.
//! 5. Only then is the person created, or updated with the current address, and this reply starts the session.

use crate::error::PageError;
use crate::settings::SecondFactor;
use crate::sign_in::admission::{AdmittedIdentity, begin_session};
use crate::sign_in::authentication::Authentication;
use crate::sign_in::links::someone_else_url;
use crate::sign_in::pending_email_code;
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use axum::http::StatusCode;
use axum::response::Response;
use chancery_domain::{EmailAddress, Identity, LocalPath, Role};
use chancery_web::ErrorPage;
use std::sync::Arc;

/// What the identity provider has asserted.
#[derive(Clone, Debug)]
pub(crate) struct AuthenticatedIdentity {
    pub(crate) identity: Identity,
    /// The claim, if it is a string.
    pub(crate) email: Option<String>,
    pub(crate) is_email_verified: bool,
    /// Whether the provider has asked for a second factor.
    pub(crate) has_multiple_factors: bool,
    /// The role that the firm's directory gives, if roles come from there.
    pub(crate) directory_role: Option<Role>,
    pub(crate) authentication: Authentication,
    pub(crate) return_to: LocalPath,
}

pub(crate) async fn sign_in(
    portal: &Arc<Portal>,
    authenticated: AuthenticatedIdentity,
    visitor: &Visitor,
) -> Result<Response, PageError> {
    let needs_code = needs_code(portal, &authenticated);
    let admitted = admit(portal, authenticated)?;
    if admitted.is_email_verified && !needs_code {
        begin_session(portal, admitted, visitor, None).await
    } else {
        pending_email_code::begin(portal, admitted, visitor).await
    }
}

/// Whether the portal asks for a code as second factor.
pub(crate) fn needs_code(portal: &Portal, authenticated: &AuthenticatedIdentity) -> bool {
    match portal.settings.second_factor {
        SecondFactor::None => false,
        SecondFactor::EmailCode => true,
        SecondFactor::Provider => !authenticated.has_multiple_factors,
    }
}

/// The first half of the sign-up rule: the address belongs to the firm.
pub(crate) fn admit(
    portal: &Portal,
    authenticated: AuthenticatedIdentity,
) -> Result<AdmittedIdentity, ErrorPage> {
    let AuthenticatedIdentity {
        identity,
        email,
        is_email_verified,
        directory_role,
        authentication,
        return_to,
        ..
    } = authenticated;
    let email = ensure_company_address(portal, email.as_deref(), &return_to)?;
    Ok(AdmittedIdentity { identity, email, is_email_verified, directory_role, authentication, return_to })
}

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
