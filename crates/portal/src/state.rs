//! What every page of the portal stands on.

use chancery_domain::{Clock, CompanyDomain, EmailAddress, Randomness, SessionTimes};
use chancery_mail::Mailer;
use chancery_store::Store;
use std::fmt;
use std::sync::Arc;

/// Made once at the start, from the configuration.
#[derive(Clone, Debug)]
pub struct PortalSettings {
    /// As browsers know the portal, without a slash at the end.
    pub public_url: String,
    pub firm_name: String,
    pub company_domain: CompanyDomain,
    pub second_factor: SecondFactor,
    /// They are partners from their first sign-in on.
    pub partners: Vec<EmailAddress>,
    pub session_times: SessionTimes,
    pub identity: IdentitySettings,
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

pub struct Portal {
    pub settings: PortalSettings,
    pub store: Arc<dyn Store>,
    pub mailer: Arc<Mailer>,
    pub clock: Arc<dyn Clock>,
    pub randomness: Arc<dyn Randomness>,
}
