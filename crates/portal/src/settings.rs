//! The portal's configuration, read once at startup.

use crate::drafting::settings::DraftingSettings;
use chancery_domain::{CompanyDomain, EmailAddress, InvoiceTerms, RateLimits, SessionTimeouts};
use chancery_web::TrustedProxies;
use std::fmt;

#[derive(Clone, Debug)]
pub struct PortalSettings {
    /// The portal's URL as browsers see it, without a trailing slash.
    pub public_url: String,
    pub firm_name: String,
    pub company_domain: CompanyDomain,
    pub second_factor: SecondFactor,
    /// People who sign in with one of these addresses become partners.
    pub partners: Vec<EmailAddress>,
    pub session_times: SessionTimeouts,
    pub identity: IdentitySettings,
    /// Proxies whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: TrustedProxies,
    /// `None` if drafting is off.
    pub drafting: Option<DraftingSettings>,
    pub invoice_terms: InvoiceTerms,
    pub api: PublicApi,
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

/// Whether every sign-in needs a code by email.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondFactor {
    None,
    EmailCode,
}

/// The identity provider, and the portal's registration with it.
#[derive(Clone)]
pub struct IdentitySettings {
    /// Exactly as the provider states it.
    pub issuer: String,
    pub client_id: String,
    /// `None` for a public client, for which PKCE alone binds the code to the portal.
    pub client_secret: Option<String>,
}

impl IdentitySettings {
    /// The provider's host name, for users.
    pub(crate) fn host(&self) -> String {
        let rest = self.issuer.split_once("://").map_or(self.issuer.as_str(), |(_, rest)| rest);
        rest.split(['/', '?', '#']).next().unwrap_or(rest).to_owned()
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
