//! Attention in integers, over a cache in the `SplitBytes` format. Queries are rounded to 16 bits with a scale each, as
//! keys and values are when they are stored; the softmax weights of a block are rounded to 16 bits for each query. The
//! products of bytes are whole numbers, exact in any order, so a query's result depends on nothing but its own numbers
//! and its position. The product of two low bytes is left out: it is less than 2⁻¹⁵ of the largest product of the two
//! numbers' ranges, less than half precision rounds off.
//!
//! Blocks and the online softmax are those of the file above; each block has its own maximum, so that its largest weight
//! is 1 before rounding.

use super::byte_products::{ByteProducts, PAGE_LINES, PLANE_PAIR, ROWS, Values, load};
use super::{AttentionTask, BLOCK_PAGES, BLOCK_TOKENS};
use crate::kernels::activations::{INFINITY_BITS, MAX_QUANTIZED};
use crate::kernels::kv_cache::SplitHead;
use crate::kernels::lanes::WIDTH;
use crate::kernels::tiles::{Line, MIN_LARGEST, TILE_INPUTS};
use crate::limits::PAGE_TOKENS;
use std::arch::x86_64::*;

/// The largest rounded softmax weight: two unsigned bytes.
const MAX_WEIGHT: f32 = 65_535.0;

/// The integer products of 16 queries with a block's keys, page by page: the products of high bytes, then the sums of the
/// mixed products. The scores replace the former.
type BlockScores = [[Line; PLANE_PAIR]; BLOCK_PAGES];

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

/// The state of 16 queries.
#[derive(Clone, Copy, Debug)]
struct QueryTile {
    rows: usize,
    /// The first token that a query does not see; 0 for an absent one.
    ends: [usize; ROWS],
    /// From integer products to scores in powers of two.
    scales: [f32; ROWS],
    /// What the offset of the keys' bytes adds to the products.
    corrections: [i32; ROWS],
    /// Running softmax maximum of each query.
    max_scores: [f32; ROWS],
    /// Running softmax sum of each query, still in 16 parts.
    exp_sums: [[f32; WIDTH]; ROWS],
}

impl QueryTile {
    const START: Self = Self {
        rows: 0,
        ends: [0; ROWS],
        scales: [0.0; ROWS],
        corrections: [0; ROWS],
        max_scores: [f32::NEG_INFINITY; ROWS],
        exp_sums: [[0.0; WIDTH]; ROWS],
    };
}

/// What one block does to 16 queries.
struct BlockOutcome {
    /// Visible tokens.
    visible: [usize; ROWS],
    /// The largest score, and the sums of the softmax weights relative to it.
    max_scores: [f32; ROWS],
    exp_sums: [__m512; ROWS],
    /// From integer products to values, relative to `max_scores`.
    scales: [f32; ROWS],
    /// Factors of the earlier results and of this block's.
    decays: [f32; ROWS],
    factors: [f32; ROWS],
}

impl BlockOutcome {
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn new(visible: [usize; ROWS]) -> Self {
        Self {
            visible,
            max_scores: [f32::NEG_INFINITY; ROWS],
            exp_sums: [_mm512_setzero_ps(); ROWS],
            scales: [0.0; ROWS],
            decays: [0.0; ROWS],
            factors: [0.0; ROWS],
        }
    }

    /// The visible tokens of one page.
    #[inline(always)]
    fn mask(&self, row: usize, page: usize) -> __mmask16 {
        (u64::MAX.unbounded_shr((BLOCK_TOKENS - self.visible[row]) as u32) >> (page * PAGE_TOKENS))
            as __mmask16
    }
}

/// The scales of a block's keys and values.
struct BlockScales {
    keys: [__m512; BLOCK_PAGES],
    values: [__m512; BLOCK_PAGES],
    /// `weight_scales` of queries that see the whole block.
    weights: [__m512; BLOCK_PAGES],
    /// The largest scale of the values up to each token; if all queries see the whole block, only the last is set. A query
    /// uses that of the last token it sees: later ones may not be there yet.
    largest: [f32; BLOCK_TOKENS],
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
    let mut pending: Option<(usize, BlockOutcome)> = None;
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
        if let Some((tile, outcome)) = pending.take() {
            accumulate(
                sums,
                &outcome,
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
        update_state(&mut states[tile], &mut outcome);
        pending = Some((tile, outcome));
        std::mem::swap(&mut current, &mut next);
    }
    if let Some((tile, outcome)) = pending {
        let accumulators = &mut accumulators[tile * ROWS * head_dim..][..states[tile].rows * head_dim];
        accumulate(sums, &outcome, groups, accumulators);
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

impl BlockScales {
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn of(heads: &[SplitHead<'_>; BLOCK_PAGES], tokens: usize, is_whole: bool) -> Self {
        let keys = std::array::from_fn(|page| _mm512_castsi512_ps(load(heads[page].key_scales())));
        let values: [__m512; BLOCK_PAGES] =
            std::array::from_fn(|page| _mm512_castsi512_ps(load(heads[page].value_scales())));
        let mut largest = [0.0; BLOCK_TOKENS];
        if is_whole {
            largest[BLOCK_TOKENS - 1] = _mm512_reduce_max_ps(max_of(values));
        } else {
            let mut so_far = 0.0_f32;
            for (token, largest) in largest.iter_mut().enumerate().take(tokens) {
                let scales = heads[token / PAGE_TOKENS].value_scales().0.as_chunks::<4>().0;
                so_far = so_far.max(f32::from_ne_bytes(scales[token % PAGE_TOKENS]));
                *largest = so_far;
            }
        }
        let weights = weight_scales(&values, largest[BLOCK_TOKENS - 1]);
        Self { keys, values, weights, largest }
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn max_of(pages: [__m512; BLOCK_PAGES]) -> __m512 {
    _mm512_max_ps(_mm512_max_ps(pages[0], pages[1]), _mm512_max_ps(pages[2], pages[3]))
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

/// 2 to the power of each lane, with a relative error below 4 × 10⁻⁷, exact for whole numbers, and 0 where the mask is not
/// set.
#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
fn exp2(mask: __mmask16, x: __m512) -> __m512 {
    /// Of 2^r - 1 for r from 0 to 1, divided by r.
    const POLYNOMIAL: [f32; 5] = [1.789_665_1e-3, 9.196_802e-3, 5.565_866_5e-2, 2.402_068_7e-1, 6.931_476e-1];
    // What is left above the next lower whole number.
    let rest = _mm512_reduce_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(x);
    let mut polynomial = _mm512_set1_ps(POLYNOMIAL[0]);
    for coefficient in &POLYNOMIAL[1..] {
        polynomial = _mm512_fmadd_ps(polynomial, rest, _mm512_set1_ps(*coefficient));
    }
    let polynomial = _mm512_fmadd_ps(polynomial, rest, _mm512_set1_ps(1.0));
    // Scales by the next lower whole power.
    _mm512_maskz_scalef_ps(mask, polynomial, x)
}

/// Replaces the integer products of high bytes by scores, still without the query's scale, and sets the block's maxima,
/// with the scale. `IS_WHOLE` means that all queries see the whole block.
#[target_feature(enable = "avx512f")]
#[inline]
fn score_rows<const IS_WHOLE: bool>(
    state: &QueryTile,
    block: &BlockScales,
    used_pages: usize,
    scores: &mut BlockScores,
    outcome: &mut BlockOutcome,
) {
    let masked = _mm512_set1_ps(f32::NEG_INFINITY);
    let pages = if IS_WHOLE { BLOCK_PAGES } else { used_pages.min(BLOCK_PAGES) };
    for row in 0..state.rows.min(ROWS) {
        let correction = _mm512_set1_epi32(state.corrections[row]);
        let mut best = masked;
        for (page, scores) in scores.iter_mut().enumerate().take(pages) {
            let total = _mm512_sub_epi32(total(scores, row), correction);
            let score = _mm512_cvtepi32_ps(total);
            let score = match IS_WHOLE {
                true => _mm512_mul_ps(score, block.keys[page]),
                false => _mm512_mask_mul_ps(masked, outcome.mask(row, page), score, block.keys[page]),
            };
            best = _mm512_max_ps(best, score);
            // SAFETY: a line is 64 bytes, and aligned.
            unsafe { _mm512_store_ps((&raw mut scores[row]).cast(), score) };
        }
        // Otherwise it stays negative infinity, which times a scale of zero would be NaN.
        if IS_WHOLE || outcome.visible[row] > 0 {
            outcome.max_scores[row] = _mm512_reduce_max_ps(best) * state.scales[row];
        }
    }
}

/// The softmax weights of each query in one block, relative to the block's own maximum, rounded to two bytes. `IS_WHOLE`
/// means that all queries see the whole block.
#[target_feature(enable = "avx512f,avx512bw,avx512dq")]
#[inline]
fn softmax_rows<const IS_WHOLE: bool>(
    state: &QueryTile,
    block: &BlockScales,
    used_pages: usize,
    scores: &BlockScores,
    weights: &mut [Line],
    outcome: &mut BlockOutcome,
) {
    let pages = if IS_WHOLE { BLOCK_PAGES } else { used_pages.min(BLOCK_PAGES) };
    let (highs, lows) = weights.split_at_mut(ROWS);
    let lines = highs.iter_mut().zip(lows);
    for (row, (high_line, low_line)) in lines.enumerate().take(state.rows.min(ROWS)) {
        let visible = if IS_WHOLE { BLOCK_TOKENS } else { outcome.visible[row] };
        let largest = block.largest[visible.saturating_sub(1)];
        outcome.scales[row] = largest * (256.0 / MAX_WEIGHT);
        let scales =
            if visible == BLOCK_TOKENS { block.weights } else { weight_scales(&block.values, largest) };
        let (scale, shift) = (_mm512_set1_ps(state.scales[row]), _mm512_set1_ps(outcome.max_scores[row]));
        let mut exp_sum = _mm512_setzero_ps();
        let mut quanta = [_mm512_setzero_si512(); BLOCK_PAGES];
        for (page, scores) in scores.iter().enumerate().take(pages) {
            let score = _mm512_castsi512_ps(load(&scores[row]));
            let mask = if IS_WHOLE { __mmask16::MAX } else { outcome.mask(row, page) };
            // Rounded like the maximum before it is subtracted, so that none exceeds it: the weight of the largest score
            // is then exactly 1, however large the scores are.
            let relative = _mm512_sub_ps(_mm512_mul_ps(score, scale), shift);
            let exponential = exp2(mask, relative);
            exp_sum = _mm512_add_ps(exp_sum, exponential);
            quanta[page] = _mm512_cvtps_epi32(_mm512_mul_ps(exponential, scales[page]));
        }
        outcome.exp_sums[row] = exp_sum;
        // Packing works within quarters of a register: each holds four tokens of every page, the order of `gather_values`.
        let words = [_mm512_packus_epi32(quanta[0], quanta[1]), _mm512_packus_epi32(quanta[2], quanta[3])];
        let highs = words.map(|words| _mm512_srli_epi16::<8>(words));
        let lows = words.map(|words| _mm512_and_si512(words, _mm512_set1_epi16(255)));
        // SAFETY: lines are 64 bytes, and aligned.
        unsafe {
            _mm512_store_si512((&raw mut *high_line).cast(), _mm512_packus_epi16(highs[0], highs[1]));
            _mm512_store_si512((&raw mut *low_line).cast(), _mm512_packus_epi16(lows[0], lows[1]));
        }
    }
}

/// Factors from softmax weights to rounded ones, each times the scale of its token's values.
#[target_feature(enable = "avx512f")]
#[inline]
fn weight_scales(values: &[__m512; BLOCK_PAGES], largest: f32) -> [__m512; BLOCK_PAGES] {
    let inverse = _mm512_set1_ps(if largest < MIN_LARGEST { 0.0 } else { MAX_WEIGHT / largest });
    std::array::from_fn(|page| _mm512_mul_ps(values[page], inverse))
}

/// The sum of a tile's products in one row: 256 × high + mixed.
#[target_feature(enable = "avx512f")]
#[inline]
fn total(tile: &[Line; PLANE_PAIR], row: usize) -> __m512i {
    _mm512_add_epi32(_mm512_slli_epi32::<8>(load(&tile[row])), load(&tile[ROWS + row]))
}

/// Updates the running maxima of 16 queries, and sets the factors.
#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
fn update_state(state: &mut QueryTile, outcome: &mut BlockOutcome) {
    // SAFETY: all arrays have 16 numbers.
    unsafe {
        let (before, block) =
            (_mm512_loadu_ps(state.max_scores.as_ptr()), _mm512_loadu_ps(outcome.max_scores.as_ptr()));
        let infinite = _mm512_set1_ps(f32::NEG_INFINITY);
        // Before the first block nothing precedes, and a block may be invisible; NaN counts as visible.
        let had_any = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(before, infinite);
        let sees_any = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(block, infinite);
        let after = _mm512_max_ps(before, block);
        let decays = exp2(had_any, _mm512_sub_ps(before, after));
        let factors = exp2(sees_any, _mm512_sub_ps(block, after));
        _mm512_storeu_ps(state.max_scores.as_mut_ptr(), after);
        _mm512_storeu_ps(outcome.decays.as_mut_ptr(), decays);
        _mm512_storeu_ps(outcome.factors.as_mut_ptr(), factors);
    }
    for (row, sums) in state.exp_sums.iter_mut().enumerate().take(state.rows) {
        let (decay, factor) = (_mm512_set1_ps(outcome.decays[row]), _mm512_set1_ps(outcome.factors[row]));
        // SAFETY: an array of 16 numbers.
        unsafe {
            let earlier = _mm512_mul_ps(_mm512_loadu_ps(sums.as_ptr()), decay);
            let after = _mm512_fmadd_ps(outcome.exp_sums[row], factor, earlier);
            _mm512_storeu_ps(sums.as_mut_ptr(), after);
        }
    }
}

/// Adds a block's values to the results so far.
#[target_feature(enable = "avx512f")]
#[inline]
fn accumulate(products: &[Line], outcome: &BlockOutcome, groups: usize, accumulators: &mut [f32]) {
    for (row, accumulators) in accumulators.chunks_exact_mut(groups * WIDTH).enumerate() {
        if outcome.visible[row] == 0 {
            continue;
        }
        let decay = _mm512_set1_ps(outcome.decays[row]);
        let factor = _mm512_set1_ps(outcome.factors[row] * outcome.scales[row]);
        let tiles = products.as_chunks().0;
        for (chunk, tile) in accumulators.as_chunks_mut::<WIDTH>().0.iter_mut().zip(tiles) {
            let block = _mm512_cvtepi32_ps(total(tile, row));
            // SAFETY: a chunk has 16 numbers.
            unsafe {
                let earlier = _mm512_mul_ps(_mm512_loadu_ps(chunk.as_ptr()), decay);
                _mm512_storeu_ps(chunk.as_mut_ptr(), _mm512_fmadd_ps(block, factor, earlier));
            }
        }
    }
}

const _: () =
    assert!(ROWS == WIDTH && PAGE_TOKENS == WIDTH && BLOCK_TOKENS == TILE_INPUTS && BLOCK_TOKENS == 64);
