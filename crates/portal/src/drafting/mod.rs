//! Letters that the model drafts. The portal is a client of the generation API like any other: it sends a prompt made of
//! what this person chose of this client's record, with a key of its own, and passes the text on as it comes.
//!
//! 1. `prompt` makes the prompt, and nothing else: instructions, and the chosen entries as data.
//! 2. `Drafter::count` has it counted and priced; what does not fit is told, never cut.
//! 3. `Drafter::draft` begins it; `DraftStream` gives the text, then the receipt or what went wrong.
//! 4. A browser that hangs up drops the stream, which closes the connection to the API, which stops the model.
//!
//! The key and the API's address stay on this side: a `Fault` has words for the person and a story for the log, apart.

mod api;
mod counts;
pub(crate) mod endpoint;
mod failure;
mod fault;
mod fit;
mod form;
mod job;
mod limits;
mod offer;
mod page;
mod panel;
mod prompt;
mod receipt;
mod stream;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use api::Drafter;
pub use api::DraftingError;
pub(crate) use limits::MAX_FORMER_TEXTS;
pub(crate) use panel::{Beside, DraftPanel};

use chancery_domain::AccountName;
use std::fmt;

/// The account that the program makes at its first start for the letters drafted here, unless the configuration names a key.
pub const DRAFTING_ACCOUNT: &str = "portal-drafting";

/// Whether this is that account.
pub(crate) fn is_drafting(name: &AccountName) -> bool {
    name.as_str() == DRAFTING_ACCOUNT
}

/// Where letters are drafted.
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
