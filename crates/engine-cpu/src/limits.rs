//! Every bound of the engine, in one place: what a model file may contain, and what the engine holds at once. A file
//! that exceeds one is rejected by name, so that no claim in a file can cause unbounded allocation or loops.

use std::time::Duration;

/// Keys in a file's header.
pub const MAX_METADATA_KEYS: u64 = 4_096;
/// Bytes of one string in a file's header; the vocabulary's strings and the chat template are far shorter.
pub const MAX_STRING_BYTES: u64 = 1 << 20;
/// Items of one array in a file's header; the largest vocabularies in use are an eighth of this.
pub const MAX_ARRAY_ITEMS: u64 = 1 << 21;
pub const MAX_TENSORS: u64 = 16_384;
pub const MAX_DIMENSIONS: u32 = 4;
/// Largest `general.alignment`.
pub const MAX_ALIGNMENT: u64 = 1 << 16;
/// Elements of one tensor; keeps every later product within 64 bits.
pub const MAX_TENSOR_ELEMENTS: u64 = 1 << 40;

pub const MAX_LAYERS: usize = 1_024;
pub const MAX_HIDDEN_SIZE: usize = 1 << 17;
pub const MAX_HEADS: usize = 1_024;
pub const MAX_VOCAB_SIZE: usize = 1 << 20;
/// Longest context that is ever offered.
pub const MAX_CONTEXT_TOKENS: usize = 1 << 20;
/// Control and user-defined tokens of a vocabulary.
pub const MAX_SPECIAL_TOKENS: usize = 1 << 14;

/// Instructions that rendering a chat template may take. Real templates take a few hundred, and about as many per turn.
pub const TEMPLATE_FUEL: u64 = 2_000_000;
/// Bytes of a chat template. The longest in use are half of this. Long chains of operators need stack when they are compiled, and
/// this bounds how long they can be.
pub const MAX_TEMPLATE_BYTES: usize = 1 << 16;
/// The stack of a chat template's thread. Most of it is never touched, so it takes address space and no memory.
pub const TEMPLATE_STACK_BYTES: usize = 1 << 25;
/// Bytes that compiling or rendering a chat template may allocate, all intermediate values included. The templates in use take
/// less than 1 MiB, and a few KiB per turn.
pub const TEMPLATE_MEMORY_BYTES: usize = 1 << 26;
/// Bytes that rendering may leave allocated besides its text, such as tables that the template engine fills on first use, which
/// are less than half of this. A malicious template can leak as much with each prompt, so it is small.
pub const MAX_TEMPLATE_LEAKED_BYTES: usize = 1 << 14;
/// How long it may take: work within one instruction is not counted by fuel. Templates in use take milliseconds.
pub const TEMPLATE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the waiting thread checks whether the template exceeded its memory. A result arrives at once.
pub const TEMPLATE_POLL: Duration = Duration::from_millis(10);
/// Characters of a template's own error message that are kept.
pub const MAX_TEMPLATE_ERROR_CHARS: usize = 1_000;
/// Bytes of rendered scaffolding around the texts: a fixed part, and a part per turn.
pub const MAX_SCAFFOLDING_BYTES: usize = 1 << 16;
pub const MAX_SCAFFOLDING_BYTES_PER_TURN: usize = 256;

/// Tokens per page of the KV cache: as many as attention reads side by side. Prompts share only whole pages, so small
/// pages find longer shared prefixes.
pub const PAGE_TOKENS: usize = 16;
/// Maximum memory for the KV cache, unless one whole context needs more: 1 GiB of keys and values, and their scales.
pub const DEFAULT_KV_BYTES: u64 = (1 << 30) + (1 << 25);
/// A context that alone needs more than this is rejected.
pub const MAX_KV_BYTES: u64 = 1 << 36;
/// A job is short if its prompt and its output limit together need at most this many pages.
pub const SHORT_JOB_PAGES: usize = 64;
/// Pages reserved for short jobs, so that they never wait behind long ones for memory.
pub const SHORT_POOL_PAGES: usize = 256;
/// Range of the context length that the engine chooses when none is configured, within the model's trained context.
pub const MIN_AUTO_CONTEXT_TOKENS: usize = 2_048;
pub const MAX_AUTO_CONTEXT_TOKENS: usize = 32_768;
/// Maximum number of sequences that run together when `slots` is not configured.
pub const DEFAULT_SLOTS: usize = 16;
/// KV cache space of a typical job: there are as many slots as such jobs fit.
pub const TYPICAL_JOB_TOKENS: usize = 1_024;
pub const MAX_SLOTS: usize = 256;
/// Jobs that may wait for a slot.
pub const DEFAULT_QUEUE_CAPACITY: usize = 64;
pub const MAX_QUEUE: usize = 1 << 16;
pub const MAX_THREADS: usize = 64;
/// From this number of cores on, one is left to the server: a step ends with its slowest thread, and a thread that waits
/// for a core delays all others by more than one of many threads adds.
pub const MIN_CORES_TO_LEAVE_ONE: usize = 8;
/// Tokens that an account's jobs may use, prompts and replies together, before the next account is served (deficit
/// round robin). Large enough for a typical job, so that jobs alternate; a smaller quantum only adds rounds.
pub const FAIR_QUANTUM_TOKENS: u32 = 512;
/// A job that has waited this long fails: by now its caller is better served elsewhere or later.
pub const MAX_QUEUE_WAIT: Duration = Duration::from_secs(60);

/// Bound on the gap between two tokens of a reply while prompts are processed: they are one step apart. A step that takes longer
/// halves the prompt tokens of the next, down to `MIN_MIXED_PREFILL_TOKENS`, so the bound holds once that has adapted.
pub const MAX_MIXED_STEP_TIME: Duration = Duration::from_millis(80);
/// Prompt tokens per step while other sequences decode, before anything is known about the time that they take; and at most
/// while models share the cores.
pub const MIXED_PREFILL_TOKENS: usize = 64;
/// The fewest to which that number is reduced: with fewer, steps are hardly shorter, because each reads all weights.
pub const MIN_MIXED_PREFILL_TOKENS: usize = 32;
/// Prompt tokens per step while no sequence decodes, and at most while others do.
pub const PREFILL_ONLY_TOKENS: usize = 256;

/// Maximum rows of a step beside `replies` replies in progress.
pub const fn max_mixed_rows(replies: usize) -> usize {
    PREFILL_ONLY_TOKENS + replies
}

/// Compute time that one step counts for at most, when several models share the cores: bounds how long a model waits for its
/// next step after a very long one.
pub const MAX_STEP_CHARGE: Duration = Duration::from_millis(500);
/// How long a model that has had less time may take between two steps before another one steps instead. Sampling takes less.
pub const RETURN_GRACE: Duration = Duration::from_millis(2);

/// Maximum rows of a step that is filled up with drafted tokens.
pub const MAX_DRAFT_ROWS: usize = 64;
/// Maximum tokens drafted for one sequence in one step.
pub const MAX_DRAFT_TOKENS: usize = 15;
/// How far back prompt lookup searches: bounds the search time per step.
pub const MAX_LOOKUP_TOKENS: usize = 4_096;
/// Longest pause after drafts of which no token was accepted.
pub const MAX_DRAFT_BACKOFF_STEPS: u32 = 32;

/// The share of available memory left to everything else (one part in this many), and its minimum.
pub const MEMORY_RESERVE_DIVISOR: u64 = 8;
pub const MIN_MEMORY_RESERVE_BYTES: u64 = 64 << 20;
/// Also left under a limit of the address space: the stack of a chat template's thread, and what the C library reserves for a new
/// thread's allocations (64 MiB).
pub const ADDRESS_SPACE_RESERVE_BYTES: u64 = 128 << 20;
/// Upper estimates of tokenizer memory: lookup tables, strings and the spare capacity of maps.
pub const TOKENIZER_BYTES_PER_TOKEN: usize = 128;
pub const TOKENIZER_BYTES_PER_MERGE: usize = 48;
/// Everything small that an engine allocates: queue, running jobs, threads.
pub const ENGINE_OVERHEAD_BYTES: usize = 16 << 20;

/// After this long without a panic or a failed rebuild, the next one counts as the first again.
pub const FAILURE_RESET_AFTER: Duration = Duration::from_secs(60);
/// Backoff before the second and later rebuilds in a row; it doubles each time, up to `MAX_REBUILD_BACKOFF`.
pub const INITIAL_REBUILD_BACKOFF: Duration = Duration::from_secs(1);
pub const MAX_REBUILD_BACKOFF: Duration = Duration::from_secs(30);

/// Bounds of the retry delay that an overload error carries.
pub const MIN_RETRY_AFTER_S: u32 = 1;
pub const MAX_RETRY_AFTER_S: u32 = 60;

const _: () =
    assert!(MIN_MIXED_PREFILL_TOKENS <= MIXED_PREFILL_TOKENS && MIXED_PREFILL_TOKENS <= PREFILL_ONLY_TOKENS);
const _: () = assert!(MAX_DRAFT_ROWS <= max_mixed_rows(0));
const _: () = assert!(DEFAULT_SLOTS <= MAX_SLOTS && DEFAULT_QUEUE_CAPACITY <= MAX_QUEUE);
const _: () = assert!(MIN_AUTO_CONTEXT_TOKENS <= MAX_AUTO_CONTEXT_TOKENS);
const _: () = assert!(MAX_AUTO_CONTEXT_TOKENS <= MAX_CONTEXT_TOKENS);
const _: () = assert!(SHORT_JOB_PAGES <= SHORT_POOL_PAGES);
const _: () = assert!(TEMPLATE_FUEL / chancery_engine::MAX_TURNS as u64 >= 1_000);
const _: () = assert!(TEMPLATE_MEMORY_BYTES / chancery_engine::MAX_TURNS >= 16 << 10);
const _: () = assert!(MAX_TEMPLATE_BYTES as u64 <= MAX_STRING_BYTES);
const _: () = assert!(TEMPLATE_STACK_BYTES / MAX_TEMPLATE_BYTES >= 512);
