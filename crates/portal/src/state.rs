//! What every page of the portal stands on.

use crate::drafting::{Drafter, DraftingError, DraftingSettings};
use crate::sign_in::identity::{IdentityError, IdentityProvider};
use crate::sign_in::throttle::SignInsBegun;
use chancery_domain::{
    Clock, CompanyDomain, EmailAddress, InvoiceTerms, Randomness, RateLimits, SessionTimes,
};
use chancery_mail::Mailer;
use chancery_policy::Policy;
use chancery_store::Store;
use chancery_web::TrustedProxies;
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

/// Why a portal cannot be made; the text names the key of the configuration.
#[derive(Debug, thiserror::Error)]
pub enum PortalError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Drafting(#[from] DraftingError),
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
    pub policy: Arc<Policy>,
    pub clock: Arc<dyn Clock>,
    pub randomness: Arc<dyn Randomness>,
    pub(crate) identity: IdentityProvider,
    pub(crate) sign_ins_begun: SignInsBegun,
    /// None: letters are not drafted here.
    pub(crate) drafter: Option<Drafter>,
}

impl Portal {
    /// Neither the identity provider nor the generation API is asked for anything yet; they may be down, or start later.
    pub fn new(
        settings: PortalSettings,
        store: Arc<dyn Store>,
        mailer: Arc<Mailer>,
        policy: Arc<Policy>,
        clock: Arc<dyn Clock>,
        randomness: Arc<dyn Randomness>,
    ) -> Result<Self, PortalError> {
        let identity = IdentityProvider::new(&settings, Arc::clone(&clock))?;
        let drafter = settings.drafting.clone().map(|drafting| Drafter::new(drafting, Arc::clone(&clock)));
        let sign_ins_begun = SignInsBegun::default();
        let drafter = drafter.transpose()?;
        Ok(Self { settings, store, mailer, policy, clock, randomness, identity, sign_ins_begun, drafter })
    }

    /// Where a browser that signed out here signs out at the identity provider too, coming back to the portal's start. None
    /// where the provider has no such place, or was never asked; signing out here must not wait for it.
    pub fn end_session_url(&self) -> Option<String> {
        self.identity.end_session_url()
    }
}
