//! A model without queue or worker: the next token's log-probabilities after given tokens. Used to compare the
//! arithmetic with other implementations of the same file.

use crate::error::{LoadError, ModelFileError};
use crate::forward::{BatchEntry, Forward, ForwardModel, StepTimer, StepTimes};
use crate::gguf::Gguf;
use crate::kernels::{Kernels, Precision};
use crate::limits::PAGE_TOKENS;
use crate::model::Model;
use crate::paging::{PageAllocator, PageId, PagePool, PageTable, pages_for};
use crate::tokenizer::Tokenizer;
use chancery_domain::Clock;
use std::path::Path;
use std::sync::Arc;

/// One sequence, extended manually.
#[derive(Debug)]
pub struct LogprobEvaluator {
    forward: Forward,
    allocator: PageAllocator,
    pages: PageTable,
    cached: usize,
    context_tokens: usize,
    vocab_size: usize,
}

/// Maximum number of sequences in a timed step.
const MAX_TIMED_ROWS: usize = 64;

impl LogprobEvaluator {
    /// Loads the model as it serves requests.
    pub fn load(path: &Path, context_tokens: usize, threads: usize) -> Result<Self, LoadError> {
        Self::load_with(path, context_tokens, Kernels::start(threads)?)
    }

    /// Loads the model on the kernel with this name, as `CHANCERY_KERNEL` would.
    pub fn load_on(
        kernel: &str,
        path: &Path,
        context_tokens: usize,
        threads: usize,
    ) -> Result<Self, LoadError> {
        let kernels = Kernels::start_with(threads, Some(kernel), Precision::Int8)?;
        Self::load_with(path, context_tokens, kernels)
    }

    /// Loads the file's weights unchanged, with f32 activations: the reference for accuracy measurements. Takes four
    /// bytes per weight, and is slow.
    pub fn load_f32(path: &Path, context_tokens: usize, threads: usize) -> Result<Self, LoadError> {
        let kernels = Kernels::start_with(threads, None, Precision::F32)?;
        Self::load_with(path, context_tokens, kernels)
    }

    fn load_with(path: &Path, context_tokens: usize, kernels: Kernels) -> Result<Self, LoadError> {
        let rejected = |error| LoadError::rejected(path, error);
        let mut file = Gguf::open(path)?;
        let vocab_size = Tokenizer::from_metadata(file.metadata()).map_err(rejected)?.vocab_size();
        let model = Model::from_gguf(&mut file, vocab_size, &kernels).map_err(rejected)?;
        let pages = pages_for(context_tokens) + MAX_TIMED_ROWS;
        let overflow = || rejected(ModelFileError::unsupported("KV cache size overflows"));
        let cache = kernels.kv_cache(model.hyperparameters.kv_shape(), pages).ok_or_else(overflow)?;
        let mut evaluation = Self {
            forward: Forward::new(model, kernels, cache),
            allocator: PageAllocator::new(pages, 0),
            pages: PageTable::default(),
            cached: 0,
            context_tokens,
            vocab_size,
        };
        evaluation.restart();
        Ok(evaluation)
    }

    /// Bytes of the weights that every step reads.
    pub fn matrix_bytes(&self) -> usize {
        self.forward.matrix_bytes()
    }

    /// Bytes per second that the model's threads read from memory.
    pub fn read_bandwidth(&self, clock: &dyn Clock) -> f64 {
        self.forward.read_bandwidth(clock)
    }

    /// Removes all tokens.
    pub fn restart(&mut self) {
        self.allocator.release(std::mem::take(&mut self.pages));
        self.pages =
            self.allocator.reserve(pages_for(self.context_tokens), PagePool::General).unwrap_or_default();
        self.cached = 0;
    }

    /// Appends tokens in one step, and returns the log-probabilities of the next token over the vocabulary.
    ///
    /// # Panics
    /// If there are no tokens, one is outside the vocabulary, or they exceed the context.
    pub fn extend(&mut self, tokens: &[u32]) -> Vec<f64> {
        let first_position = self.append(tokens);
        let entry = BatchEntry { tokens, first_position, pages: self.pages.pages(), logits_rows: 1 };
        self.forward.step(&[entry]).rows().next().map(log_probabilities).unwrap_or_default()
    }

    /// Appends tokens in one step, and returns the log-probabilities of the next token after each of them.
    ///
    /// # Panics
    /// Like `extend`.
    pub fn extend_all(&mut self, tokens: &[u32]) -> Vec<Vec<f64>> {
        let first_position = self.append(tokens);
        let pages = self.pages.pages();
        let entry = BatchEntry { tokens, first_position, pages, logits_rows: tokens.len() };
        self.forward.step(&[entry]).rows().map(log_probabilities).collect()
    }

    /// Times one step of `rows` sequences, one token each, at the end of the context. Their content does not matter:
    /// all share the one sequence's pages except the last.
    ///
    /// # Panics
    /// Like `extend`.
    pub fn time_decode_step(&mut self, rows: usize, clock: &Arc<dyn Clock>) -> StepTimes {
        if self.cached < self.context_tokens {
            self.extend(&vec![1; self.context_tokens - self.cached]);
        }
        let shared = self.pages.pages();
        let mut spare = self.allocator.reserve(rows, PagePool::General).unwrap_or_default();
        self.allocator.grow(&mut spare, rows * PAGE_TOKENS);
        let tables: Vec<Vec<PageId>> = spare
            .pages()
            .iter()
            .map(|last| shared[..shared.len() - 1].iter().copied().chain([*last]).collect())
            .collect();
        let batch: Vec<BatchEntry<'_>> = tables
            .iter()
            .map(|pages| BatchEntry {
                tokens: &[1],
                first_position: self.context_tokens - 1,
                pages,
                logits_rows: 1,
            })
            .collect();
        self.forward.set_step_timer(StepTimer::new(Arc::clone(clock)));
        self.forward.step(&batch);
        self.allocator.release(spare);
        self.forward.step_times()
    }

    /// Times one step that prefills `tokens` from an empty context.
    ///
    /// # Panics
    /// Like `extend`.
    pub fn time_prefill(&mut self, tokens: &[u32], clock: &Arc<dyn Clock>) -> StepTimes {
        self.restart();
        self.time_extend(tokens, clock)
    }

    /// Times one step that appends `tokens`.
    ///
    /// # Panics
    /// Like `extend`.
    pub fn time_extend(&mut self, tokens: &[u32], clock: &Arc<dyn Clock>) -> StepTimes {
        self.forward.set_step_timer(StepTimer::new(Arc::clone(clock)));
        self.extend(tokens);
        self.forward.step_times()
    }

    /// Allocates pages for more tokens; returns the position of the first.
    fn append(&mut self, tokens: &[u32]) -> usize {
        assert!(!tokens.is_empty(), "no tokens");
        assert!(self.cached + tokens.len() <= self.context_tokens, "past the end of the context");
        assert!(tokens.iter().all(|token| (*token as usize) < self.vocab_size), "not a token");
        let first_position = self.cached;
        self.cached += tokens.len();
        self.allocator.grow(&mut self.pages, self.cached);
        first_position
    }
}

fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|logit| f64::from(logit - top).exp()).sum();
    logits.iter().map(|logit| f64::from(logit - top) - total.ln()).collect()
}
