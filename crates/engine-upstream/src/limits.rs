//! Limits on everything sent to and received from upstream servers.

use std::time::Duration;

/// Servers per model.
pub const MAX_ENDPOINTS: usize = 256;

/// Beginnings of conversations that are remembered as billed, per model: about 100 bytes each. What is forgotten is
/// billed in full.
pub(super) const MAX_BILLED_PREFIXES: usize = 256 * 1024;

/// Concurrent jobs per model. Beyond this, new jobs are rejected as overload.
pub(super) const MAX_CONCURRENT_JOBS: usize = 10_000;

/// Servers tried before a job fails.
pub(super) const MAX_ATTEMPTS: usize = 3;

/// Size of one stream event: a piece of text with a few hundred bytes of JSON.
pub(super) const MAX_EVENT_BYTES: usize = 256 * 1024;

/// Size of a list of models. The router of a large cluster may have hundreds.
pub(super) const MAX_MODELS_BYTES: usize = 1024 * 1024;

/// How much of an error response is read, and for how long. The status is known without it.
pub(super) const MAX_ERROR_BODY_BYTES: usize = 4 * 1024;
pub(super) const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// Length of a server's error message as shown to a caller.
pub(super) const MAX_REASON_CHARS: usize = 300;

/// No vocabulary has longer tokens on average over a reply. A server that sends more text per requested token ignores
/// the cap.
pub(super) const MAX_BYTES_PER_TOKEN: usize = 256;

/// Without a tokenizer, a prompt's tokens are estimated from its bytes: first by the likely ratio. If a server rejects
/// the prompt as too long without saying by how much, by a ratio that few texts fall below.
pub(super) const TYPICAL_BYTES_PER_TOKEN: u32 = 4;
pub(super) const MIN_BYTES_PER_TOKEN: u32 = 2;

/// A server that goes past the cap is noticed when a reply has this fraction more text than at the last count. Counting
/// at every piece would cost too much.
pub(super) const CAP_CHECK_FRACTION: u32 = 16;

/// Without a tokenizer, a reply may have this many pieces more than its cap has tokens: a server may send one token in
/// two pieces, where the reasoning ends. With stop strings, which may split tokens too, it may also have this fraction
/// of the cap more. With a tokenizer, a reply with more pieces is counted at once.
pub(super) const CAP_SLACK_CHUNKS: u32 = 8;
pub(super) const CAP_SLACK_STOP_FRACTION: u32 = 16;

/// Log probabilities that are passed on for a reply past those of its cap, and of the fraction above: a few tokens are in
/// no text.
pub(super) const MAX_EXTRA_LOGPROBS: usize = 64;
/// Longer tokens get no log probabilities: no vocabulary has any, and a server could fill the memory with them.
pub(super) const MAX_TOKEN_BYTES: usize = 1024;
/// After this many pieces of an answer, or at its end, a server that has sent no log probabilities has none. Some send
/// them after the text.
pub(super) const MAX_CHUNKS_WITHOUT_LOGPROBS: u32 = 8;

/// `stop_on_repetition` watches this many words for each token of the cap, and at once no more than the maximum: then it
/// starts again. A token mostly has a part of a word, but may have several characters of a script without spaces.
pub(super) const WATCHED_WORDS_PER_TOKEN: usize = 4;
pub(super) const MAX_WATCHED_WORDS: usize = 8 * 1024;
/// Longer words, and longer runs of spaces, are watched in parts of this length.
pub(super) const MAX_WATCHED_WORD_BYTES: usize = 64;

/// Maximum size of a tokenizer file.
pub(super) const MAX_TOKENIZER_BYTES: u64 = 256 * 1024 * 1024;

/// How long a server may take to count a reply without a usage report, and its prompt. Metering waits 2 seconds for the
/// end of a cancelled job.
pub(super) const TOKENIZE_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Conversations of more texts are counted in one request instead of one for each text.
pub(super) const MAX_TOKENIZED_TURNS: usize = 8;
/// Size of the response: servers list the tokens, each of at least one byte of text, as numbers.
pub(super) const MAX_TOKENIZE_RESPONSE_RATIO: usize = 16;
pub(super) const MAX_TOKENIZE_OVERHEAD_BYTES: usize = 16 * 1024;

/// Time for questions about a server's capabilities, and size of its `/version`.
pub(super) const CAPABILITY_TIMEOUT: Duration = Duration::from_secs(3);
pub(super) const MAX_VERSION_BYTES: usize = 4 * 1024;
/// How long the start of a model waits for the capabilities of its servers. The health checks ask those that are late.
pub(super) const START_DETECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// The first version of vLLM that honours `cache_salt` for every model: 0.10.1 and earlier ignore it for gpt-oss.
pub(super) const MIN_SALTED_VLLM_VERSION: (u32, u32) = (0, 11);

/// A character has at most four bytes, so up to three tokens may belong to one that was cut off. They appear in no
/// text.
pub(super) const MAX_PARTIAL_CHAR_TOKENS: u32 = 3;

/// Tokenizers split a text before they look for tokens, mostly by a regular expression. Its library silently gives up
/// on about a hundred thousand bytes that it cannot split. Texts with such a run are rejected.
pub(super) const MAX_PRETOKEN_BYTES: usize = 64 * 1024;

/// Longer replies are counted on a blocking thread, so that they do not delay others.
pub(super) const INLINE_TEXT_BYTES: usize = 8 * 1024;

/// Upper bound on what an unknown chat template adds: for the template itself (some have a preamble), and for every
/// turn.
pub(super) const TEMPLATE_TOKENS: u32 = 48;
pub(super) const TEMPLATE_TOKENS_PER_TURN: u32 = 8;

/// Consecutive failures that open the circuit breaker, and its pause, which doubles each time up to the maximum.
pub(super) const FAILURE_THRESHOLD: u32 = 3;
pub(super) const INITIAL_OPEN_DURATION: Duration = Duration::from_secs(1);
pub(super) const MAX_OPEN_DURATION: Duration = Duration::from_secs(30);

/// If a caller disconnects this long after sending, and the server has sent nothing to anyone meanwhile, the server is
/// suspected to hang. Callers give up before the first-token timeout. Without this rule, a server that accepts jobs and
/// does nothing would always look idle.
pub(super) const HANG_THRESHOLD: Duration = Duration::from_secs(10);

/// Timeout of the one-token probe of a suspected server, unless the first-token timeout is shorter. Longer than a wait
/// that a single large prompt usually causes.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval of health checks (randomly shortened, so that many nodes do not check at once), and the timeout of each.
pub(super) const HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(5);
pub(super) const HEALTH_CHECK_TIMEOUT: Duration = Duration::from_secs(3);
/// Consecutive failed checks before a server counts as down. One success brings it back.
pub(super) const MAX_FAILED_HEALTH_CHECKS: u32 = 2;

/// Servers checked concurrently.
pub(super) const HEALTH_CHECK_CONCURRENCY: usize = 64;

/// How long an overloaded server gets no jobs: the default, and the maximum if it names a delay.
pub(super) const DEFAULT_BUSY_BACKOFF: Duration = Duration::from_secs(1);
pub(super) const MAX_BUSY_BACKOFF: Duration = Duration::from_secs(10);

/// How far above the mean load the server with the cached prefix may be: a percentage of the mean, or at least a number
/// of tokens that is negligible for a server.
pub(super) const AFFINITY_LOAD_PERCENT: u64 = 125;
pub(super) const AFFINITY_SLACK_TOKENS: u64 = 8_192;

/// How long to wait for the usage after the text is complete, and then for the end of the stream, which blocks nobody.
pub(super) const USAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait for the usage of a complete reply after a cancel. Metering waits 2 seconds for the count after a
/// cancel, and a server that reports no usage in this time still has to be asked for one.
pub(super) const CANCELLED_USAGE_TIMEOUT: Duration = Duration::from_millis(300);
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// How often a server is asked how far a whole reply has come, unless the time limits of the job need it more often, and how long
/// it may take to answer: llama-server answers between two steps.
pub(super) const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
pub(super) const PROGRESS_TIMEOUT: Duration = Duration::from_millis(1_500);
/// How often the server is asked once the caller is gone. A job that is not listed yet is looked for again, and its tokens must
/// change.
pub(super) const MAX_CANCELLED_PROGRESS_QUERIES: u32 = 3;
/// Times that the server is asked within each time limit of the job.
pub(super) const PROGRESS_QUERIES_PER_TIMEOUT: u32 = 4;
/// Consecutive answers without the job, though a slot is idle, after which the answers are not believed. One may fall between the
/// end of the job and the arrival of its reply.
pub(super) const MAX_MISSING_REPORTS: u32 = 2;
/// Size of the answer: a few kilobytes for each of its slots.
pub(super) const MAX_SLOTS_BYTES: usize = 8 * 1024 * 1024;
/// A job is sent for a whole reply only if it ends before the total timeout at this speed: a whole reply that reaches it has
/// no text, and a stream has some.
pub(super) const MIN_WHOLE_TOKENS_PER_SECOND: u64 = 4;
/// Size of a whole reply: JSON needs up to six bytes for one of text.
pub(super) const MAX_WHOLE_REPLY_RATIO: usize = 6;
pub(super) const MAX_WHOLE_REPLY_OVERHEAD_BYTES: usize = 64 * 1024;

/// Close idle connections before servers usually do: a job on a connection that the server has closed is sent twice.
pub(super) const IDLE_CONNECTION_TIMEOUT: Duration = Duration::from_secs(4);
/// How long after a request the close of an idle connection may arrive: one round trip on a slow network.
pub(super) const MAX_IDLE_CLOSE_DELAY: Duration = Duration::from_secs(1);

/// Upper bound on a job's total time, including all attempts. Metering gives up after 600 seconds and must not be
/// first.
pub const MAX_TOTAL_TIMEOUT: Duration = Duration::from_secs(590);

const _: () = assert!(INITIAL_OPEN_DURATION.as_millis() <= MAX_OPEN_DURATION.as_millis());
const _: () = assert!(AFFINITY_LOAD_PERCENT > 100);
const _: () = assert!(CANCELLED_USAGE_TIMEOUT.as_millis() + TOKENIZE_TIMEOUT.as_millis() < 2_000);
