//! Bounds of this crate, in one place.

use std::time::Duration;

/// How long a key's state may be remembered. Revoking a key or closing an account must work within one second, and a
/// request that is being checked at that moment needs its part of it.
pub const KEY_MEMORY: Duration = Duration::from_millis(500);

/// How many keys are remembered at once.
pub const KEYS_REMEMBERED: usize = 10_000;

/// From admission to the last token; past it the work is cancelled and nothing is billed.
pub const GENERATION_TIMEOUT: Duration = Duration::from_secs(600);

/// Longer texts and conversations are tokenized on a thread of their own, so that they do not hold up other requests.
pub const INLINE_TEXT_BYTES: usize = 8 * 1024;
pub const INLINE_TURNS: usize = 64;

/// How long a longer text waits for its turn to be tokenized before it is refused.
pub const TOKENIZING_TURN_TIMEOUT: Duration = Duration::from_secs(2);

/// The least that a caller without a cap is given of a minute that is nearly used up; with less left, it is refused.
pub const MIN_UNCAPPED_TOKENS: u32 = 256;

/// Requests whose row is tried again before nothing more is admitted.
pub const MAX_UNRECORDED: usize = 64;

/// Pauses between tries to record what a request has used whose text has left or whose caller has: the first, and the
/// longest they grow to.
pub const FIRST_SETTLE_PAUSE: Duration = Duration::from_millis(100);
pub const LAST_SETTLE_PAUSE: Duration = Duration::from_secs(5);

/// How long a caller waits for the row of its reply to be written, while that fails.
pub const REPLY_SETTLE_PATIENCE: Duration = Duration::from_secs(3);

/// How long the reader of a stream whose text has all left waits for its row to be written, while that fails.
pub const STREAM_SETTLE_PATIENCE: Duration = Duration::from_secs(30);

/// The longest that a request can hold something in the store: past the longest generation with time to settle it.
pub const RESERVATION_MEMORY: Duration = Duration::from_secs(900);

/// How long the reply to a request with an idempotency key is kept after its end.
pub const REPLY_MEMORY: Duration = Duration::from_secs(24 * 3600);

/// How long after its answer was lost a reservation may still take effect: past the longest that a database works on a
/// statement.
pub const LOST_ANSWER_MEMORY: Duration = Duration::from_secs(10);

/// Pause between two rounds of removing what nobody needs any more, and how much of it is removed in one step.
pub const UPKEEP_PAUSE: Duration = Duration::from_secs(60);
pub const UPKEEP_BATCH: u32 = 200;

/// Pause between two times that refusals and peaks are noted.
pub const NOTE_PAUSE: Duration = Duration::from_secs(5);

/// How many lines of refusals (an account's key, day and code), and how many accounts' peaks, are counted between two such times.
/// A line is about a hundred bytes.
pub const MAX_COUNTED_REFUSALS: usize = 20_000;
pub const MAX_COUNTED_PEAKS: usize = 50_000;

/// How long a connection to Redis may take, and an answer of its. Past either the request at hand is refused.
pub const REDIS_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
pub const REDIS_RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);

/// After a failure to connect to Redis, how long requests are refused without trying again.
pub const REDIS_RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// How long a reply may wait to learn where its account stands, where that is not known from its own work.
pub const RATE_LIMIT_STATUS_TIMEOUT: Duration = Duration::from_millis(200);

const _: () = assert!(KEY_MEMORY.as_millis() < 1_000);
const _: () = assert!(GENERATION_TIMEOUT.as_secs() < RESERVATION_MEMORY.as_secs());
