//! Limits on requests to the generation API and on its responses.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Time-outs for the API.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftTimeouts {
    pub(crate) connect: Duration,
    /// For a complete reply that needs no generation: models and counts. A user is waiting for it.
    pub(crate) reply: Duration,
    /// For the start of a draft. The API rejects at once what it does not admit.
    pub(crate) start: Duration,
    /// Between two events of a draft. The API sends a keep-alive every 10 seconds, even while the draft is queued.
    pub(crate) idle: Duration,
    /// For a whole draft.
    pub(crate) total: Duration,
}

pub(crate) const DRAFT_TIMEOUTS: DraftTimeouts = DraftTimeouts {
    connect: Duration::from_secs(3),
    reply: Duration::from_secs(6),
    start: Duration::from_secs(30),
    idle: Duration::from_secs(30),
    total: Duration::from_secs(300),
};

/// Idle connections are closed before the API closes them, which would look like a failure.
pub(super) const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// A list of models, a count or an error takes a few kilobytes.
pub(super) const MAX_REPLY_BYTES: usize = 256 * 1024;
/// One event of a draft. The last ones repeat the whole text.
pub(super) const MAX_EVENT_BYTES: usize = 512 * 1024;
/// All the text of a draft.
pub(super) const MAX_DRAFT_BYTES: usize = 256 * 1024;
/// All bytes of one draft: each piece of text carries about a hundred bytes of framing.
pub(super) const MAX_STREAM_BYTES: usize = 4 * 1024 * 1024;

/// Range of the maximum length, in tokens. A letter has a page or two.
pub(crate) const OUTPUT_TOKENS: RangeInclusive<u32> = 16..=4_000;
/// For a request that names none. The panel suggests one that fits the model's size (`tuning`).
pub(crate) const DEFAULT_OUTPUT_TOKENS: u32 = 600;

/// A purpose takes a few sentences.
pub(crate) const MAX_PURPOSE_CHARS: usize = 2_000;
/// A passage that is edited at once. A letter of two pages has about 6,000 characters.
pub(crate) const MAX_REWRITE_CHARS: usize = 8_000;
/// Requests of one draft: one more if the API does not know a field.
pub(super) const MAX_ATTEMPTS: u32 = 2;
/// Entries that one draft can include.
pub(crate) const MAX_CONTEXT_ENTRIES: usize = 50;
/// More tokens than a heading with its fences, a person's name or a chat template's marks take.
pub(crate) const PROMPT_FRAME_TOKENS: u32 = 256;
/// Former texts that the page stores without scripts.
pub(crate) const MAX_PREVIOUS_TEXTS: usize = 3;
/// After this long without text the browser gets a comment, so that no proxy closes the connection as idle.
pub(crate) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// How long the panel shows cached model details and prices. A draft always requests them again.
pub(super) const OFFER_MAX_AGE: Duration = Duration::from_secs(60);
/// After a failed request for the offer, how long editors show that error instead of waiting for another attempt.
pub(super) const OFFER_RETRY_AFTER: Duration = Duration::from_secs(5);

const _: () = assert!(MAX_DRAFT_BYTES < MAX_EVENT_BYTES && MAX_EVENT_BYTES < MAX_STREAM_BYTES);
