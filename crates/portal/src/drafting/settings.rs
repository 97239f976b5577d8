//! The API that drafts letters, and the account that pays for it.

use chancery_domain::AccountName;
use std::fmt;

/// The account that is created at the first start to pay for drafts, unless the configuration has a key.
pub const DRAFTING_ACCOUNT: &str = "portal-drafting";

pub(crate) fn is_drafting(name: &AccountName) -> bool {
    name.as_str() == DRAFTING_ACCOUNT
}

#[derive(Clone)]
pub struct DraftingSettings {
    /// Base URL before `/v1`, without a trailing slash.
    pub api_url: String,
    pub api_key: String,
    /// `None` for the model with the most parameters that the API lists.
    pub model: Option<String>,
}

/// Omits the key.
impl fmt::Debug for DraftingSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { api_url, model, .. } = self;
        f.debug_struct("DraftingSettings")
            .field("api_url", api_url)
            .field("model", model)
            .finish_non_exhaustive()
    }
}
