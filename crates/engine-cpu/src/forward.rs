//! The forward pass: one step takes the next tokens of several sequences, prompts and replies mixed, through all
//! layers together, and gives the logits of those that want one. It knows nothing of requests.

mod watch;

pub use watch::{StepTimes, Watch};

use crate::kernels::{
    Before, HeadRules, Inputs, Kernels, KvCache, LogitRows, Positions, Rows, Span, Survey, Turns, padded,
};
use crate::kv::PageId;
use crate::limits::ENGINE_OVERHEAD_BYTES;
use crate::model::{HeadNorms, HyperParameters, Layer, Model};

/// The next tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    pub tokens: &'a [u32],
    /// The position of the first of them; all earlier ones are in the cache.
    pub first_position: usize,
    /// Pages up to the last of them.
    pub pages: &'a [PageId],
    /// After how many of them, counted from the last, the logits are wanted.
    pub logits_rows: usize,
}

/// Rows of logits, as many for each segment as it wanted, in their order, and the kernels that know how to read them.
#[derive(Debug)]
pub struct Logits<'a> {
    pub values: &'a mut [f32],
    pub stride: usize,
    pub vocabulary: usize,
    pub kernels: &'a Kernels,
}

impl Logits<'_> {
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.stride).map(|row| &row[..self.vocabulary])
    }

    /// What is known of each row; weights take the place of logits where the row's temperature is above zero.
    pub fn survey(&mut self, temperatures: &[f32], surveys: &mut Vec<Survey>) {
        let Self { stride, vocabulary, kernels, .. } = *self;
        kernels.survey(LogitRows { values: self.values, stride, vocabulary }, temperatures, surveys);
    }
}

/// What the worker steps: the real model, or a scripted one in tests.
pub trait StepModel: Send + 'static {
    /// # Panics
    /// When a token is outside the vocabulary, the pages do not reach the last position, or a segment wants more rows of
    /// logits than it has tokens.
    fn step(&mut self, segments: &[Segment<'_>]) -> Logits<'_>;

    /// Rows up to which one more costs a step little; 1 where each costs as much as the first.
    fn free_rows(&self) -> usize;
}

/// A model with its cache and its room to work in.
#[derive(Debug)]
pub struct Forward {
    model: Model,
    kernels: Kernels,
    cache: KvCache,
    room: Room,
    watch: Watch,
    free_rows: usize,
}

/// Buffers that are kept from step to step; each is as long as the largest step so far needed. Rows of products are
/// padded to whole blocks.
#[derive(Debug, Default)]
struct Room {
    hidden: Vec<f32>,
    /// Queries, keys and values of each row.
    query_key_value: Vec<f32>,
    attended: Vec<f32>,
    gate_up: Vec<f32>,
    positions: Positions,
    inputs: Inputs,
    last_rows: Vec<f32>,
    logits: Vec<f32>,
}

impl Forward {
    pub fn new(model: Model, kernels: Kernels, cache: KvCache) -> Self {
        let free_rows = kernels.free_rows();
        Self { model, kernels, cache, room: Room::default(), watch: Watch::default(), free_rows }
    }

    /// The same with another number of free rows than the kernels'.
    pub fn with_free_rows(self, free_rows: usize) -> Self {
        Self { free_rows, ..self }
    }

    pub fn set_watch(&mut self, watch: Watch) {
        self.watch = watch;
    }

    /// Where the last step's time went, if there is a watch.
    pub fn step_times(&self) -> StepTimes {
        self.watch.times()
    }
}

impl StepModel for Forward {
    fn step(&mut self, segments: &[Segment<'_>]) -> Logits<'_> {
        let Self { model, kernels, cache, room, watch, .. } = self;
        watch.restart();
        let hyper_parameters = &model.hyper_parameters;
        let width = hyper_parameters.width;
        let stride = padded(width);
        let spans = spans_of(segments);
        let rows: usize = segments.iter().map(|segment| segment.tokens.len()).sum();

        room.prepare(hyper_parameters, rows);
        let tokens = segments.iter().flat_map(|segment| segment.tokens);
        for (token, hidden) in tokens.zip(room.hidden.chunks_exact_mut(stride)) {
            model.embedding.read(*token, &mut hidden[..width]);
        }
        let turns = Turns {
            frequencies: &hyper_parameters.rope_frequencies,
            magnitude: hyper_parameters.rope_magnitude,
        };
        room.positions.set(cache, &spans, turns);
        let step = Step { kernels, hyper_parameters, spans: &spans };
        for (index, layer) in model.layers.iter().enumerate() {
            room.attend(&step, cache, layer, index, watch);
            room.feed_forward(&step, layer, watch);
        }

        room.last_rows.clear();
        for (segment, span) in segments.iter().zip(&spans) {
            let end = (span.first_row + span.rows) * stride;
            room.last_rows.extend_from_slice(&room.hidden[end - segment.logits_rows * stride..end]);
        }
        let wanted = room.last_rows.len() / stride;
        let logits_stride = padded(hyper_parameters.vocabulary);
        room.logits.resize(wanted * logits_stride, 0.0);
        if wanted > 0 {
            let rows = Rows { values: &room.last_rows, stride };
            kernels.normalise(rows, &model.output_norm, hyper_parameters.norm_epsilon, &mut room.inputs);
            watch.lap(|times| &mut times.rest);
            kernels.multiply(&room.inputs, &model.output, &mut room.logits, Before::Replaced);
            watch.lap(|times| &mut times.products);
        }
        let vocabulary = hyper_parameters.vocabulary;
        Logits { values: &mut room.logits, stride: logits_stride, vocabulary, kernels }
    }

    fn free_rows(&self) -> usize {
        self.free_rows
    }
}

/// What a model takes for its steps beside weights and cache, when they have at most so many rows and rows of logits.
pub fn work_bytes(hyper_parameters: &HyperParameters, rows: usize, logits_rows: usize) -> u64 {
    let HyperParameters { width, feed_forward, attention, vocabulary, .. } = *hyper_parameters;
    let query_width = attention.heads * attention.head_len;
    let kv_width = attention.kv_heads * attention.head_len;
    let widest_input = width.max(feed_forward).max(query_width);
    // Values in f32 first; inputs are there as f32 and as 16-bit numbers.
    let row_bytes = 4
        * (padded(width)
            + padded(query_width + 2 * kv_width)
            + query_width
            + padded(2 * feed_forward)
            + attention.head_len
            + widest_input)
        + 2 * widest_input;
    let logits_row_bytes = 4 * (padded(width) + padded(vocabulary));
    // Vectors that grow may take twice what they hold.
    (2 * (rows * row_bytes + logits_rows * logits_row_bytes) + ENGINE_OVERHEAD_BYTES) as u64
}

/// What all layers of one step share.
struct Step<'a> {
    kernels: &'a Kernels,
    hyper_parameters: &'a HyperParameters,
    spans: &'a [Span<'a>],
}

fn spans_of<'a>(segments: &[Segment<'a>]) -> Vec<Span<'a>> {
    let mut first_row = 0;
    segments
        .iter()
        .map(|segment| {
            let span = Span {
                first_row,
                rows: segment.tokens.len(),
                first_position: segment.first_position,
                pages: segment.pages,
            };
            first_row += span.rows;
            span
        })
        .collect()
}

impl Room {
    fn prepare(&mut self, hyper_parameters: &HyperParameters, rows: usize) {
        let HyperParameters { width, feed_forward, attention, .. } = *hyper_parameters;
        let query_width = attention.heads * attention.head_len;
        let kv_width = attention.kv_heads * attention.head_len;
        self.hidden.resize(rows * padded(width), 0.0);
        self.query_key_value.resize(rows * padded(query_width + 2 * kv_width), 0.0);
        self.attended.resize(rows * query_width, 0.0);
        self.gate_up.resize(rows * padded(2 * feed_forward), 0.0);
    }

    fn attend(
        &mut self,
        step: &Step<'_>,
        cache: &mut KvCache,
        layer: &Layer,
        layer_index: usize,
        watch: &mut Watch,
    ) {
        let Step { kernels, hyper_parameters, spans } = *step;
        let HyperParameters { width, attention, norm_epsilon, .. } = *hyper_parameters;
        let head_len = attention.head_len;
        let query_width = attention.heads * head_len;
        let kv_width = attention.kv_heads * head_len;
        let stride = padded(query_width + 2 * kv_width);

        let hidden = Rows { values: &self.hidden, stride: padded(width) };
        kernels.normalise(hidden, &layer.attention_norm, norm_epsilon, &mut self.inputs);
        watch.lap(|times| &mut times.rest);
        let products = &mut self.query_key_value;
        kernels.multiply(&self.inputs, &layer.query_key_value, products, Before::Replaced);
        watch.lap(|times| &mut times.products);
        let rules = HeadRules {
            shape: attention,
            bias: layer.query_key_value_bias.as_deref(),
            norms: layer.head_norms.as_ref().map(|HeadNorms { query, key }| (&**query, &**key)),
            norm_epsilon,
        };
        kernels.finish_heads(rules, &self.positions, cache, layer_index, products, stride);
        watch.lap(|times| &mut times.rest);
        let queries = Rows { values: &self.query_key_value, stride };
        kernels.attend(attention, cache, layer_index, spans, queries, &mut self.attended);
        watch.lap(|times| &mut times.attention);
        kernels.take_rows(Rows { values: &self.attended, stride: query_width }, &mut self.inputs);
        watch.lap(|times| &mut times.rest);
        kernels.multiply(&self.inputs, &layer.attention_output, &mut self.hidden, Before::Added);
        watch.lap(|times| &mut times.products);
    }

    fn feed_forward(&mut self, step: &Step<'_>, layer: &Layer, watch: &mut Watch) {
        let Step { kernels, hyper_parameters, .. } = *step;
        let HyperParameters { width, feed_forward, norm_epsilon, .. } = *hyper_parameters;
        let hidden = Rows { values: &self.hidden, stride: padded(width) };
        kernels.normalise(hidden, &layer.feed_forward_norm, norm_epsilon, &mut self.inputs);
        watch.lap(|times| &mut times.rest);
        kernels.multiply(&self.inputs, &layer.gate_up, &mut self.gate_up, Before::Replaced);
        watch.lap(|times| &mut times.products);
        let gate_up = Rows { values: &self.gate_up, stride: padded(2 * feed_forward) };
        kernels.gate(gate_up, feed_forward, &mut self.inputs);
        watch.lap(|times| &mut times.rest);
        kernels.multiply(&self.inputs, &layer.down, &mut self.hidden, Before::Added);
        watch.lap(|times| &mut times.products);
    }
}
