//! Where letters are drafted, and the account that pays for it.

use chancery_domain::AccountName;
use std::fmt;

/// The account that the program makes at its first start for the letters drafted here, unless the configuration names a key.
pub const DRAFTING_ACCOUNT: &str = "portal-drafting";

/// Whether this is that account.
pub(crate) fn is_drafting(name: &AccountName) -> bool {
    name.as_str() == DRAFTING_ACCOUNT
}

#[derive(Clone)]
pub struct DraftingSettings {
    /// In front of `/v1`, without a slash at the end.
    pub api_url: String,
    pub api_key: String,
    /// None: the first that the API offers.
    pub model: Option<String>,
}

/// Without the key.
impl fmt::Debug for DraftingSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { api_url, model, .. } = self;
        f.debug_struct("DraftingSettings")
            .field("api_url", api_url)
            .field("model", model)
            .finish_non_exhaustive()
    }
}
