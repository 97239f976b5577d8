//! What the portal is told by the configuration, once at the start.

use crate::drafting::settings::DraftingSettings;
use chancery_domain::{CompanyDomain, EmailAddress, InvoiceTerms, RateLimits, SessionTimes};
use chancery_web::TrustedProxies;
use std::fmt;

#[derive(Clone, Debug)]
pub struct PortalSettings {
    /// As browsers know the portal, without a slash at the end.
    pub public_url: String,
    pub firm_name: String,
    pub company_domain: CompanyDomain,
    pub second_factor: SecondFactor,
    /// Whoever signs in with one of these addresses is a partner from then on.
    pub partners: Vec<EmailAddress>,
    pub session_times: SessionTimes,
    pub identity: IdentitySettings,
    /// Of these, `X-Forwarded-For` is believed.
    pub trusted_proxies: TrustedProxies,
    /// None: letters are not drafted here.
    pub drafting: Option<DraftingSettings>,
    /// How invoices are made.
    pub invoice_terms: InvoiceTerms,
    pub api: PublicApi,
}

/// The generation API as those who get a key of it know it.
#[derive(Clone, Debug)]
pub struct PublicApi {
    /// In front of `/v1`, without a slash at the end.
    pub url: String,
    /// One that it offers, for an example.
    pub model: Option<String>,
    /// What a new account may use per minute unless somebody says otherwise.
    pub default_limits: RateLimits,
}

/// Whether a code by mail is asked for at every sign-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondFactor {
    None,
    EmailCode,
}

/// The identity provider, and what the portal is to it.
#[derive(Clone)]
pub struct IdentitySettings {
    /// Exactly as the provider says it.
    pub issuer: String,
    pub client_id: String,
    /// None: the portal is a public client, and PKCE alone ties the code to it.
    pub client_secret: Option<String>,
}

impl IdentitySettings {
    /// As people know the provider: its address without what only programs read.
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
