//! The bounds of everything that the portal asks of the generation API, and of what it reads from it.

use std::ops::RangeInclusive;
use std::time::Duration;

/// How long the portal waits for the API.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// For a connection.
    pub(crate) connect: Duration,
    /// For a whole reply that needs no generation: models and counts. A person waits for it.
    pub(crate) reply: Duration,
    /// For the beginning of a draft; the API refuses at once what it will not take on.
    pub(crate) beginning: Duration,
    /// Between two signs of life of a draft; the API sends one every 10 seconds, also while the draft waits for its turn.
    pub(crate) silence: Duration,
    /// For a whole draft.
    pub(crate) whole: Duration,
}

pub(crate) const PATIENCE: Patience = Patience {
    connect: Duration::from_secs(3),
    reply: Duration::from_secs(6),
    beginning: Duration::from_secs(30),
    silence: Duration::from_secs(30),
    whole: Duration::from_secs(300),
};

/// A connection that is not used is closed before the API does it, which would look like a failure.
pub(super) const IDLE_CONNECTION_KEPT: Duration = Duration::from_secs(5);

/// A list of models, a count or an error has a few kilobytes.
pub(super) const MAX_REPLY_BYTES: usize = 256 * 1024;
/// One event of a draft; the last ones repeat the whole text.
pub(super) const MAX_EVENT_BYTES: usize = 512 * 1024;
/// All the text of a draft.
pub(super) const MAX_DRAFT_BYTES: usize = 256 * 1024;
/// Everything that is read for one draft: each piece of text comes with a hundred bytes around it.
pub(super) const MAX_STREAM_BYTES: usize = 4 * 1024 * 1024;

/// What a person may ask for as the longest reply, in tokens: a letter has a page or two.
pub(crate) const OUTPUT_TOKENS: RangeInclusive<u32> = 16..=4_000;
pub(crate) const DEFAULT_OUTPUT_TOKENS: u32 = 600;

/// What a letter is for is said in a few sentences.
pub(crate) const MAX_PURPOSE_CHARS: usize = 2_000;
/// Notes that one draft reads.
pub(crate) const MAX_ENTRIES_READ: usize = 50;
/// Texts from before earlier drafts that a page without scripts carries along.
pub(crate) const MAX_FORMER_TEXTS: usize = 3;
/// After so long without text a comment is sent to the browser, so that nobody in between takes the connection for dead.
pub(crate) const KEEP_ALIVE_PAUSE: Duration = Duration::from_secs(10);

/// For so long the panel shows the model and its prices as they were asked for; a draft asks anew.
pub(super) const OFFER_MAX_AGE: Duration = Duration::from_secs(60);
/// For so long everybody who opens an editor is told of the last attempt's failure, and nobody waits for another.
pub(super) const OFFER_RETRY_AFTER: Duration = Duration::from_secs(5);

const _: () = assert!(MAX_DRAFT_BYTES < MAX_EVENT_BYTES && MAX_EVENT_BYTES < MAX_STREAM_BYTES);
