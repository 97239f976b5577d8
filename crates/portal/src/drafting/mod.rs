//! Letters drafted by the model. The portal is an ordinary client of the generation API: it builds a prompt from the entries of
//! this client's record that the user selected, uses its own key, and streams the text to the browser.
//!
//! 1. `prompt` builds the prompt from the instructions and the selected entries as data, and from nothing else.
//! 2. `Drafter::count` counts and prices it. What does not fit is reported, never truncated.
//! 3. `Drafter::draft` starts it. `DraftStream` yields the text, then the receipt or an error.
//! 4. A browser that disconnects drops the stream. That closes the connection to the API, which stops the model.
//!
//! The key and the API's address never reach the browser: a `DraftError` has separate text for the user and for the log.

pub(crate) mod api;
pub(crate) mod endpoint;
mod error;
mod estimate;
mod failure;
mod fit;
mod form;
mod job;
pub(crate) mod limits;
mod model_offer;
mod page;
pub(crate) mod panel;
mod prompt;
mod receipt;
pub(crate) mod settings;
mod stream;
#[cfg(test)]
pub(crate) mod tests;
mod token_count;
