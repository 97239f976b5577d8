//! HTTP surface B: the client portal. One file per page; authorization is separate from presentation.

mod accounts;
mod audit;
mod authz;
mod clients;
mod demo_mail;
mod drafting;
mod error;
mod export_quota;
mod file_response;
mod frame;
mod home;
mod invoices;
mod letters;
mod maintenance;
mod path;
mod person_names;
mod profile;
mod request_limits;
mod routes;
mod scripts;
mod settings;
mod sign_in;
mod state;
mod team;
#[cfg(test)]
mod tests;
mod time_format;
mod total_text;
mod unprintable;
mod usage;
mod work;

pub use demo_mail::MAIL_PATH;
pub use drafting::api::DraftingConfigError;
pub use drafting::model_state::{DraftingModelState, DraftingModelStatus};
pub use drafting::settings::{DRAFTING_ACCOUNT, DraftingSettings};
pub use maintenance::run_maintenance;
pub use request_limits::{
    DEFAULT_PERSON_REQUESTS_PER_MIN, RequestDecision, SharedLimitsUnavailable, SharedRequestLimits,
};
pub use settings::{
    DirectoryRoles, IdentitySettings, PortalSettings, PublicApi, SecondFactor, SignInRequirements,
};
pub use sign_in::identity::provider::IdentityError;
pub use state::{Portal, PortalError};

use axum::Router;
use chancery_domain::MAX_ENTRY_TEXT_CHARS;
use chancery_web::{PageLayerConfig, PreservedField, with_page_layer};
use drafting::limits::MAX_PREVIOUS_TEXTS;
use frame::PortalBarRenderer;
use sign_in::backchannel_logout;
use std::sync::Arc;

/// Fits the longest text of an entry (`domain::MAX_ENTRY_TEXT_CHARS`) and the previous texts that are sent with a letter, at up
/// to 12 bytes per form-encoded character.
const MAX_BODY_BYTES: usize = (1 + MAX_PREVIOUS_TEXTS) * 12 * MAX_ENTRY_TEXT_CHARS + 64 * 1024;

/// Form fields whose input is shown again on an error page, so that it is not lost.
const PRESERVED_FIELDS: &[PreservedField] = &[
    PreservedField { name: "name", label: "Name" },
    PreservedField { name: "contact", label: "Contact" },
    PreservedField { name: "email", label: "Email" },
    PreservedField { name: "telephone", label: "Telephone" },
    PreservedField { name: "address", label: "Address" },
    PreservedField { name: "since", label: "Client since" },
    PreservedField { name: "title", label: "Title" },
    PreservedField { name: "text", label: "Text" },
    PreservedField { name: "at", label: "Date" },
    PreservedField { name: "subject", label: "Subject" },
    PreservedField { name: "purpose", label: "What is the letter for?" },
    PreservedField { name: "amount", label: "Amount" },
    PreservedField { name: "due", label: "Due" },
    PreservedField { name: "reason", label: "Reason" },
    PreservedField { name: "rpm", label: "Requests per minute" },
    PreservedField { name: "tpm", label: "Tokens per minute" },
    PreservedField { name: "cap", label: "Monthly cap" },
    PreservedField { name: "label", label: "Label" },
    PreservedField { name: "models", label: "Models" },
    PreservedField { name: "expires", label: "Last day" },
    PreservedField { name: "former_text", label: "Your text before the draft" },
];

pub fn router(portal: Arc<Portal>) -> Router {
    let config = PageLayerConfig {
        surface: "portal",
        firm_name: portal.settings.firm_name.clone(),
        public_url: portal.settings.public_url.clone(),
        hsts_include_subdomains: portal.settings.hsts_include_subdomains,
        // Signing out redirects from a form to the provider.
        form_action_origins: portal.settings.identity.origin().into_iter().collect(),
        trusted_proxies: portal.settings.trusted_proxies.clone(),
        max_body_bytes: MAX_BODY_BYTES,
        cross_origin_paths: &[backchannel_logout::PATH],
        max_cross_origin_body_bytes: backchannel_logout::MAX_BODY_BYTES,
        preserved_fields: PRESERVED_FIELDS,
        bar_renderer: Some(Arc::new(PortalBarRenderer(Arc::clone(&portal)))),
        clock: Arc::clone(&portal.clock),
        randomness: Arc::clone(&portal.randomness),
    };
    with_page_layer(routes::all().with_state(portal), config)
}
