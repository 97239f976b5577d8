//! Shared state of all handlers.

use crate::drafting::api::{Drafter, DraftingConfigError};
use crate::drafting::model_state::{DraftingModelStatus, always_ready};
use crate::request_limits::{RequestLimits, SharedRequestLimits};
use crate::settings::PortalSettings;
use crate::sign_in::identity::provider::{IdentityError, IdentityProvider};
use crate::sign_in::throttle::{MAX_PER_KNOWN_BROWSER, MAX_PER_SUBNET, SignInThrottle};
use chancery_alerts::OutboxMailer;
use chancery_domain::{Clock, Randomness, SecretToken};
use chancery_mail::Mailer;
use chancery_policy::Policy;
use chancery_store::PortalStore;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// Why the portal cannot start; the message names the configuration key.
#[derive(Debug, thiserror::Error)]
pub enum PortalError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Drafting(#[from] DraftingConfigError),
}

pub struct Portal {
    pub settings: PortalSettings,
    pub store: Arc<PortalStore>,
    pub mailer: OutboxMailer,
    pub policy: Arc<Policy>,
    pub clock: Arc<dyn Clock>,
    pub randomness: Arc<dyn Randomness>,
    pub(crate) identity: IdentityProvider,
    pub(crate) sign_in_throttle: SignInThrottle,
    pub(crate) known_browser_throttle: SignInThrottle,
    /// Shared by all nodes on this database; read once (`sign_in::known_browser`).
    pub(crate) known_browser_secret: OnceCell<SecretToken>,
    /// Counts wrong logout tokens.
    pub(crate) logout_throttle: SignInThrottle,
    pub(crate) request_limits: RequestLimits,
    /// `None` if drafting is off.
    pub(crate) drafter: Option<Drafter>,
    /// Whether a better model for letters is on its way.
    pub drafting_model: DraftingModelStatus,
}

impl Portal {
    /// Contacts neither the identity provider nor the generation API: they may be down, or start later.
    pub fn new(
        settings: PortalSettings,
        store: Arc<PortalStore>,
        mailer: Arc<Mailer>,
        policy: Arc<Policy>,
        clock: Arc<dyn Clock>,
        randomness: Arc<dyn Randomness>,
    ) -> Result<Self, PortalError> {
        let identity = IdentityProvider::new(&settings, Arc::clone(&clock))?;
        let drafter = settings
            .drafting
            .clone()
            .map(|drafting| Drafter::new(drafting, &settings.own_certificates, Arc::clone(&clock)));
        let drafter = drafter.transpose()?;
        let request_limits = RequestLimits::new(settings.person_requests_per_min, Arc::clone(&clock));
        let mailer =
            OutboxMailer::new(store.outbox.clone(), mailer, Arc::clone(&clock), Arc::clone(&randomness));
        Ok(Self {
            settings,
            store,
            mailer,
            policy,
            clock,
            randomness,
            identity,
            sign_in_throttle: SignInThrottle::new(MAX_PER_SUBNET),
            known_browser_throttle: SignInThrottle::new(MAX_PER_KNOWN_BROWSER),
            known_browser_secret: OnceCell::new(),
            logout_throttle: SignInThrottle::new(MAX_PER_SUBNET),
            request_limits,
            drafter,
            drafting_model: always_ready(),
        })
    }

    /// Shows whether the model that drafts letters is being fetched.
    #[must_use]
    pub fn with_drafting_model(self, drafting_model: DraftingModelStatus) -> Self {
        Self { drafting_model, ..self }
    }

    /// Counts people's requests in a store that all nodes share, too.
    #[must_use]
    pub fn with_shared_request_limits(mut self, shared: Arc<dyn SharedRequestLimits>) -> Self {
        self.request_limits.share(shared);
        self
    }

    /// The identity provider's sign-out URL, which returns to the page `/signed-out`. `None` if the provider has none or its metadata
    /// was never fetched: signing out must not wait for it.
    pub fn end_session_url(&self) -> Option<String> {
        self.identity.end_session_url(None)
    }
}
