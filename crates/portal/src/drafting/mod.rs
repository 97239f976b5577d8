//! Letters that the model drafts. The portal is a client of the generation API like any other: it sends a prompt made of
//! what this person chose of this client's record, with a key of its own, and passes the text on as it comes.
//!
//! 1. `prompt` makes the prompt, and nothing else: instructions, and the chosen entries as data.
//! 2. `Drafter::count` has it counted and priced; what does not fit is told, never cut.
//! 3. `Drafter::draft` begins it; `DraftStream` gives the text, then the receipt or what went wrong.
//! 4. A browser that hangs up drops the stream, which closes the connection to the API, which stops the model.
//!
//! The key and the API's address stay on this side: a `Fault` has words for the person and a story for the log, apart.

pub(crate) mod api;
mod counts;
pub(crate) mod endpoint;
mod failure;
mod fault;
mod fit;
mod form;
mod job;
pub(crate) mod limits;
mod offer;
mod page;
pub(crate) mod panel;
mod prompt;
mod receipt;
pub(crate) mod settings;
mod stream;
#[cfg(test)]
pub(crate) mod tests;
