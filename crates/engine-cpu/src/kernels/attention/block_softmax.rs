//! The softmax of one block of integer attention: from the products of queries and keys to rounded weights, and what the
//! block does to the running softmax of 16 queries.

use super::byte_products::{PLANE_PAIR, ROWS, load};
use super::{BLOCK_PAGES, BLOCK_TOKENS};
use crate::kernels::kv_cache::SplitHead;
use crate::kernels::lanes::WIDTH;
use crate::kernels::tiles::{Line, MIN_LARGEST};
use crate::limits::PAGE_TOKENS;
use std::arch::x86_64::*;

/// The largest rounded softmax weight: two unsigned bytes.
const MAX_WEIGHT: f32 = 65_535.0;

/// The integer products of 16 queries with a block's keys, page by page: the products of high bytes, then the sums of the
/// mixed products. The scores replace the former.
pub(super) type BlockScores = [[Line; PLANE_PAIR]; BLOCK_PAGES];

/// The state of 16 queries.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueryTile {
    pub(super) rows: usize,
    /// The first token that a query does not see; 0 for an absent one.
    pub(super) ends: [usize; ROWS],
    /// From integer products to scores in powers of two.
    pub(super) scales: [f32; ROWS],
    /// What the offset of the keys' bytes adds to the products.
    pub(super) corrections: [i32; ROWS],
    /// Running softmax maximum of each query.
    pub(super) max_scores: [f32; ROWS],
    /// Running softmax sum of each query, still in 16 parts.
    pub(super) exp_sums: [[f32; WIDTH]; ROWS],
}

impl QueryTile {
    pub(super) const START: Self = Self {
        rows: 0,
        ends: [0; ROWS],
        scales: [0.0; ROWS],
        corrections: [0; ROWS],
        max_scores: [f32::NEG_INFINITY; ROWS],
        exp_sums: [[0.0; WIDTH]; ROWS],
    };
}

/// What one block does to 16 queries.
pub(super) struct BlockOutcome {
    /// Visible tokens.
    pub(super) visible: [usize; ROWS],
    /// The largest score, and the sums of the softmax weights relative to it.
    max_scores: [f32; ROWS],
    exp_sums: [__m512; ROWS],
    /// From integer products to values, relative to `max_scores`.
    scales: [f32; ROWS],
}

/// What is left of a block's outcome until its values are added.
pub(super) struct BlockFactors {
    /// Visible tokens.
    pub(super) visible: [usize; ROWS],
    /// Factors of the earlier results, and of this block's integer products.
    pub(super) decays: [f32; ROWS],
    pub(super) factors: [f32; ROWS],
}

impl BlockOutcome {
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(super) fn new(visible: [usize; ROWS]) -> Self {
        Self {
            visible,
            max_scores: [f32::NEG_INFINITY; ROWS],
            exp_sums: [_mm512_setzero_ps(); ROWS],
            scales: [0.0; ROWS],
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
pub(super) struct BlockScales {
    keys: [__m512; BLOCK_PAGES],
    values: [__m512; BLOCK_PAGES],
    /// `weight_scales` of queries that see the whole block.
    weights: [__m512; BLOCK_PAGES],
    /// The largest scale of the values up to each token; if all queries see the whole block, only the last is set. A query
    /// uses that of the last token it sees: later ones may not be there yet.
    largest: [f32; BLOCK_TOKENS],
}

impl BlockScales {
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(super) fn of(heads: &[SplitHead<'_>; BLOCK_PAGES], tokens: usize, is_whole: bool) -> Self {
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
pub(super) fn score_rows<const IS_WHOLE: bool>(
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
pub(super) fn softmax_rows<const IS_WHOLE: bool>(
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
pub(super) fn total(tile: &[Line; PLANE_PAIR], row: usize) -> __m512i {
    _mm512_add_epi32(_mm512_slli_epi32::<8>(load(&tile[row])), load(&tile[ROWS + row]))
}

/// Updates the running maxima and sums of 16 queries.
#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
pub(super) fn update_state(state: &mut QueryTile, outcome: &BlockOutcome) -> BlockFactors {
    let (mut decays, mut factors, mut value_factors) = ([0.0; ROWS], [0.0; ROWS], [0.0; ROWS]);
    // SAFETY: all arrays have 16 numbers.
    unsafe {
        let (before, block) =
            (_mm512_loadu_ps(state.max_scores.as_ptr()), _mm512_loadu_ps(outcome.max_scores.as_ptr()));
        let infinite = _mm512_set1_ps(f32::NEG_INFINITY);
        // Before the first block nothing precedes, and a block may be invisible; NaN counts as visible.
        let had_any = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(before, infinite);
        let sees_any = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(block, infinite);
        let after = _mm512_max_ps(before, block);
        let exponentials = exp2(sees_any, _mm512_sub_ps(block, after));
        _mm512_storeu_ps(state.max_scores.as_mut_ptr(), after);
        _mm512_storeu_ps(decays.as_mut_ptr(), exp2(had_any, _mm512_sub_ps(before, after)));
        _mm512_storeu_ps(factors.as_mut_ptr(), exponentials);
        let scales = _mm512_loadu_ps(outcome.scales.as_ptr());
        _mm512_storeu_ps(value_factors.as_mut_ptr(), _mm512_mul_ps(exponentials, scales));
    }
    for (row, sums) in state.exp_sums.iter_mut().enumerate().take(state.rows) {
        let (decay, factor) = (_mm512_set1_ps(decays[row]), _mm512_set1_ps(factors[row]));
        // SAFETY: an array of 16 numbers.
        unsafe {
            let earlier = _mm512_mul_ps(_mm512_loadu_ps(sums.as_ptr()), decay);
            let after = _mm512_fmadd_ps(outcome.exp_sums[row], factor, earlier);
            _mm512_storeu_ps(sums.as_mut_ptr(), after);
        }
    }
    BlockFactors { visible: outcome.visible, decays, factors: value_factors }
}
