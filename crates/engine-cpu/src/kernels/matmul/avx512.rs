//! Products with AVX-512 VNNI: four inputs of 16 columns per instruction, for the high and the low bytes of up to four
//! rows at once. A step of few rows is bound by reading the weights, which this does in one long run.

use super::super::activations::RowBlock;
use super::super::tiles::{Line, PAIR_LINES, TILE_LINES, TRAILER_LINES};
use super::super::x86::Avx512;
use super::{MatmulTask, OutputMode};
use crate::kernels::activations::BLOCK_ROWS;
use std::arch::x86_64::*;

/// Rows whose sums fit the registers.
const MAX_ROWS: usize = 4;
/// Prefetch distance.
const PREFETCH_LINES: usize = 64;

pub(super) fn multiply(lanes: Avx512, matmul_task: &MatmulTask<'_>) {
    for block in matmul_task.blocks.clone() {
        for first_row in (0..matmul_task.inputs.rows()).step_by(BLOCK_ROWS) {
            multiply_rows(lanes, matmul_task, block, first_row);
        }
    }
}

/// Multiplies one block of columns by the block of rows from `first_row` on.
pub(super) fn multiply_rows(_lanes: Avx512, matmul_task: &MatmulTask<'_>, block: usize, first_row: usize) {
    let rows = matmul_task.inputs.block(first_row);
    for first in (0..rows.rows).step_by(MAX_ROWS) {
        let part = Part { matmul_task, block, rows, first_row, first };
        // SAFETY: an `Avx512` exists only if the CPU has these instructions; `first` and the given number of rows after
        // it are within the block.
        unsafe {
            match rows.rows - first {
                1 => few_rows::<1>(&part),
                2 => few_rows::<2>(&part),
                3 => few_rows::<3>(&part),
                _ => few_rows::<4>(&part),
            }
        }
    }
}

struct Part<'a> {
    matmul_task: &'a MatmulTask<'a>,
    block: usize,
    rows: RowBlock<'a>,
    /// The first row of `rows` in the batch, and the first row of this part, relative to it.
    first_row: usize,
    first: usize,
}

/// # Safety
/// The CPU has the instructions, and the block has `ROWS` rows from `first` on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn few_rows<const ROWS: usize>(part: &Part<'_>) {
    let Part { matmul_task, block: index, rows, first_row, first } = *part;
    let block = matmul_task.matrix.block(index);
    let tile_groups = block.tile_groups;
    assert!(block.lines.len() == tile_groups.block_lines());
    assert!(rows.lines.len() >= tile_groups.tiles * 2 * rows.rows && first + ROWS <= rows.rows);
    let mut weights: *const Line = block.lines.as_ptr();
    // SAFETY: row `first` exists, so its line of the first tile does.
    let mut inputs: *const Line = unsafe { rows.lines.as_ptr().add(first) };
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    for group in 0..tile_groups.groups() {
        let mut highs = [[_mm512_setzero_si512(); 2]; ROWS];
        let mut lows = [[_mm512_setzero_si512(); 2]; ROWS];
        for _ in tile_groups.group(group) {
            for line in 0..TILE_LINES {
                // SAFETY: the lengths asserted above cover all groups, tiles and rows; both pointers advance one tile
                // at a time. Any address may be prefetched.
                unsafe {
                    let tiles = [weights.add(line), weights.add(TILE_LINES + line)];
                    for tile in tiles {
                        _mm_prefetch::<_MM_HINT_T0>(tile.wrapping_add(PREFETCH_LINES).cast());
                    }
                    let tiles = tiles.map(|tile| _mm512_load_si512(tile.cast()));
                    for row in 0..ROWS {
                        let high = inputs.add(row).cast::<i32>().add(line);
                        let low = inputs.add(row + rows.rows).cast::<i32>().add(line);
                        let (high, low) = (_mm512_set1_epi32(*high), _mm512_set1_epi32(*low));
                        for tile in 0..2 {
                            highs[row][tile] = _mm512_dpbusd_epi32(highs[row][tile], high, tiles[tile]);
                            lows[row][tile] = _mm512_dpbusd_epi32(lows[row][tile], low, tiles[tile]);
                        }
                    }
                }
            }
            // SAFETY: as above; after the last tile both point into their buffers, or one past the end.
            unsafe {
                weights = weights.add(PAIR_LINES);
                inputs = inputs.wrapping_add(2 * rows.rows);
            }
        }
        for tile in 0..2 {
            // SAFETY: the group's trailer follows its tiles.
            let (scale, correction) = unsafe {
                (_mm512_load_ps(weights.add(tile).cast()), _mm512_load_si512(weights.add(2 + tile).cast()))
            };
            for row in 0..ROWS {
                let total = _mm512_add_epi32(_mm512_slli_epi32::<8>(highs[row][tile]), lows[row][tile]);
                let total = _mm512_cvtepi32_ps(_mm512_sub_epi32(total, correction));
                sums[row][tile] = _mm512_fmadd_ps(total, scale, sums[row][tile]);
            }
        }
        // SAFETY: at most one past the block's last line.
        weights = unsafe { weights.add(TRAILER_LINES) };
    }
    for (row, sums) in sums.iter().enumerate() {
        for (tile, sum) in sums.iter().enumerate() {
            let out = matmul_task.output_ptr(first_row + first + row, index, tile);
            // SAFETY: `output_ptr` has 16 columns that belong to this task alone.
            unsafe { finish(*sum, rows.scales[first + row], out, matmul_task.target.mode) };
        }
    }
}

/// Scales 16 sums and writes them to `out`.
///
/// # Safety
/// The CPU has AVX-512, and `out` is valid for 16 values.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) unsafe fn finish(sum: __m512, scale: f32, out: *mut f32, mode: OutputMode) {
    let scale = _mm512_set1_ps(scale);
    // SAFETY: the caller guarantees `out`.
    unsafe {
        let value = match mode {
            OutputMode::Overwrite => _mm512_mul_ps(sum, scale),
            OutputMode::Accumulate => _mm512_fmadd_ps(sum, scale, _mm512_loadu_ps(out)),
        };
        _mm512_storeu_ps(out, value);
    }
}
