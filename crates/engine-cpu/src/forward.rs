//! The forward pass: one step runs the next tokens of several sequences, prefill and decode mixed, through all layers
//! as one batch, and returns the requested logits. It knows nothing of requests.

mod step_timer;

pub use step_timer::{StepTimer, StepTimes};

use crate::kernels::{
    Activations, Kernels, KvCache, LogitRows, LogitStats, OutputMode, Positions, QkvTransform,
    RopeFrequencies, Rows, Span, padded,
};
use crate::limits::ENGINE_OVERHEAD_BYTES;
use crate::model::{Hyperparameters, Layer, Model, QkNorm};
use crate::paging::PageId;
use chancery_domain::Clock;

/// The next tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct BatchEntry<'a> {
    pub tokens: &'a [u32],
    /// Position of the first token; the KV cache holds all earlier ones.
    pub first_position: usize,
    /// Pages that cover everything up to the last token.
    pub pages: &'a [PageId],
    /// For how many tokens, counted from the last, to compute logits.
    pub logits_rows: usize,
}

/// The logits rows that the batch requested, in order, with the kernels that process them.
#[derive(Debug)]
pub struct Logits<'a> {
    pub values: &'a mut [f32],
    pub stride: usize,
    pub vocab_size: usize,
    pub kernels: &'a Kernels,
}

impl Logits<'_> {
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.stride).map(|row| &row[..self.vocab_size])
    }

    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.values[row * self.stride..][..self.vocab_size]
    }

    /// Computes statistics of each row; if its temperature is above zero, softmax weights replace the logits.
    pub fn logit_stats(&mut self, temperatures: &[f32], logit_stats: &mut Vec<LogitStats>) {
        let Self { stride, vocab_size, kernels, .. } = *self;
        kernels.logit_stats(LogitRows { values: self.values, stride, vocab_size }, temperatures, logit_stats);
    }
}

/// The model that the worker steps: the real one, or a scripted one in tests.
pub trait ForwardModel: Send + 'static {
    /// # Panics
    /// If a token is outside the vocabulary, the pages do not cover the last position, or an entry requests more rows
    /// of logits than it has tokens.
    fn step(&mut self, batch: &[BatchEntry<'_>]) -> Logits<'_>;

    /// Rows up to which one more adds little to a step's time; 1 if each costs as much as the first.
    fn draft_rows(&self) -> usize;

    /// Whether another model computes on the same cores right now, so that steps should be short.
    fn shares_cores(&self) -> bool {
        false
    }
}

/// A model with its KV cache and scratch buffers.
#[derive(Debug)]
pub struct Forward {
    model: Model,
    kernels: Kernels,
    cache: KvCache,
    scratch: Scratch,
    step_timer: StepTimer,
    draft_rows: usize,
}

/// Buffers reused from step to step, each as long as the largest step so far needed. Rows of products are padded to
/// whole blocks.
#[derive(Debug, Default)]
struct Scratch {
    hidden: Vec<f32>,
    /// Queries, keys and values of each row.
    qkv: Vec<f32>,
    attention_out: Vec<f32>,
    gate_up: Vec<f32>,
    positions: Positions,
    inputs: Activations,
    last_rows: Vec<f32>,
    logits: Vec<f32>,
}

impl Forward {
    pub fn new(model: Model, kernels: Kernels, cache: KvCache) -> Self {
        let draft_rows = kernels.draft_rows();
        Self {
            model,
            kernels,
            cache,
            scratch: Scratch::default(),
            step_timer: StepTimer::default(),
            draft_rows,
        }
    }

    /// Overrides the kernels' number of free rows.
    pub fn with_draft_rows(self, draft_rows: usize) -> Self {
        Self { draft_rows, ..self }
    }

    pub fn set_step_timer(&mut self, step_timer: StepTimer) {
        self.step_timer = step_timer;
    }

    /// Bytes of the weights that every step reads.
    pub fn matrix_bytes(&self) -> usize {
        self.model.matrix_bytes()
    }

    /// Bytes per second that the threads of this model read from memory.
    pub fn read_bandwidth(&self, clock: &dyn Clock) -> f64 {
        self.kernels.read_bandwidth(clock)
    }

    /// How the last step's time was spent, if a step timer is set.
    pub fn step_times(&self) -> StepTimes {
        self.step_timer.times()
    }
}

impl ForwardModel for Forward {
    fn step(&mut self, batch: &[BatchEntry<'_>]) -> Logits<'_> {
        let Self { model, kernels, cache, scratch, step_timer, .. } = self;
        step_timer.restart();
        let hyperparameters = &model.hyperparameters;
        let hidden_size = hyperparameters.hidden_size;
        let stride = padded(hidden_size);
        let spans = spans_of(batch);
        let rows: usize = batch.iter().map(|entry| entry.tokens.len()).sum();

        scratch.prepare(hyperparameters, rows);
        let tokens = batch.iter().flat_map(|entry| entry.tokens);
        for (token, hidden) in tokens.zip(scratch.hidden.chunks_exact_mut(stride)) {
            model.embedding.read(*token, &mut hidden[..hidden_size]);
        }
        let rope = RopeFrequencies {
            frequencies: &hyperparameters.rope_frequencies,
            attention_factor: hyperparameters.rope_attention_factor,
        };
        scratch.positions.set(cache, &spans, rope);
        let step = Step { kernels, hyperparameters, spans: &spans };
        for (index, layer) in model.layers.iter().enumerate() {
            scratch.attend(&step, cache, layer, index, step_timer);
            scratch.feed_forward(&step, layer, step_timer);
        }

        scratch.last_rows.clear();
        for (entry, span) in batch.iter().zip(&spans) {
            let end = (span.first_row + span.rows) * stride;
            scratch.last_rows.extend_from_slice(&scratch.hidden[end - entry.logits_rows * stride..end]);
        }
        let logits_row_count = scratch.last_rows.len() / stride;
        let logits_stride = padded(hyperparameters.vocab_size);
        scratch.logits.resize(logits_row_count * logits_stride, 0.0);
        if logits_row_count > 0 {
            let rows = Rows { values: &scratch.last_rows, stride };
            kernels.rms_norm_rows(rows, &model.output_norm, hyperparameters.norm_eps, &mut scratch.inputs);
            step_timer.lap(|times| &mut times.other);
            kernels.multiply(&scratch.inputs, &model.output, &mut scratch.logits, OutputMode::Overwrite);
            step_timer.lap(|times| &mut times.matmul);
        }
        let vocab_size = hyperparameters.vocab_size;
        Logits { values: &mut scratch.logits, stride: logits_stride, vocab_size, kernels }
    }

    fn draft_rows(&self) -> usize {
        self.draft_rows
    }
}

/// Scratch memory of a model, beside weights and KV cache, for steps of at most this many rows and logits rows.
pub fn activation_bytes(hyperparameters: &Hyperparameters, rows: usize, logits_rows: usize) -> u64 {
    let Hyperparameters { hidden_size, feed_forward, attention, vocab_size, .. } = *hyperparameters;
    let query_width = attention.heads * attention.head_dim;
    let kv_width = attention.kv_heads * attention.head_dim;
    let widest_input = hidden_size.max(feed_forward).max(query_width);
    // Values in f32; inputs exist both as f32 and as 16-bit numbers.
    let row_bytes = 4
        * (padded(hidden_size)
            + padded(query_width + 2 * kv_width)
            + query_width
            + padded(2 * feed_forward)
            + attention.head_dim
            + widest_input)
        + 2 * widest_input;
    let logits_row_bytes = 4 * (padded(hidden_size) + padded(vocab_size));
    // Growing vectors may reserve twice their length.
    (2 * (rows * row_bytes + logits_rows * logits_row_bytes) + ENGINE_OVERHEAD_BYTES) as u64
}

struct Step<'a> {
    kernels: &'a Kernels,
    hyperparameters: &'a Hyperparameters,
    spans: &'a [Span<'a>],
}

fn spans_of<'a>(batch: &[BatchEntry<'a>]) -> Vec<Span<'a>> {
    let mut first_row = 0;
    batch
        .iter()
        .map(|entry| {
            let span = Span {
                first_row,
                rows: entry.tokens.len(),
                first_position: entry.first_position,
                pages: entry.pages,
            };
            first_row += span.rows;
            span
        })
        .collect()
}

impl Scratch {
    fn prepare(&mut self, hyperparameters: &Hyperparameters, rows: usize) {
        let Hyperparameters { hidden_size, feed_forward, attention, .. } = *hyperparameters;
        let query_width = attention.heads * attention.head_dim;
        let kv_width = attention.kv_heads * attention.head_dim;
        self.hidden.resize(rows * padded(hidden_size), 0.0);
        self.qkv.resize(rows * padded(query_width + 2 * kv_width), 0.0);
        self.attention_out.resize(rows * query_width, 0.0);
        self.gate_up.resize(rows * padded(2 * feed_forward), 0.0);
    }

    fn attend(
        &mut self,
        step: &Step<'_>,
        cache: &mut KvCache,
        layer: &Layer,
        layer_index: usize,
        step_timer: &mut StepTimer,
    ) {
        let Step { kernels, hyperparameters, spans } = *step;
        let Hyperparameters { hidden_size, attention, norm_eps, .. } = *hyperparameters;
        let head_dim = attention.head_dim;
        let query_width = attention.heads * head_dim;
        let kv_width = attention.kv_heads * head_dim;
        let stride = padded(query_width + 2 * kv_width);

        let hidden = Rows { values: &self.hidden, stride: padded(hidden_size) };
        kernels.rms_norm_rows(hidden, &layer.attention_norm, norm_eps, &mut self.inputs);
        step_timer.lap(|times| &mut times.other);
        let qkv = &mut self.qkv;
        kernels.multiply(&self.inputs, &layer.qkv, qkv, OutputMode::Overwrite);
        step_timer.lap(|times| &mut times.matmul);
        let transform = QkvTransform {
            shape: attention,
            bias: layer.qkv_bias.as_deref(),
            norms: layer.qk_norm.as_ref().map(|QkNorm { query, key }| (&**query, &**key)),
            norm_eps,
        };
        kernels.transform_qkv(transform, &self.positions, cache, layer_index, qkv, stride);
        step_timer.lap(|times| &mut times.other);
        let queries = Rows { values: &self.qkv, stride };
        kernels.attend(attention, cache, layer_index, spans, queries, &mut self.attention_out);
        step_timer.lap(|times| &mut times.attention);
        kernels.copy_rows(Rows { values: &self.attention_out, stride: query_width }, &mut self.inputs);
        step_timer.lap(|times| &mut times.other);
        kernels.multiply(&self.inputs, &layer.attention_output, &mut self.hidden, OutputMode::Accumulate);
        step_timer.lap(|times| &mut times.matmul);
    }

    fn feed_forward(&mut self, step: &Step<'_>, layer: &Layer, step_timer: &mut StepTimer) {
        let Step { kernels, hyperparameters, .. } = *step;
        let Hyperparameters { hidden_size, feed_forward, norm_eps, .. } = *hyperparameters;
        let hidden = Rows { values: &self.hidden, stride: padded(hidden_size) };
        kernels.rms_norm_rows(hidden, &layer.feed_forward_norm, norm_eps, &mut self.inputs);
        step_timer.lap(|times| &mut times.other);
        kernels.multiply(&self.inputs, &layer.gate_up, &mut self.gate_up, OutputMode::Overwrite);
        step_timer.lap(|times| &mut times.matmul);
        let gate_up = Rows { values: &self.gate_up, stride: padded(2 * feed_forward) };
        kernels.swiglu_rows(gate_up, feed_forward, &mut self.inputs);
        step_timer.lap(|times| &mut times.other);
        kernels.multiply(&self.inputs, &layer.down, &mut self.hidden, OutputMode::Accumulate);
        step_timer.lap(|times| &mut times.matmul);
    }
}
