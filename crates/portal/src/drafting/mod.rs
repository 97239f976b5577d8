//! Letters drafted by the model. The portal is an ordinary client of the generation API: it builds a prompt from the entries of
//! this client's record that the user selected, uses its own key, and streams the text to the browser.
//!
//! 1. `ModelOffer::choose` takes the best model. `tuning` says how a model of its size is asked.
//! 2. `prompt` builds the prompt from the instructions and the selected entries as data, and from nothing else.
//!    Smaller models read the entries in the second person (`second_person`).
//! 3. `Drafter::count` counts and prices it. What does not fit is reported, never truncated.
//! 4. `Drafter::draft` starts it. `DraftStream` yields the text, then the receipt or an error.
//! 5. `Composer` puts the letter together: `skeleton` around the text that `Cleaner` lets through. It says whether the letter is
//!    finished, and which figures are not in the record.
//! 6. A browser that disconnects drops the stream. That closes the connection to the API, which stops the model.
//!
//! An edit of a passage (`rewrite`) takes the same way from step 3 on.
//!
//! The key and the API's address never reach the browser: a `DraftError` has separate text for the user and for the log.

pub(crate) mod api;
mod cleaner;
mod composer;
mod echo;
pub(crate) mod endpoint;
mod english_words;
mod error;
mod estimate;
mod failure;
mod figures;
mod fit;
mod form;
mod instructions;
mod job;
pub(crate) mod limits;
mod loop_tail;
mod model_notice;
mod model_offer;
pub(crate) mod model_state;
mod page;
pub(crate) mod panel;
mod placeholders;
mod prompt;
mod receipt;
mod rewrite;
mod second_person;
pub(crate) mod settings;
mod skeleton;
mod stream;
#[cfg(test)]
pub(crate) mod tests;
mod token_count;
mod tuning;
