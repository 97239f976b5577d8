//! HTTP surface B: the client portal. One file per page; what decides stands apart from what shows.

mod arrival;
mod callback;
mod identity;
mod sign_in;
mod sign_ins_begun;
mod state;

pub use identity::IdentityError;
pub use state::{IdentitySettings, Portal, PortalSettings, SecondFactor};

use axum::Router;
use axum::routing::get;
use chancery_pages::{Surroundings, surround};
use std::sync::Arc;

/// The whole portal.
pub fn router(portal: Arc<Portal>) -> Router {
    let surroundings = Surroundings {
        surface: "portal",
        firm_name: portal.settings.firm_name.clone(),
        public_url: portal.settings.public_url.clone(),
        form_targets: Vec::new(),
        open_to_other_sites: &[],
        clock: Arc::clone(&portal.clock),
        randomness: Arc::clone(&portal.randomness),
    };
    let routes = Router::new()
        .route("/auth/sign-in", get(sign_in::handle))
        .route("/auth/callback", get(callback::handle));
    surround(routes.with_state(portal), surroundings)
}
