//! HTTP surface B: the client portal. One file per page; what decides stands apart from what shows.

mod accounts;
mod audit;
mod authz;
mod clients;
mod drafting;
mod error;
mod file_reply;
mod frame;
mod home;
mod invoices;
mod path;
mod routes;
mod scripts;
mod settings;
mod sign_in;
mod state;
mod team;
#[cfg(test)]
mod tests;
mod upkeep;
mod usage;
mod when;

pub use drafting::api::DraftingError;
pub use drafting::settings::{DRAFTING_ACCOUNT, DraftingSettings};
pub use settings::{IdentitySettings, PortalSettings, PublicApi, SecondFactor};
pub use sign_in::identity::provider::IdentityError;
pub use state::{Portal, PortalError};
pub use upkeep::keep_tidy;

use axum::Router;
use chancery_domain::MAX_ENTRY_TEXT_CHARS;
use chancery_web::{Surroundings, TypedField, surround};
use drafting::limits::MAX_FORMER_TEXTS;
use frame::ErrorBars;
use std::sync::Arc;

/// The longest text of an entry (`domain::MAX_ENTRY_TEXT_CHARS`), as a form sends it where every letter takes twelve characters,
/// and as many former texts beside a letter as are kept.
const MAX_BODY_BYTES: usize = (1 + MAX_FORMER_TEXTS) * 12 * MAX_ENTRY_TEXT_CHARS + 64 * 1024;

/// What people write into the portal's forms, so that an error page can give it back.
const TYPED_FIELDS: &[TypedField] = &[
    TypedField { name: "name", label: "Name" },
    TypedField { name: "contact", label: "Contact" },
    TypedField { name: "email", label: "E-mail" },
    TypedField { name: "telephone", label: "Telephone" },
    TypedField { name: "address", label: "Address" },
    TypedField { name: "since", label: "Client since" },
    TypedField { name: "title", label: "Title" },
    TypedField { name: "text", label: "Text" },
    TypedField { name: "at", label: "When it happened" },
    TypedField { name: "purpose", label: "What the letter is for" },
    TypedField { name: "amount", label: "Amount to credit" },
    TypedField { name: "reason", label: "Reason" },
    TypedField { name: "rpm", label: "Requests per minute" },
    TypedField { name: "tpm", label: "Tokens per minute" },
    TypedField { name: "cap", label: "Cap per month" },
    TypedField { name: "label", label: "Label" },
    TypedField { name: "former_text", label: "Your text from before the draft" },
];

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
        typed_fields: TYPED_FIELDS,
        bars: Some(Arc::new(ErrorBars(Arc::clone(&portal)))),
        clock: Arc::clone(&portal.clock),
        randomness: Arc::clone(&portal.randomness),
    };
    surround(routes::all().with_state(portal), surroundings)
}
