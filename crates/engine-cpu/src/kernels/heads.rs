//! What happens to queries, keys and values between their product and attention: a bias, norms of their own, rotation
//! by position; then keys and values go into the cache. Each row is done on its own, on whichever thread.

use super::attention::{AttentionShape, Span};
use super::elementwise::rms_norm_in_place;
use super::key_values::{KvCache, Place};
use super::lanes::{Lanes, WIDTH};
use super::pool::SharedPointer;
use super::{Kernels, dispatch};

/// Rows that a thread takes at a time. Neighbouring tokens of a prompt write to the same cache lines, so where there
/// are many rows a thread takes as many as lie side by side.
const FEW_ROWS_PER_TASK: usize = 4;
const MANY_ROWS_PER_TASK: usize = WIDTH;

/// What a layer does to its heads.
#[derive(Clone, Copy, Debug)]
pub struct HeadRules<'a> {
    pub shape: AttentionShape,
    /// For queries, keys and values.
    pub bias: Option<&'a [f32]>,
    /// For each head of the queries, and of the keys.
    pub norms: Option<(&'a [f32], &'a [f32])>,
    pub norm_epsilon: f32,
}

/// Where the rows of a step are: the turns of each row's position, and its place in the cache. No two rows have the
/// same place, so threads may write different rows at once.
#[derive(Debug, Default)]
pub struct Positions {
    /// For each row and value of a head: by what it is multiplied, and by what its neighbour is before it is added.
    own: Vec<f32>,
    neighbours: Vec<f32>,
    places: Vec<Place>,
    sorted: Vec<Place>,
}

/// How far each pair of neighbouring values is turned from one position to the next.
#[derive(Clone, Copy, Debug)]
pub struct Turns<'a> {
    pub frequencies: &'a [f64],
    /// What turned values are multiplied by besides.
    pub magnitude: f64,
}

impl Positions {
    /// Takes the rows of all spans. Values of a head past the last pair that is turned stay as they are.
    ///
    /// # Panics
    /// When a span's pages do not reach its last row, or two rows have the same place.
    pub fn set(&mut self, cache: &mut KvCache, spans: &[Span<'_>], turns: Turns<'_>) {
        let head_len = cache.shape().head_len;
        self.own.clear();
        self.neighbours.clear();
        self.places.clear();
        for span in spans {
            for position in span.first_position..span.first_position + span.rows {
                self.places.push(cache.place(span.pages, position));
                for frequency in turns.frequencies {
                    let (sine, cosine) = (position as f64 * frequency).sin_cos();
                    let (sine, cosine) = ((sine * turns.magnitude) as f32, (cosine * turns.magnitude) as f32);
                    self.own.extend([cosine, cosine]);
                    self.neighbours.extend([-sine, sine]);
                }
                self.own.resize(self.places.len() * head_len, 1.0);
                self.neighbours.resize(self.places.len() * head_len, 0.0);
            }
        }
        self.sorted.clone_from(&self.places);
        self.sorted.sort_unstable();
        assert!(self.sorted.windows(2).all(|pair| pair[0] != pair[1]), "two rows with the same place");
    }
}

impl Kernels {
    /// Finishes rows of queries, keys and values, and stores the keys and values of each in one layer of its place.
    ///
    /// # Panics
    /// When there is not a place for every row, a row is shorter than its heads, or the positions were set for another
    /// cache than this one.
    pub fn finish_heads(
        &self,
        rules: HeadRules<'_>,
        positions: &Positions,
        cache: &mut KvCache,
        layer: usize,
        rows: &mut [f32],
        stride: usize,
    ) {
        let AttentionShape { heads, kv_heads, head_len } = rules.shape;
        let count = rows.len() / stride;
        assert!(
            count == positions.places.len() && positions.own.len() == count * head_len,
            "a place for every row"
        );
        assert!((heads + 2 * kv_heads) * head_len <= stride, "room for all heads");
        let (cache, rows) = (&*cache, SharedPointer(rows.as_mut_ptr()));
        let is_many = count >= 2 * MANY_ROWS_PER_TASK;
        let per_task = if is_many { MANY_ROWS_PER_TASK } else { FEW_ROWS_PER_TASK };
        self.pool.run(count.div_ceil(per_task), &|task| {
            for row in task * per_task..count.min((task + 1) * per_task) {
                // SAFETY: there are `count` rows of `stride` values, and each is handed out once.
                let values = unsafe { std::slice::from_raw_parts_mut(rows.get().add(row * stride), stride) };
                let work = Row {
                    rules,
                    values: &mut values[..(heads + 2 * kv_heads) * head_len],
                    own: &positions.own[row * head_len..][..head_len],
                    neighbours: &positions.neighbours[row * head_len..][..head_len],
                    cache,
                    place: positions.places[row],
                    layer,
                };
                dispatch!(self.set, finish_row, work, Row<'_>);
            }
        });
    }
}

struct Row<'a> {
    rules: HeadRules<'a>,
    /// Queries, keys and values.
    values: &'a mut [f32],
    own: &'a [f32],
    neighbours: &'a [f32],
    cache: &'a KvCache,
    place: Place,
    layer: usize,
}

#[inline(always)]
fn finish_row<L: Lanes>(lanes: L, row: Row<'_>) {
    let Row { rules, values, own, neighbours, cache, place, layer } = row;
    let HeadRules { shape, bias, norms, norm_epsilon } = rules;
    if let Some(bias) = bias {
        for (value, bias) in values.iter_mut().zip(bias) {
            *value += bias;
        }
    }
    let (queries, others) = values.split_at_mut(shape.heads * shape.head_len);
    let (keys, values) = others.split_at_mut(shape.kv_heads * shape.head_len);
    if let Some((of_queries, of_keys)) = norms {
        for head in queries.chunks_exact_mut(shape.head_len) {
            rms_norm_in_place(lanes, (head, of_queries, norm_epsilon));
        }
        for head in keys.chunks_exact_mut(shape.head_len) {
            rms_norm_in_place(lanes, (head, of_keys, norm_epsilon));
        }
    }
    for head in queries.chunks_exact_mut(shape.head_len).chain(keys.chunks_exact_mut(shape.head_len)) {
        rotate(lanes, head, own, neighbours);
    }
    // SAFETY: `finish_heads` has the cache to itself, and no two rows of `Positions` have the same place.
    unsafe { cache.write(lanes, place, layer, keys, values) };
}

/// Rotates neighbouring pairs of one head.
#[inline(always)]
fn rotate<L: Lanes>(lanes: L, head: &mut [f32], own: &[f32], neighbours: &[f32]) {
    let factors = own.as_chunks::<WIDTH>().0.iter().zip(neighbours.as_chunks::<WIDTH>().0);
    for (chunk, (own, neighbours)) in head.as_chunks_mut().0.iter_mut().zip(factors) {
        let values = lanes.load(chunk);
        let kept = lanes.multiply(values, lanes.load(own));
        let turned = lanes.multiply_add(lanes.swap_pairs(values), lanes.load(neighbours), kept);
        lanes.store(turned, chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Arithmetic, InstructionSet, KvShape, Pool};
    use super::*;
    use crate::half_precision::f16_to_f32;
    use crate::kv::{Lane, PageLedger, PageTable};
    use crate::limits::PAGE_TOKENS;

    const SHAPE: AttentionShape = AttentionShape { heads: 4, kv_heads: 2, head_len: 32 };
    const WIDTH_OF_ALL: usize = (4 + 2 * 2) * 32;
    const STRIDE: usize = WIDTH_OF_ALL + 7;
    const ROWS: usize = 21;
    const FIRST_POSITION: usize = PAGE_TOKENS - 9;
    const LAYER: usize = 1;
    const EPSILON: f32 = 1e-5;
    const FREQUENCIES: [f64; 12] = [1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001];
    const MAGNITUDE: f64 = 1.25;

    fn wave(len: usize, step: f32) -> Vec<f32> {
        (0..len).map(|index| (index as f32 * step).sin() * 2.0).collect()
    }

    /// What should become of one head.
    fn finished(head: &[f32], bias: &[f32], norm: Option<&[f32]>, position: Option<usize>) -> Vec<f64> {
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
                pair[0] = (first * cosine - second * sine) * MAGNITUDE;
                pair[1] = (first * sine + second * cosine) * MAGNITUDE;
            }
        }
        head
    }

    fn cache_and_pages() -> (KvCache, PageTable) {
        let shape = KvShape { layers: 2, kv_heads: SHAPE.kv_heads, head_len: SHAPE.head_len };
        let mut ledger = PageLedger::new(2, 0);
        let mut table = ledger.promise(2, Lane::Any).unwrap();
        ledger.grow(&mut table, FIRST_POSITION + ROWS);
        (KvCache::new(shape, 2).unwrap(), table)
    }

    const TURNS: Turns<'_> = Turns { frequencies: &FREQUENCIES, magnitude: MAGNITUDE };

    #[test]
    fn heads_get_their_bias_norm_and_turn_and_keys_and_values_lie_where_attention_reads_them() {
        let (mut cache, table) = cache_and_pages();
        let (bias, query_norm, key_norm) = (wave(WIDTH_OF_ALL, 0.11), wave(32, 0.3), wave(32, 0.2));
        let span = Span { first_row: 0, rows: ROWS, first_position: FIRST_POSITION, pages: table.pages() };
        let before = wave(ROWS * STRIDE, 0.37);
        let mut positions = Positions::default();
        positions.set(&mut cache, &[span], TURNS);
        for set in InstructionSet::available() {
            let kernels = Kernels { set, arithmetic: Arithmetic::Fixed, pool: Pool::start(2).unwrap() };
            let norms = Some((&*query_norm, &*key_norm));
            let rules = HeadRules { shape: SHAPE, bias: Some(&bias), norms, norm_epsilon: EPSILON };
            let mut rows = before.clone();
            kernels.finish_heads(rules, &positions, &mut cache, LAYER, &mut rows, STRIDE);
            for row in 0..ROWS {
                let position = FIRST_POSITION + row;
                let (page, token) = (table.pages()[position / PAGE_TOKENS], position % PAGE_TOKENS);
                for head in 0..8 {
                    let norm = [&query_norm, &query_norm, &query_norm, &query_norm, &key_norm, &key_norm];
                    let turned = (head < 6).then_some(position);
                    let place = head * 32..(head + 1) * 32;
                    let of_head = &before[row * STRIDE..][place.clone()];
                    let norm = norm.get(head).map(|norm| &***norm);
                    let wanted = finished(of_head, &bias[place.clone()], norm, turned);
                    for (value, wanted) in wanted.into_iter().enumerate() {
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
                            (f64::from(got) - wanted).abs() < tolerance,
                            "{name}, {row}, {head}, {value}"
                        );
                    }
                }
                let past_the_heads = row * STRIDE + WIDTH_OF_ALL..(row + 1) * STRIDE;
                assert!(rows[past_the_heads.clone()] == before[past_the_heads], "{}", set.name());
            }
        }
    }

    #[test]
    #[should_panic(expected = "two rows with the same place")]
    fn two_rows_never_have_the_same_place() {
        let (mut cache, table) = cache_and_pages();
        let span = Span { first_row: 0, rows: 2, first_position: 5, pages: table.pages() };
        let other = Span { first_row: 2, rows: 1, first_position: 6, pages: table.pages() };
        Positions::default().set(&mut cache, &[span, other], TURNS);
    }
}
