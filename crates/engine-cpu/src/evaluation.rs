//! A model without queue or worker: the next token's log-probabilities after given tokens. It is how the arithmetic is
//! held against other implementations of the same file.

use crate::error::{Fault, LoadError};
use crate::forward::{Forward, Segment, StepModel};
use crate::gguf::Gguf;
use crate::kernels::Kernels;
use crate::kv::{KvCache, Lane, PageLedger, PageTable, pages_for};
use crate::model::Model;
use crate::tokenizer::Tokenizer;
use std::path::Path;

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

impl Evaluation {
    pub fn load(path: &Path, context_tokens: usize, threads: usize) -> Result<Self, LoadError> {
        let refused = |fault| LoadError::refused(path, fault);
        let mut file = Gguf::open(path)?;
        let vocabulary = Tokenizer::from_metadata(file.metadata()).map_err(refused)?.vocabulary_len();
        let model = Model::from_gguf(&mut file, vocabulary).map_err(refused)?;
        let pages = pages_for(context_tokens);
        let beyond = || refused(Fault::unsupported("its key-value cache is beyond counting"));
        let cache = KvCache::new(model.hyper_parameters.kv_shape(), pages).ok_or_else(beyond)?;
        let kernels = Kernels::start(threads).map_err(LoadError::Threads)?;
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
        assert!(!tokens.is_empty(), "no tokens");
        assert!(self.cached + tokens.len() <= self.context_tokens, "past the end of the context");
        assert!(tokens.iter().all(|token| (*token as usize) < self.vocabulary), "not a token");
        self.ledger.grow(&mut self.pages, self.cached + tokens.len());
        let segment =
            Segment { tokens, first_position: self.cached, pages: self.pages.pages(), wants_logits: true };
        let logits = self.forward.step(&[segment]);
        self.cached += tokens.len();
        logits.rows().next().map(log_probabilities).unwrap_or_default()
    }
}

fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|logit| f64::from(logit - top).exp()).sum();
    logits.iter().map(|logit| f64::from(logit - top) - total.ln()).collect()
}
