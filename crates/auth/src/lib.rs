//! The built-in identity provider: OpenID Connect's code flow with PKCE, on an origin of its own, so that the portal never
//! sees a password. It knows the domain's rules and the store, and nothing of the portal.

mod limits;
mod passwords;
mod people;
mod protocol;
mod signed_in;
mod state;
mod upkeep;

pub use passwords::{HashingError, PasswordProblem};
pub use protocol::protocol_upkeep;
pub use signed_in::{AddAccountError, add_account};
pub use state::{Client, Provider, ProviderSettings};
pub use upkeep::keep_tidy;

use axum::Router;
use chancery_web::{ErrorPage, Surroundings, surround};
use std::sync::Arc;

/// Forms of a few fields.
const MAX_BODY_BYTES: usize = 16 * 1024;

/// The whole provider.
pub fn router(provider: Arc<Provider>) -> Router {
    let surroundings = Surroundings {
        surface: "auth",
        firm_name: provider.settings.firm_name.clone(),
        public_url: provider.settings.issuer.clone(),
        form_targets: provider.settings.form_targets(),
        trusted_proxies: provider.settings.trusted_proxies.clone(),
        max_body_bytes: MAX_BODY_BYTES,
        open_to_other_sites: protocol::OPEN_TO_OTHER_SITES,
        typed_fields: &[],
        bars: None,
        clock: Arc::clone(&provider.clock),
        randomness: Arc::clone(&provider.randomness),
    };
    let routes = protocol::routes().merge(people::routes());
    surround(routes.with_state(provider), surroundings)
}

/// The store does not do as it should: the reader is told that nothing was changed, the log what it was.
fn refused(error: impl std::fmt::Display) -> ErrorPage {
    ErrorPage::unavailable(error.to_string())
}
