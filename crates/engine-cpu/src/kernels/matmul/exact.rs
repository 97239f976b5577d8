//! Products in f32 with the file's weights unchanged: slow, and the reference for the accuracy of the fast ones.

use super::super::activations::Activations;
use super::super::lanes::{Lanes, WIDTH};
use super::super::tiles::{BLOCK_COLUMNS, ColumnSource, read_column};
use super::super::{InstructionSet, Kernels, dispatch};
use super::{Output, OutputMode};
use std::ops::Range;

/// Rows that share one pass over a column.
const ROWS: usize = 4;

/// The weights, column by column.
#[derive(Debug)]
pub(super) struct F32Matrix {
    pub(super) columns: usize,
    pub(super) inputs: usize,
    values: Vec<f32>,
}

impl F32Matrix {
    pub(super) fn new(kernels: &Kernels, inputs: usize, sources: &[ColumnSource<'_>]) -> Self {
        let columns = sources.iter().map(|source| source.columns).sum::<usize>();
        let mut values = vec![0.0; columns * inputs];
        kernels.pool.run_chunks(&mut values, inputs, |column, values| read_column(sources, column, values));
        Self { columns, inputs, values }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.values.len() * size_of::<f32>()
    }
}

/// Multiplies all rows by the columns of some blocks.
pub(super) fn multiply(
    set: InstructionSet,
    matrix: &F32Matrix,
    blocks: Range<usize>,
    inputs: &Activations,
    target: Output,
) {
    for column in blocks.start * BLOCK_COLUMNS..(blocks.end * BLOCK_COLUMNS).min(matrix.columns) {
        let weights = &matrix.values[column * matrix.inputs..][..matrix.inputs];
        for first in (0..inputs.rows()).step_by(ROWS) {
            // The last row is repeated to fill up the array.
            let row = |offset: usize| (first + offset).min(inputs.rows() - 1);
            let rows: [&[f32]; ROWS] = std::array::from_fn(|offset| inputs.row(row(offset)));
            let mut sums = [0.0; ROWS];
            let arguments = (weights, &rows, &mut sums);
            dispatch!(set, dot_products, arguments, (&[f32], &[&[f32]; ROWS], &mut [f32; ROWS]));
            for (offset, sum) in sums.into_iter().enumerate().take(inputs.rows() - first) {
                // SAFETY: the row and the column exist, and no other task has this column's blocks.
                let out = unsafe { &mut *target.out.add(row(offset) * target.stride + column) };
                *out = match target.mode {
                    OutputMode::Overwrite => sum,
                    OutputMode::Accumulate => *out + sum,
                };
            }
        }
    }
}

#[inline(always)]
fn dot_products<L: Lanes>(lanes: L, (weights, rows, sums): (&[f32], &[&[f32]; ROWS], &mut [f32; ROWS])) {
    let mut partial = [lanes.splat(0.0); ROWS];
    for (index, weights) in weights.as_chunks::<WIDTH>().0.iter().enumerate() {
        let weights = lanes.load(weights);
        for (partial, row) in partial.iter_mut().zip(rows) {
            *partial = lanes.multiply_add(lanes.load(&row.as_chunks().0[index]), weights, *partial);
        }
    }
    for (sum, partial) in sums.iter_mut().zip(partial) {
        *sum = lanes.reduce_add(partial);
    }
}
