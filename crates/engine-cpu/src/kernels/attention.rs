//! Attention over the paged key-value cache. Positions are cut into blocks of `BLOCK_TOKENS`; each query keeps a running
//! maximum and sum, renewed block by block. Blocks begin at fixed positions, so a query's result does not depend on how
//! its prompt was cut into steps, nor on the queries beside it.

use super::elementwise::Rows;
use super::key_values::KvCache;
use super::lanes::{self, Lanes, WIDTH};
use super::pool::SharedPointer;
use super::{Kernels, dispatch};
use crate::kv::PageId;
use crate::limits::PAGE_TOKENS;
use std::cell::RefCell;

/// Positions under one renewal of the maximum.
const BLOCK_TOKENS: usize = 64;
const BLOCK_PAGES: usize = BLOCK_TOKENS / PAGE_TOKENS;
/// Queries that share one pass over the keys and values of a block.
const MAX_QUERIES: usize = 4;
/// From so many queries on, a block is widened to f32 once for all of them.
const MIN_QUERIES_TO_WIDEN: usize = 3 * MAX_QUERIES;
/// Rows of one sequence in one task.
const ROWS_PER_TASK: usize = 16;
/// Longest head.
pub const MAX_HEAD_LEN: usize = 256;

// A page's keys are one vector of tokens for each value of a head.
const _: () = assert!(PAGE_TOKENS == WIDTH && BLOCK_TOKENS.is_multiple_of(PAGE_TOKENS));

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
    /// When there are fewer queries than rows, a span's pages do not reach its last row, or the spans are not in the order of
    /// their rows, each row in one of them at most: tasks write their rows at the same time, without a lock.
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
        let (mut tasks, mut next_row) = (0, 0);
        for span in spans {
            assert!(span.first_row >= next_row, "spans in order, each row in one of them");
            assert!(span.first_row <= rows && span.rows <= rows - span.first_row, "rows of the span");
            next_row = span.first_row + span.rows;
            let reach = span.pages.len() * PAGE_TOKENS;
            assert!(span.first_position + span.rows <= reach, "pages up to the last row");
            tasks += span.rows.div_ceil(ROWS_PER_TASK) * shape.kv_heads;
        }
        let out = SharedPointer(out.as_mut_ptr());
        self.pool.run(tasks, &|task| {
            let Some((span, kv_head)) = part_of(spans, shape.kv_heads, task) else { return };
            let part = Part { shape, cache, layer, span, kv_head, queries, out: out.get() };
            WORK.with_borrow_mut(|work| {
                dispatch!(self.set, attend_part, (&part, work), (&Part<'_>, &mut Work));
            });
        });
    }
}

/// Which rows and which key-value head the task of that number is for.
fn part_of<'a>(spans: &[Span<'a>], kv_heads: usize, mut task: usize) -> Option<(Span<'a>, usize)> {
    for span in spans {
        let tasks = span.rows.div_ceil(ROWS_PER_TASK) * kv_heads;
        if task < tasks {
            let first = task / kv_heads * ROWS_PER_TASK;
            let part = Span {
                first_row: span.first_row + first,
                rows: ROWS_PER_TASK.min(span.rows - first),
                first_position: span.first_position + first,
                pages: span.pages,
            };
            return Some((part, task % kv_heads));
        }
        task -= tasks;
    }
    None
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

impl Part<'_> {
    fn heads_per_kv(&self) -> usize {
        self.shape.heads / self.shape.kv_heads
    }

    /// The row and the head of a query, counted row by row.
    fn place(&self, query: usize) -> (usize, usize) {
        let heads_per_kv = self.heads_per_kv();
        (query / heads_per_kv, self.kv_head * heads_per_kv + query % heads_per_kv)
    }

    fn query(&self, query: usize) -> &[f32] {
        let (row, head) = self.place(query);
        let place = (self.span.first_row + row) * self.queries.stride + head * self.shape.head_len;
        &self.queries.values[place..][..self.shape.head_len]
    }

    fn position(&self, query: usize) -> usize {
        self.span.first_position + self.place(query).0
    }
}

thread_local! {
    static WORK: RefCell<Work> = RefCell::default();
}

/// What a thread keeps while it works on a part, and from part to part.
#[derive(Debug, Default)]
struct Work {
    /// For each query.
    maximums: Vec<f32>,
    totals: Vec<f32>,
    /// For each query, the weighed values so far.
    results: Vec<f32>,
    /// A block's keys and values, if they are widened.
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// Numbers of the cache, as they lie there or widened.
trait Numbers: Copy {
    fn vector<L: Lanes>(self, lanes: L, index: usize) -> L::Vector;
}

impl Numbers for &[[u16; WIDTH]] {
    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L, index: usize) -> L::Vector {
        lanes.load_f16(&self[index])
    }
}

impl Numbers for &[[f32; WIDTH]] {
    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L, index: usize) -> L::Vector {
        lanes.load(&self[index])
    }
}

/// The keys and values of one block, page by page, and how many of its tokens there are.
struct Block<N> {
    keys: [N; BLOCK_PAGES],
    values: [N; BLOCK_PAGES],
    start: usize,
    tokens: usize,
}

#[inline(always)]
fn attend_part<L: Lanes>(lanes: L, (part, work): (&Part<'_>, &mut Work)) {
    let head_len = part.shape.head_len;
    let count = part.span.rows * part.heads_per_kv();
    work.start(count, head_len);
    let end = part.position(count - 1) + 1;
    for (index, pages) in part.span.pages.chunks(BLOCK_PAGES).enumerate().take(end.div_ceil(BLOCK_TOKENS)) {
        let start = index * BLOCK_TOKENS;
        let tokens = BLOCK_TOKENS.min(end - start);
        // Where a block has fewer pages, the last one stands in; what it gives is masked.
        let page = |index: usize| pages[index.min(tokens.div_ceil(PAGE_TOKENS) - 1)];
        let keys: [&[[u16; WIDTH]]; BLOCK_PAGES] = std::array::from_fn(
            #[inline(always)]
            |index| &part.cache.keys(page(index), part.layer, part.kv_head).as_chunks().0[..head_len],
        );
        let values: [&[[u16; WIDTH]]; BLOCK_PAGES] = std::array::from_fn(
            #[inline(always)]
            |index| &part.cache.values(page(index), part.layer, part.kv_head).as_chunks().0[..head_len],
        );
        let state = (&mut *work.maximums, &mut *work.totals, &mut *work.results);
        if count < MIN_QUERIES_TO_WIDEN {
            attend_block(lanes, part, &Block { keys, values, start, tokens }, state);
        } else {
            let keys = widen(lanes, keys, &mut work.keys);
            let values = widen(lanes, values, &mut work.values);
            attend_block(lanes, part, &Block { keys, values, start, tokens }, state);
        }
    }
    for query in 0..count {
        let (row, head) = part.place(query);
        let target = ((part.span.first_row + row) * part.shape.heads + head) * head_len;
        let total = lanes.splat(work.totals[query]);
        let (chunks, _) = work.results[query * head_len..][..head_len].as_chunks();
        for (index, chunk) in chunks.iter().enumerate() {
            // SAFETY: the row is one of the output's and in one span only, as `attend` has checked, so no other part has
            // this row and head.
            let out = unsafe { &mut *part.out.add(target + index * WIDTH).cast::<[f32; WIDTH]>() };
            lanes.store(lanes.divide(lanes.load(chunk), total), out);
        }
    }
}

impl Work {
    fn start(&mut self, queries: usize, head_len: usize) {
        self.maximums.clear();
        self.maximums.resize(queries, f32::NEG_INFINITY);
        self.totals.clear();
        self.totals.resize(queries, 0.0);
        self.results.clear();
        self.results.resize(queries * head_len, 0.0);
    }
}

/// Some pages' numbers as f32, one page after the other in `room`.
#[inline(always)]
fn widen<'a, L: Lanes>(
    lanes: L,
    pages: [&[[u16; WIDTH]]; BLOCK_PAGES],
    room: &'a mut Vec<f32>,
) -> [&'a [[f32; WIDTH]]; BLOCK_PAGES] {
    let len = pages[0].len();
    room.resize(BLOCK_PAGES * len * WIDTH, 0.0);
    for (page, room) in pages.iter().zip(room.chunks_exact_mut(len * WIDTH)) {
        for (bits, out) in page.iter().zip(room.as_chunks_mut().0) {
            lanes.store(lanes.load_f16(bits), out);
        }
    }
    let room: &'a [[f32; WIDTH]] = room.as_chunks().0;
    std::array::from_fn(|page| &room[page * len..][..len])
}

/// Takes one block into account for all queries of a part.
#[inline(always)]
fn attend_block<L: Lanes, N: Numbers>(
    lanes: L,
    part: &Part<'_>,
    block: &Block<N>,
    (maximums, totals, results): (&mut [f32], &mut [f32], &mut [f32]),
) {
    let head_len = part.shape.head_len;
    for first in (0..maximums.len()).step_by(MAX_QUERIES) {
        let count = MAX_QUERIES.min(maximums.len() - first);
        let mut state = State {
            first,
            maximums: &mut maximums[first..][..count],
            totals: &mut totals[first..][..count],
            results: &mut results[first * head_len..][..count * head_len],
        };
        match count {
            1 => attend_together::<L, N, 1>(lanes, part, block, &mut state),
            2 => attend_together::<L, N, 2>(lanes, part, block, &mut state),
            3 => attend_together::<L, N, 3>(lanes, part, block, &mut state),
            _ => attend_together::<L, N, MAX_QUERIES>(lanes, part, block, &mut state),
        }
    }
}

/// A few queries from `first` on, and how far they have come.
struct State<'a> {
    first: usize,
    maximums: &'a mut [f32],
    totals: &'a mut [f32],
    results: &'a mut [f32],
}

#[inline(always)]
fn attend_together<L: Lanes, N: Numbers, const QUERIES: usize>(
    lanes: L,
    part: &Part<'_>,
    block: &Block<N>,
    state: &mut State<'_>,
) {
    let head_len = part.shape.head_len;
    let seen: [usize; QUERIES] = std::array::from_fn(|query| {
        (part.position(state.first + query) + 1).saturating_sub(block.start).min(block.tokens)
    });
    // Positions grow from query to query, so the last one sees most.
    let longest = seen[QUERIES - 1];
    if longest == 0 {
        return;
    }
    let queries: [&[f32]; QUERIES] = std::array::from_fn(|query| part.query(state.first + query));
    let scale = lanes.splat(1.0 / (head_len as f32).sqrt());
    let mut shares = [[0.0_f32; BLOCK_TOKENS]; QUERIES];
    score(lanes, &queries, &block.keys, longest, scale, &mut shares);
    let mut keeps = [1.0_f32; QUERIES];
    for query in 0..QUERIES {
        if seen[query] == 0 {
            shares[query] = [0.0; BLOCK_TOKENS];
            continue;
        }
        shares[query][seen[query]..].fill(f32::NEG_INFINITY);
        keeps[query] = weigh(lanes, &mut shares[query], &mut state.maximums[query], &mut state.totals[query]);
        shares[query][seen[query]..].fill(0.0);
    }
    gather(lanes, &shares, &keeps, &block.values, head_len, longest, state.results);
}

/// How some queries fit the first `tokens` of a block's keys; whole vectors of tokens are filled.
#[inline(always)]
fn score<L: Lanes, N: Numbers, const QUERIES: usize>(
    lanes: L,
    queries: &[&[f32]; QUERIES],
    keys: &[N; BLOCK_PAGES],
    tokens: usize,
    scale: L::Vector,
    scores: &mut [[f32; BLOCK_TOKENS]; QUERIES],
) {
    let stripes = tokens.div_ceil(WIDTH);
    let mut stripe = 0;
    // The guard is a constant: what the registers cannot hold is not compiled.
    while L::STRIPES == 4 && stripe + 2 < stripes {
        score_stripes::<L, N, QUERIES, 4>(lanes, queries, keys, stripe, scale, scores);
        stripe += 4;
    }
    while stripe < stripes {
        score_stripes::<L, N, QUERIES, 2>(lanes, queries, keys, stripe, scale, scores);
        stripe += 2;
    }
}

/// The part of `score` for `STRIPES` neighbouring vectors of tokens.
#[inline(always)]
fn score_stripes<L: Lanes, N: Numbers, const QUERIES: usize, const STRIPES: usize>(
    lanes: L,
    queries: &[&[f32]; QUERIES],
    keys: &[N; BLOCK_PAGES],
    first: usize,
    scale: L::Vector,
    scores: &mut [[f32; BLOCK_TOKENS]; QUERIES],
) {
    let head_len = queries[0].len();
    let stripes: [N; STRIPES] = std::array::from_fn(|stripe| keys[first + stripe]);
    let queries = queries.map(|query| &query[..head_len]);
    let mut sums = [[lanes.splat(0.0); STRIPES]; QUERIES];
    for (value, _) in queries[0].iter().enumerate() {
        let keys: [L::Vector; STRIPES] = std::array::from_fn(
            #[inline(always)]
            |stripe| stripes[stripe].vector(lanes, value),
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

/// Turns a block's scores into shares under the renewed maximum; returns what earlier results are to be scaled by.
#[inline(always)]
fn weigh<L: Lanes>(lanes: L, scores: &mut [f32; BLOCK_TOKENS], maximum: &mut f32, total: &mut f32) -> f32 {
    let (chunks, _) = scores.as_chunks_mut();
    let mut best = lanes.splat(*maximum);
    for chunk in chunks.iter() {
        best = lanes.maximum(best, lanes.load(chunk));
    }
    let best = lanes.largest(best);
    let mut decay = [0.0; WIDTH];
    lanes.store(lanes::exp(lanes, lanes.splat(*maximum - best)), &mut decay);
    // Nothing came before the first block, so nothing is kept.
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

/// Adds the values of a block's first `tokens`, each by its share, to the results so far.
#[inline(always)]
fn gather<L: Lanes, N: Numbers, const QUERIES: usize>(
    lanes: L,
    shares: &[[f32; BLOCK_TOKENS]; QUERIES],
    keeps: &[f32; QUERIES],
    values: &[N; BLOCK_PAGES],
    head_len: usize,
    tokens: usize,
    results: &mut [f32],
) {
    let per_token = head_len / WIDTH;
    let mut stripe = 0;
    while L::STRIPES == 4 && stripe + 4 <= per_token {
        gather_stripes::<L, N, QUERIES, 4>(
            lanes,
            shares,
            keeps,
            values,
            (stripe, per_token, tokens),
            results,
        );
        stripe += 4;
    }
    while stripe + 2 <= per_token {
        gather_stripes::<L, N, QUERIES, 2>(
            lanes,
            shares,
            keeps,
            values,
            (stripe, per_token, tokens),
            results,
        );
        stripe += 2;
    }
    if stripe < per_token {
        gather_stripes::<L, N, QUERIES, 1>(
            lanes,
            shares,
            keeps,
            values,
            (stripe, per_token, tokens),
            results,
        );
    }
}

/// The part of `gather` for `STRIPES` neighbouring vectors of a head: the first of them, how many a head has, and how
/// many tokens are meant.
#[inline(always)]
fn gather_stripes<L: Lanes, N: Numbers, const QUERIES: usize, const STRIPES: usize>(
    lanes: L,
    shares: &[[f32; BLOCK_TOKENS]; QUERIES],
    keeps: &[f32; QUERIES],
    values: &[N; BLOCK_PAGES],
    (first, per_token, tokens): (usize, usize, usize),
    results: &mut [f32],
) {
    let results: &mut [[f32; WIDTH]] = results.as_chunks_mut().0;
    let mut sums = [[lanes.splat(0.0); STRIPES]; QUERIES];
    for query in 0..QUERIES {
        let chunks = &results[query * per_token + first..][..STRIPES];
        for stripe in 0..STRIPES {
            sums[query][stripe] = lanes.multiply(lanes.load(&chunks[stripe]), lanes.splat(keeps[query]));
        }
    }
    for (page, values) in values.iter().enumerate().take(tokens.div_ceil(PAGE_TOKENS)) {
        let start = page * PAGE_TOKENS;
        for (offset, token) in (start..tokens.min(start + PAGE_TOKENS)).enumerate() {
            let place = offset * per_token + first;
            let values: [L::Vector; STRIPES] = std::array::from_fn(
                #[inline(always)]
                |stripe| values.vector(lanes, place + stripe),
            );
            for query in 0..QUERIES {
                let share = lanes.splat(shares[query][token]);
                for stripe in 0..STRIPES {
                    sums[query][stripe] = lanes.multiply_add(share, values[stripe], sums[query][stripe]);
                }
            }
        }
    }
    for (query, sums) in sums.iter().enumerate() {
        for (chunk, sum) in results[query * per_token + first..].iter_mut().zip(sums) {
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
    fn spans_that_share_a_row_or_end_beyond_all_rows_panic() {
        let shape = KvShape { layers: 2, kv_heads: SHAPE.kv_heads, head_len: SHAPE.head_len };
        let mut cache = KvCache::new(shape, 10).unwrap();
        let mut ledger = PageLedger::new(10, 0);
        let mut table = ledger.promise(10, Lane::Any).unwrap();
        ledger.grow(&mut table, TOKENS);
        for token in 0..8 {
            let place = cache.place(table.pages(), token);
            // SAFETY: nobody else has the cache.
            unsafe { cache.write(Portable, place, LAYER, &keys(token), &values(token)) };
        }
        let width = SHAPE.heads * SHAPE.head_len;
        let queries = vec![0.0; 8 * width];
        let kernels =
            Kernels::new(InstructionSet::Portable(Portable), Arithmetic::Fixed, Pool::start(1).unwrap());
        let panics = |rows: &[(usize, usize)]| {
            let span = |&(first_row, rows)| Span { first_row, rows, first_position: 0, pages: table.pages() };
            let spans: Vec<Span<'_>> = rows.iter().map(span).collect();
            let mut out = vec![0.0; queries.len()];
            let queries = Rows { values: &queries, stride: width };
            let attend = || kernels.attend(SHAPE, &cache, LAYER, &spans, queries, &mut out);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(attend)).is_err()
        };
        for disjoint in [&[(0, 8)][..], &[(0, 3), (3, 5)], &[(1, 2), (5, 3)], &[(2, 0), (2, 4)], &[]] {
            assert!(!panics(disjoint), "{disjoint:?}");
        }
        let wrong =
            [&[(0, 3), (2, 2)][..], &[(0, 8), (0, 8)], &[(4, 4), (0, 4)], &[(0, 9)], &[(usize::MAX, 2)]];
        for spans in wrong {
            assert!(panics(spans), "{spans:?}");
        }
    }

    #[test]
    fn attention_equals_the_plain_formula_however_the_rows_are_cut() {
        let shape = KvShape { layers: 2, kv_heads: SHAPE.kv_heads, head_len: SHAPE.head_len };
        let mut cache = KvCache::new(shape, 10).unwrap();
        let mut ledger = PageLedger::new(10, 0);
        let mut table = ledger.promise(10, Lane::Any).unwrap();
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
            let kernels = Kernels::new(set, Arithmetic::Fixed, Pool::start(2).unwrap());
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
