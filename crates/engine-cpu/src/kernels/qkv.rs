//! Processes queries, keys and values between their projection and attention: bias, per-head RMSNorm, RoPE; then writes
//! keys and values to the KV cache. Each row is independent, so any thread may process it.

use super::attention::{AttentionShape, Span};
use super::elementwise::rms_norm_in_place;
use super::kv_cache::{KvCache, KvSlot};
use super::lanes::{Lanes, WIDTH};
use super::pool::SharedPointer;
use super::{Kernels, dispatch};

/// Rows per task. Adjacent prompt tokens write to the same cache lines, so with many rows a task takes as many as are
/// adjacent.
const DECODE_ROWS_PER_TASK: usize = 4;
const PREFILL_ROWS_PER_TASK: usize = WIDTH;

/// A layer's parameters for its heads.
#[derive(Clone, Copy, Debug)]
pub struct QkvTransform<'a> {
    pub shape: AttentionShape,
    /// For queries, keys and values.
    pub bias: Option<&'a [f32]>,
    /// RMSNorm weights of query heads, and of key heads.
    pub norms: Option<(&'a [f32], &'a [f32])>,
    pub norm_eps: f32,
}

/// Position data for the rows of a step: RoPE factors, and positions in the KV cache. No two rows have the same cache
/// position, so threads may write different rows concurrently.
#[derive(Debug, Default)]
pub struct Positions {
    /// For each row and value of a head: the factor of the value itself, and that of its pair partner.
    cosines: Vec<f32>,
    signed_sines: Vec<f32>,
    slots: Vec<KvSlot>,
    sorted: Vec<KvSlot>,
}

/// RoPE frequencies: the rotation angle per position for each pair of adjacent values.
#[derive(Clone, Copy, Debug)]
pub struct RopeFrequencies<'a> {
    pub frequencies: &'a [f64],
    /// Factor on rotated values.
    pub attention_factor: f64,
}

impl Positions {
    /// Sets the rows of all spans. Values of a head beyond the last rotated pair stay unchanged.
    ///
    /// # Panics
    /// If a span's pages do not cover its last row, or two rows have the same cache position.
    pub fn set(&mut self, cache: &mut KvCache, spans: &[Span<'_>], rope: RopeFrequencies<'_>) {
        let head_dim = cache.shape().head_dim;
        self.cosines.clear();
        self.signed_sines.clear();
        self.slots.clear();
        for span in spans {
            for position in span.first_position..span.first_position + span.rows {
                self.slots.push(cache.slot(span.pages, position));
                for frequency in rope.frequencies {
                    let (sine, cosine) = (position as f64 * frequency).sin_cos();
                    let (sine, cosine) =
                        ((sine * rope.attention_factor) as f32, (cosine * rope.attention_factor) as f32);
                    self.cosines.extend([cosine, cosine]);
                    self.signed_sines.extend([-sine, sine]);
                }
                self.cosines.resize(self.slots.len() * head_dim, 1.0);
                self.signed_sines.resize(self.slots.len() * head_dim, 0.0);
            }
        }
        self.sorted.clone_from(&self.slots);
        self.sorted.sort_unstable();
        assert!(self.sorted.windows(2).all(|pair| pair[0] != pair[1]), "two rows with the same slot");
    }
}

impl Kernels {
    /// Finishes rows of queries, keys and values, and stores each row's keys and values in one layer of the cache.
    ///
    /// # Panics
    /// If a row has no cache position, a row is shorter than its heads, or the positions were set for another cache.
    pub fn transform_qkv(
        &self,
        transform: QkvTransform<'_>,
        positions: &Positions,
        cache: &mut KvCache,
        layer: usize,
        rows: &mut [f32],
        stride: usize,
    ) {
        let AttentionShape { heads, kv_heads, head_dim } = transform.shape;
        let count = rows.len() / stride;
        assert!(
            count == positions.slots.len() && positions.cosines.len() == count * head_dim,
            "a slot for every row"
        );
        assert!((heads + 2 * kv_heads) * head_dim <= stride, "room for all heads");
        let (cache, rows) = (&*cache, SharedPointer(rows.as_mut_ptr()));
        let is_prefill = count >= 2 * PREFILL_ROWS_PER_TASK;
        let per_task = if is_prefill { PREFILL_ROWS_PER_TASK } else { DECODE_ROWS_PER_TASK };
        self.pool.run(count.div_ceil(per_task), &|task| {
            for row in task * per_task..count.min((task + 1) * per_task) {
                // SAFETY: there are `count` rows of `stride` values, and each is handed out once.
                let values = unsafe { std::slice::from_raw_parts_mut(rows.get().add(row * stride), stride) };
                let work = Row {
                    transform,
                    values: &mut values[..(heads + 2 * kv_heads) * head_dim],
                    cosines: &positions.cosines[row * head_dim..][..head_dim],
                    signed_sines: &positions.signed_sines[row * head_dim..][..head_dim],
                    cache,
                    slot: positions.slots[row],
                    layer,
                };
                dispatch!(self.set, transform_row, work, Row<'_>);
            }
        });
    }
}

struct Row<'a> {
    transform: QkvTransform<'a>,
    /// Queries, keys and values.
    values: &'a mut [f32],
    cosines: &'a [f32],
    signed_sines: &'a [f32],
    cache: &'a KvCache,
    slot: KvSlot,
    layer: usize,
}

#[inline(always)]
fn transform_row<L: Lanes>(lanes: L, row: Row<'_>) {
    let Row { transform, values, cosines, signed_sines, cache, slot, layer } = row;
    let QkvTransform { shape, bias, norms, norm_eps } = transform;
    if let Some(bias) = bias {
        for (value, bias) in values.iter_mut().zip(bias) {
            *value += bias;
        }
    }
    let (queries, others) = values.split_at_mut(shape.heads * shape.head_dim);
    let (keys, values) = others.split_at_mut(shape.kv_heads * shape.head_dim);
    if let Some((query_norm, key_norm)) = norms {
        for head in queries.chunks_exact_mut(shape.head_dim) {
            rms_norm_in_place(lanes, (head, query_norm, norm_eps));
        }
        for head in keys.chunks_exact_mut(shape.head_dim) {
            rms_norm_in_place(lanes, (head, key_norm, norm_eps));
        }
    }
    for head in queries.chunks_exact_mut(shape.head_dim).chain(keys.chunks_exact_mut(shape.head_dim)) {
        apply_rope(lanes, head, cosines, signed_sines);
    }
    // SAFETY: `transform_qkv` has exclusive access to the cache, and no two rows of `Positions` have the same slot.
    unsafe { cache.write(lanes, slot, layer, keys, values) };
}

/// Applies RoPE to the adjacent pairs of one head.
#[inline(always)]
fn apply_rope<L: Lanes>(lanes: L, head: &mut [f32], cosines: &[f32], signed_sines: &[f32]) {
    let factors = cosines.as_chunks::<WIDTH>().0.iter().zip(signed_sines.as_chunks::<WIDTH>().0);
    for (chunk, (cosines, signed_sines)) in head.as_chunks_mut().0.iter_mut().zip(factors) {
        let values = lanes.load(chunk);
        let scaled = lanes.multiply(values, lanes.load(cosines));
        let rotated = lanes.multiply_add(lanes.swap_pairs(values), lanes.load(signed_sines), scaled);
        lanes.store(rotated, chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::super::kv_cache::KvFormat;
    use super::super::{InstructionSet, KvShape, Precision, ThreadPool};
    use super::*;
    use crate::half_precision::f16_to_f32;
    use crate::limits::PAGE_TOKENS;
    use crate::paging::{PageAllocator, PagePool, PageTable};

    const SHAPE: AttentionShape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 32 };
    const QKV_WIDTH: usize = (4 + 2 * 2) * 32;
    const STRIDE: usize = QKV_WIDTH + 7;
    const ROWS: usize = 21;
    const FIRST_POSITION: usize = 2 * PAGE_TOKENS - 9;
    const LAYER: usize = 1;
    const EPSILON: f32 = 1e-5;
    const FREQUENCIES: [f64; 12] = [1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001];
    const ATTENTION_FACTOR: f64 = 1.25;

    fn wave(len: usize, step: f32) -> Vec<f32> {
        (0..len).map(|index| (index as f32 * step).sin() * 2.0).collect()
    }

    /// Reference result for one head.
    fn reference_head(head: &[f32], bias: &[f32], norm: Option<&[f32]>, position: Option<usize>) -> Vec<f64> {
        let mut head: Vec<f64> = head.iter().zip(bias).map(|(value, bias)| f64::from(value + bias)).collect();
        if let Some(norm) = norm {
            let mean = head.iter().map(|value| value * value).sum::<f64>() / head.len() as f64;
            let scale = 1.0 / (mean + f64::from(EPSILON)).sqrt();
            head.iter_mut().zip(norm).for_each(|(value, weight)| *value *= scale * f64::from(*weight));
        }
        if let Some(position) = position {
            for (pair, frequency) in head.chunks_exact_mut(2).zip(FREQUENCIES) {
                let (sine, cosine) = (position as f64 * frequency).sin_cos();
                let (first, second) = (pair[0], pair[1]);
                pair[0] = (first * cosine - second * sine) * ATTENTION_FACTOR;
                pair[1] = (first * sine + second * cosine) * ATTENTION_FACTOR;
            }
        }
        head
    }

    fn cache_and_pages() -> (KvCache, PageTable) {
        let shape = KvShape { layers: 2, kv_heads: SHAPE.kv_heads, head_dim: SHAPE.head_dim };
        let mut allocator = PageAllocator::new(4, 0);
        let mut table = allocator.reserve(4, PagePool::General).unwrap();
        allocator.grow(&mut table, FIRST_POSITION + ROWS);
        (KvCache::new(shape, KvFormat::F16, 4).unwrap(), table)
    }

    const ROPE: RopeFrequencies<'_> =
        RopeFrequencies { frequencies: &FREQUENCIES, attention_factor: ATTENTION_FACTOR };

    #[test]
    fn qkv_applies_bias_norm_and_rope_and_fills_the_kv_cache() {
        let (mut cache, table) = cache_and_pages();
        let (bias, query_norm, key_norm) = (wave(QKV_WIDTH, 0.11), wave(32, 0.3), wave(32, 0.2));
        let span = Span { first_row: 0, rows: ROWS, first_position: FIRST_POSITION, pages: table.pages() };
        let before = wave(ROWS * STRIDE, 0.37);
        let mut positions = Positions::default();
        positions.set(&mut cache, &[span], ROPE);
        for set in InstructionSet::available() {
            let kernels = Kernels::new(set, Precision::Int8, ThreadPool::start(2).unwrap());
            let norms = Some((&*query_norm, &*key_norm));
            let transform = QkvTransform { shape: SHAPE, bias: Some(&bias), norms, norm_eps: EPSILON };
            let mut rows = before.clone();
            kernels.transform_qkv(transform, &positions, &mut cache, LAYER, &mut rows, STRIDE);
            for row in 0..ROWS {
                let position = FIRST_POSITION + row;
                let (page, token) = (table.pages()[position / PAGE_TOKENS], position % PAGE_TOKENS);
                for head in 0..8 {
                    let norm = [&query_norm, &query_norm, &query_norm, &query_norm, &key_norm, &key_norm];
                    let rope_position = (head < 6).then_some(position);
                    let range = head * 32..(head + 1) * 32;
                    let head_values = &before[row * STRIDE..][range.clone()];
                    let norm = norm.get(head).map(|norm| &***norm);
                    let expected = reference_head(head_values, &bias[range.clone()], norm, rope_position);
                    for (value, expected) in expected.into_iter().enumerate() {
                        let (kv_head, lane) = (head % 2, token % WIDTH);
                        let got = match head {
                            4 | 5 => {
                                let keys = cache.keys(page, LAYER, kv_head);
                                f16_to_f32(keys[(token / WIDTH * 32 + value) * WIDTH + lane])
                            }
                            6 | 7 => f16_to_f32(cache.values(page, LAYER, kv_head)[token * 32 + value]),
                            _ => rows[row * STRIDE + head * 32 + value],
                        };
                        let tolerance = if head < 4 { 1e-5 } else { 3e-3 };
                        let name = set.name();
                        assert!(
                            (f64::from(got) - expected).abs() < tolerance,
                            "{name}, {row}, {head}, {value}"
                        );
                    }
                }
                let padding = row * STRIDE + QKV_WIDTH..(row + 1) * STRIDE;
                assert!(rows[padding.clone()] == before[padding], "{}", set.name());
            }
        }
    }

    #[test]
    #[should_panic(expected = "two rows with the same slot")]
    fn two_rows_at_one_cache_position_panic() {
        let (mut cache, table) = cache_and_pages();
        let span = Span { first_row: 0, rows: 2, first_position: 5, pages: table.pages() };
        let other = Span { first_row: 2, rows: 1, first_position: 6, pages: table.pages() };
        Positions::default().set(&mut cache, &[span, other], ROPE);
    }
}
