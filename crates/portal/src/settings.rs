//! The portal's configuration, read once at startup.

use crate::drafting::settings::DraftingSettings;
use chancery_domain::{
    CompanyDomain, EmailAddress, Identity, InvoiceTerms, RateLimits, Role, SessionTimeouts, TimeZoneName,
};
use chancery_http_client::OwnCertificates;
use chancery_invoicing::PdfFonts;
use chancery_web::TrustedProxies;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct PortalSettings {
    /// The portal's URL as browsers see it, without a trailing slash.
    pub public_url: String,
    pub firm_name: String,
    /// Times are shown in it to people who have not chosen a time zone.
    pub time_zone: TimeZoneName,
    pub company_domain: CompanyDomain,
    pub second_factor: SecondFactor,
    /// People who sign in with one of these addresses become partners.
    pub partners: Vec<EmailAddress>,
    pub session_times: SessionTimeouts,
    /// Requests of one person per minute, over all their sessions.
    pub person_requests_per_min: u32,
    /// A second cookie, which no sibling subdomain can plant, must match the session.
    pub bind_session: bool,
    /// Whether `Strict-Transport-Security` includes the subdomains of the portal's host.
    pub hsts_include_subdomains: bool,
    pub identity: IdentitySettings,
    /// Whether that is the built-in provider, whose second factors partners can reset.
    pub has_built_in_provider: bool,
    /// Proxies whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: TrustedProxies,
    /// `None` if drafting is off.
    pub drafting: Option<DraftingSettings>,
    pub invoice_terms: InvoiceTerms,
    pub pdf_fonts: PdfFonts,
    pub api: PublicApi,
    /// The identity provider and the generation API may be our own.
    pub own_certificates: OwnCertificates,
}

impl PortalSettings {
    /// Whether the person signs in at the built-in provider.
    pub(crate) fn is_at_built_in_provider(&self, identity: &Identity) -> bool {
        self.has_built_in_provider && identity.issuer == self.identity.issuer
    }
}

/// The generation API as seen by holders of its keys.
#[derive(Clone, Debug)]
pub struct PublicApi {
    /// Base URL before `/v1`, without a trailing slash.
    pub url: String,
    /// A model that the API offers, for examples.
    pub model: Option<String>,
    /// Default rate limits of a new account.
    pub default_limits: RateLimits,
}

/// What a sign-in needs besides the identity provider's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondFactor {
    None,
    /// Always a code by email.
    EmailCode,
    /// A code by email, unless the provider has asked for a second factor itself (`mfa` in the claim `amr`).
    Provider,
}

/// The identity provider, and the portal's registration with it.
#[derive(Clone)]
pub struct IdentitySettings {
    /// Exactly as the provider states it.
    pub issuer: String,
    pub client_id: String,
    /// `None` for a public client, for which PKCE alone binds the code to the portal.
    pub client_secret: Option<String>,
    pub requirements: SignInRequirements,
    /// `None` if roles are managed in the portal.
    pub roles: Option<DirectoryRoles>,
    /// After this time, the provider must confirm that the person is still signed in. `None`: never.
    pub recheck_after: Option<Duration>,
}

/// What every sign-in must have, beyond an address of the firm.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SignInRequirements {
    /// Claims with their accepted values. A list in a token has them if one of its elements is accepted.
    pub claims: BTreeMap<String, Vec<Value>>,
    /// One of these authentication levels (`acr`). Empty: any.
    pub acr: Vec<String>,
    /// All of these authentication methods (`amr`).
    pub amr: Vec<String>,
}

/// Roles from the firm's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryRoles {
    /// A claim whose value is a string or a list of strings.
    pub claim: String,
    /// The role of each value. If none of them is `consultant`, everyone else is a consultant.
    pub by_value: BTreeMap<String, Role>,
}

impl IdentitySettings {
    /// The provider's host name, for users.
    pub(crate) fn host(&self) -> String {
        let rest = self.issuer.split_once("://").map_or(self.issuer.as_str(), |(_, rest)| rest);
        rest.split(['/', '?', '#']).next().unwrap_or(rest).to_owned()
    }

    /// The provider's origin, such as `https://id.example.com`.
    pub(crate) fn origin(&self) -> Option<String> {
        let (scheme, _) = self.issuer.split_once("://")?;
        Some(format!("{scheme}://{}", self.host()))
    }
}

impl fmt::Debug for IdentitySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { issuer, client_id, .. } = self;
        f.debug_struct("IdentitySettings")
            .field("issuer", issuer)
            .field("client_id", client_id)
            .finish_non_exhaustive()
    }
}
