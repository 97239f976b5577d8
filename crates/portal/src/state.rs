//! What every page of the portal stands on.

use crate::drafting::api::{Drafter, DraftingError};
use crate::settings::PortalSettings;
use crate::sign_in::identity::provider::{IdentityError, IdentityProvider};
use crate::sign_in::throttle::SignInsBegun;
use chancery_domain::{Clock, Randomness};
use chancery_mail::Mailer;
use chancery_policy::Policy;
use chancery_store::PortalStore;
use std::sync::Arc;

/// Why a portal cannot be made; the text names the key of the configuration.
#[derive(Debug, thiserror::Error)]
pub enum PortalError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Drafting(#[from] DraftingError),
}

pub struct Portal {
    pub settings: PortalSettings,
    pub store: Arc<PortalStore>,
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
        store: Arc<PortalStore>,
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
