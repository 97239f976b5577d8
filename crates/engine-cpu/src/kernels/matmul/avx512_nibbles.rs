//! Products of up to four rows with 4-bit weights, with AVX-512 VNNI: like `avx512`, but the weights are widened to
//! int8 in registers, so that a step of few rows reads less memory.

use super::super::nibbles::{Decoder, HALF_CODE_LINES, HALF_LINES};
use super::super::tiles::{Line, TRAILER_LINES};
use super::super::x86::Avx512;
use super::avx512::finish;
use super::{MatmulTask, NibbleBlocks};
use std::arch::x86_64::*;

/// Rows whose sums fit the registers.
pub(super) const MAX_ROWS: usize = 4;
/// Prefetch distance.
const PREFETCH_LINES: usize = 64;

/// # Panics
/// If there are more than `MAX_ROWS` rows.
pub(super) fn multiply(_lanes: Avx512, matmul_task: &MatmulTask<'_, NibbleBlocks<'_>>) {
    for block in matmul_task.blocks.clone() {
        // SAFETY: an `Avx512` exists only if the CPU has these instructions.
        unsafe {
            match matmul_task.inputs.rows() {
                1 => few_rows::<1>(matmul_task, block),
                2 => few_rows::<2>(matmul_task, block),
                3 => few_rows::<3>(matmul_task, block),
                _ => few_rows::<4>(matmul_task, block),
            }
        }
    }
}

/// Multiplies one block of columns by all `ROWS` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn few_rows<const ROWS: usize>(matmul_task: &MatmulTask<'_, NibbleBlocks<'_>>, index: usize) {
    let rows = matmul_task.inputs.block(0);
    let lines = matmul_task.matrix.packed_block(index);
    let tile_groups = matmul_task.matrix.tile_groups;
    assert!(lines.len() == tile_groups.packed_block_lines());
    assert!(rows.lines.len() >= tile_groups.tiles * 2 * ROWS && rows.rows == ROWS);
    let mut weights: *const Line = lines.as_ptr();
    let mut inputs: *const Line = rows.lines.as_ptr();
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    for group in 0..tile_groups.groups() {
        let mut highs = [[_mm512_setzero_si512(); 2]; ROWS];
        let mut lows = [[_mm512_setzero_si512(); 2]; ROWS];
        for _ in tile_groups.group(group) {
            for half in 0..2 {
                // SAFETY: the lengths asserted above cover all groups, tiles and rows; both pointers advance one tile
                // at a time. Any address may be prefetched.
                unsafe {
                    for line in 0..2 {
                        _mm_prefetch::<_MM_HINT_T0>(weights.wrapping_add(PREFETCH_LINES + line).cast());
                    }
                    let decoders = [Decoder::new(&*weights), Decoder::new(&*weights.add(1))];
                    for pair in 0..HALF_CODE_LINES {
                        let codes = weights.add(2 + 2 * pair);
                        let [left, right] = [0, 1].map(|tile| {
                            _mm_prefetch::<_MM_HINT_T0>(codes.wrapping_add(PREFETCH_LINES + tile).cast());
                            decoders[tile].decode(_mm512_load_si512(codes.add(tile).cast()))
                        });
                        let lines = [[left[0], right[0]], [left[1], right[1]]];
                        for (line, tiles) in lines.into_iter().enumerate() {
                            let quad = (half * HALF_CODE_LINES + pair) * 2 + line;
                            for row in 0..ROWS {
                                let high = _mm512_set1_epi32(*inputs.add(row).cast::<i32>().add(quad));
                                let low = _mm512_set1_epi32(*inputs.add(row + ROWS).cast::<i32>().add(quad));
                                for tile in 0..2 {
                                    highs[row][tile] =
                                        _mm512_dpbusd_epi32(highs[row][tile], high, tiles[tile]);
                                    lows[row][tile] = _mm512_dpbusd_epi32(lows[row][tile], low, tiles[tile]);
                                }
                            }
                        }
                    }
                    weights = weights.add(HALF_LINES);
                }
            }
            inputs = inputs.wrapping_add(2 * ROWS);
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
            let out = matmul_task.output_ptr(row, index, tile);
            // SAFETY: `output_ptr` has 16 columns that belong to this task alone.
            unsafe { finish(*sum, rows.scales[row], out, matmul_task.target.mode) };
        }
    }
}
