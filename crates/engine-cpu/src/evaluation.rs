//! A model without queue or worker: the next token's log-probabilities after given tokens. It is how the arithmetic is
//! held against other implementations of the same file.

use crate::error::{Fault, LoadError};
use crate::forward::{Forward, Segment, StepModel, StepTimes, Watch};
use crate::gguf::Gguf;
use crate::kernels::KvCache;
use crate::kernels::{Arithmetic, Kernels};
use crate::kv::{Lane, PageId, PageLedger, PageTable, pages_for};
use crate::limits::PAGE_TOKENS;
use crate::model::Model;
use crate::tokenizer::Tokenizer;
use chancery_domain::Clock;
use std::path::Path;
use std::sync::Arc;

/// One sequence, extended by hand.
#[derive(Debug)]
pub struct Evaluation {
    forward: Forward,
    ledger: PageLedger,
    pages: PageTable,
    cached: usize,
    context_tokens: usize,
    vocabulary: usize,
}

/// Sequences whose step can be timed together.
const MAX_TIMED_ROWS: usize = 64;

impl Evaluation {
    /// The model as it serves requests.
    pub fn load(path: &Path, context_tokens: usize, threads: usize) -> Result<Self, LoadError> {
        Self::load_with(path, context_tokens, Kernels::start(threads)?)
    }

    /// On the kernel of that name, as `CHANCERY_KERNEL` would have it.
    pub fn load_on(
        kernel: &str,
        path: &Path,
        context_tokens: usize,
        threads: usize,
    ) -> Result<Self, LoadError> {
        let kernels = Kernels::start_with(threads, Some(kernel), Arithmetic::Fixed)?;
        Self::load_with(path, context_tokens, kernels)
    }

    /// The file's weights as they are with f32 activations: what accuracy is measured against. It takes four bytes for
    /// each weight, and its time.
    pub fn load_exact(path: &Path, context_tokens: usize, threads: usize) -> Result<Self, LoadError> {
        let kernels = Kernels::start_with(threads, None, Arithmetic::Exact)?;
        Self::load_with(path, context_tokens, kernels)
    }

    fn load_with(path: &Path, context_tokens: usize, kernels: Kernels) -> Result<Self, LoadError> {
        let refused = |fault| LoadError::refused(path, fault);
        let mut file = Gguf::open(path)?;
        let vocabulary = Tokenizer::from_metadata(file.metadata()).map_err(refused)?.vocabulary_len();
        let model = Model::from_gguf(&mut file, vocabulary, &kernels).map_err(refused)?;
        let pages = pages_for(context_tokens) + MAX_TIMED_ROWS;
        let beyond = || refused(Fault::unsupported("its key-value cache is beyond counting"));
        let cache = KvCache::new(model.hyper_parameters.kv_shape(), pages).ok_or_else(beyond)?;
        let mut evaluation = Self {
            forward: Forward::new(model, kernels, cache),
            ledger: PageLedger::new(pages, 0),
            pages: PageTable::default(),
            cached: 0,
            context_tokens,
            vocabulary,
        };
        evaluation.restart();
        Ok(evaluation)
    }

    /// Forgets all tokens.
    pub fn restart(&mut self) {
        self.ledger.release(std::mem::take(&mut self.pages));
        self.pages = self.ledger.promise(pages_for(self.context_tokens), Lane::Any).unwrap_or_default();
        self.cached = 0;
    }

    /// Appends tokens, all in one step, and returns every token's log-probability of coming next.
    ///
    /// # Panics
    /// When there are no tokens, one is outside the vocabulary, or they pass the end of the context.
    pub fn extend(&mut self, tokens: &[u32]) -> Vec<f64> {
        let first_position = self.append(tokens);
        let segment = Segment { tokens, first_position, pages: self.pages.pages(), logits_rows: 1 };
        self.forward.step(&[segment]).rows().next().map(log_probabilities).unwrap_or_default()
    }

    /// Appends tokens, all in one step, and returns every token's log-probability of coming next after each of them.
    ///
    /// # Panics
    /// As `extend` does.
    pub fn extend_each(&mut self, tokens: &[u32]) -> Vec<Vec<f64>> {
        let first_position = self.append(tokens);
        let pages = self.pages.pages();
        let segment = Segment { tokens, first_position, pages, logits_rows: tokens.len() };
        self.forward.step(&[segment]).rows().map(log_probabilities).collect()
    }

    /// Takes the time of one step of `rows` sequences, one token each, at the context's end. What they say makes no
    /// difference: all share the one sequence's pages but the last.
    ///
    /// # Panics
    /// As `extend` does.
    pub fn time_decoding(&mut self, rows: usize, clock: &Arc<dyn Clock>) -> StepTimes {
        if self.cached < self.context_tokens {
            self.extend(&vec![1; self.context_tokens - self.cached]);
        }
        let shared = self.pages.pages();
        let mut spare = self.ledger.promise(rows, Lane::Any).unwrap_or_default();
        self.ledger.grow(&mut spare, rows * PAGE_TOKENS);
        let tables: Vec<Vec<PageId>> = spare
            .pages()
            .iter()
            .map(|last| shared[..shared.len() - 1].iter().copied().chain([*last]).collect())
            .collect();
        let segments: Vec<Segment<'_>> = tables
            .iter()
            .map(|pages| Segment {
                tokens: &[1],
                first_position: self.context_tokens - 1,
                pages,
                logits_rows: 1,
            })
            .collect();
        self.forward.set_watch(Watch::new(Arc::clone(clock)));
        self.forward.step(&segments);
        self.ledger.release(spare);
        self.forward.step_times()
    }

    /// Takes the time of one step that reads `tokens` from an empty context.
    ///
    /// # Panics
    /// As `extend` does.
    pub fn time_prompt(&mut self, tokens: &[u32], clock: &Arc<dyn Clock>) -> StepTimes {
        self.restart();
        self.forward.set_watch(Watch::new(Arc::clone(clock)));
        self.extend(tokens);
        self.forward.step_times()
    }

    /// Makes room for more tokens; returns the position of the first.
    fn append(&mut self, tokens: &[u32]) -> usize {
        assert!(!tokens.is_empty(), "no tokens");
        assert!(self.cached + tokens.len() <= self.context_tokens, "past the end of the context");
        assert!(tokens.iter().all(|token| (*token as usize) < self.vocabulary), "not a token");
        let first_position = self.cached;
        self.cached += tokens.len();
        self.ledger.grow(&mut self.pages, self.cached);
        first_position
    }
}

fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|logit| f64::from(logit - top).exp()).sum();
    logits.iter().map(|logit| f64::from(logit - top) - total.ln()).collect()
}
