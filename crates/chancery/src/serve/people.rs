//! Builds the two surfaces that people use, the portal and the built-in identity provider, from the configuration:
//! their addresses, and the client secret with which the portal authenticates to the provider.

use super::person_limits;
use crate::config::{Config, scheme};
use crate::secret_file;
use anyhow::Context;
use chancery_auth::{Client, Provider, ProviderSettings};
use chancery_domain::{Clock, Randomness, SecretToken};
use chancery_http_client::OwnCertificates;
use chancery_listener::Listener;
use chancery_mail::Mailer;
use chancery_policy::Policy;
use chancery_portal::{DraftingSettings, IdentitySettings, Portal, PortalSettings, PublicApi};
use chancery_store::{SharedSecrets, Store};
use std::net::SocketAddr;
use std::sync::Arc;

/// Generated at the first start with the built-in provider, and shared by the portals of all nodes.
const CLIENT_SECRET: &str = "portal-client-secret";

/// The URLs at which browsers reach each surface.
#[derive(Clone, Debug)]
pub struct Addresses {
    pub api: String,
    pub portal: String,
    pub issuer: String,
}

impl Addresses {
    /// For a service that runs in another process, uses its configured address.
    pub fn new(config: &Config, api: String, portal: Option<&Listener>, auth: Option<&Listener>) -> Self {
        let port = |listener: Option<&Listener>, configured: SocketAddr| {
            listener.map_or(configured, Listener::address).port()
        };
        // Cookies ignore ports. Different host names keep each surface's cookies from the other.
        let portal = config.portal.public_url.clone().unwrap_or_else(|| {
            let scheme = scheme(config.tls.portal.as_ref());
            format!("{scheme}://localhost:{}", port(portal, config.portal.listen))
        });
        let issuer = config.identity.issuer.clone().unwrap_or_else(|| {
            let scheme = scheme(config.tls.auth.as_ref());
            format!("{scheme}://127.0.0.1:{}", port(auth, config.auth.listen))
        });
        Self { api, portal, issuer }
    }

    fn redirect_uri(&self) -> String {
        format!("{}/auth/callback", self.portal)
    }
}

/// Dependencies that both surfaces share.
pub struct SharedDeps {
    pub store: Arc<Store>,
    pub mailer: Arc<Mailer>,
    pub policy: Arc<Policy>,
    pub clock: Arc<dyn Clock>,
    pub randomness: Arc<dyn Randomness>,
    /// `None`: the portal is a public client.
    client_secret: Option<String>,
}

impl SharedDeps {
    pub async fn new(
        config: &Config,
        store: Arc<Store>,
        clock: Arc<dyn Clock>,
        randomness: Arc<dyn Randomness>,
    ) -> anyhow::Result<Self> {
        let mailer =
            Mailer::new(&config.mail.route, &config.mail.from, &config.portal.firm_name, Arc::clone(&clock));
        let mailer = Arc::new(mailer.context("cannot use mail.smtp")?);
        let client_secret = client_secret(config, &store.secrets, randomness.as_ref()).await?;
        let policy = Arc::new(Policy::load()?);
        Ok(Self { store, mailer, policy, clock, randomness, client_secret })
    }

    pub fn portal(
        &self,
        config: &Config,
        addresses: &Addresses,
        drafting: Option<DraftingSettings>,
        own_certificates: &OwnCertificates,
    ) -> anyhow::Result<Portal> {
        let settings = PortalSettings {
            public_url: addresses.portal.clone(),
            firm_name: config.portal.firm_name.clone(),
            time_zone: config.portal.time_zone.clone(),
            company_domain: config.portal.company_domain.clone(),
            second_factor: config.portal.second_factor,
            partners: config.portal.partners.clone(),
            session_times: config.portal.session_times,
            person_requests_per_min: config.portal.person_requests_per_min,
            bind_session: config.portal.bind_session,
            hsts_include_subdomains: config.portal.hsts_include_subdomains,
            identity: IdentitySettings {
                issuer: addresses.issuer.clone(),
                client_id: config.identity.client_id.clone(),
                client_secret: self.client_secret.clone(),
                requirements: config.identity.requirements.clone(),
                roles: config.identity.roles.clone(),
                recheck_after: config.identity.recheck_after,
            },
            has_built_in_provider: config.auth.is_enabled,
            trusted_proxies: config.portal.trusted_proxies.clone(),
            drafting,
            invoice_terms: config.invoice_terms(),
            pdf_fonts: config.billing.pdf_fonts()?,
            api: PublicApi {
                url: addresses.api.clone(),
                model: config.models.first().map(|model| model.name.clone()),
                default_limits: config.default_limits,
            },
            own_certificates: own_certificates.clone(),
        };
        let portal = Portal::new(
            settings,
            Arc::new(self.store.portal()),
            Arc::clone(&self.mailer),
            Arc::clone(&self.policy),
            Arc::clone(&self.clock),
            Arc::clone(&self.randomness),
        );
        let portal = portal.context("cannot create the portal")?;
        Ok(match person_limits::shared(&config.limit_store, Arc::clone(&self.clock)) {
            Some(shared) => portal.with_shared_request_limits(shared),
            None => portal,
        })
    }

    pub fn provider(&self, config: &Config, addresses: &Addresses) -> Provider {
        let portal = Client {
            id: config.identity.client_id.clone(),
            name: format!("{} client portal", config.portal.firm_name),
            secret: self.client_secret.clone(),
            redirect_uris: vec![addresses.redirect_uri()],
            post_logout_redirect_uris: vec![format!("{}/signed-out", addresses.portal)],
            backchannel_logout_uri: Some(format!("{}/auth/backchannel-logout", addresses.portal)),
        };
        let settings = ProviderSettings {
            issuer: addresses.issuer.clone(),
            firm_name: config.portal.firm_name.clone(),
            company_domain: config.portal.company_domain.clone(),
            clients: vec![portal],
            trusted_proxies: config.portal.trusted_proxies.clone(),
            second_factor: config.auth.second_factor,
            hsts_include_subdomains: config.auth.hsts_include_subdomains,
        };
        Provider::new(
            settings,
            Arc::new(self.store.provider()),
            Arc::clone(&self.mailer),
            Arc::clone(&self.clock),
            Arc::clone(&self.randomness),
        )
    }
}

/// Reads the configured file; without one, the built-in provider gets a generated secret.
async fn client_secret(
    config: &Config,
    secrets: &SharedSecrets,
    randomness: &dyn Randomness,
) -> anyhow::Result<Option<String>> {
    if let Some(path) = &config.identity.client_secret_file {
        let read = secret_file::read(path)
            .with_context(|| format!("identity.client_secret_file: cannot use {}", path.display()))?;
        return Ok(Some(read));
    }
    if !config.auth.is_enabled {
        return Ok(None);
    }
    let secret = secrets.shared_secret(CLIENT_SECRET, &SecretToken::generate(randomness)).await?;
    Ok(Some(secret.reveal().to_owned()))
}
