//! Rows times matrices. All kernels add the same whole numbers within a group of inputs, exactly, and then the groups
//! in the same order in f32: their results are equal to the last bit, whichever kernel runs and whatever rows lie
//! beside a row.

#[cfg(target_arch = "x86_64")]
pub(super) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod exact;
#[cfg(target_arch = "aarch64")]
mod neon;

use super::inputs::Inputs;
use super::pool::SharedPointer;
use super::tiles::{
    BLOCK_COLUMNS, Block, ColumnSource, Line, PAIR_LINES, TILE_COLUMNS, TILE_LINES, TiledMatrix,
};
use super::{Arithmetic, InstructionSet, Kernels};
use exact::ExactMatrix;
use std::ops::Range;

/// Tasks for each thread: enough to even out what each gets done, few enough to read weights in long runs.
const TASKS_PER_THREAD: usize = 4;

/// Weights, in the form of the kernels that made it.
#[derive(Debug)]
pub struct Matrix(Form);

#[derive(Debug)]
enum Form {
    Tiled(TiledMatrix),
    Exact(ExactMatrix),
}

/// What becomes of the values that are in a product's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    Replaced,
    Added,
}

/// Columns counted up to whole blocks: the length of a row of products.
pub fn padded(columns: usize) -> usize {
    columns.next_multiple_of(BLOCK_COLUMNS)
}

impl Matrix {
    pub fn inputs(&self) -> usize {
        match &self.0 {
            Form::Tiled(matrix) => matrix.inputs,
            Form::Exact(matrix) => matrix.inputs,
        }
    }

    pub fn columns(&self) -> usize {
        match &self.0 {
            Form::Tiled(matrix) => matrix.columns,
            Form::Exact(matrix) => matrix.columns,
        }
    }

    pub fn memory_bytes(&self) -> usize {
        match &self.0 {
            Form::Tiled(matrix) => matrix.memory_bytes(),
            Form::Exact(matrix) => matrix.memory_bytes(),
        }
    }
}

impl Kernels {
    /// Takes over the columns of all sources, side by side; each has `inputs` values.
    ///
    /// # Panics
    /// When a source's bytes are not that many values of its format.
    pub fn matrix(&self, inputs: usize, sources: &[ColumnSource<'_>]) -> Matrix {
        for ColumnSource { kind, columns, bytes } in sources {
            assert!(inputs.is_multiple_of(kind.block_len()), "{inputs} inputs in {kind}");
            let wanted = inputs / kind.block_len() * kind.block_bytes() * columns;
            assert_eq!(bytes.len(), wanted, "bytes of {columns} columns in {kind}");
        }
        Matrix(match self.arithmetic {
            Arithmetic::Fixed => Form::Tiled(TiledMatrix::new(self, inputs, sources)),
            Arithmetic::Exact => Form::Exact(ExactMatrix::new(self, inputs, sources)),
        })
    }

    /// Multiplies every row by the matrix; `out` has a row of `padded(matrix.columns())` for each.
    ///
    /// # Panics
    /// When the matrix does not have as many inputs as the rows, or `out` does not have room for them.
    pub fn multiply(&self, inputs: &Inputs, matrix: &Matrix, out: &mut [f32], before: Before) {
        let stride = padded(matrix.columns());
        assert_eq!(inputs.width(), matrix.inputs(), "inputs of the matrix");
        assert_eq!(out.len(), inputs.rows() * stride, "room for the products");
        let blocks = stride / BLOCK_COLUMNS;
        let per_task = blocks.div_ceil(self.pool.threads() * TASKS_PER_THREAD).max(1);
        let out = SharedPointer(out.as_mut_ptr());
        self.pool.run(blocks.div_ceil(per_task), &|task| {
            let blocks = task * per_task..((task + 1) * per_task).min(blocks);
            let target = Target { out: out.get(), stride, before };
            match &matrix.0 {
                Form::Tiled(matrix) => Strip { matrix, blocks, inputs, target }.multiply(self.set),
                Form::Exact(matrix) => exact::multiply(self.set, matrix, blocks, inputs, target),
            }
        });
    }
}

/// Where products go.
#[derive(Clone, Copy)]
struct Target {
    out: *mut f32,
    stride: usize,
    before: Before,
}

/// Some neighbouring blocks of a matrix, for all rows. Strips of one product write different columns of `out`, and
/// `multiply` has checked that it has room for all rows and columns: the safety argument of all that is written.
struct Strip<'a> {
    matrix: &'a TiledMatrix,
    blocks: Range<usize>,
    inputs: &'a Inputs,
    target: Target,
}

impl Strip<'_> {
    fn multiply(&self, set: InstructionSet) {
        match set {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Amx(amx) => amx::multiply(amx, self),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512(lanes) => avx512::multiply(lanes, self),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2(lanes) => avx2::multiply(lanes, self),
            #[cfg(target_arch = "aarch64")]
            InstructionSet::Dotprod(set) => neon::multiply_bytes(set, self),
            #[cfg(target_arch = "aarch64")]
            InstructionSet::Neon(set) => neon::multiply(set, self),
            InstructionSet::Portable(_) => portable(self),
        }
    }

    /// The first of a row's 16 columns in a tile of a block.
    fn place(&self, row: usize, block: usize, tile: usize) -> *mut f32 {
        let column = block * BLOCK_COLUMNS + tile * TILE_COLUMNS;
        debug_assert!(row < self.inputs.rows() && column < self.target.stride);
        // SAFETY: the row and the column exist (see `Strip`).
        unsafe { self.target.out.add(row * self.target.stride + column) }
    }
}

/// The plainest form of the product, for any machine; what the others are tested against.
fn portable(strip: &Strip<'_>) {
    for index in strip.blocks.clone() {
        let block = strip.matrix.block(index);
        for row in 0..strip.inputs.rows() {
            for tile in 0..2 {
                let sums = portable_tile(block, strip.inputs.words(row), tile);
                // SAFETY: the place has 16 columns that belong to this strip alone.
                let out = unsafe { &mut *strip.place(row, index, tile).cast::<[f32; TILE_COLUMNS]>() };
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = match strip.target.before {
                        Before::Replaced => sum * strip.inputs.scale(row),
                        Before::Added => sum.mul_add(strip.inputs.scale(row), *out),
                    };
                }
            }
        }
    }
}

fn portable_tile(block: Block<'_>, words: &[[Line; 2]], tile: usize) -> [f32; TILE_COLUMNS] {
    let mut sums = [0.0_f32; TILE_COLUMNS];
    for group in 0..block.grouping.groups() {
        let tiles = block.grouping.group(group);
        let lines = &block.lines[block.grouping.lines_before(group)..];
        let mut totals = [0_i32; TILE_COLUMNS];
        for (index, words) in words[tiles.clone()].iter().enumerate() {
            let quads = words.iter().flat_map(|line| line.0.as_chunks::<8>().0);
            let lines = &lines[(index * 2 + tile) * TILE_LINES..][..TILE_LINES];
            for (line, quad) in lines.iter().zip(quads) {
                let quanta = [0, 2, 4, 6].map(|at| i32::from(i16::from_ne_bytes([quad[at], quad[at + 1]])));
                for (total, weights) in totals.iter_mut().zip(line.0.as_chunks::<4>().0) {
                    for (weight, quantum) in weights.iter().zip(quanta) {
                        *total += i32::from(weight.cast_signed()) * quantum;
                    }
                }
            }
        }
        let scales = lines[tiles.len() * PAIR_LINES + tile].0.as_chunks::<4>().0;
        for ((sum, total), scale) in sums.iter_mut().zip(totals).zip(scales) {
            *sum = (total as f32).mul_add(f32::from_ne_bytes(*scale), *sum);
        }
    }
    sums
}

#[cfg(test)]
mod tests;
