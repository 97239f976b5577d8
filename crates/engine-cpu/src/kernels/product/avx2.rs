//! Products with AVX2: weights are widened to sixteen bits and multiplied with the whole fixed-point activations, two
//! rows at a time. The byte instructions of AVX2 would saturate.

use super::super::tiles::{Line, PAIR_LINES, TILE_COLUMNS, TILE_LINES};
use super::super::x86::Avx2;
use super::{Before, Strip};
use std::arch::x86_64::*;

/// Rows whose sums the registers hold.
const MAX_ROWS: usize = 2;

pub(super) fn multiply(_lanes: Avx2, strip: &Strip<'_>) {
    let rows = strip.inputs.rows();
    for block in strip.blocks.clone() {
        for row in (0..rows).step_by(MAX_ROWS) {
            for tile in 0..2 {
                // SAFETY: an `Avx2` exists only where the machine has these instructions.
                unsafe {
                    match rows - row {
                        1 => one_tile::<1>(strip, block, tile, row),
                        _ => one_tile::<2>(strip, block, tile, row),
                    }
                }
            }
        }
    }
}

/// Sixteen columns by `ROWS` rows from `row` on.
#[target_feature(enable = "avx2,fma")]
fn one_tile<const ROWS: usize>(strip: &Strip<'_>, index: usize, tile: usize, row: usize) {
    let block = strip.matrix.block(index);
    let grouping = block.grouping;
    let inputs: [&[[Line; 2]]; ROWS] = std::array::from_fn(|offset| strip.inputs.words(row + offset));
    let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
    for group in 0..grouping.groups() {
        let tiles = grouping.group(group);
        let lines = &block.lines[grouping.lines_before(group)..];
        // Each holds four columns, two neighbouring inputs' sums for each pair of lanes.
        let mut totals = [[_mm256_setzero_si256(); ROWS]; 4];
        for (part, tile_of_row) in tiles.clone().enumerate() {
            let weights = &lines[(part * 2 + tile) * TILE_LINES..][..TILE_LINES];
            let words: [&[[u8; 8]; TILE_LINES]; ROWS] = std::array::from_fn(|row| {
                let pair = &inputs[row][tile_of_row];
                // SAFETY: two lines are 128 bytes, as many as sixteen times eight, and bytes need no alignment.
                unsafe { &*std::ptr::from_ref(pair).cast() }
            });
            for (line, weights) in weights.iter().enumerate() {
                let quanta = words.map(|words| _mm256_set1_epi64x(i64::from_ne_bytes(words[line])));
                for (quarter, totals) in totals.iter_mut().enumerate() {
                    // SAFETY: a line has four times sixteen bytes.
                    let weights = unsafe { _mm_load_si128(weights.0.as_ptr().add(quarter * 16).cast()) };
                    let weights = _mm256_cvtepi8_epi16(weights);
                    for (total, quanta) in totals.iter_mut().zip(quanta) {
                        *total = _mm256_add_epi32(*total, _mm256_madd_epi16(weights, quanta));
                    }
                }
            }
        }
        let scales = lines[tiles.len() * PAIR_LINES + tile].0.as_ptr().cast::<f32>();
        for half in 0..2 {
            // SAFETY: a line has two times eight floats.
            let scales = unsafe { _mm256_load_ps(scales.add(half * 8)) };
            for row in 0..ROWS {
                let pairs = _mm256_hadd_epi32(totals[half * 2][row], totals[half * 2 + 1][row]);
                let total = _mm256_permute4x64_epi64::<0b11_01_10_00>(pairs);
                sums[row][half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), scales, sums[row][half]);
            }
        }
    }
    for (offset, sums) in sums.iter().enumerate() {
        let scale = _mm256_set1_ps(strip.inputs.scale(row + offset));
        let out = strip.place(row + offset, index, tile);
        for (half, sum) in sums.iter().enumerate() {
            // SAFETY: the place has 16 columns that belong to this strip alone.
            unsafe {
                let out = out.add(half * TILE_COLUMNS / 2);
                let value = match strip.target.before {
                    Before::Replaced => _mm256_mul_ps(*sum, scale),
                    Before::Added => _mm256_fmadd_ps(*sum, scale, _mm256_loadu_ps(out)),
                };
                _mm256_storeu_ps(out, value);
            }
        }
    }
}
