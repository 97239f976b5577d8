//! The limits and timeouts of this crate, in one place.

use crate::fair_semaphore::QueueLimits;
use std::time::Duration;

/// How long a key's state is cached. Revoking a key or closing an account must take effect within one second, and a request
/// that is being authenticated at that moment needs part of it.
pub const KEY_CACHE_TTL: Duration = Duration::from_millis(500);

/// Maximum number of cached keys.
pub const KEY_CACHE_CAPACITY: usize = 10_000;

/// Maximum number of prefixes that are remembered as unknown, for `KEY_CACHE_TTL`.
pub const UNKNOWN_PREFIX_CAPACITY: usize = 10_000;

/// How many unknown prefixes of one peer are looked up at once, and how soon another one is. The rest is rejected unseen.
pub const FAILED_KEY_BURST: u32 = 60;
pub const FAILED_KEY_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum number of peers whose failures are counted.
pub const FAILED_KEY_PEERS: usize = 10_000;

/// From the start of the work to its last token. Then the work is cancelled, and what was generated is billed.
pub const GENERATION_TIMEOUT: Duration = Duration::from_secs(600);

/// How long to wait for the engine's own count after the work was cancelled at the deadline or at shutdown. Without it,
/// the text that was passed on is counted.
pub const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a text of a stream waits for its log probabilities, which the engine reports right after it. Later ones come
/// in an event of their own.
pub const LOGPROBS_WAIT: Duration = Duration::from_millis(20);

/// Number of tokens from which on an event of a stream takes no more log probabilities. It has fewer than twice as many,
/// so that readers need no large buffer: another Chancery takes events of 256 KiB.
pub const EVENT_LOGPROB_TOKENS: usize = 32;

/// Most log probabilities of one reply, those of the likely tokens included. In memory each takes about 64 bytes, several
/// times over where a stream is read slowly, and every replay takes the same again.
pub const MAX_REPLY_LOGPROBS: u32 = 131_072;

/// Maximum length of a token in reported log probabilities. The longest tokens of real vocabularies are shorter; what an
/// upstream server calls one may be anything.
pub const MAX_LOGPROB_TOKEN_BYTES: usize = 512;

/// Longer texts and conversations are tokenized on a separate thread, so that they do not delay other requests. They count as a
/// request of their minute before they are tokenized.
pub const INLINE_TEXT_BYTES: usize = 8 * 1024;
pub const INLINE_TURNS: usize = 64;

/// How long a longer text waits in the tokenization queue before it is rejected.
pub const TOKENIZE_QUEUE_TIMEOUT: Duration = Duration::from_secs(2);

/// How many longer texts may wait in the tokenization queue; a waiting text is held in memory.
pub(crate) const TOKENIZE_QUEUE_LIMITS: QueueLimits = QueueLimits { per_account: 256, total: 2_048 };

/// Smallest token allowance for a caller without a cap whose minute is nearly used up; with less left, it is rejected.
pub const MIN_UNCAPPED_TOKENS: u32 = 256;

/// Number of requests with unrecorded usage at which no more requests are admitted.
pub const MAX_UNRECORDED_REQUESTS: usize = 64;

/// Number of attempts to settle that may fail within `FAILED_SETTLEMENTS_WINDOW`. At this number no more requests are admitted
/// until a write to the ledger succeeds, which is tried every `LEDGER_PROBE_INTERVAL`.
pub const MAX_FAILED_SETTLEMENTS: usize = 3;
pub const FAILED_SETTLEMENTS_WINDOW: Duration = Duration::from_secs(10);
pub const LEDGER_PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// The first and the longest pause between attempts to record usage or to release reservations.
pub const INITIAL_SETTLE_BACKOFF: Duration = Duration::from_millis(100);
pub const MAX_SETTLE_BACKOFF: Duration = Duration::from_secs(5);

/// How long a caller waits for a reply while writing its usage row fails.
pub const REPLY_SETTLE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the reader of a stream waits for its end, after the last text, while neither its usage row nor the journal can be
/// written.
pub const STREAM_SETTLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long writing the usage row of delivered text may fail, or take, before the row goes to the journal.
pub const JOURNAL_DELAY: Duration = Duration::from_secs(3);

/// The same as `JOURNAL_DELAY` once the process has abandoned its running requests.
pub const ABANDONED_JOURNAL_DELAY: Duration = Duration::from_millis(500);

/// Maximum size of the journal. Admission stops at `MAX_UNRECORDED_REQUESTS`, so only requests that were running by then can
/// take it further.
pub const MAX_JOURNAL_ENTRIES: usize = 10_000;
pub const MAX_JOURNAL_BYTES: u64 = 128 * 1024 * 1024;

/// Size of the journal from which on log probabilities are left out of it. They are far larger than the text, and must not
/// take the room of usage that has to be billed.
pub const MAX_JOURNAL_BYTES_WITH_LOGPROBS: u64 = MAX_JOURNAL_BYTES / 2;

/// Number of journaled rows that are written to the ledger at once.
pub const JOURNAL_REPLAY_BATCH: usize = 64;

/// How long a running request can hold an idempotency key: longer than the longest generation, with time to settle it.
pub const KEY_CLAIM_TTL: Duration = Duration::from_secs(900);

/// How long the reply to a request with an idempotency key is stored after it finished.
pub const STORED_REPLY_TTL: Duration = Duration::from_secs(24 * 3600);

/// How long a reservation whose response was lost may still take effect: longer than a database works on one statement.
pub const UNKNOWN_OUTCOME_WINDOW: Duration = Duration::from_secs(10);

/// Pause between two maintenance runs: a little longer than the lease of a killed process lasts, so that the second run
/// after a restart frees what it had reserved.
pub const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(20);

/// The maximum number of rows that one statement of it deletes.
pub const MAINTENANCE_BATCH: u32 = 200;

/// Pause between two flushes of rejections and peaks.
pub const ACTIVITY_FLUSH_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of rejection counters (one per account, key, day and code), of peaks and of last uses of keys in memory. Each
/// is about a hundred bytes at most.
pub const MAX_COUNTED_REJECTIONS: usize = 20_000;
pub const MAX_COUNTED_PEAKS: usize = 50_000;
pub const MAX_COUNTED_KEY_USES: usize = 50_000;

/// Timeouts for connecting to Redis and for its responses. After either, the current request is rejected.
pub const REDIS_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
pub const REDIS_RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long requests are rejected without a new attempt after a failure to connect to Redis.
pub const REDIS_RECONNECT_DELAY: Duration = Duration::from_millis(100);

/// How long a reply may wait for its account's rate-limit status, if its own work did not return it.
pub const RATE_LIMIT_STATUS_TIMEOUT: Duration = Duration::from_millis(200);

const _: () = assert!(KEY_CACHE_TTL.as_millis() < 1_000);
const _: () = assert!(GENERATION_TIMEOUT.as_secs() + CANCEL_TIMEOUT.as_secs() < KEY_CLAIM_TTL.as_secs());
const _: () = assert!(JOURNAL_DELAY.as_secs() < STREAM_SETTLE_TIMEOUT.as_secs());
const _: () = assert!(MAX_UNRECORDED_REQUESTS < MAX_JOURNAL_ENTRIES);
