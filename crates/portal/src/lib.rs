//! HTTP surface B: the client portal. One file per page; what decides stands apart from what shows.

mod arrival;
mod audit;
mod audit_verification;
mod authority;
mod callback;
mod client_lines;
mod clients;
mod code;
mod code_resend;
mod csv_line;
mod drafting;
mod exports;
mod failure;
mod file_reply;
mod frame;
mod half_sign_in;
mod home;
mod identity;
mod letters;
mod routes;
mod scripts;
mod session;
mod session_end;
mod sessions;
mod sign_in;
mod sign_ins_begun;
mod sign_out;
mod state;
mod team;
#[cfg(test)]
mod tests;
mod upkeep;
mod visitor;
mod when;

pub use audit_verification::{AuditVerification, verify_audit};
pub use client_lines::{write_csv_client, write_csv_head, write_jsonl_client};
pub use csv_line::write_csv_line;
pub use drafting::{DraftingError, DraftingSettings};
pub use identity::IdentityError;
pub use state::{IdentitySettings, Portal, PortalError, PortalSettings, SecondFactor};
pub use upkeep::keep_tidy;

use axum::Router;
use chancery_pages::{Surroundings, surround};
use frame::RefusalBars;
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
        bars: Some(Arc::new(RefusalBars(Arc::clone(&portal)))),
        clock: Arc::clone(&portal.clock),
        randomness: Arc::clone(&portal.randomness),
    };
    surround(routes::all().with_state(portal), surroundings)
}
