//! Products with AVX2: weights are widened to 16 bits and multiplied by the whole fixed-point activations, two rows at
//! a time. The byte instructions of AVX2 would saturate.

use super::super::tiles::{Line, PAIR_LINES, TILE_COLUMNS, TILE_LINES};
use super::super::x86::Avx2;
use super::{MatmulTask, OutputMode};
use std::arch::x86_64::*;

/// Rows whose sums fit the registers.
const MAX_ROWS: usize = 2;

pub(super) fn multiply(_lanes: Avx2, matmul_task: &MatmulTask<'_>) {
    let rows = matmul_task.inputs.rows();
    for block in matmul_task.blocks.clone() {
        for row in (0..rows).step_by(MAX_ROWS) {
            for tile in 0..2 {
                // SAFETY: an `Avx2` exists only if the CPU has these instructions.
                unsafe {
                    match rows - row {
                        1 => one_tile::<1>(matmul_task, block, tile, row),
                        _ => one_tile::<2>(matmul_task, block, tile, row),
                    }
                }
            }
        }
    }
}

/// Multiplies 16 columns by `ROWS` rows from `row` on.
#[target_feature(enable = "avx2,fma")]
fn one_tile<const ROWS: usize>(matmul_task: &MatmulTask<'_>, index: usize, tile: usize, row: usize) {
    let block = matmul_task.matrix.block(index);
    let tile_groups = block.tile_groups;
    let inputs: [&[[Line; 2]]; ROWS] =
        std::array::from_fn(|offset| matmul_task.inputs.i16_lines(row + offset));
    let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
    for group in 0..tile_groups.groups() {
        let tiles = tile_groups.group(group);
        let lines = &block.lines[tile_groups.lines_before(group)..];
        // Each holds four columns; each lane is the sum for two adjacent inputs.
        let mut totals = [[_mm256_setzero_si256(); ROWS]; 4];
        for (part, tile_of_row) in tiles.clone().enumerate() {
            let weights = &lines[(part * 2 + tile) * TILE_LINES..][..TILE_LINES];
            let words: [&[[u8; 8]; TILE_LINES]; ROWS] = std::array::from_fn(|row| {
                let pair = &inputs[row][tile_of_row];
                // SAFETY: two lines are 128 bytes, the same as 16 × 8, and bytes need no alignment.
                unsafe { &*std::ptr::from_ref(pair).cast() }
            });
            for (line, weights) in weights.iter().enumerate() {
                let quanta = words.map(|words| _mm256_set1_epi64x(i64::from_ne_bytes(words[line])));
                for (quarter, totals) in totals.iter_mut().enumerate() {
                    // SAFETY: a line has 4 × 16 bytes.
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
            // SAFETY: a line has 2 × 8 floats.
            let scales = unsafe { _mm256_load_ps(scales.add(half * 8)) };
            for row in 0..ROWS {
                let pairs = _mm256_hadd_epi32(totals[half * 2][row], totals[half * 2 + 1][row]);
                let total = _mm256_permute4x64_epi64::<0b11_01_10_00>(pairs);
                sums[row][half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), scales, sums[row][half]);
            }
        }
    }
    for (offset, sums) in sums.iter().enumerate() {
        let scale = _mm256_set1_ps(matmul_task.inputs.scale(row + offset));
        let out = matmul_task.output_ptr(row + offset, index, tile);
        for (half, sum) in sums.iter().enumerate() {
            // SAFETY: `output_ptr` has 16 columns that belong to this task alone.
            unsafe {
                let out = out.add(half * TILE_COLUMNS / 2);
                let value = match matmul_task.target.mode {
                    OutputMode::Overwrite => _mm256_mul_ps(*sum, scale),
                    OutputMode::Accumulate => _mm256_fmadd_ps(*sum, scale, _mm256_loadu_ps(out)),
                };
                _mm256_storeu_ps(out, value);
            }
        }
    }
}
