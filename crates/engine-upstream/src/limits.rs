//! Bounds of everything that goes to an upstream server and comes from it, in one place.

use std::time::Duration;

/// Servers of one model.
pub const MAX_ENDPOINTS: usize = 256;

/// Jobs of one model that are under way at once; past it, new ones are refused as overload.
pub(super) const MAX_RUNNING: usize = 10_000;

/// At how many servers a job is tried before it fails.
pub(super) const MAX_ATTEMPTS: usize = 3;

/// One event of a stream: a piece of text with a few hundred bytes around it.
pub(super) const MAX_EVENT_BYTES: usize = 256 * 1024;

/// What is read of a list of models; a router of a large cluster may have hundreds.
pub(super) const MAX_MODELS_BYTES: usize = 1024 * 1024;

/// What is read of a refusal, and for how long is waited for it: its status is known without it.
pub(super) const MAX_REFUSAL_BYTES: usize = 4 * 1024;
pub(super) const REFUSAL_PATIENCE: Duration = Duration::from_secs(1);

/// What a caller is told at most of a server's reason for a refusal.
pub(super) const MAX_REASON_CHARS: usize = 300;

/// No vocabulary has longer tokens on average over a reply; a server that sends more text than this for every token it
/// was allowed does not keep to what it was asked.
pub(super) const MAX_BYTES_PER_TOKEN: usize = 256;

/// Where nothing counts a prompt beforehand, what it is likely to have is judged by its bytes; and once a server has found
/// it too long without saying by how much, by so few bytes to a token as few texts have.
pub(super) const LIKELY_BYTES_PER_TOKEN: u32 = 4;
pub(super) const FEW_BYTES_PER_TOKEN: u32 = 2;

/// The largest tokenizer file that is read.
pub(super) const MAX_TOKENIZER_BYTES: u64 = 256 * 1024 * 1024;

/// A character has four bytes at most, so three tokens may be of one that was cut off; they are in no text.
pub(super) const MAX_CUT_TOKENS: u32 = 3;

/// Tokenizers cut a text before they look for tokens, most of them by a regular expression, whose library gives up without
/// a word on a stretch of about a hundred thousand bytes that it cannot cut. Texts that have such a stretch are refused.
pub(super) const MAX_UNCUT_BYTES: usize = 64 * 1024;

/// Longer replies are counted on a thread of their own, so that they do not hold up others.
pub(super) const INLINE_TEXT_BYTES: usize = 8 * 1024;

/// What a chat template may add around the texts, which this side cannot know: for the template itself (some have a
/// preamble of their own), and for every turn.
pub(super) const TEMPLATE_TOKENS: u32 = 48;
pub(super) const TEMPLATE_TOKENS_PER_TURN: u32 = 8;

/// Failures in a row after which a server gets no more jobs for a while, and how long that is, doubled each time.
pub(super) const FAILURES_TO_OPEN: u32 = 3;
pub(super) const FIRST_OPEN_PAUSE: Duration = Duration::from_secs(1);
pub(super) const LAST_OPEN_PAUSE: Duration = Duration::from_secs(30);

/// A caller who hangs up so long after sending, and before anything came from that server for anybody, tells of one that hangs: callers are less patient
/// than the time for the first text, and without this a server that takes jobs and does nothing would always look idle.
pub(super) const HUNG_AFTER: Duration = Duration::from_secs(10);

/// Pause between two looks at a server's health (shortened by chance, so that many nodes do not ask at once), and how
/// long an answer may take.
pub(super) const HEALTH_PAUSE: Duration = Duration::from_secs(5);
pub(super) const HEALTH_TIMEOUT: Duration = Duration::from_secs(3);
/// Looks that must fail in a row before a server counts as down; one that succeeds brings it back.
pub(super) const FAILED_LOOKS: u32 = 2;

/// Servers that are looked at at the same time.
pub(super) const LOOKS_AT_ONCE: usize = 64;

/// How long a server that said it is busy is left alone where it does not say for how long, and at most.
pub(super) const BUSY_PAUSE: Duration = Duration::from_secs(1);
pub(super) const LAST_BUSY_PAUSE: Duration = Duration::from_secs(10);

/// How far above the mean of all servers the load of the one that knows a prompt's beginning may be: a share of the mean,
/// and in any case as many tokens as are nothing to a server.
pub(super) const AFFINITY_LOAD_PERCENT: u64 = 125;
pub(super) const AFFINITY_SLACK_TOKENS: u64 = 8_192;

/// How long the count of a reply that has ended may take to follow, and the end of the stream after it, for which nobody waits.
pub(super) const USAGE_PATIENCE: Duration = Duration::from_secs(5);
pub(super) const REST_PATIENCE: Duration = Duration::from_millis(500);

/// A connection that is not used is closed before servers usually do it, which would look like a failure.
pub(super) const IDLE_CONNECTION_KEPT: Duration = Duration::from_secs(4);

/// The longest that a job may take, all tries together: metering gives up on it after 600 seconds, and must not be first.
pub const MAX_TOTAL_TIMEOUT: Duration = Duration::from_secs(590);

const _: () = assert!(FIRST_OPEN_PAUSE.as_millis() <= LAST_OPEN_PAUSE.as_millis());
const _: () = assert!(AFFINITY_LOAD_PERCENT > 100);
