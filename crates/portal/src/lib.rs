//! HTTP surface B: the client portal. One file per page; what decides stands apart from what shows.

mod arrival;
mod authority;
mod callback;
mod clients;
mod code;
mod code_resend;
mod drafting;
mod failure;
mod frame;
mod half_sign_in;
mod home;
mod identity;
mod letters;
mod scripts;
mod session;
mod session_end;
mod sessions;
mod sign_in;
mod sign_ins_begun;
mod sign_out;
mod state;
#[cfg(test)]
mod tests;
mod upkeep;
mod visitor;
mod when;

pub use drafting::{DraftingError, DraftingSettings};
pub use identity::IdentityError;
pub use state::{IdentitySettings, Portal, PortalError, PortalSettings, SecondFactor};
pub use upkeep::keep_tidy;

use axum::Router;
use axum::routing::{get, post};
use chancery_pages::{Surroundings, surround};
use std::sync::Arc;

/// The longest text of an entry (`domain::MAX_ENTRY_TEXT_CHARS`), as a form sends it.
const MAX_BODY_BYTES: usize = 256 * 1024;

/// The whole portal.
pub fn router(portal: Arc<Portal>) -> Router {
    let surroundings = Surroundings {
        surface: "portal",
        firm_name: portal.settings.firm_name.clone(),
        public_url: portal.settings.public_url.clone(),
        form_targets: Vec::new(),
        trusted_proxies: portal.settings.trusted_proxies.clone(),
        max_body_bytes: MAX_BODY_BYTES,
        open_to_other_sites: &[],
        clock: Arc::clone(&portal.clock),
        randomness: Arc::clone(&portal.randomness),
    };
    let routes = Router::new()
        .route("/", get(home::handle))
        .route("/auth/code", get(code::show).post(code::submit))
        .route("/auth/code/resend", post(code_resend::handle))
        .route("/auth/sign-out", post(sign_out::handle))
        .route(sign_out::SIGNED_OUT_PATH, get(sign_out::show_signed_out))
        .route(drafting::endpoint::PATH, post(drafting::endpoint::handle))
        .route("/clients", get(clients::list::handle).post(clients::new_client::create))
        .route("/clients/new", get(clients::new_client::show))
        .route("/clients/{id}", get(clients::record::handle).post(clients::facts_edit::handle))
        .route("/clients/{id}/archive", post(clients::archive::archive_client))
        .route("/clients/{id}/restore", post(clients::archive::restore_client))
        .route("/clients/{id}/reassign", post(clients::reassign::handle))
        .route("/clients/{id}/versions", get(clients::versions::of_client))
        .route("/clients/{id}/entries", post(clients::entry_add::handle))
        .route("/clients/{id}/entries/{entry}", post(clients::entry_edit::handle))
        .route("/clients/{id}/entries/{entry}/archive", post(clients::archive::archive_entry))
        .route("/clients/{id}/entries/{entry}/restore", post(clients::archive::restore_entry))
        .route("/clients/{id}/entries/{entry}/versions", get(clients::versions::of_entry))
        .route("/sessions", get(sessions::handle))
        .route("/sessions/end", post(session_end::handle))
        .route("/auth/sign-in", get(sign_in::handle))
        .route("/auth/callback", get(callback::handle))
        .merge(scripts::routes());
    surround(routes.with_state(portal), surroundings)
}
