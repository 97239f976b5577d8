//! Attention over the paged KV cache, with online softmax as in FlashAttention: positions are processed in blocks of
//! `BLOCK_TOKENS`, and each query keeps a running maximum and sum, updated block by block. Blocks start at fixed
//! positions, so a query's result does not depend on how its prompt was split into steps, nor on other queries.
//!
//! A cache in the `F16` format is read here, in f32; `split_bytes` reads the other one, in integers.
//!
//! Long because the block kernels share one set of invariants about pages, spans and scratch buffers.

#[cfg(target_arch = "x86_64")]
mod block_softmax;
#[cfg(target_arch = "x86_64")]
mod byte_products;
#[cfg(target_arch = "x86_64")]
mod split_bytes;

#[cfg(target_arch = "x86_64")]
use super::InstructionSet;
use super::elementwise::Rows;
use super::kv_cache::{KvCache, KvFormat};
use super::lanes::{self, Lanes, WIDTH};
#[cfg(target_arch = "x86_64")]
use super::matmul::amx::Amx;
use super::pool::SharedPointer;
use super::{Kernels, dispatch};
use crate::limits::PAGE_TOKENS;
use crate::paging::PageId;
use std::cell::RefCell;

/// Positions per update of the running maximum.
const BLOCK_TOKENS: usize = 64;
const BLOCK_PAGES: usize = BLOCK_TOKENS / PAGE_TOKENS;
/// Queries that share one pass over a block's keys and values.
const MAX_QUERIES: usize = 4;
/// From this many queries on, a block is converted to f32 once for all of them.
const MIN_QUERIES_FOR_F32: usize = 3 * MAX_QUERIES;
/// With fewer queries than this, AVX-512 alone is as fast: tiles would be mostly empty.
#[cfg(target_arch = "x86_64")]
const MIN_QUERIES_FOR_AMX: usize = 8;
/// Rows of one sequence in one task.
const ROWS_PER_TASK: usize = 16;
pub const MAX_HEAD_DIM: usize = 256;

// A page's keys form one vector of tokens for each value of a head.
const _: () = assert!(PAGE_TOKENS == WIDTH && BLOCK_TOKENS.is_multiple_of(PAGE_TOKENS));

#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    pub heads: usize,
    pub kv_heads: usize,
    /// Head dimension; a multiple of 16.
    pub head_dim: usize,
}

/// Consecutive rows of a step that belong to one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    pub first_row: usize,
    pub rows: usize,
    /// Position of the first row in its sequence.
    pub first_position: usize,
    pub pages: &'a [PageId],
}

impl Kernels {
    /// Computes causal attention for every row: each row sees the keys and values up to its own position. Writes rows
    /// of `heads × head_dim` values.
    ///
    /// # Panics
    /// If there are fewer queries than rows, a span's pages do not cover its last row, the spans are not in row order
    /// with each row in at most one of them (tasks write their rows concurrently, without a lock), or kernels of another
    /// instruction set created the cache.
    pub fn attend(
        &self,
        shape: AttentionShape,
        cache: &KvCache,
        layer: usize,
        spans: &[Span<'_>],
        queries: Rows<'_>,
        out: &mut [f32],
    ) {
        let width = shape.heads * shape.head_dim;
        let rows = out.len() / width;
        assert!(
            width <= queries.stride && rows * queries.stride <= queries.values.len(),
            "a query for every row"
        );
        assert!(shape.head_dim.is_multiple_of(WIDTH) && shape.head_dim <= MAX_HEAD_DIM, "head length");
        let (mut tasks, mut next_row) = (0, 0);
        for span in spans {
            assert!(span.first_row >= next_row, "spans in order, each row in one of them");
            assert!(span.first_row <= rows && span.rows <= rows - span.first_row, "rows of the span");
            next_row = span.first_row + span.rows;
            let covered = span.pages.len() * PAGE_TOKENS;
            assert!(span.first_position + span.rows <= covered, "pages up to the last row");
            tasks += span.rows.div_ceil(ROWS_PER_TASK) * shape.kv_heads;
        }
        let out = SharedPointer(out.as_mut_ptr());
        self.pool.run(tasks, &|index| {
            let Some((span, kv_head)) = task_span(spans, shape.kv_heads, index) else { return };
            let task =
                AttentionTask { shape, cache, layer, span, kv_head, query_rows: queries, out: out.get() };
            SCRATCH.with_borrow_mut(|scratch| match (cache.format(), self.set) {
                #[cfg(target_arch = "x86_64")]
                (KvFormat::SplitBytes, InstructionSet::Amx(amx)) if task.queries() >= MIN_QUERIES_FOR_AMX => {
                    // SAFETY: an `Amx` exists only if the CPU has these instructions.
                    unsafe { split_bytes::attend_task(amx, &task, &mut scratch.split) };
                }
                #[cfg(target_arch = "x86_64")]
                (
                    KvFormat::SplitBytes,
                    InstructionSet::Avx512(lanes) | InstructionSet::Amx(Amx { lanes }),
                ) => {
                    // SAFETY: an `Avx512` exists only if the CPU has these instructions.
                    unsafe { split_bytes::attend_task(lanes, &task, &mut scratch.split) };
                }
                (KvFormat::SplitBytes, _) => panic!("a cache that these kernels created"),
                (KvFormat::F16, _) => {
                    dispatch!(
                        self.set,
                        attend_task,
                        (&task, scratch),
                        (&AttentionTask<'_>, &mut AttentionScratch)
                    );
                }
            });
        });
    }
}

/// Maps a task index to its rows and KV head.
fn task_span<'a>(spans: &[Span<'a>], kv_heads: usize, mut task: usize) -> Option<(Span<'a>, usize)> {
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

/// The rows of one span for the query heads that share one KV head. Different parts write disjoint outputs.
struct AttentionTask<'a> {
    shape: AttentionShape,
    cache: &'a KvCache,
    layer: usize,
    span: Span<'a>,
    kv_head: usize,
    query_rows: Rows<'a>,
    out: *mut f32,
}

impl AttentionTask<'_> {
    fn group_size(&self) -> usize {
        self.shape.heads / self.shape.kv_heads
    }

    fn queries(&self) -> usize {
        self.span.rows * self.group_size()
    }

    /// The row and the head of a query; queries are numbered row by row.
    fn row_and_head(&self, query: usize) -> (usize, usize) {
        let group_size = self.group_size();
        (query / group_size, self.kv_head * group_size + query % group_size)
    }

    fn query(&self, query: usize) -> &[f32] {
        let (row, head) = self.row_and_head(query);
        let start = (self.span.first_row + row) * self.query_rows.stride + head * self.shape.head_dim;
        &self.query_rows.values[start..][..self.shape.head_dim]
    }

    fn position(&self, query: usize) -> usize {
        self.span.first_position + self.row_and_head(query).0
    }
}

thread_local! {
    static SCRATCH: RefCell<AttentionScratch> = RefCell::default();
}

/// A thread's scratch buffers, reused from task to task.
#[derive(Debug, Default)]
struct AttentionScratch {
    /// Running softmax maximum and sum of each query.
    max_scores: Vec<f32>,
    exp_sums: Vec<f32>,
    /// The unnormalised output of each query so far.
    accumulators: Vec<f32>,
    /// A block's keys and values, if converted to f32.
    keys: Vec<f32>,
    values: Vec<f32>,
    #[cfg(target_arch = "x86_64")]
    split: split_bytes::SplitScratch,
}

/// Cached numbers, in half precision or converted to f32.
trait CacheElements: Copy {
    fn vector<L: Lanes>(self, lanes: L, index: usize) -> L::Vector;
}

impl CacheElements for &[[u16; WIDTH]] {
    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L, index: usize) -> L::Vector {
        lanes.load_f16(&self[index])
    }
}

impl CacheElements for &[[f32; WIDTH]] {
    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L, index: usize) -> L::Vector {
        lanes.load(&self[index])
    }
}

/// The keys and values of one block, page by page, and its number of tokens.
struct Block<N> {
    keys: [N; BLOCK_PAGES],
    values: [N; BLOCK_PAGES],
    start: usize,
    tokens: usize,
}

#[inline(always)]
fn attend_task<L: Lanes>(lanes: L, (task, scratch): (&AttentionTask<'_>, &mut AttentionScratch)) {
    let head_dim = task.shape.head_dim;
    let count = task.queries();
    scratch.start(count, head_dim);
    let end = task.position(count - 1) + 1;
    for (index, pages) in task.span.pages.chunks(BLOCK_PAGES).enumerate().take(end.div_ceil(BLOCK_TOKENS)) {
        let start = index * BLOCK_TOKENS;
        let tokens = BLOCK_TOKENS.min(end - start);
        // If a block has fewer pages, the last one is repeated; its results are masked.
        let page = |index: usize| pages[index.min(tokens.div_ceil(PAGE_TOKENS) - 1)];
        let keys: [&[[u16; WIDTH]]; BLOCK_PAGES] = std::array::from_fn(
            #[inline(always)]
            |index| &task.cache.keys(page(index), task.layer, task.kv_head).as_chunks().0[..head_dim],
        );
        let values: [&[[u16; WIDTH]]; BLOCK_PAGES] = std::array::from_fn(
            #[inline(always)]
            |index| &task.cache.values(page(index), task.layer, task.kv_head).as_chunks().0[..head_dim],
        );
        let state = (&mut *scratch.max_scores, &mut *scratch.exp_sums, &mut *scratch.accumulators);
        if count < MIN_QUERIES_FOR_F32 {
            attend_block(lanes, task, &Block { keys, values, start, tokens }, state);
        } else {
            let keys = widen_to_f32(lanes, keys, &mut scratch.keys);
            let values = widen_to_f32(lanes, values, &mut scratch.values);
            attend_block(lanes, task, &Block { keys, values, start, tokens }, state);
        }
    }
    for query in 0..count {
        let (row, head) = task.row_and_head(query);
        let target = ((task.span.first_row + row) * task.shape.heads + head) * head_dim;
        let total = lanes.splat(scratch.exp_sums[query]);
        let (chunks, _) = scratch.accumulators[query * head_dim..][..head_dim].as_chunks();
        for (index, chunk) in chunks.iter().enumerate() {
            // SAFETY: the row is in bounds and in one span only, as `attend` has checked, so no other task writes this
            // row and head.
            let out = unsafe { &mut *task.out.add(target + index * WIDTH).cast::<[f32; WIDTH]>() };
            lanes.store(lanes.divide(lanes.load(chunk), total), out);
        }
    }
}

impl AttentionScratch {
    fn start(&mut self, queries: usize, head_dim: usize) {
        self.max_scores.clear();
        self.max_scores.resize(queries, f32::NEG_INFINITY);
        self.exp_sums.clear();
        self.exp_sums.resize(queries, 0.0);
        self.accumulators.clear();
        self.accumulators.resize(queries * head_dim, 0.0);
    }
}

/// Converts pages to f32, one after the other in `buffer`.
#[inline(always)]
fn widen_to_f32<'a, L: Lanes>(
    lanes: L,
    pages: [&[[u16; WIDTH]]; BLOCK_PAGES],
    buffer: &'a mut Vec<f32>,
) -> [&'a [[f32; WIDTH]]; BLOCK_PAGES] {
    let len = pages[0].len();
    buffer.resize(BLOCK_PAGES * len * WIDTH, 0.0);
    for (page, buffer) in pages.iter().zip(buffer.chunks_exact_mut(len * WIDTH)) {
        for (bits, out) in page.iter().zip(buffer.as_chunks_mut().0) {
            lanes.store(lanes.load_f16(bits), out);
        }
    }
    let buffer: &'a [[f32; WIDTH]] = buffer.as_chunks().0;
    std::array::from_fn(|page| &buffer[page * len..][..len])
}

/// Processes one block for all queries of a task.
#[inline(always)]
fn attend_block<L: Lanes, N: CacheElements>(
    lanes: L,
    task: &AttentionTask<'_>,
    block: &Block<N>,
    (max_scores, exp_sums, accumulators): (&mut [f32], &mut [f32], &mut [f32]),
) {
    let head_dim = task.shape.head_dim;
    for first in (0..max_scores.len()).step_by(MAX_QUERIES) {
        let count = MAX_QUERIES.min(max_scores.len() - first);
        let mut state = SoftmaxState {
            first,
            max_scores: &mut max_scores[first..][..count],
            exp_sums: &mut exp_sums[first..][..count],
            accumulators: &mut accumulators[first * head_dim..][..count * head_dim],
        };
        match count {
            1 => attend_queries::<L, N, 1>(lanes, task, block, &mut state),
            2 => attend_queries::<L, N, 2>(lanes, task, block, &mut state),
            3 => attend_queries::<L, N, 3>(lanes, task, block, &mut state),
            _ => attend_queries::<L, N, MAX_QUERIES>(lanes, task, block, &mut state),
        }
    }
}

/// The running state of a few queries, starting at `first`.
struct SoftmaxState<'a> {
    first: usize,
    max_scores: &'a mut [f32],
    exp_sums: &'a mut [f32],
    accumulators: &'a mut [f32],
}

#[inline(always)]
fn attend_queries<L: Lanes, N: CacheElements, const QUERIES: usize>(
    lanes: L,
    task: &AttentionTask<'_>,
    block: &Block<N>,
    state: &mut SoftmaxState<'_>,
) {
    let head_dim = task.shape.head_dim;
    let visible: [usize; QUERIES] = std::array::from_fn(|query| {
        (task.position(state.first + query) + 1).saturating_sub(block.start).min(block.tokens)
    });
    // Positions increase from query to query, so the last one sees the most.
    let max_visible = visible[QUERIES - 1];
    if max_visible == 0 {
        return;
    }
    let queries: [&[f32]; QUERIES] = std::array::from_fn(|query| task.query(state.first + query));
    let scale = lanes.splat(1.0 / (head_dim as f32).sqrt());
    let mut probabilities = [[0.0_f32; BLOCK_TOKENS]; QUERIES];
    score(lanes, &queries, &block.keys, max_visible, scale, &mut probabilities);
    let mut rescales = [1.0_f32; QUERIES];
    for query in 0..QUERIES {
        if visible[query] == 0 {
            probabilities[query] = [0.0; BLOCK_TOKENS];
            continue;
        }
        probabilities[query][visible[query]..].fill(f32::NEG_INFINITY);
        rescales[query] = online_softmax_block(
            lanes,
            &mut probabilities[query],
            &mut state.max_scores[query],
            &mut state.exp_sums[query],
        );
        probabilities[query][visible[query]..].fill(0.0);
    }
    accumulate_values(
        lanes,
        &probabilities,
        &rescales,
        &block.values,
        head_dim,
        max_visible,
        state.accumulators,
    );
}

/// Scaled dot products of queries with the first `tokens` of a block's keys; fills whole vectors of tokens.
#[inline(always)]
fn score<L: Lanes, N: CacheElements, const QUERIES: usize>(
    lanes: L,
    queries: &[&[f32]; QUERIES],
    keys: &[N; BLOCK_PAGES],
    tokens: usize,
    scale: L::Vector,
    scores: &mut [[f32; BLOCK_TOKENS]; QUERIES],
) {
    let stripes = tokens.div_ceil(WIDTH);
    let mut stripe = 0;
    // The guard is a constant: variants that need more registers than there are are not compiled.
    while L::STRIPES == 4 && stripe + 2 < stripes {
        score_stripes::<L, N, QUERIES, 4>(lanes, queries, keys, stripe, scale, scores);
        stripe += 4;
    }
    while stripe < stripes {
        score_stripes::<L, N, QUERIES, 2>(lanes, queries, keys, stripe, scale, scores);
        stripe += 2;
    }
}

/// `score` for `STRIPES` adjacent vectors of tokens.
#[inline(always)]
fn score_stripes<L: Lanes, N: CacheElements, const QUERIES: usize, const STRIPES: usize>(
    lanes: L,
    queries: &[&[f32]; QUERIES],
    keys: &[N; BLOCK_PAGES],
    first: usize,
    scale: L::Vector,
    scores: &mut [[f32; BLOCK_TOKENS]; QUERIES],
) {
    let head_dim = queries[0].len();
    let stripes: [N; STRIPES] = std::array::from_fn(|stripe| keys[first + stripe]);
    let queries = queries.map(|query| &query[..head_dim]);
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

/// Online softmax over one block: updates the running maximum and sum, and replaces the scores with their exponentials.
/// Returns the factor for earlier results.
#[inline(always)]
fn online_softmax_block<L: Lanes>(
    lanes: L,
    scores: &mut [f32; BLOCK_TOKENS],
    max_score: &mut f32,
    exp_sum: &mut f32,
) -> f32 {
    let (chunks, _) = scores.as_chunks_mut();
    let mut best = lanes.splat(*max_score);
    for chunk in chunks.iter() {
        best = lanes.max(best, lanes.load(chunk));
    }
    let best = lanes.largest(best);
    let mut decay = [0.0; WIDTH];
    lanes.store(lanes::exp(lanes, lanes.splat(*max_score - best)), &mut decay);
    // Nothing precedes the first block, so nothing is kept.
    let rescale = if *max_score == f32::NEG_INFINITY { 0.0 } else { decay[0] };
    let shift = lanes.splat(-best);
    let mut sums = lanes.splat(0.0);
    // For a masked score, `exp` returns its smallest result, far too small to change a sum of at least 1.
    for chunk in chunks {
        let probability = lanes::exp(lanes, lanes.add(lanes.load(chunk), shift));
        sums = lanes.add(sums, probability);
        lanes.store(probability, chunk);
    }
    *max_score = best;
    *exp_sum = *exp_sum * rescale + lanes.reduce_add(sums);
    rescale
}

/// Adds the values of a block's first `tokens`, multiplied by their softmax weights, to the results so far.
#[inline(always)]
fn accumulate_values<L: Lanes, N: CacheElements, const QUERIES: usize>(
    lanes: L,
    probabilities: &[[f32; BLOCK_TOKENS]; QUERIES],
    rescales: &[f32; QUERIES],
    values: &[N; BLOCK_PAGES],
    head_dim: usize,
    tokens: usize,
    accumulators: &mut [f32],
) {
    let vectors_per_head = head_dim / WIDTH;
    let mut stripe = 0;
    while L::STRIPES == 4 && stripe + 4 <= vectors_per_head {
        accumulate_value_stripes::<L, N, QUERIES, 4>(
            lanes,
            probabilities,
            rescales,
            values,
            (stripe, vectors_per_head, tokens),
            accumulators,
        );
        stripe += 4;
    }
    while stripe + 2 <= vectors_per_head {
        accumulate_value_stripes::<L, N, QUERIES, 2>(
            lanes,
            probabilities,
            rescales,
            values,
            (stripe, vectors_per_head, tokens),
            accumulators,
        );
        stripe += 2;
    }
    if stripe < vectors_per_head {
        accumulate_value_stripes::<L, N, QUERIES, 1>(
            lanes,
            probabilities,
            rescales,
            values,
            (stripe, vectors_per_head, tokens),
            accumulators,
        );
    }
}

/// `accumulate_values` for `STRIPES` adjacent vectors of a head. The tuple is the first vector, the vectors per head, and the
/// number of tokens.
#[inline(always)]
fn accumulate_value_stripes<L: Lanes, N: CacheElements, const QUERIES: usize, const STRIPES: usize>(
    lanes: L,
    probabilities: &[[f32; BLOCK_TOKENS]; QUERIES],
    rescales: &[f32; QUERIES],
    values: &[N; BLOCK_PAGES],
    (first, vectors_per_head, tokens): (usize, usize, usize),
    accumulators: &mut [f32],
) {
    let accumulators: &mut [[f32; WIDTH]] = accumulators.as_chunks_mut().0;
    let mut sums = [[lanes.splat(0.0); STRIPES]; QUERIES];
    for query in 0..QUERIES {
        let chunks = &accumulators[query * vectors_per_head + first..][..STRIPES];
        for stripe in 0..STRIPES {
            sums[query][stripe] = lanes.multiply(lanes.load(&chunks[stripe]), lanes.splat(rescales[query]));
        }
    }
    for (page, values) in values.iter().enumerate().take(tokens.div_ceil(PAGE_TOKENS)) {
        let start = page * PAGE_TOKENS;
        for (offset, token) in (start..tokens.min(start + PAGE_TOKENS)).enumerate() {
            let start = offset * vectors_per_head + first;
            let values: [L::Vector; STRIPES] = std::array::from_fn(
                #[inline(always)]
                |stripe| values.vector(lanes, start + stripe),
            );
            for query in 0..QUERIES {
                let probability = lanes.splat(probabilities[query][token]);
                for stripe in 0..STRIPES {
                    sums[query][stripe] =
                        lanes.multiply_add(probability, values[stripe], sums[query][stripe]);
                }
            }
        }
    }
    for (query, sums) in sums.iter().enumerate() {
        for (chunk, sum) in accumulators[query * vectors_per_head + first..].iter_mut().zip(sums) {
            lanes.store(*sum, chunk);
        }
    }
}

#[cfg(test)]
mod tests;
