//! Attention in integers, over a cache in the `SplitBytes` format. Queries are rounded to 16 bits with a scale each, as
//! keys and values are when they are stored; the softmax weights of a block are rounded to 16 bits for each query. The
//! products of bytes are whole numbers, exact in any order, so a query's result depends on nothing but its own numbers
//! and its position. The product of two low bytes is left out: it is less than 2⁻¹⁵ of the largest product of the two
//! numbers' ranges, less than half precision rounds off.
//!
//! Blocks and the online softmax are those of the file above; each block has its own maximum, so that its largest weight
//! is 1 before rounding.

use super::block_softmax::{
    BlockFactors, BlockOutcome, BlockScales, BlockScores, QueryTile, score_rows, softmax_rows, total,
    update_state,
};
use super::byte_products::{ByteProducts, PAGE_LINES, PLANE_PAIR, ROWS, Values};
use super::{AttentionTask, BLOCK_PAGES, BLOCK_TOKENS};
use crate::kernels::activations::{INFINITY_BITS, MAX_QUANTIZED};
use crate::kernels::kv_cache::SplitHead;
use crate::kernels::lanes::WIDTH;
use crate::kernels::tiles::{Line, MIN_LARGEST, TILE_INPUTS};
use crate::limits::PAGE_TOKENS;
use std::arch::x86_64::*;

/// A thread's buffers, reused from task to task.
#[derive(Debug, Default)]
pub(super) struct SplitScratch {
    /// For each tile of 16 queries and 64 values: lines of high bytes, then of low bytes.
    queries: Vec<Line>,
    tiles: Vec<QueryTile>,
    /// The unnormalised output of each query so far.
    accumulators: Vec<f32>,
    /// A block's values as tiles: for each 16 values of a head, 64 tokens of high bytes, then of low bytes.
    values: Vec<Line>,
    /// For two tiles of queries.
    scores: Vec<BlockScores>,
    /// Results of integer products with the values: for each 16 values of a head the products of high bytes, then the sums
    /// of the mixed products.
    products: Vec<Line>,
    /// Rounded softmax weights, high bytes and low bytes.
    weights: Vec<Line>,
}

/// # Safety
/// The CPU has these instructions, and those of `products`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) unsafe fn attend_task<P: ByteProducts>(
    products: P,
    task: &AttentionTask<'_>,
    scratch: &mut SplitScratch,
) {
    let head_dim = task.shape.head_dim;
    assert!(head_dim.is_multiple_of(TILE_INPUTS), "whole tiles");
    let chunks = head_dim / TILE_INPUTS;
    let count = task.queries();
    scratch.start(count, head_dim);
    for query in 0..count {
        let lines = &mut scratch.queries[query / ROWS * chunks * PLANE_PAIR..][..chunks * PLANE_PAIR];
        let tile = &mut scratch.tiles[query / ROWS];
        tile.rows += 1;
        tile.ends[query % ROWS] = task.position(query) + 1;
        round_query(task.query(query), lines, query % ROWS, tile);
    }
    products.start(count.min(ROWS));
    let end = task.position(count - 1) + 1;
    for (index, pages) in task.span.pages.chunks(BLOCK_PAGES).enumerate().take(end.div_ceil(BLOCK_TOKENS)) {
        let start = index * BLOCK_TOKENS;
        let tokens = BLOCK_TOKENS.min(end - start);
        // If a block has fewer pages, the last one is repeated; its results are masked.
        let heads: [SplitHead<'_>; BLOCK_PAGES] = std::array::from_fn(|index| {
            let page = pages[index.min(tokens.div_ceil(PAGE_TOKENS) - 1)];
            task.cache.split_head(page, task.layer, task.kv_head)
        });
        let is_whole = task.position(0) + 1 >= start + BLOCK_TOKENS;
        let scales = BlockScales::of(&heads, tokens, is_whole);
        if P::NEEDS_TILES {
            gather_values(&heads, &mut scratch.values);
        }
        let (keys, values) = (heads.map(SplitHead::keys), heads.map(SplitHead::values));
        let block = Block { keys, values, scales, start, tokens };
        attend_block(products, head_dim, &block, scratch);
    }
    products.end();
    for query in 0..count {
        let (row, head) = task.row_and_head(query);
        let target = ((task.span.first_row + row) * task.shape.heads + head) * head_dim;
        let sums = &scratch.tiles[query / ROWS].exp_sums[query % ROWS];
        // SAFETY: an array of 16 numbers.
        let total = _mm512_set1_ps(_mm512_reduce_add_ps(unsafe { _mm512_loadu_ps(sums.as_ptr()) }));
        for (group, chunk) in
            scratch.accumulators[query * head_dim..][..head_dim].as_chunks::<WIDTH>().0.iter().enumerate()
        {
            // SAFETY: the row is in bounds and in one span only, as `attend` has checked, so no other task writes this
            // row and head.
            unsafe {
                let result = _mm512_div_ps(_mm512_loadu_ps(chunk.as_ptr()), total);
                _mm512_storeu_ps(task.out.add(target + group * WIDTH), result);
            }
        }
    }
}

/// One block's keys and values, page by page, and where it is.
struct Block<'a> {
    keys: [[&'a [Line]; 2]; BLOCK_PAGES],
    values: [[&'a [Line]; 2]; BLOCK_PAGES],
    scales: BlockScales,
    start: usize,
    tokens: usize,
}

impl Block<'_> {
    /// The tokens that each of up to 16 queries sees, and the pages with at least one of them.
    fn visible(&self, tile: &QueryTile) -> ([usize; ROWS], usize) {
        let visible = tile.ends.map(|end| end.saturating_sub(self.start).min(self.tokens));
        // Positions increase from query to query, so the last one sees the most.
        (visible, visible[tile.rows - 1].div_ceil(PAGE_TOKENS))
    }
}

/// Processes one block for all queries of a task. The integer products of one tile of queries run while the vector
/// instructions are busy with another: the scores of the next tile are started before the softmax of this one, and a
/// tile's values are added after the scores of the next are read.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn attend_block<P: ByteProducts>(
    products: P,
    head_dim: usize,
    block: &Block<'_>,
    scratch: &mut SplitScratch,
) {
    let (chunks, groups) = (head_dim / TILE_INPUTS, head_dim / WIDTH);
    let SplitScratch { queries, tiles: states, accumulators, values, scores, products: sums, weights } =
        scratch;
    let values = Values { pages: &block.values, tiles: &values[..groups * PLANE_PAIR] };
    let start_scores = |tile: usize, state: &QueryTile, scores: &mut BlockScores| {
        let (_, used_pages) = block.visible(state);
        let queries = &queries[tile * chunks * PLANE_PAIR..][..chunks * PLANE_PAIR];
        products.scores(queries, &block.keys[..used_pages], state.rows, scores.as_flattened_mut());
    };
    let (first, second) = scores.split_at_mut(1);
    let (mut current, mut next) = (&mut first[0], &mut second[0]);
    start_scores(0, &states[0], current);
    let mut pending: Option<(usize, BlockFactors)> = None;
    for tile in 0..states.len() {
        let state = &states[tile];
        let (visible, used_pages) = block.visible(state);
        // The first query sees the least. Nearly all blocks of a long context are visible as a whole.
        let is_whole = visible[0] == BLOCK_TOKENS;
        let mut outcome = BlockOutcome::new(visible);
        match is_whole {
            true => score_rows::<true>(state, &block.scales, used_pages, current, &mut outcome),
            false => score_rows::<false>(state, &block.scales, used_pages, current, &mut outcome),
        }
        if let Some((tile, factors)) = pending.take() {
            accumulate(
                sums,
                &factors,
                groups,
                &mut accumulators[tile * ROWS * head_dim..][..ROWS * head_dim],
            );
        }
        if let Some(state) = states.get(tile + 1) {
            start_scores(tile + 1, state, next);
        }
        let state = &states[tile];
        match is_whole {
            true => softmax_rows::<true>(state, &block.scales, used_pages, current, weights, &mut outcome),
            false => softmax_rows::<false>(state, &block.scales, used_pages, current, weights, &mut outcome),
        }
        products.weighted_values(weights, values, (state.rows, used_pages), sums);
        pending = Some((tile, update_state(&mut states[tile], &outcome)));
        std::mem::swap(&mut current, &mut next);
    }
    if let Some((tile, factors)) = pending {
        let accumulators = &mut accumulators[tile * ROWS * head_dim..][..states[tile].rows * head_dim];
        accumulate(sums, &factors, groups, accumulators);
    }
}

impl SplitScratch {
    fn start(&mut self, queries: usize, head_dim: usize) {
        let tiles = queries.div_ceil(ROWS);
        let (chunks, groups) = (head_dim / TILE_INPUTS, head_dim / WIDTH);
        // Lines of absent rows and tokens may keep old bytes: their results are not used, or have the weight zero.
        let grow = |lines: &mut Vec<Line>, len: usize| lines.resize(lines.len().max(len), Line::ZERO);
        grow(&mut self.queries, tiles * chunks * PLANE_PAIR);
        grow(&mut self.values, groups * PLANE_PAIR);
        self.scores.resize(2, [[Line::ZERO; PLANE_PAIR]; BLOCK_PAGES]);
        grow(&mut self.products, groups * PLANE_PAIR);
        grow(&mut self.weights, PLANE_PAIR);
        self.tiles.clear();
        self.tiles.resize(tiles, QueryTile::START);
        self.accumulators.clear();
        self.accumulators.resize(queries * head_dim, 0.0);
    }
}

/// Rounds a query to two planes of signed bytes, in its row of the lines.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
fn round_query(query: &[f32], lines: &mut [Line], row: usize, tile: &mut QueryTile) {
    let bits = query.iter().fold(0, |largest, value| (value.to_bits() & !(1 << 31)).max(largest));
    let largest = f32::from_bits(bits);
    let is_usable = bits < INFINITY_BITS && largest >= MIN_LARGEST;
    let inverse = _mm512_set1_ps(if is_usable { MAX_QUANTIZED / largest } else { 0.0 });
    // A query with an infinity or NaN anywhere yields NaN: 0 × ∞.
    let scale = if bits >= INFINITY_BITS { f32::INFINITY } else { largest / MAX_QUANTIZED };
    tile.scales[row] = scale * (256.0 * std::f32::consts::LOG2_E / (query.len() as f32).sqrt());
    let half = _mm512_set1_epi32(128);
    let (mut high_sum, mut low_sum) = (_mm512_setzero_si512(), _mm512_setzero_si512());
    for (part, values) in query.as_chunks::<WIDTH>().0.iter().enumerate() {
        // SAFETY: the reference covers the 64 bytes.
        let values = unsafe { _mm512_loadu_ps(values.as_ptr()) };
        let quanta = if is_usable {
            _mm512_cvtps_epi32(_mm512_mul_ps(values, inverse))
        } else {
            _mm512_setzero_si512()
        };
        let high = _mm512_srai_epi32::<8>(_mm512_add_epi32(quanta, half));
        high_sum = _mm512_add_epi32(high_sum, high);
        low_sum = _mm512_add_epi32(low_sum, _mm512_sub_epi32(quanta, _mm512_slli_epi32::<8>(high)));
        let parts = TILE_INPUTS / WIDTH;
        let line = part / parts * PLANE_PAIR + row;
        let bytes = part % parts * WIDTH..(part % parts + 1) * WIDTH;
        // SAFETY: both slices have 16 bytes.
        unsafe {
            let high_bytes = lines[line].0[bytes.clone()].as_mut_ptr();
            _mm_storeu_si128(high_bytes.cast(), _mm512_cvtepi32_epi8(high));
            let low_bytes = lines[line + ROWS].0[bytes].as_mut_ptr();
            _mm_storeu_si128(low_bytes.cast(), _mm512_cvtepi32_epi8(quanta));
        }
    }
    let (high_sum, low_sum) = (_mm512_reduce_add_epi32(high_sum), _mm512_reduce_add_epi32(low_sum));
    tile.corrections[row] = 128 * (257 * high_sum + low_sum);
}

/// Copies the pages' values into tiles of 64 tokens: the first four tokens of every page, then the next four.
#[inline(always)]
fn gather_values(heads: &[SplitHead<'_>; BLOCK_PAGES], values: &mut [Line]) {
    for (page, head) in heads.iter().enumerate() {
        for (plane, lines) in head.values().into_iter().enumerate() {
            let tiles = values.as_chunks_mut::<PLANE_PAIR>().0;
            for (lines, tile) in lines.as_chunks::<PAGE_LINES>().0.iter().zip(tiles) {
                for (quad, line) in lines.iter().enumerate() {
                    tile[plane * ROWS + quad * BLOCK_PAGES + page] = *line;
                }
            }
        }
    }
}

/// Adds a block's values to the results so far.
#[target_feature(enable = "avx512f")]
#[inline]
fn accumulate(products: &[Line], block: &BlockFactors, groups: usize, accumulators: &mut [f32]) {
    for (row, accumulators) in accumulators.chunks_exact_mut(groups * WIDTH).enumerate() {
        if block.visible[row] == 0 {
            continue;
        }
        let decay = _mm512_set1_ps(block.decays[row]);
        let factor = _mm512_set1_ps(block.factors[row]);
        let tiles = products.as_chunks().0;
        for (chunk, tile) in accumulators.as_chunks_mut::<WIDTH>().0.iter_mut().zip(tiles) {
            let values = _mm512_cvtepi32_ps(total(tile, row));
            // SAFETY: a chunk has 16 numbers.
            unsafe {
                let earlier = _mm512_mul_ps(_mm512_loadu_ps(chunk.as_ptr()), decay);
                _mm512_storeu_ps(chunk.as_mut_ptr(), _mm512_fmadd_ps(values, factor, earlier));
            }
        }
    }
}

const _: () =
    assert!(ROWS == WIDTH && PAGE_TOKENS == WIDTH && BLOCK_TOKENS == TILE_INPUTS && BLOCK_TOKENS == 64);
