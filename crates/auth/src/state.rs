//! Shared state of the provider's endpoints.

use crate::passkeys::Passkeys;
use crate::passwords::PasswordContext;
use chancery_alerts::OutboxMailer;
use chancery_domain::{Clock, CompanyDomain, EmailAddress, Randomness, SecretToken};
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
    /// Whether `Strict-Transport-Security` includes the subdomains of the provider's host.
    pub hsts_include_subdomains: bool,
    pub second_factor: SecondFactorPolicy,
}

/// Whether accounts must have a second factor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SecondFactorPolicy {
    /// Each person decides. Who has a factor is asked for it.
    #[default]
    Optional,
    /// Nobody gets into an application without one.
    Required,
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
    /// Gets a logout token when a session ends in which users signed in to this application (OpenID Connect
    /// Back-Channel Logout).
    pub backchannel_logout_uri: Option<String>,
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
    pub(crate) fn requires_second_factor(&self) -> bool {
        self.second_factor == SecondFactorPolicy::Required
    }

    pub fn client(&self, id: &str) -> Option<&Client> {
        self.clients.iter().find(|client| client.id == id)
    }

    pub(crate) fn password_context<'a>(&'a self, email: &'a EmailAddress) -> PasswordContext<'a> {
        PasswordContext { email, firm_name: &self.firm_name }
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
    /// `None` if the issuer's host is an IP address, for which browsers refuse passkeys.
    pub(crate) passkeys: Option<Passkeys>,
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
        let passkeys = Passkeys::new(&settings.issuer, &settings.firm_name);
        Self { settings, store, mailer, clock, randomness, passkeys, detour_secret: OnceCell::new() }
    }
}
