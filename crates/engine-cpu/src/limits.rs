//! Every bound of the engine, in one place: what a model file may hold, and what the engine keeps at once. A file
//! beyond them is refused by name, so that nothing a file claims can make the engine allocate or loop without end.

use std::time::Duration;

/// Keys in a file's header.
pub const MAX_METADATA_KEYS: u64 = 4_096;
/// Bytes of one string in a file's header; the longest chat templates in use are a tenth of it.
pub const MAX_STRING_BYTES: u64 = 1 << 20;
/// Items of one array in a file's header; the largest vocabularies in use are an eighth of it.
pub const MAX_ARRAY_ITEMS: u64 = 1 << 21;
pub const MAX_TENSORS: u64 = 16_384;
pub const MAX_DIMENSIONS: u32 = 4;
/// Largest `general.alignment`.
pub const MAX_ALIGNMENT: u64 = 1 << 16;
/// Elements of one tensor; keeps every later product within 64 bits.
pub const MAX_TENSOR_ELEMENTS: u64 = 1 << 40;

pub const MAX_LAYERS: usize = 1_024;
pub const MAX_WIDTH: usize = 1 << 17;
pub const MAX_HEADS: usize = 1_024;
pub const MAX_VOCABULARY: usize = 1 << 20;
/// Longest context that is ever offered.
pub const MAX_CONTEXT_TOKENS: usize = 1 << 20;
/// Control and user-defined tokens of a vocabulary.
pub const MAX_SPECIAL_TOKENS: usize = 1 << 14;

/// Instructions that rendering a chat template may take; real ones take a few hundred, and for each turn about as many.
pub const TEMPLATE_FUEL: u64 = 2_000_000;
/// Bytes of rendered scaffolding around the texts, at all and for each turn.
pub const MAX_SCAFFOLDING_BYTES: usize = 1 << 16;
pub const MAX_SCAFFOLDING_BYTES_PER_TURN: usize = 256;

/// Tokens in a page of the key-value cache: as many as attention reads side by side. What two prompts share is found in
/// whole pages, so small ones find more.
pub const PAGE_TOKENS: usize = 16;
/// Most memory for the key-value cache, unless one whole context needs more.
pub const DEFAULT_KV_BYTES: u64 = 1 << 30;
/// A context that alone needs more than this is refused.
pub const MAX_KV_BYTES: u64 = 1 << 36;
/// A job whose prompt and cap need at most this many pages is short.
pub const SHORT_JOB_PAGES: usize = 64;
/// Pages that only short jobs get, so that they never wait behind long ones for room.
pub const SHORT_LANE_PAGES: usize = 256;
/// The shortest and the longest context that the engine chooses by itself, where the model was made for it.
pub const MIN_CHOSEN_CONTEXT_TOKENS: usize = 2_048;
pub const MAX_CHOSEN_CONTEXT_TOKENS: usize = 32_768;
/// Sequences that run together, at most, when the caller does not choose.
pub const DEFAULT_SLOTS: usize = 16;
/// What a usual job takes of the key-value cache: there are as many slots as such jobs find room.
pub const USUAL_JOB_TOKENS: usize = 1_024;
pub const MAX_SLOTS: usize = 256;
/// Requests that may wait for a slot.
pub const DEFAULT_QUEUE: usize = 64;
pub const MAX_QUEUE: usize = 1 << 16;
pub const MAX_THREADS: usize = 64;
/// What an account's jobs may use, prompts and replies together, before it is the next account's turn. Large enough for
/// a usual job, so that jobs alternate; smaller would only make the turns more.
pub const FAIR_QUANTUM_TOKENS: u32 = 512;
/// A job that has waited this long is refused: by now its caller is better served elsewhere or later.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// Prompt tokens per step while others are generating: it bounds how long one long prompt delays their next token.
pub const PREFILL_TOKENS_BESIDE_DECODE: usize = 64;
/// Prompt tokens per step while nobody is generating.
pub const PREFILL_TOKENS_ALONE: usize = 256;

/// Rows that a step may be filled up to with drafted tokens.
pub const MAX_FREE_ROWS: usize = 64;
/// Tokens that one sequence may have drafted in one step.
pub const MAX_DRAFT_TOKENS: usize = 15;
/// How far back a draft is looked for: it bounds what a step spends on looking.
pub const MAX_LOOKUP_TOKENS: usize = 4_096;
/// Longest pause after drafts that were all wrong.
pub const MAX_DRAFT_PAUSE_STEPS: u32 = 32;

/// Of the memory that is available, one part in so many is left to everything else, and never less than the second.
pub const MEMORY_LEFT_SHARE: u64 = 8;
pub const MIN_MEMORY_LEFT_BYTES: u64 = 64 << 20;
/// What a tokenizer takes, rounded up: look-ups, texts and the room that maps keep free.
pub const TOKENIZER_BYTES_PER_TOKEN: usize = 128;
pub const TOKENIZER_BYTES_PER_MERGE: usize = 48;
/// Everything small that an engine keeps: queue, running jobs, threads.
pub const ENGINE_OVERHEAD_BYTES: usize = 16 << 20;

/// A panic or a failed rebuild after this long without one counts as the first again.
pub const STEADY_AFTER: Duration = Duration::from_secs(60);
/// The pause before a rebuild that is not the first in a row; it doubles with each, up to the last.
pub const FIRST_REBUILD_PAUSE: Duration = Duration::from_secs(1);
pub const LAST_REBUILD_PAUSE: Duration = Duration::from_secs(30);

/// Bounds of the advice given with a refusal.
pub const MIN_RETRY_AFTER_S: u32 = 1;
pub const MAX_RETRY_AFTER_S: u32 = 60;

const _: () = assert!(PREFILL_TOKENS_BESIDE_DECODE <= PREFILL_TOKENS_ALONE);
const _: () = assert!(DEFAULT_SLOTS <= MAX_SLOTS && DEFAULT_QUEUE <= MAX_QUEUE);
const _: () = assert!(MIN_CHOSEN_CONTEXT_TOKENS <= MAX_CHOSEN_CONTEXT_TOKENS);
const _: () = assert!(MAX_CHOSEN_CONTEXT_TOKENS <= MAX_CONTEXT_TOKENS);
const _: () = assert!(SHORT_JOB_PAGES <= SHORT_LANE_PAGES);
const _: () = assert!(TEMPLATE_FUEL / chancery_engine::MAX_TURNS as u64 >= 1_000);
