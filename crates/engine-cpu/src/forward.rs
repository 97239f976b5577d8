//! The forward pass: one step takes the next tokens of several sequences, prompts and replies mixed, through all
//! layers together, and gives the logits of those that want one. It knows nothing of requests.

use crate::kernels::{Kernels, PackedRows, Product, Span, rotate_pairs};
use crate::kv::{KvCache, PageId};
use crate::model::{HyperParameters, Layer, Model};

/// The next tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    pub tokens: &'a [u32],
    /// The position of the first of them; all earlier ones are in the cache.
    pub first_position: usize,
    /// Pages up to the last of them.
    pub pages: &'a [PageId],
    /// Whether the logits after the last token are wanted.
    pub wants_logits: bool,
}

/// Rows of logits, one for each segment that wanted one, in their order.
#[derive(Clone, Copy, Debug)]
pub struct Logits<'a> {
    pub values: &'a [f32],
    pub stride: usize,
    pub vocabulary: usize,
}

impl<'a> Logits<'a> {
    pub fn rows(&self) -> impl Iterator<Item = &'a [f32]> {
        let vocabulary = self.vocabulary;
        self.values.chunks_exact(self.stride).map(move |row| &row[..vocabulary])
    }
}

/// What the worker steps: the real model, or a scripted one in tests.
pub trait StepModel: Send + 'static {
    /// # Panics
    /// When a token is outside the vocabulary or the pages do not reach the last position.
    fn step(&mut self, segments: &[Segment<'_>]) -> Logits<'_>;
}

/// A model with its cache and its room to work in.
#[derive(Debug)]
pub struct Forward {
    model: Model,
    kernels: Kernels,
    cache: KvCache,
    room: Room,
}

/// Buffers that are kept from step to step; each is as long as the largest step so far needed.
#[derive(Debug, Default)]
struct Room {
    hidden: Vec<f32>,
    normed: Vec<f32>,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    attended: Vec<f32>,
    gates: Vec<f32>,
    ups: Vec<f32>,
    delta: Vec<f32>,
    cosines: Vec<f32>,
    sines: Vec<f32>,
    packed: PackedRows,
    last_rows: Vec<f32>,
    logits: Vec<f32>,
}

impl Forward {
    pub fn new(model: Model, kernels: Kernels, cache: KvCache) -> Self {
        Self { model, kernels, cache, room: Room::default() }
    }
}

impl StepModel for Forward {
    fn step(&mut self, segments: &[Segment<'_>]) -> Logits<'_> {
        let Self { model, kernels, cache, room } = self;
        let hyper_parameters = &model.hyper_parameters;
        let width = hyper_parameters.width;
        let spans = spans_of(segments);
        let rows: usize = segments.iter().map(|segment| segment.tokens.len()).sum();

        room.prepare(hyper_parameters, rows);
        let tokens = segments.iter().flat_map(|segment| segment.tokens);
        for (token, hidden) in tokens.zip(room.hidden.chunks_exact_mut(width)) {
            model.embedding.read_column(*token as usize, hidden);
        }
        room.set_angles(&hyper_parameters.rope_frequencies, &spans);
        for (index, layer) in model.layers.iter().enumerate() {
            room.attend(kernels, cache, hyper_parameters, layer, index, &spans);
            room.feed_forward(kernels, hyper_parameters, layer);
        }

        room.last_rows.clear();
        for (segment, span) in segments.iter().zip(&spans).filter(|(segment, _)| segment.wants_logits) {
            let last = span.first_row + segment.tokens.len() - 1;
            room.last_rows.extend_from_slice(&room.hidden[last * width..][..width]);
        }
        let wanted = room.last_rows.len() / width;
        let output = model.output();
        room.logits.resize(wanted * output.padded_columns(), 0.0);
        if wanted > 0 {
            let normed = &mut room.normed[..wanted * width];
            kernels.rms_norm(&room.last_rows, &model.output_norm, hyper_parameters.norm_epsilon, normed);
            kernels.pack(normed, width, &mut room.packed);
            kernels.multiply(&room.packed, &mut [Product { matrix: output, out: &mut room.logits }]);
        }
        Logits {
            values: &room.logits,
            stride: output.padded_columns(),
            vocabulary: hyper_parameters.vocabulary,
        }
    }
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
        self.hidden.resize(rows * width, 0.0);
        self.normed.resize(rows * width, 0.0);
        self.delta.resize(rows * width, 0.0);
        self.queries.resize(rows * query_width, 0.0);
        self.attended.resize(rows * query_width, 0.0);
        self.keys.resize(rows * kv_width, 0.0);
        self.values.resize(rows * kv_width, 0.0);
        self.gates.resize(rows * feed_forward, 0.0);
        self.ups.resize(rows * feed_forward, 0.0);
    }

    /// The cosines and sines of every row's position, the same for all layers and heads.
    fn set_angles(&mut self, frequencies: &[f64], spans: &[Span<'_>]) {
        self.cosines.clear();
        self.sines.clear();
        for span in spans {
            for position in span.first_position..span.first_position + span.rows {
                for frequency in frequencies {
                    let (sine, cosine) = (position as f64 * frequency).sin_cos();
                    self.cosines.push(cosine as f32);
                    self.sines.push(sine as f32);
                }
            }
        }
    }

    fn attend(
        &mut self,
        kernels: &Kernels,
        cache: &mut KvCache,
        hyper_parameters: &HyperParameters,
        layer: &Layer,
        layer_index: usize,
        spans: &[Span<'_>],
    ) {
        let HyperParameters { width, attention, norm_epsilon, .. } = *hyper_parameters;
        let head_len = attention.head_len;
        let query_width = attention.heads * head_len;
        let kv_width = attention.kv_heads * head_len;
        let pairs = hyper_parameters.rope_frequencies.len();

        kernels.rms_norm(&self.hidden, &layer.attention_norm, norm_epsilon, &mut self.normed);
        kernels.pack(&self.normed, width, &mut self.packed);
        kernels.multiply(
            &self.packed,
            &mut [
                Product { matrix: &layer.query, out: &mut self.queries },
                Product { matrix: &layer.key, out: &mut self.keys },
                Product { matrix: &layer.value, out: &mut self.values },
            ],
        );
        for span in spans {
            for offset in 0..span.rows {
                let row = span.first_row + offset;
                let cosines = &self.cosines[row * pairs..][..pairs];
                let sines = &self.sines[row * pairs..][..pairs];
                rotate_pairs(&mut self.queries[row * query_width..][..query_width], head_len, cosines, sines);
                let keys = &mut self.keys[row * kv_width..][..kv_width];
                rotate_pairs(keys, head_len, cosines, sines);
                let values = &self.values[row * kv_width..][..kv_width];
                cache.write(span.pages, layer_index, span.first_position + offset, keys, values);
            }
        }
        kernels.attend(attention, cache, layer_index, spans, &self.queries, &mut self.attended);
        kernels.pack(&self.attended, query_width, &mut self.packed);
        kernels
            .multiply(&self.packed, &mut [Product { matrix: &layer.attention_output, out: &mut self.delta }]);
        kernels.add(&mut self.hidden, &self.delta);
    }

    fn feed_forward(&mut self, kernels: &Kernels, hyper_parameters: &HyperParameters, layer: &Layer) {
        let HyperParameters { width, feed_forward, norm_epsilon, .. } = *hyper_parameters;
        kernels.rms_norm(&self.hidden, &layer.feed_forward_norm, norm_epsilon, &mut self.normed);
        kernels.pack(&self.normed, width, &mut self.packed);
        kernels.multiply(
            &self.packed,
            &mut [
                Product { matrix: &layer.gate, out: &mut self.gates },
                Product { matrix: &layer.up, out: &mut self.ups },
            ],
        );
        kernels.gate(&mut self.gates, &self.ups, feed_forward);
        kernels.pack(&self.gates, feed_forward, &mut self.packed);
        kernels.multiply(&self.packed, &mut [Product { matrix: &layer.down, out: &mut self.delta }]);
        kernels.add(&mut self.hidden, &self.delta);
    }
}
