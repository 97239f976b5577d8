//! What models get and need, decided from their files' headers before any weight is read, for all models together. It
//! refuses what does not fit as a whole, with the numbers and what to change.
//!
//! Where a model's context and slots are not configured, they are chosen like this (numbers in `limits`):
//! 1. Of the memory that is available, a part is left to everything else.
//! 2. Every model gets its weights, its tokenizer, room to work in, and a key-value cache for its configured context,
//!    or for the least that is worth offering.
//! 3. What is left is shared out evenly. A model's context grows to what it was made for, up to a bound, and its cache
//!    to a usual size, or to one whole context if that is more.
//! 4. There are as many slots as jobs of a usual length fit into the cache, up to a bound.

use crate::error::{Fault, LoadError};
use crate::forward;
use crate::gguf::Gguf;
use crate::kernels;
use crate::kv::pages_for;
use crate::limits::{
    DEFAULT_KV_BYTES, DEFAULT_QUEUE, DEFAULT_SLOTS, MAX_CHOSEN_CONTEXT_TOKENS, MAX_FREE_ROWS, MAX_KV_BYTES,
    MAX_QUEUE, MAX_SLOTS, MAX_THREADS, MEMORY_LEFT_SHARE, MIN_CHOSEN_CONTEXT_TOKENS, MIN_MEMORY_LEFT_BYTES,
    PAGE_TOKENS, PREFILL_TOKENS_ALONE, PREFILL_TOKENS_BESIDE_DECODE, SHORT_LANE_PAGES,
    TOKENIZER_BYTES_PER_MERGE, TOKENIZER_BYTES_PER_TOKEN, USUAL_JOB_TOKENS,
};
use crate::memory::{Available, MemoryNeed, Readable};
use crate::model::HyperParameters;
use crate::step_turns::StepTurns;
use crate::worker::Bounds;
use std::fmt;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::thread;

/// What a caller may choose; `None` leaves it to the model and the machine.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// What the model is called in messages and metrics.
    pub name: String,
    /// The longest prompt and reply together; at most what the model was made for.
    pub context_tokens: Option<u32>,
    /// Sequences that run together.
    pub slots: Option<usize>,
    /// Jobs that may wait for a slot.
    pub queue: Option<usize>,
    /// Threads that calculate, the model's owner included.
    pub threads: Option<usize>,
    /// Rows up to which a step is filled with drafted tokens; 1 means that none are drafted. It never changes a text.
    pub free_rows: Option<usize>,
}

/// How one model will be loaded.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
    pub(crate) bounds: Bounds,
    pub(crate) threads: usize,
    pub(crate) free_rows: Option<usize>,
    pub(crate) need: MemoryNeed,
    /// Shared with the models that it was planned with.
    pub(crate) turns: StepTurns,
}

impl Plan {
    /// Plans for models that are to run side by side, each a file and what was chosen for it.
    pub fn for_models(models: &[(PathBuf, LoadOptions)]) -> Result<Vec<Self>, LoadError> {
        Self::within(models, Available::read())
    }

    fn within(
        models: &[(PathBuf, LoadOptions)],
        available: Option<Available>,
    ) -> Result<Vec<Self>, LoadError> {
        let demands = models
            .iter()
            .map(|(path, options)| Demand::read(path, options))
            .collect::<Result<Vec<_>, LoadError>>()?;
        let usable_bytes = available.map_or(u64::MAX, |available| {
            let left_alone = (available.bytes / MEMORY_LEFT_SHARE).max(MIN_MEMORY_LEFT_BYTES);
            available.bytes.saturating_sub(left_alone)
        });
        let least = demands.iter().map(Demand::least_bytes).fold(0, u64::saturating_add);
        let share = usable_bytes.saturating_sub(least) / (models.len() as u64).max(1);
        let turns = StepTurns::default();
        let plans: Vec<Self> = demands.iter().map(|demand| demand.plan(share, &turns)).collect();
        let needed = plans.iter().map(|plan| plan.need.total_bytes()).fold(0, u64::saturating_add);
        match available {
            Some(available) if needed > usable_bytes => {
                Err(LoadError::Memory(Shortage { plans, usable_bytes, available }))
            }
            _ => Ok(plans),
        }
    }

    /// What the model is called in messages and metrics.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn need(&self) -> MemoryNeed {
        self.need
    }

    pub fn context_tokens(&self) -> u32 {
        u32::try_from(self.bounds.context_tokens).unwrap_or(u32::MAX)
    }

    pub fn slots(&self) -> usize {
        self.bounds.slots
    }

    /// Whether the model still fits, to be asked before it is built anew. What was left to everything else may by now be
    /// in use, and the cache is taken only as it is used.
    pub(crate) fn check_memory(&self) -> Result<(), LoadError> {
        let at_once = self.need.total_bytes() - self.need.kv_bytes;
        match Available::read() {
            Some(available) if available.bytes < at_once => {
                let usable_bytes = available.bytes;
                Err(LoadError::Memory(Shortage { plans: vec![self.clone()], usable_bytes, available }))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryNeed { weights_bytes, kv_bytes, work_bytes, tokenizer_bytes } = self.need;
        write!(
            f,
            "{} needs {}: weights {}, key-value cache {} ({} slots, contexts of up to {} tokens), work {}, tokenizer {}",
            self.name,
            Readable(self.need.total_bytes()),
            Readable(weights_bytes),
            Readable(kv_bytes),
            self.bounds.slots,
            self.bounds.context_tokens,
            Readable(work_bytes),
            Readable(tokenizer_bytes),
        )
    }
}

/// Models that do not fit into memory.
#[derive(Debug)]
pub struct Shortage {
    plans: Vec<Plan>,
    usable_bytes: u64,
    available: Available,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needed = self.plans.iter().map(|plan| plan.need.total_bytes()).fold(0, u64::saturating_add);
        write!(
            f,
            "{} of memory would be needed and {} can be taken ({} {}, some of it left to everything else): ",
            Readable(needed),
            Readable(self.usable_bytes),
            Readable(self.available.bytes),
            self.available.bound,
        )?;
        for plan in &self.plans {
            write!(f, "{plan}; ")?;
        }
        f.write_str(
            "lower `context_tokens` or `slots`, serve fewer or smaller models, or give it more memory",
        )
    }
}

/// What a model's header and its options say.
struct Demand<'a> {
    path: &'a Path,
    name: String,
    hyper_parameters: HyperParameters,
    weights_bytes: u64,
    tokenizer_bytes: u64,
    page_bytes: u64,
    context_tokens: Option<usize>,
    slots: Option<usize>,
    queue: usize,
    threads: usize,
    free_rows: Option<usize>,
}

impl<'a> Demand<'a> {
    fn read(path: &'a Path, options: &LoadOptions) -> Result<Self, LoadError> {
        let refused = |fault| LoadError::refused(path, fault);
        let file = Gguf::open(path)?;
        let metadata = file.metadata();
        let vocabulary = metadata.strings("tokenizer.ggml.tokens").map_err(refused)?.len();
        let hyper_parameters = HyperParameters::from_metadata(metadata, vocabulary).map_err(refused)?;
        let beyond = || refused(Fault::unsupported("it is too large to be counted"));
        let page_bytes =
            hyper_parameters.kv_shape().page_bytes().filter(|bytes| *bytes > 0).ok_or_else(beyond)?;
        let demand = Self {
            path,
            name: if options.name.is_empty() { hyper_parameters.name.clone() } else { options.name.clone() },
            weights_bytes: weights_bytes(&file).ok_or_else(beyond)?,
            tokenizer_bytes: {
                let merges = metadata.strings("tokenizer.ggml.merges").map_or(0, <[String]>::len);
                (vocabulary * TOKENIZER_BYTES_PER_TOKEN + merges * TOKENIZER_BYTES_PER_MERGE) as u64
            },
            page_bytes,
            context_tokens: options.context_tokens.map(|tokens| tokens as usize),
            slots: match options.slots {
                None => None,
                asked => Some(bounded(path, "slots", asked, MAX_SLOTS, || DEFAULT_SLOTS)?),
            },
            queue: bounded(path, "queue", options.queue, MAX_QUEUE, || DEFAULT_QUEUE)?,
            threads: bounded(path, "threads", options.threads, MAX_THREADS, || {
                thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS)
            })?,
            free_rows: match options.free_rows {
                None => None,
                asked => Some(bounded(path, "free_rows", asked, MAX_FREE_ROWS, || 1)?),
            },
            hyper_parameters,
        };
        demand.check_context()?;
        Ok(demand)
    }

    fn check_context(&self) -> Result<(), LoadError> {
        let Some(asked) = self.context_tokens else { return Ok(()) };
        let made_for = self.hyper_parameters.context_tokens;
        let reason = if asked < 2 {
            "a prompt and a reply need at least one token each".to_owned()
        } else if asked > made_for {
            self.hyper_parameters.context_reason.clone()
        } else if self.kv_bytes(pages_for(asked)) > MAX_KV_BYTES {
            format!("its key-value cache would be larger than {MAX_KV_BYTES} bytes")
        } else {
            return Ok(());
        };
        Err(LoadError::Option {
            path: self.path.to_owned(),
            option: "context_tokens",
            asked: asked as u64,
            reason,
        })
    }

    fn kv_bytes(&self, pages: usize) -> u64 {
        self.page_bytes.saturating_mul(pages as u64)
    }

    fn pages_within(&self, bytes: u64) -> usize {
        usize::try_from(bytes / self.page_bytes).unwrap_or(usize::MAX)
    }

    /// The pages of the shortest context that it may be given.
    fn least_pages(&self) -> usize {
        let least = self.hyper_parameters.context_tokens.min(MIN_CHOSEN_CONTEXT_TOKENS);
        pages_for(self.context_tokens.unwrap_or(least))
    }

    fn least_bytes(&self) -> u64 {
        self.need(self.slots.unwrap_or(DEFAULT_SLOTS), self.least_pages()).total_bytes()
    }

    fn need(&self, slots: usize, pages: usize) -> MemoryNeed {
        let rows = PREFILL_TOKENS_ALONE.max(PREFILL_TOKENS_BESIDE_DECODE + slots);
        MemoryNeed {
            weights_bytes: self.weights_bytes,
            kv_bytes: self.kv_bytes(pages.saturating_add(SHORT_LANE_PAGES)),
            // A step that drafts has logits for every row it is filled with.
            work_bytes: forward::work_bytes(&self.hyper_parameters, rows, slots.max(MAX_FREE_ROWS)),
            tokenizer_bytes: self.tokenizer_bytes,
        }
    }

    /// What the model gets when it may have `share` more than the least.
    fn plan(&self, share: u64, turns: &StepTurns) -> Plan {
        let room = self.kv_bytes(self.least_pages()).saturating_add(share);
        let context_tokens = self.context_tokens.unwrap_or_else(|| {
            let made_for = self.hyper_parameters.context_tokens.min(MAX_CHOSEN_CONTEXT_TOKENS);
            made_for.min(self.pages_within(room).saturating_mul(PAGE_TOKENS))
        });
        let context_pages = pages_for(context_tokens);
        let cache_pages = self.pages_within(room.min(DEFAULT_KV_BYTES)).max(context_pages);
        let slots = self.slots.unwrap_or_else(|| {
            (cache_pages.saturating_mul(PAGE_TOKENS) / USUAL_JOB_TOKENS).clamp(1, DEFAULT_SLOTS)
        });
        let pages = slots.saturating_mul(context_pages).min(cache_pages);
        Plan {
            path: self.path.to_owned(),
            name: self.name.clone(),
            bounds: Bounds { context_tokens, slots, queue: self.queue, pages },
            threads: self.threads,
            free_rows: self.free_rows,
            need: self.need(slots, pages),
            turns: turns.clone(),
        }
    }
}

/// The weights once they are laid out, a little rounded up; `None` when that is beyond counting.
fn weights_bytes<R: Read + Seek>(file: &Gguf<R>) -> Option<u64> {
    let mut total = 0_u64;
    for name in file.tensor_names() {
        let info = file.tensor(name)?;
        let laid_out = match info.dimensions.as_slice() {
            [inputs, columns] => kernels::laid_out_bytes(*inputs, *columns)?,
            dimensions => {
                dimensions.iter().try_fold(size_of::<f32>(), |bytes, len| bytes.checked_mul(*len))? as u64
            }
        };
        let is_embedding = name == "token_embd.weight";
        if is_embedding {
            total = total.checked_add(info.byte_len)?;
        }
        if !is_embedding || file.tensor("output.weight").is_none() {
            total = total.checked_add(laid_out)?;
        }
    }
    Some(total)
}

/// A count between 1 and `limit`.
fn bounded(
    path: &Path,
    option: &'static str,
    asked: Option<usize>,
    limit: usize,
    default: impl FnOnce() -> usize,
) -> Result<usize, LoadError> {
    match asked {
        None => Ok(default()),
        Some(value) if (1..=limit).contains(&value) => Ok(value),
        Some(value) => Err(LoadError::Option {
            path: path.to_owned(),
            option,
            asked: value as u64,
            reason: format!("it lies between 1 and {limit}"),
        }),
    }
}

#[cfg(test)]
mod tests;
