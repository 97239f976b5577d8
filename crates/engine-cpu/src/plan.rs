//! Plans memory for all models together, from their files' headers, before any weight is read. If they do not all fit,
//! the plan fails and reports the numbers and what to change.
//!
//! If a model's context and slots are not configured, they are chosen like this (numbers in `limits`):
//! 1. A part of the available memory is left to everything else.
//! 2. Every model gets its weights, its tokenizer, scratch buffers, and a KV cache for its configured context, or for
//!    the minimum context worth offering.
//! 3. The rest is divided evenly. A model's context grows to its trained length, up to a bound. Its cache grows to a
//!    default size, or to one whole context if that is more.
//! 4. There are as many slots as jobs of typical length fit into the cache, up to a bound.

use crate::error::{LoadError, ModelFileError};
use crate::forward;
use crate::gguf::Gguf;
use crate::kernels;
use crate::limits::{
    ADDRESS_SPACE_RESERVE_BYTES, DEFAULT_KV_BYTES, DEFAULT_QUEUE_CAPACITY, DEFAULT_SLOTS,
    MAX_AUTO_CONTEXT_TOKENS, MAX_DRAFT_ROWS, MAX_KV_BYTES, MAX_QUEUE, MAX_SLOTS, MAX_THREADS,
    MEMORY_RESERVE_DIVISOR, MIN_AUTO_CONTEXT_TOKENS, MIN_CORES_TO_LEAVE_ONE, MIN_MEMORY_RESERVE_BYTES,
    PAGE_TOKENS, SHORT_POOL_PAGES, TOKENIZER_BYTES_PER_MERGE, TOKENIZER_BYTES_PER_TOKEN, TYPICAL_JOB_TOKENS,
    max_mixed_rows,
};
use crate::memory::{AvailableMemory, HumanBytes, MemoryBound, MemoryEstimate};
use crate::model::Hyperparameters;
use crate::paging::pages_for;
use crate::step_lock::StepLock;
use crate::worker::WorkerLimits;
use std::fmt;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::thread;

/// Options of a model; `None` leaves the choice to the model and the machine.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// The model's name in messages and metrics.
    pub name: String,
    /// Maximum length of prompt and reply together; at most the model's trained context.
    pub context_tokens: Option<u32>,
    /// Sequences that run together.
    pub slots: Option<usize>,
    /// Jobs that may wait for a slot.
    pub queue: Option<usize>,
    /// Compute threads, including the one that owns the model.
    pub threads: Option<usize>,
    /// Rows up to which a step is filled with drafted tokens; 1 disables drafting. Never changes the generated text.
    pub draft_rows: Option<usize>,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
    pub(crate) worker_limits: WorkerLimits,
    pub(crate) threads: usize,
    pub(crate) draft_rows: Option<usize>,
    pub(crate) memory_estimate: MemoryEstimate,
    /// Shared with the models planned together with this one, or by the same `EngineGroup`.
    pub(crate) step_lock: StepLock,
}

impl Plan {
    /// Plans models that run side by side: a file and its options for each.
    pub fn for_models(models: &[(PathBuf, LoadOptions)]) -> Result<Vec<Self>, LoadError> {
        Self::fit(models, AvailableMemory::read())
    }

    pub(crate) fn fit(
        models: &[(PathBuf, LoadOptions)],
        available: Option<AvailableMemory>,
    ) -> Result<Vec<Self>, LoadError> {
        let requirements = models
            .iter()
            .map(|(path, options)| ModelRequirements::read(path, options))
            .collect::<Result<Vec<_>, LoadError>>()?;
        let usable_bytes = available.map_or(u64::MAX, usable_bytes);
        let minimum = requirements.iter().map(ModelRequirements::min_bytes).fold(0, u64::saturating_add);
        let share = usable_bytes.saturating_sub(minimum) / (models.len() as u64).max(1);
        let step_lock = StepLock::default();
        let plans: Vec<Self> =
            requirements.iter().map(|requirements| requirements.plan(share, &step_lock)).collect();
        let needed = plans.iter().map(|plan| plan.memory_estimate.total_bytes()).fold(0, u64::saturating_add);
        match available {
            Some(available) if needed > usable_bytes => {
                let reserved_bytes = 0;
                Err(LoadError::Memory(InsufficientMemory { plans, usable_bytes, available, reserved_bytes }))
            }
            _ => Ok(plans),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn memory_estimate(&self) -> MemoryEstimate {
        self.memory_estimate
    }

    pub fn context_tokens(&self) -> u32 {
        u32::try_from(self.worker_limits.context_tokens).unwrap_or(u32::MAX)
    }

    pub fn slots(&self) -> usize {
        self.worker_limits.slots
    }

    /// Checks, before a rebuild, that the model still fits. Ignores the share left to everything else, which may be in
    /// use by now, and the KV cache, which is allocated only as it is used.
    pub(crate) fn check_memory(&self) -> Result<(), LoadError> {
        let required_bytes = self.memory_estimate.total_bytes() - self.memory_estimate.kv_bytes;
        match AvailableMemory::read() {
            Some(available) if available.bytes < required_bytes => {
                let usable_bytes = available.bytes;
                Err(LoadError::Memory(InsufficientMemory {
                    plans: vec![self.clone()],
                    usable_bytes,
                    available,
                    reserved_bytes: 0,
                }))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryEstimate { weights_bytes, kv_bytes, activation_bytes, tokenizer_bytes } =
            self.memory_estimate;
        write!(
            f,
            "{} needs {}: weights {}, KV cache {} ({} slots, context up to {} tokens), activations {}, tokenizer {}",
            self.name,
            HumanBytes(self.memory_estimate.total_bytes()),
            HumanBytes(weights_bytes),
            HumanBytes(kv_bytes),
            self.worker_limits.slots,
            self.worker_limits.context_tokens,
            HumanBytes(activation_bytes),
            HumanBytes(tokenizer_bytes),
        )
    }
}

/// Memory that models may use on this machine now; `None` if the system does not report it.
pub fn usable_memory_bytes() -> Option<u64> {
    AvailableMemory::read().map(usable_bytes)
}

/// The models do not fit into memory.
#[derive(Debug)]
pub struct InsufficientMemory {
    plans: Vec<Plan>,
    usable_bytes: u64,
    available: AvailableMemory,
    /// KV cache of running models that is not written yet, and is not in `available`.
    reserved_bytes: u64,
}

impl InsufficientMemory {
    pub(crate) fn beside(self, reserved_bytes: u64) -> Self {
        Self { reserved_bytes, ..self }
    }
}

impl fmt::Display for InsufficientMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needed =
            self.plans.iter().map(|plan| plan.memory_estimate.total_bytes()).fold(0, u64::saturating_add);
        write!(
            f,
            "insufficient memory: {} needed, {} usable ({} {}",
            HumanBytes(needed),
            HumanBytes(self.usable_bytes),
            HumanBytes(self.available.bytes),
            self.available.bound,
        )?;
        if self.reserved_bytes > 0 {
            write!(f, " beside {} for the KV caches of running models", HumanBytes(self.reserved_bytes))?;
        }
        f.write_str(", part of it reserved for other processes): ")?;
        for plan in &self.plans {
            write!(f, "{plan}; ")?;
        }
        f.write_str(
            "lower `context_tokens` or `slots`, serve fewer or smaller models (`chancery model list` shows what fits), or add memory",
        )
    }
}

/// The part of the available memory that models may use.
pub(crate) fn usable_bytes(available: AvailableMemory) -> u64 {
    let reserve = (available.bytes / MEMORY_RESERVE_DIVISOR).max(MIN_MEMORY_RESERVE_BYTES);
    let for_threads = match available.bound {
        MemoryBound::AddressSpace => ADDRESS_SPACE_RESERVE_BYTES,
        MemoryBound::Machine | MemoryBound::Cgroup => 0,
    };
    available.bytes.saturating_sub(reserve + for_threads)
}

/// A model's header and options.
struct ModelRequirements<'a> {
    path: &'a Path,
    name: String,
    hyperparameters: Hyperparameters,
    weights_bytes: u64,
    tokenizer_bytes: u64,
    page_bytes: u64,
    context_tokens: Option<usize>,
    slots: Option<usize>,
    queue: usize,
    threads: usize,
    draft_rows: Option<usize>,
}

impl<'a> ModelRequirements<'a> {
    fn read(path: &'a Path, options: &LoadOptions) -> Result<Self, LoadError> {
        let rejected = |error| LoadError::rejected(path, error);
        let file = Gguf::open(path)?;
        let metadata = file.metadata();
        let vocab_size = metadata.strings("tokenizer.ggml.tokens").map_err(rejected)?.len();
        let hyperparameters = Hyperparameters::from_metadata(metadata, vocab_size).map_err(rejected)?;
        let overflow = || rejected(ModelFileError::unsupported("model size overflows"));
        let page_bytes =
            hyperparameters.kv_shape().page_bytes().filter(|bytes| *bytes > 0).ok_or_else(overflow)?;
        let requirements = Self {
            path,
            name: if options.name.is_empty() { hyperparameters.name.clone() } else { options.name.clone() },
            weights_bytes: weights_bytes(&file).ok_or_else(overflow)?,
            tokenizer_bytes: {
                let merges = metadata.strings("tokenizer.ggml.merges").map_or(0, <[String]>::len);
                (vocab_size * TOKENIZER_BYTES_PER_TOKEN + merges * TOKENIZER_BYTES_PER_MERGE) as u64
            },
            page_bytes,
            context_tokens: options.context_tokens.map(|tokens| tokens as usize),
            slots: match options.slots {
                None => None,
                requested => Some(ensure_in_range(path, "slots", requested, MAX_SLOTS, || DEFAULT_SLOTS)?),
            },
            queue: ensure_in_range(path, "queue", options.queue, MAX_QUEUE, || DEFAULT_QUEUE_CAPACITY)?,
            threads: ensure_in_range(path, "threads", options.threads, MAX_THREADS, || {
                default_threads(thread::available_parallelism().map_or(1, usize::from))
            })?,
            draft_rows: match options.draft_rows {
                None => None,
                requested => Some(ensure_in_range(path, "free_rows", requested, MAX_DRAFT_ROWS, || 1)?),
            },
            hyperparameters,
        };
        requirements.check_context()?;
        Ok(requirements)
    }

    fn check_context(&self) -> Result<(), LoadError> {
        let Some(requested) = self.context_tokens else { return Ok(()) };
        let trained_context = self.hyperparameters.context_tokens;
        let reason = if requested < 2 {
            "must be at least 2, for a prompt and a reply".to_owned()
        } else if requested > trained_context {
            self.hyperparameters.context_reason.clone()
        } else if self.kv_bytes(pages_for(requested)) > MAX_KV_BYTES {
            format!("KV cache would exceed {MAX_KV_BYTES} bytes")
        } else {
            return Ok(());
        };
        Err(LoadError::InvalidOption {
            path: self.path.to_owned(),
            option: "context_tokens",
            requested: requested as u64,
            reason,
        })
    }

    fn kv_bytes(&self, pages: usize) -> u64 {
        self.page_bytes.saturating_mul(pages as u64)
    }

    fn pages_within(&self, bytes: u64) -> usize {
        usize::try_from(bytes / self.page_bytes).unwrap_or(usize::MAX)
    }

    /// Pages of the shortest context that the model may get.
    fn min_pages(&self) -> usize {
        let minimum = self.hyperparameters.context_tokens.min(MIN_AUTO_CONTEXT_TOKENS);
        pages_for(self.context_tokens.unwrap_or(minimum))
    }

    fn min_bytes(&self) -> u64 {
        self.memory_estimate(self.slots.unwrap_or(DEFAULT_SLOTS), self.min_pages()).total_bytes()
    }

    fn memory_estimate(&self, slots: usize, pages: usize) -> MemoryEstimate {
        let rows = max_mixed_rows(slots);
        // A sequence that reports log probabilities keeps a copy of its logits.
        let saved_logits_bytes = (4 * slots * self.hyperparameters.vocab_size) as u64;
        MemoryEstimate {
            weights_bytes: self.weights_bytes,
            kv_bytes: self.kv_bytes(pages.saturating_add(SHORT_POOL_PAGES)),
            // With drafts, a step computes logits for every row.
            activation_bytes: forward::activation_bytes(
                &self.hyperparameters,
                rows,
                slots.max(MAX_DRAFT_ROWS),
            )
            .saturating_add(saved_logits_bytes),
            tokenizer_bytes: self.tokenizer_bytes,
        }
    }

    /// Plans the model with `share` bytes beyond its minimum.
    fn plan(&self, share: u64, step_lock: &StepLock) -> Plan {
        let kv_budget = self.kv_bytes(self.min_pages()).saturating_add(share);
        let context_tokens = self.context_tokens.unwrap_or_else(|| {
            let trained_context = self.hyperparameters.context_tokens.min(MAX_AUTO_CONTEXT_TOKENS);
            trained_context.min(self.pages_within(kv_budget).saturating_mul(PAGE_TOKENS))
        });
        let context_pages = pages_for(context_tokens);
        let cache_pages = self.pages_within(kv_budget.min(DEFAULT_KV_BYTES)).max(context_pages);
        let slots = self.slots.unwrap_or_else(|| {
            (cache_pages.saturating_mul(PAGE_TOKENS) / TYPICAL_JOB_TOKENS).clamp(1, DEFAULT_SLOTS)
        });
        let pages = slots.saturating_mul(context_pages).min(cache_pages);
        Plan {
            path: self.path.to_owned(),
            name: self.name.clone(),
            worker_limits: WorkerLimits { context_tokens, slots, queue: self.queue, pages },
            threads: self.threads,
            draft_rows: self.draft_rows,
            memory_estimate: self.memory_estimate(slots, pages),
            step_lock: step_lock.clone(),
        }
    }
}

/// Size of the repacked weights, rounded up a little; `None` on overflow.
fn weights_bytes<R: Read + Seek>(file: &Gguf<R>) -> Option<u64> {
    let mut total = 0_u64;
    for name in file.tensor_names() {
        let info = file.tensor(name)?;
        let repacked_bytes = match info.dimensions.as_slice() {
            [inputs, columns] => kernels::tiled_bytes(info.kind, *inputs, *columns)?,
            dimensions => {
                dimensions.iter().try_fold(size_of::<f32>(), |bytes, len| bytes.checked_mul(*len))? as u64
            }
        };
        let is_embedding = name == "token_embd.weight";
        if is_embedding {
            total = total.checked_add(info.byte_len)?;
        }
        if !is_embedding || file.tensor("output.weight").is_none() {
            total = total.checked_add(repacked_bytes)?;
        }
    }
    Some(total)
}

/// Compute threads on a machine with `cores` cores.
fn default_threads(cores: usize) -> usize {
    let for_server = usize::from(cores >= MIN_CORES_TO_LEAVE_ONE);
    (cores - for_server).min(MAX_THREADS)
}

/// Checks that an option lies between 1 and `limit`.
fn ensure_in_range(
    path: &Path,
    option: &'static str,
    requested: Option<usize>,
    limit: usize,
    default: impl FnOnce() -> usize,
) -> Result<usize, LoadError> {
    match requested {
        None => Ok(default()),
        Some(value) if (1..=limit).contains(&value) => Ok(value),
        Some(value) => Err(LoadError::InvalidOption {
            path: path.to_owned(),
            option,
            requested: value as u64,
            reason: format!("must be from 1 to {limit}"),
        }),
    }
}

#[cfg(test)]
mod catalogue_models;
#[cfg(test)]
pub(crate) mod tests;
