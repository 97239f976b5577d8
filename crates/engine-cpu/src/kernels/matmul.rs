//! Matrix products. All kernels add the same integers within a group of inputs, exactly, and then the groups in the
//! same order in f32. So their results are bit-identical, whichever kernel runs and whatever other rows are in the
//! batch.

#[cfg(target_arch = "x86_64")]
pub(super) mod amx;
#[cfg(target_arch = "x86_64")]
mod amx_pipeline;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_nibbles;
mod exact;
#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(target_arch = "x86_64")]
use self::amx::Amx;
use super::activations::Activations;
use super::pool::SharedPointer;
use super::tiles::{
    BLOCK_COLUMNS, Block, ColumnSource, Line, NibbleBlocks, PAIR_LINES, StoredBlocks, TILE_COLUMNS,
    TILE_LINES, TiledBlocks, TiledMatrix,
};
use super::{InstructionSet, Kernels, Precision};
use exact::F32Matrix;
use std::cell::RefCell;
use std::ops::Range;

/// Tasks per thread: enough to balance the load, few enough to read weights in long runs.
const TASKS_PER_THREAD: usize = 4;
/// Blocks that are widened to int8 together, so that they stay in the CPU cache: as many as fit this, at least one.
const UNPACKED_LINES: usize = (256 << 10) / size_of::<Line>();

thread_local! {
    /// Blocks of 4-bit weights, widened to int8.
    static UNPACKED: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// Weights, repacked by the kernels that created it.
#[derive(Debug)]
pub struct Matrix(Storage);

#[derive(Debug)]
enum Storage {
    Tiled(TiledMatrix),
    Exact(F32Matrix),
}

/// What happens to the values already in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputMode {
    Overwrite,
    Accumulate,
}

/// Columns rounded up to whole blocks: the length of a row of products.
pub fn padded(columns: usize) -> usize {
    columns.next_multiple_of(BLOCK_COLUMNS)
}

impl Matrix {
    pub fn inputs(&self) -> usize {
        match &self.0 {
            Storage::Tiled(matrix) => matrix.inputs,
            Storage::Exact(matrix) => matrix.inputs,
        }
    }

    pub fn columns(&self) -> usize {
        match &self.0 {
            Storage::Tiled(matrix) => matrix.columns,
            Storage::Exact(matrix) => matrix.columns,
        }
    }

    pub fn memory_bytes(&self) -> usize {
        match &self.0 {
            Storage::Tiled(matrix) => matrix.memory_bytes(),
            Storage::Exact(matrix) => matrix.memory_bytes(),
        }
    }
}

impl Kernels {
    /// Creates a matrix of the columns of all sources, concatenated; each has `inputs` values.
    ///
    /// # Panics
    /// If the length of a source's bytes does not match its format and shape.
    pub fn matrix(&self, inputs: usize, sources: &[ColumnSource<'_>]) -> Matrix {
        for ColumnSource { kind, columns, bytes } in sources {
            assert!(inputs.is_multiple_of(kind.block_len()), "{inputs} inputs in {kind}");
            let expected = inputs / kind.block_len() * kind.block_bytes() * columns;
            assert_eq!(bytes.len(), expected, "bytes of {columns} columns in {kind}");
        }
        Matrix(match self.precision {
            Precision::Int8 => Storage::Tiled(TiledMatrix::new(self, inputs, sources)),
            Precision::F32 => Storage::Exact(F32Matrix::new(self, inputs, sources)),
        })
    }

    /// Multiplies every row by the matrix; `out` has a row of `padded(matrix.columns())` for each.
    ///
    /// # Panics
    /// If the matrix does not have as many inputs as the rows, or `out` has the wrong length.
    pub fn multiply(&self, inputs: &Activations, matrix: &Matrix, out: &mut [f32], mode: OutputMode) {
        let stride = padded(matrix.columns());
        assert_eq!(inputs.width(), matrix.inputs(), "inputs of the matrix");
        assert_eq!(out.len(), inputs.rows() * stride, "room for the products");
        let blocks = stride / BLOCK_COLUMNS;
        let per_task = blocks.div_ceil(self.pool.threads() * TASKS_PER_THREAD).max(1);
        let out = SharedPointer(out.as_mut_ptr());
        self.pool.run(blocks.div_ceil(per_task), &|task| {
            let blocks = task * per_task..((task + 1) * per_task).min(blocks);
            let target = Output { out: out.get(), stride, mode };
            match &matrix.0 {
                Storage::Tiled(matrix) => {
                    for (blocks, stored) in matrix.stored_blocks(blocks) {
                        match stored {
                            StoredBlocks::Int8(matrix) => {
                                MatmulTask { matrix, blocks, inputs, target }.multiply(self.set);
                            }
                            StoredBlocks::Nibbles(matrix) => {
                                MatmulTask { matrix, blocks, inputs, target }.multiply_nibbles(self.set);
                            }
                        }
                    }
                }
                Storage::Exact(matrix) => exact::multiply(self.set, matrix, blocks, inputs, target),
            }
        });
    }
}

/// Output of a product.
#[derive(Clone, Copy)]
struct Output {
    out: *mut f32,
    stride: usize,
    mode: OutputMode,
}

/// Consecutive blocks of a matrix, for all rows. Tasks of one product write disjoint columns of `out`, and `multiply`
/// has checked that it holds all rows and columns: the safety argument of every write.
struct MatmulTask<'a, M = TiledBlocks<'a>> {
    matrix: M,
    blocks: Range<usize>,
    inputs: &'a Activations,
    target: Output,
}

impl MatmulTask<'_> {
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
}

impl MatmulTask<'_, NibbleBlocks<'_>> {
    fn multiply_nibbles(&self, set: InstructionSet) {
        match set {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Amx(Amx { lanes }) | InstructionSet::Avx512(lanes)
                if self.inputs.rows() <= avx512_nibbles::MAX_ROWS =>
            {
                avx512_nibbles::multiply(lanes, self);
            }
            _ => self.unpack_and_multiply(set),
        }
    }

    /// Widens the blocks to int8, a few at a time, and multiplies them as such.
    fn unpack_and_multiply(&self, set: InstructionSet) {
        let Self { matrix, inputs, target, .. } = *self;
        let at_once = (UNPACKED_LINES / matrix.tile_groups.block_lines()).max(1);
        UNPACKED.with_borrow_mut(|buffer| {
            for first in self.blocks.clone().step_by(at_once) {
                let blocks = first..self.blocks.end.min(first + at_once);
                let matrix = matrix.unpack(set, blocks.clone(), buffer);
                MatmulTask { matrix, blocks, inputs, target }.multiply(set);
            }
        });
    }
}

impl<M> MatmulTask<'_, M> {
    /// Pointer to the first of a row's 16 columns in a tile of a block.
    fn output_ptr(&self, row: usize, block: usize, tile: usize) -> *mut f32 {
        let column = block * BLOCK_COLUMNS + tile * TILE_COLUMNS;
        debug_assert!(row < self.inputs.rows() && column < self.target.stride);
        // SAFETY: the row and the column exist (see `MatmulTask`).
        unsafe { self.target.out.add(row * self.target.stride + column) }
    }
}

/// The simplest form of the product, for any CPU; the reference in tests of the others.
fn portable(matmul_task: &MatmulTask<'_>) {
    for index in matmul_task.blocks.clone() {
        let block = matmul_task.matrix.block(index);
        for row in 0..matmul_task.inputs.rows() {
            for tile in 0..2 {
                let sums = portable_tile(block, matmul_task.inputs.i16_lines(row), tile);
                // SAFETY: `output_ptr` has 16 columns that belong to this task alone.
                let out =
                    unsafe { &mut *matmul_task.output_ptr(row, index, tile).cast::<[f32; TILE_COLUMNS]>() };
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = match matmul_task.target.mode {
                        OutputMode::Overwrite => sum * matmul_task.inputs.scale(row),
                        OutputMode::Accumulate => sum.mul_add(matmul_task.inputs.scale(row), *out),
                    };
                }
            }
        }
    }
}

fn portable_tile(block: Block<'_>, words: &[[Line; 2]], tile: usize) -> [f32; TILE_COLUMNS] {
    let mut sums = [0.0_f32; TILE_COLUMNS];
    for group in 0..block.tile_groups.groups() {
        let tiles = block.tile_groups.group(group);
        let lines = &block.lines[block.tile_groups.lines_before(group)..];
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
