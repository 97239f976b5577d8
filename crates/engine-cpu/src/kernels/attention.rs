//! Attention over the paged key-value cache. Up to four queries go along a sequence's pages together; each keeps a running
//! maximum and sum, renewed page by page. Pages begin at fixed positions, so a query's result does not depend on how
//! its prompt was cut into steps, nor on the queries beside it.

use super::elementwise::Rows;
use super::key_values::KvCache;
use super::lanes::{self, Lanes, WIDTH};
use super::pool::SharedPointer;
use super::{Kernels, dispatch};
use crate::kv::PageId;
use crate::limits::PAGE_TOKENS;

/// Queries that share one pass over the keys and values.
const MAX_QUERIES: usize = 4;
/// Rows of one sequence in one task.
const ROWS_PER_TASK: usize = 8;
/// Longest head.
pub const MAX_HEAD_LEN: usize = 256;

#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    pub heads: usize,
    pub kv_heads: usize,
    /// Values of one head; a multiple of 16.
    pub head_len: usize,
}

/// Consecutive rows of a step that belong to one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    pub first_row: usize,
    pub rows: usize,
    /// The position of the first row in its sequence.
    pub first_position: usize,
    pub pages: &'a [PageId],
}

impl Kernels {
    /// For every row, each head's values weighed by how its query fits the keys up to the row's own position: rows of
    /// `heads × head_len` values, ready to be multiplied.
    ///
    /// # Panics
    /// When there are fewer queries than rows, or a span's pages do not reach its last row.
    pub fn attend(
        &self,
        shape: AttentionShape,
        cache: &KvCache,
        layer: usize,
        spans: &[Span<'_>],
        queries: Rows<'_>,
        out: &mut [f32],
    ) {
        let width = shape.heads * shape.head_len;
        let rows = out.len() / width;
        assert!(
            width <= queries.stride && rows * queries.stride <= queries.values.len(),
            "a query for every row"
        );
        assert!(shape.head_len.is_multiple_of(WIDTH) && shape.head_len <= MAX_HEAD_LEN, "head length");
        let mut tasks = Vec::new();
        for span in spans {
            assert!(span.first_row + span.rows <= rows, "rows of the span");
            let reach = span.pages.len() * PAGE_TOKENS;
            assert!(span.first_position + span.rows <= reach, "pages up to the last row");
            for first in (0..span.rows).step_by(ROWS_PER_TASK) {
                let part = Span {
                    first_row: span.first_row + first,
                    rows: ROWS_PER_TASK.min(span.rows - first),
                    first_position: span.first_position + first,
                    pages: span.pages,
                };
                tasks.extend((0..shape.kv_heads).map(|kv_head| (part, kv_head)));
            }
        }
        let out = SharedPointer(out.as_mut_ptr());
        self.pool.run(tasks.len(), &|task| {
            let (span, kv_head) = tasks[task];
            let part = Part { shape, cache, layer, span, kv_head, queries, out: out.get() };
            dispatch!(self.set, attend_part, &part, &Part<'_>);
        });
    }
}

/// The rows of one span for the query heads that share one key-value head. Different parts write different places.
struct Part<'a> {
    shape: AttentionShape,
    cache: &'a KvCache,
    layer: usize,
    span: Span<'a>,
    kv_head: usize,
    queries: Rows<'a>,
    out: *mut f32,
}

#[inline(always)]
fn attend_part<L: Lanes>(lanes: L, part: &Part<'_>) {
    let heads_per_kv = part.shape.heads / part.shape.kv_heads;
    let count = part.span.rows * heads_per_kv;
    for first in (0..count).step_by(MAX_QUERIES) {
        match count - first {
            1 => attend_together::<L, 1>(lanes, part, first),
            2 => attend_together::<L, 2>(lanes, part, first),
            3 => attend_together::<L, 3>(lanes, part, first),
            _ => attend_together::<L, MAX_QUERIES>(lanes, part, first),
        }
    }
}

/// Attends for `QUERIES` queries of the part from `first` on, counted row by row.
#[inline(always)]
fn attend_together<L: Lanes, const QUERIES: usize>(lanes: L, part: &Part<'_>, first: usize) {
    let AttentionShape { heads, kv_heads, head_len } = part.shape;
    let heads_per_kv = heads / kv_heads;
    let mut queries: [&[f32]; QUERIES] = [&[]; QUERIES];
    let mut targets = [0; QUERIES];
    let mut positions = [0; QUERIES];
    for query in 0..QUERIES {
        let index = first + query;
        let (row, head) = (index / heads_per_kv, part.kv_head * heads_per_kv + index % heads_per_kv);
        let place = (part.span.first_row + row) * part.queries.stride + head * head_len;
        queries[query] = &part.queries.values[place..][..head_len];
        targets[query] = ((part.span.first_row + row) * heads + head) * head_len;
        positions[query] = part.span.first_position + row;
    }
    let last_position = positions[QUERIES - 1];
    let scale = lanes.splat(1.0 / (head_len as f32).sqrt());

    let mut maximums = [f32::NEG_INFINITY; QUERIES];
    let mut totals = [0.0_f32; QUERIES];
    let mut results = [[0.0_f32; MAX_HEAD_LEN]; QUERIES];
    let mut shares = [[0.0_f32; PAGE_TOKENS]; QUERIES];
    for (page_index, page) in part.span.pages.iter().enumerate().take(last_position / PAGE_TOKENS + 1) {
        let keys = part.cache.keys(*page, part.layer, part.kv_head);
        let values = part.cache.values(*page, part.layer, part.kv_head);
        let page_start = page_index * PAGE_TOKENS;
        let page_tokens = (last_position + 1 - page_start).min(PAGE_TOKENS);
        score(lanes, &queries, keys, page_tokens, scale, &mut shares);

        let mut keeps = [1.0_f32; QUERIES];
        let mut longest = 0;
        for query in 0..QUERIES {
            let seen = (positions[query] + 1).saturating_sub(page_start).min(PAGE_TOKENS);
            longest = longest.max(seen);
            if seen == 0 {
                shares[query] = [0.0; PAGE_TOKENS];
                continue;
            }
            shares[query][seen..].fill(f32::NEG_INFINITY);
            keeps[query] = weigh(lanes, &mut shares[query], &mut maximums[query], &mut totals[query]);
            shares[query][seen..].fill(0.0);
        }
        gather(lanes, &shares, &keeps, values, head_len, longest, &mut results);
    }
    for query in 0..QUERIES {
        let total = lanes.splat(totals[query]);
        let (chunks, _) = results[query][..head_len].as_chunks();
        for (index, chunk) in chunks.iter().enumerate() {
            // SAFETY: the row is one of the output's, as `attend` has checked; no other part has this row and head.
            let out = unsafe { &mut *part.out.add(targets[query] + index * WIDTH).cast::<[f32; WIDTH]>() };
            lanes.store(lanes.divide(lanes.load(chunk), total), out);
        }
    }
}

/// How some queries fit the first `tokens` of one page of keys; whole stripes are filled.
#[inline(always)]
fn score<L: Lanes, const QUERIES: usize>(
    lanes: L,
    queries: &[&[f32]; QUERIES],
    keys: &[u16],
    tokens: usize,
    scale: L::Vector,
    scores: &mut [[f32; PAGE_TOKENS]; QUERIES],
) {
    let stripes = tokens.div_ceil(WIDTH);
    let mut stripe = 0;
    // The guard is a constant: what the registers cannot hold is not compiled.
    while L::STRIPES == 4 && stripe + 2 < stripes {
        score_stripes::<L, QUERIES, 4>(lanes, queries, keys, stripe, scale, scores);
        stripe += 4;
    }
    while stripe < stripes {
        score_stripes::<L, QUERIES, 2>(lanes, queries, keys, stripe, scale, scores);
        stripe += 2;
    }
}

/// The part of `score` for `STRIPES` neighbouring vectors of tokens.
#[inline(always)]
fn score_stripes<L: Lanes, const QUERIES: usize, const STRIPES: usize>(
    lanes: L,
    queries: &[&[f32]; QUERIES],
    keys: &[u16],
    first: usize,
    scale: L::Vector,
    scores: &mut [[f32; PAGE_TOKENS]; QUERIES],
) {
    let head_len = queries[0].len();
    let stripes: [&[[u16; WIDTH]]; STRIPES] =
        std::array::from_fn(|stripe| &keys.as_chunks().0[(first + stripe) * head_len..][..head_len]);
    let queries = queries.map(|query| &query[..head_len]);
    let mut sums = [[lanes.splat(0.0); STRIPES]; QUERIES];
    for value in 0..head_len {
        let keys: [L::Vector; STRIPES] = std::array::from_fn(
            #[inline(always)]
            |stripe| lanes.load_f16(&stripes[stripe][value]),
        );
        for query in 0..QUERIES {
            let factor = lanes.splat(queries[query][value]);
            for stripe in 0..STRIPES {
                sums[query][stripe] = lanes.multiply_add(factor, keys[stripe], sums[query][stripe]);
            }
        }
    }
    for (scores, sums) in scores.iter_mut().zip(&sums) {
        for (chunk, sum) in scores.as_chunks_mut().0[first..].iter_mut().zip(sums) {
            lanes.store(lanes.multiply(*sum, scale), chunk);
        }
    }
}

/// Turns a page's scores into shares under the renewed maximum; returns what earlier results are to be scaled by.
#[inline(always)]
fn weigh<L: Lanes>(lanes: L, scores: &mut [f32; PAGE_TOKENS], maximum: &mut f32, total: &mut f32) -> f32 {
    let (chunks, _) = scores.as_chunks_mut();
    let mut best = lanes.splat(*maximum);
    for chunk in chunks.iter() {
        best = lanes.maximum(best, lanes.load(chunk));
    }
    let best = lanes.largest(best);
    let mut decay = [0.0; WIDTH];
    lanes.store(lanes::exp(lanes, lanes.splat(*maximum - best)), &mut decay);
    // Nothing came before the first page, so nothing is kept.
    let keep = if *maximum == f32::NEG_INFINITY { 0.0 } else { decay[0] };
    let shift = lanes.splat(-best);
    let mut sums = lanes.splat(0.0);
    // A masked score comes out as the least number there is, far below what the sum of at least 1 can notice.
    for chunk in chunks {
        let share = lanes::exp(lanes, lanes.add(lanes.load(chunk), shift));
        sums = lanes.add(sums, share);
        lanes.store(share, chunk);
    }
    *maximum = best;
    *total = *total * keep + lanes.sum(sums);
    keep
}

/// Adds one page's values, each by its share, to the results so far.
#[inline(always)]
fn gather<L: Lanes, const QUERIES: usize>(
    lanes: L,
    shares: &[[f32; PAGE_TOKENS]; QUERIES],
    keeps: &[f32; QUERIES],
    values: &[u16],
    head_len: usize,
    tokens: usize,
    results: &mut [[f32; MAX_HEAD_LEN]; QUERIES],
) {
    let values = &values[..tokens * head_len];
    let per_token = head_len / WIDTH;
    let mut stripe = 0;
    while L::STRIPES == 4 && stripe + 4 <= per_token {
        gather_stripes::<L, QUERIES, 4>(lanes, shares, keeps, values, (stripe, per_token), results);
        stripe += 4;
    }
    while stripe + 2 <= per_token {
        gather_stripes::<L, QUERIES, 2>(lanes, shares, keeps, values, (stripe, per_token), results);
        stripe += 2;
    }
    if stripe < per_token {
        gather_stripes::<L, QUERIES, 1>(lanes, shares, keeps, values, (stripe, per_token), results);
    }
}

/// The part of `gather` for `STRIPES` neighbouring vectors of a head, the first of them and all of them given.
#[inline(always)]
fn gather_stripes<L: Lanes, const QUERIES: usize, const STRIPES: usize>(
    lanes: L,
    shares: &[[f32; PAGE_TOKENS]; QUERIES],
    keeps: &[f32; QUERIES],
    values: &[u16],
    (first, per_token): (usize, usize),
    results: &mut [[f32; MAX_HEAD_LEN]; QUERIES],
) {
    let mut sums = [[lanes.splat(0.0); STRIPES]; QUERIES];
    for query in 0..QUERIES {
        let chunks = &results[query].as_chunks().0[first..];
        for stripe in 0..STRIPES {
            sums[query][stripe] = lanes.multiply(lanes.load(&chunks[stripe]), lanes.splat(keeps[query]));
        }
    }
    let rows = values.as_chunks::<WIDTH>().0.chunks_exact(per_token);
    for (token, values) in rows.enumerate().take(PAGE_TOKENS) {
        let values = &values[first..first + STRIPES];
        let values: [L::Vector; STRIPES] = std::array::from_fn(
            #[inline(always)]
            |stripe| lanes.load_f16(&values[stripe]),
        );
        for query in 0..QUERIES {
            let share = lanes.splat(shares[query][token]);
            for stripe in 0..STRIPES {
                sums[query][stripe] = lanes.multiply_add(share, values[stripe], sums[query][stripe]);
            }
        }
    }
    for (result, sums) in results.iter_mut().zip(&sums) {
        for (chunk, sum) in result.as_chunks_mut().0[first..].iter_mut().zip(sums) {
            lanes.store(*sum, chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Arithmetic, InstructionSet, Pool};
    use super::*;
    use crate::half_precision::{f16_to_f32, f32_to_f16_finite};
    use crate::kernels::KvShape;
    use crate::kernels::lanes::Portable;
    use crate::kv::{Lane, PageLedger};

    const SHAPE: AttentionShape = AttentionShape { heads: 6, kv_heads: 2, head_len: 48 };
    const TOKENS: usize = 150;
    const LAYER: usize = 1;

    fn wave(index: usize) -> f32 {
        f16_to_f32(f32_to_f16_finite((index as f32 * 0.713).sin() * 2.0))
    }

    fn keys(token: usize) -> Vec<f32> {
        (0..SHAPE.kv_heads * SHAPE.head_len).map(|index| wave(token * 97 + index)).collect()
    }

    fn values(token: usize) -> Vec<f32> {
        (0..SHAPE.kv_heads * SHAPE.head_len).map(|index| wave(token * 89 + index + 13)).collect()
    }

    /// What attention is, in the plainest way.
    fn wanted(query: &[f32], kv_head: usize, position: usize) -> Vec<f64> {
        let head = kv_head * SHAPE.head_len..(kv_head + 1) * SHAPE.head_len;
        let weights: Vec<f64> = (0..=position)
            .map(|token| {
                let key = &keys(token)[head.clone()];
                let fit: f64 = query.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                (fit / (SHAPE.head_len as f64).sqrt()).exp()
            })
            .collect();
        let total: f64 = weights.iter().sum();
        let mut result = vec![0.0; SHAPE.head_len];
        for (token, weight) in weights.iter().enumerate() {
            for (sum, value) in result.iter_mut().zip(&values(token)[head.clone()]) {
                *sum += weight / total * f64::from(*value);
            }
        }
        result
    }

    #[test]
    fn attention_equals_the_plain_formula_however_the_rows_are_cut() {
        let shape = KvShape { layers: 2, kv_heads: SHAPE.kv_heads, head_len: SHAPE.head_len };
        let mut cache = KvCache::new(shape, 4).unwrap();
        let mut ledger = PageLedger::new(4, 0);
        let mut table = ledger.promise(4, Lane::Any).unwrap();
        ledger.grow(&mut table, TOKENS);
        for token in 0..TOKENS {
            let place = cache.place(table.pages(), token);
            // SAFETY: nobody else has the cache.
            unsafe { cache.write(Portable, place, LAYER, &keys(token), &values(token)) };
        }
        let width = SHAPE.heads * SHAPE.head_len;
        let queries: Vec<f32> = (0..TOKENS * width).map(|index| wave(index * 31 + 5)).collect();
        let span =
            |first_row, rows| Span { first_row, rows, first_position: first_row, pages: table.pages() };
        for set in InstructionSet::available() {
            let kernels = Kernels { set, arithmetic: Arithmetic::Fixed, pool: Pool::start(2).unwrap() };
            let queries = Rows { values: &queries, stride: width };
            let mut out = vec![0.0; queries.values.len()];
            kernels.attend(SHAPE, &cache, LAYER, &[span(0, TOKENS)], queries, &mut out);
            for (row, head) in [(0, 0), (1, 5), (63, 2), (64, 3), (127, 4), (149, 5)] {
                let place = (row * SHAPE.heads + head) * SHAPE.head_len..;
                let wanted = wanted(&queries.values[place.clone()][..SHAPE.head_len], head / 3, row);
                for (got, wanted) in out[place].iter().zip(wanted) {
                    assert!(
                        (f64::from(*got) - wanted).abs() < 1e-5,
                        "{}, row {row}, head {head}",
                        set.name()
                    );
                }
            }
            let mut pieces = vec![0.0; queries.values.len()];
            let cuts = [span(0, 1), span(1, 9), span(10, 100), span(110, 40)];
            kernels.attend(SHAPE, &cache, LAYER, &cuts, queries, &mut pieces);
            assert!(pieces == out, "{}", set.name());
        }
    }
}
