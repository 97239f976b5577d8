//! The built-in identity provider: OpenID Connect code flow with PKCE, on its own origin, so that the portal never sees
//! a password. It depends on the domain and the store, and knows nothing about the portal.

mod authentication_methods;
mod known_device;
mod limits;
mod maintenance;
mod passkeys;
mod passwords;
mod people;
mod protocol;
mod recovery_codes;
mod signed_in;
mod state;
mod totp;

pub use maintenance::run_maintenance;
pub use passwords::{HashingError, PasswordError};
pub use protocol::{BackchannelLogoutWorker, run_protocol_maintenance};
pub use signed_in::{AddAccountError, add_account};
pub use state::{Client, Provider, ProviderSettings, SecondFactorPolicy};

use axum::Router;
use chancery_web::{ErrorPage, PageLayerConfig, with_page_layer};
use std::sync::Arc;

/// Forms have only a few fields.
const MAX_BODY_BYTES: usize = 16 * 1024;

pub fn router(provider: Arc<Provider>) -> Router {
    let config = PageLayerConfig {
        surface: "auth",
        firm_name: provider.settings.firm_name.clone(),
        public_url: provider.settings.issuer.clone(),
        hsts_include_subdomains: provider.settings.hsts_include_subdomains,
        form_action_origins: provider.settings.form_action_origins(),
        trusted_proxies: provider.settings.trusted_proxies.clone(),
        max_body_bytes: MAX_BODY_BYTES,
        cross_origin_paths: protocol::CROSS_ORIGIN_PATHS,
        max_cross_origin_body_bytes: MAX_BODY_BYTES,
        preserved_fields: &[],
        bar_renderer: None,
        clock: Arc::clone(&provider.clock),
        randomness: Arc::clone(&provider.randomness),
    };
    let routes = protocol::routes().merge(people::routes());
    with_page_layer(routes.with_state(provider), config)
}

/// A store error: the user sees that nothing was changed, and the log gets the cause.
fn store_error_page(error: impl std::fmt::Display) -> ErrorPage {
    ErrorPage::unavailable(error.to_string())
}
