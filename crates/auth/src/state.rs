//! Shared state of the provider's endpoints.

use chancery_alerts::OutboxMailer;
use chancery_domain::{Clock, CompanyDomain, Randomness, SecretToken};
use chancery_mail::Mailer;
use chancery_store::ProviderStore;
use chancery_web::TrustedProxies;
use std::fmt;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// Created once at startup, from the configuration.
#[derive(Clone, Debug)]
pub struct ProviderSettings {
    /// The provider's own URL as browsers and clients see it, without a trailing slash.
    pub issuer: String,
    pub firm_name: String,
    /// The email domain whose users may sign up.
    pub company_domain: CompanyDomain,
    pub clients: Vec<Client>,
    /// `X-Forwarded-For` is trusted from these peers.
    pub trusted_proxies: TrustedProxies,
}

/// An application that users sign in to.
#[derive(Clone)]
pub struct Client {
    pub id: String,
    /// Shown on the consent page.
    pub name: String,
    /// `None` for a public client.
    pub secret: Option<String>,
    /// Compared exactly.
    pub redirect_uris: Vec<String>,
    pub post_logout_redirect_uris: Vec<String>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("id", &self.id)
            .field("redirect_uris", &self.redirect_uris)
            .finish_non_exhaustive()
    }
}

impl ProviderSettings {
    pub fn client(&self, id: &str) -> Option<&Client> {
        self.clients.iter().find(|client| client.id == id)
    }

    /// The origins that sign-in and logout may redirect to.
    pub(crate) fn form_action_origins(&self) -> Vec<String> {
        let uris = self
            .clients
            .iter()
            .flat_map(|client| client.redirect_uris.iter().chain(&client.post_logout_redirect_uris));
        let mut origins: Vec<String> = uris.filter_map(|uri| origin(uri)).collect();
        origins.sort();
        origins.dedup();
        origins
    }
}

fn origin(uri: &str) -> Option<String> {
    let (scheme, rest) = uri.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    Some(format!("{scheme}://{authority}"))
}

pub struct Provider {
    pub settings: ProviderSettings,
    pub store: Arc<ProviderStore>,
    pub mailer: OutboxMailer,
    pub clock: Arc<dyn Clock>,
    pub randomness: Arc<dyn Randomness>,
    /// Shared by all nodes on this database; read once (`protocol::sign_in_detour`).
    pub(crate) detour_secret: OnceCell<SecretToken>,
}

impl Provider {
    pub fn new(
        settings: ProviderSettings,
        store: Arc<ProviderStore>,
        mailer: Arc<Mailer>,
        clock: Arc<dyn Clock>,
        randomness: Arc<dyn Randomness>,
    ) -> Self {
        let mailer =
            OutboxMailer::new(store.outbox.clone(), mailer, Arc::clone(&clock), Arc::clone(&randomness));
        Self { settings, store, mailer, clock, randomness, detour_secret: OnceCell::new() }
    }
}
