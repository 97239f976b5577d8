//! Products with NEON. If the CPU has byte dot products, the high and the low bytes of the activations are two terms,
//! up to two rows at a time. Otherwise weights are widened to 16 bits and multiplied by the whole fixed-point
//! activations, row by row.

use super::super::activations::{BLOCK_ROWS, RowBlock};
use super::super::neon::{Dotprod, Neon};
use super::super::tiles::{Line, PAIR_LINES, TILE_COLUMNS, TILE_LINES};
use super::{MatmulTask, OutputMode};
use std::arch::aarch64::*;
use std::arch::asm;

/// Rows whose sums fit the registers.
const MAX_ROWS: usize = 2;
/// Activation bytes are stored with an offset of 128; XOR with this removes it.
const UNSIGNED: u32 = 0x8080_8080;
/// Registers of four columns in a tile.
const QUARTERS: usize = TILE_COLUMNS / 4;

pub(super) fn multiply(_set: Neon, matmul_task: &MatmulTask<'_>) {
    for block in matmul_task.blocks.clone() {
        for row in 0..matmul_task.inputs.rows() {
            for tile in 0..2 {
                // SAFETY: a `Neon` exists only if the CPU has these instructions.
                unsafe { one_row(matmul_task, block, tile, row) };
            }
        }
    }
}

/// Multiplies 16 columns by one row.
#[target_feature(enable = "neon")]
fn one_row(matmul_task: &MatmulTask<'_>, index: usize, tile: usize, row: usize) {
    let block = matmul_task.matrix.block(index);
    let tile_groups = block.tile_groups;
    let inputs = matmul_task.inputs.i16_lines(row);
    let mut sums = [vdupq_n_f32(0.0); QUARTERS];
    for group in 0..tile_groups.groups() {
        let tiles = tile_groups.group(group);
        let lines = &block.lines[tile_groups.lines_before(group)..];
        // One for each column; its four lanes are the sums for four adjacent inputs.
        let mut totals = [vdupq_n_s32(0); TILE_COLUMNS];
        for (part, tile_of_row) in tiles.clone().enumerate() {
            let weights = &lines[(part * 2 + tile) * TILE_LINES..][..TILE_LINES];
            let words = inputs[tile_of_row].iter().flat_map(|line| line.0.as_chunks::<8>().0);
            for (weights, words) in weights.iter().zip(words) {
                // SAFETY: eight bytes are four 16-bit numbers, and this load needs no alignment.
                let quanta = unsafe { vld1_s16(words.as_ptr().cast()) };
                for (pair, totals) in totals.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    // SAFETY: a line has 8 × 8 bytes.
                    let weights = vmovl_s8(unsafe { vld1_s8(weights.0.as_ptr().add(pair * 8).cast()) });
                    totals[0] = vmlal_s16(totals[0], vget_low_s16(weights), quanta);
                    totals[1] = vmlal_s16(totals[1], vget_high_s16(weights), quanta);
                }
            }
        }
        let scales = lines[tiles.len() * PAIR_LINES + tile].0.as_ptr().cast::<f32>();
        for (quarter, totals) in totals.as_chunks::<4>().0.iter().enumerate() {
            let pairs = (vpaddq_s32(totals[0], totals[1]), vpaddq_s32(totals[2], totals[3]));
            let total = vcvtq_f32_s32(vpaddq_s32(pairs.0, pairs.1));
            // SAFETY: a line has 4 × 4 floats.
            sums[quarter] = vfmaq_f32(sums[quarter], total, unsafe { vld1q_f32(scales.add(quarter * 4)) });
        }
    }
    // SAFETY: `output_ptr` has 16 columns that belong to this task alone.
    unsafe {
        finish(
            sums,
            matmul_task.inputs.scale(row),
            matmul_task.output_ptr(row, index, tile),
            matmul_task.target.mode,
        )
    };
}

pub(super) fn multiply_bytes(_set: Dotprod, matmul_task: &MatmulTask<'_>) {
    for block in matmul_task.blocks.clone() {
        for first_row in (0..matmul_task.inputs.rows()).step_by(BLOCK_ROWS) {
            let rows = matmul_task.inputs.block(first_row);
            for first in (0..rows.rows).step_by(MAX_ROWS) {
                for tile in 0..2 {
                    let part = Part { matmul_task, block, tile, rows, first_row, first };
                    // SAFETY: a `Dotprod` exists only if the CPU has these instructions; `first` and the given number
                    // of rows after it are within the block.
                    unsafe {
                        match rows.rows - first {
                            1 => few_rows::<1>(&part),
                            _ => few_rows::<2>(&part),
                        }
                    }
                }
            }
        }
    }
}

struct Part<'a> {
    matmul_task: &'a MatmulTask<'a>,
    block: usize,
    tile: usize,
    rows: RowBlock<'a>,
    /// The first row of `rows` in the batch, and the first row of this part, relative to it.
    first_row: usize,
    first: usize,
}

/// Multiplies 16 columns by `ROWS` rows.
///
/// # Safety
/// The CPU has the instructions, and the block has `ROWS` rows from `first` on.
#[target_feature(enable = "neon,dotprod")]
unsafe fn few_rows<const ROWS: usize>(part: &Part<'_>) {
    let Part { matmul_task, block: index, tile, rows, first_row, first } = *part;
    let block = matmul_task.matrix.block(index);
    let tile_groups = block.tile_groups;
    let mut sums = [[vdupq_n_f32(0.0); QUARTERS]; ROWS];
    for group in 0..tile_groups.groups() {
        let tiles = tile_groups.group(group);
        let lines = &block.lines[tile_groups.lines_before(group)..];
        let mut highs = [[vdupq_n_s32(0); QUARTERS]; ROWS];
        let mut lows = [[vdupq_n_s32(0); QUARTERS]; ROWS];
        for (part, tile_of_row) in tiles.clone().enumerate() {
            let weights = &lines[(part * 2 + tile) * TILE_LINES..][..TILE_LINES];
            let inputs = &rows.lines[tile_of_row * 2 * rows.rows + first..];
            for (quad, weights) in weights.iter().enumerate() {
                let weights: [int8x16_t; QUARTERS] = std::array::from_fn(|quarter| {
                    // SAFETY: a line has 4 × 16 bytes.
                    unsafe { vld1q_s8(weights.0.as_ptr().add(quarter * 16).cast()) }
                });
                for row in 0..ROWS {
                    let (high, low) =
                        (four_bytes(&inputs[row], quad), four_bytes(&inputs[row + rows.rows], quad));
                    for quarter in 0..QUARTERS {
                        // SAFETY: the CPU has the instruction.
                        unsafe {
                            highs[row][quarter] = dot(highs[row][quarter], weights[quarter], high);
                            lows[row][quarter] = dot(lows[row][quarter], weights[quarter], low);
                        }
                    }
                }
            }
        }
        let scales = lines[tiles.len() * PAIR_LINES + tile].0.as_ptr().cast::<f32>();
        for quarter in 0..QUARTERS {
            // SAFETY: a line has 4 × 4 floats.
            let scales = unsafe { vld1q_f32(scales.add(quarter * 4)) };
            for row in 0..ROWS {
                let total = vaddq_s32(vshlq_n_s32::<8>(highs[row][quarter]), lows[row][quarter]);
                sums[row][quarter] = vfmaq_f32(sums[row][quarter], vcvtq_f32_s32(total), scales);
            }
        }
    }
    for (row, sums) in sums.into_iter().enumerate() {
        let out = matmul_task.output_ptr(first_row + first + row, index, tile);
        // SAFETY: `output_ptr` has 16 columns that belong to this task alone.
        unsafe { finish(sums, rows.scales[first + row], out, matmul_task.target.mode) };
    }
}

/// Four adjacent activation bytes, signed, repeated in every lane.
#[target_feature(enable = "neon")]
#[inline]
fn four_bytes(line: &Line, quad: usize) -> int8x16_t {
    let bytes = u32::from_ne_bytes(line.0.as_chunks().0[quad]);
    vreinterpretq_s8_u32(vdupq_n_u32(bytes ^ UNSIGNED))
}

/// Adds four products of signed bytes to each of four sums.
///
/// # Safety
/// The CPU has the dot product instructions.
#[target_feature(enable = "neon,dotprod")]
#[inline]
unsafe fn dot(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the caller guarantees the instruction, which uses only these registers. The standard library's intrinsic
    // for it is not stable yet.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b",
            sums = inout(vreg) sums,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// Scales 16 sums and writes them to `out`.
///
/// # Safety
/// The CPU has NEON, and `out` is valid for 16 values.
#[target_feature(enable = "neon")]
#[inline]
unsafe fn finish(sums: [float32x4_t; QUARTERS], scale: f32, out: *mut f32, mode: OutputMode) {
    let scale = vdupq_n_f32(scale);
    for (quarter, sum) in sums.into_iter().enumerate() {
        // SAFETY: the caller guarantees `out`.
        unsafe {
            let out = out.add(quarter * 4);
            let value = match mode {
                OutputMode::Overwrite => vmulq_f32(sum, scale),
                OutputMode::Accumulate => vfmaq_f32(vld1q_f32(out), sum, scale),
            };
            vst1q_f32(out, value);
        }
    }
}
