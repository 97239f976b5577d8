//! The order of work on AMX. A group's products leave the tiles through memory, and adding them to the sums takes about
//! as long as the tile instructions of a group. So both run at once: while the tile unit multiplies one group, the vector
//! instructions rescale the results of the group before, in the order of 1 to 4:
//!
//! 1. Load the group's first tiles. Loads that come before the stores of 2 need not wait for them.
//! 2. Store the results of the group before, and multiply the first tiles.
//! 3. Load and multiply each further tile of inputs, then rescale a part of the stored results. So the tile unit always
//!    has work in its queue while the vector instructions wait for the results.
//! 4. The group's own results stay in the tiles, from one block of rows or columns to the next. Only the last group of a
//!    task is rescaled without another one to multiply.
//!
//! A group of weights is multiplied by up to 64 rows before the next one: it comes from the nearest CPU cache for all of
//! them but the first 16. The groups of a row are still added in order, so its sums are those of every other kernel.

use super::super::activations::{BLOCK_ROWS, RowBlock};
use super::super::tiles::{Block, Line, PAIR_LINES, TILE_LINES, TRAILER_LINES};
use super::super::x86::Avx512;
use super::{MatmulTask, avx512};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

/// With fewer rows than this, AVX-512 alone is as fast: both wait for the weights.
pub(super) const MIN_ROWS: usize = 5;
/// Prefetch distance if weights are read once.
const PREFETCH_LINES: usize = 128;
/// Rows that are multiplied by a group of weights before the next one.
const RESIDENT_ROWS: usize = 64;

/// The results of one group: the products of high bytes for both tiles of columns, then those of low bytes.
pub(super) type Results = [[Line; BLOCK_ROWS]; 4];
/// One tile of inputs: a line of 64 bytes for each row.
pub(super) type InputTile = [Line; BLOCK_ROWS];
/// The sums of up to 16 rows over the groups so far, for both tiles of columns.
type Sums = [MaybeUninit<[__m512; 2]>; BLOCK_ROWS];

/// A unit that adds up the products of one group, for 16 rows and both tiles of columns of a block.
pub(super) trait TileUnit {
    /// Loads 64 inputs, high bytes and low bytes, and their weights.
    fn load(&mut self, weights: &[Line; PAIR_LINES], highs: &InputTile, lows: &InputTile);

    /// Adds the products of what was loaded.
    fn multiply_add(&mut self);

    /// Writes the sums of the products.
    fn store(&mut self, results: &mut MaybeUninit<Results>);

    /// Sets the sums to zero.
    fn clear(&mut self);
}

/// Multiplies all rows by the blocks of a task.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn multiply_blocks<T: TileUnit>(lanes: Avx512, unit: T, matmul_task: &MatmulTask<'_>) {
    let rows = matmul_task.inputs.rows();
    let rest = rows % BLOCK_ROWS;
    let tiled_rows = if rest < MIN_ROWS { rows - rest } else { rows };
    let mut pipeline = Pipeline::new(unit, matmul_task);
    for first in (0..rows).step_by(RESIDENT_ROWS) {
        let end = first + RESIDENT_ROWS;
        for block in matmul_task.blocks.clone() {
            pipeline.multiply_block(block, first..end.min(tiled_rows));
            // While the block is in the CPU cache.
            if tiled_rows < rows && end > tiled_rows {
                avx512::multiply_rows(lanes, matmul_task, block, tiled_rows);
            }
        }
    }
    pipeline.finish();
}

struct Pipeline<'a, T> {
    unit: T,
    matmul_task: &'a MatmulTask<'a>,
    /// The group that was multiplied last. Its results are in the unit until the next group stores and rescales them.
    last: Option<Group<'a>>,
    results: MaybeUninit<Results>,
    /// For each 16 of the resident rows.
    sums: [Sums; RESIDENT_ROWS / BLOCK_ROWS],
}

/// One group of inputs, for one block of rows and one of columns.
struct Group<'a> {
    rows: RowBlock<'a>,
    /// The first row in the batch, and the number of row blocks before it that use the same weights.
    first_row: usize,
    pass: usize,
    block: usize,
    /// Starts at the group's first tile.
    inputs: &'a [Line],
    /// Both tiles of columns, for each tile of inputs.
    weights: &'a [[Line; PAIR_LINES]],
    trailer: &'a [Line],
    prefetch: Prefetch,
    is_first: bool,
    is_last: bool,
}

/// Weights to prefetch while a group is multiplied.
#[derive(Clone, Copy)]
enum Prefetch {
    None,
    /// Those a little further on.
    Near,
    /// Lines of the next block, so many for each tile of inputs. They are used much later, so the second-level cache is
    /// near enough.
    Next {
        lines: *const Line,
        per_tile: usize,
    },
}

impl Prefetch {
    #[inline(always)]
    fn prefetch(self, tile: usize, weights: &[Line; PAIR_LINES]) {
        // Any address may be prefetched.
        match self {
            Self::None => {}
            Self::Near => {
                for line in weights {
                    let line = (&raw const *line).wrapping_add(PREFETCH_LINES);
                    // SAFETY: every x86-64 CPU has the instruction.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
                }
            }
            Self::Next { lines, per_tile } => {
                for line in tile * per_tile..(tile + 1) * per_tile {
                    // SAFETY: as above.
                    unsafe { _mm_prefetch::<_MM_HINT_T1>(lines.wrapping_add(line).cast()) };
                }
            }
        }
    }
}

impl<'a, T: TileUnit> Pipeline<'a, T> {
    fn new(unit: T, matmul_task: &'a MatmulTask<'a>) -> Self {
        Self {
            unit,
            matmul_task,
            last: None,
            results: MaybeUninit::uninit(),
            sums: [[MaybeUninit::uninit(); BLOCK_ROWS]; RESIDENT_ROWS / BLOCK_ROWS],
        }
    }

    /// Multiplies one block of columns by up to 64 rows. If they are the first ones, each pass over a group prefetches
    /// its share of the next block, so that memory is never idle.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[inline]
    fn multiply_block(&mut self, index: usize, rows: Range<usize>) {
        let Block { lines, tile_groups } = self.matmul_task.matrix.block(index);
        let passes = rows.len().div_ceil(BLOCK_ROWS);
        for group in 0..tile_groups.groups() {
            let tiles = tile_groups.group(group);
            let len = tiles.len() * PAIR_LINES + TRAILER_LINES;
            let group_lines = &lines[tile_groups.lines_before(group)..][..len];
            let (weights, trailer) = group_lines.as_chunks();
            let per_tile = len.div_ceil(passes.max(1) * tiles.len());
            for (pass, first_row) in rows.clone().step_by(BLOCK_ROWS).enumerate() {
                let prefetch = match passes {
                    _ if rows.start > 0 => Prefetch::None,
                    1 => Prefetch::Near,
                    _ => Prefetch::Next {
                        lines: group_lines.as_ptr().wrapping_add(lines.len() + pass * tiles.len() * per_tile),
                        per_tile,
                    },
                };
                let rows = self.matmul_task.inputs.block(first_row);
                self.multiply_group(Group {
                    rows,
                    first_row,
                    pass,
                    block: index,
                    inputs: &rows.lines[tiles.start * 2 * rows.rows..],
                    weights,
                    trailer,
                    prefetch,
                    is_first: group == 0,
                    is_last: group + 1 == tile_groups.groups(),
                });
            }
        }
    }

    /// Multiplies a group, and rescales the one before.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[inline]
    fn multiply_group(&mut self, group: Group<'a>) {
        let tiles = group.weights.len();
        // A part after each tile but the first.
        let parts = (tiles - 1).max(1);
        let rows_per_part = BLOCK_ROWS.div_ceil(parts);
        for (tile, weights) in group.weights.iter().enumerate() {
            group.prefetch.prefetch(tile, weights);
            // A tile always has 16 lines. If the block has fewer rows, the others are among the lines that follow it, and
            // their results are not used.
            let input_tile = |plane: usize| {
                &group.inputs[(2 * tile + plane) * group.rows.rows..].as_chunks::<BLOCK_ROWS>().0[0]
            };
            self.unit.load(weights, input_tile(0), input_tile(1));
            if tile == 0 {
                // Before the first group this stores zeros that are never read.
                self.unit.store(&mut self.results);
                self.unit.clear();
            }
            self.unit.multiply_add();
            if let Some(part) = (tile + parts).checked_sub(tiles) {
                self.rescale_last(part * rows_per_part..(part + 1) * rows_per_part);
            }
        }
        self.last = Some(group);
    }

    /// Rescales the last group of the task.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[inline]
    fn finish(&mut self) {
        self.unit.store(&mut self.results);
        self.rescale_last(0..BLOCK_ROWS);
    }

    /// Adds the stored results of the last group to the sums of those of its rows that are in `rows`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[inline]
    fn rescale_last(&mut self, rows: Range<usize>) {
        if let Some(group) = &self.last {
            // SAFETY: the callers have stored the results.
            let results = unsafe { self.results.assume_init_ref() };
            let rows = rows.start..rows.end.min(group.rows.rows);
            group.rescale(self.matmul_task, results, &mut self.sums[group.pass], rows);
        }
    }
}

impl Group<'_> {
    /// Adds the group to the sums of some rows. The last group's go to the output instead.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[inline]
    fn rescale(&self, matmul_task: &MatmulTask<'_>, results: &Results, sums: &mut Sums, rows: Range<usize>) {
        let trailer = Trailer::read(self.trailer);
        for row in rows {
            let sum = &mut sums[row];
            let totals = trailer.totals(results, row);
            let previous = match self.is_first {
                true => [_mm512_setzero_ps(); 2],
                // SAFETY: the group before this one has written the sum.
                false => unsafe { sum.assume_init() },
            };
            let after =
                [0, 1].map(|tile| _mm512_fmadd_ps(totals[tile], trailer.scales[tile], previous[tile]));
            if !self.is_last {
                sum.write(after);
                continue;
            }
            for (tile, sum) in after.into_iter().enumerate() {
                let out = matmul_task.output_ptr(self.first_row + row, self.block, tile);
                // SAFETY: `output_ptr` has 16 columns that belong to this task alone.
                unsafe { avx512::finish(sum, self.rows.scales[row], out, matmul_task.target.mode) };
            }
        }
    }
}

/// The lines after a group's tiles, for both tiles of columns.
struct Trailer {
    scales: [__m512; 2],
    corrections: [__m512i; 2],
}

impl Trailer {
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn read(lines: &[Line]) -> Self {
        let at = |line: usize| load(&lines[line]);
        Self { scales: [_mm512_castsi512_ps(at(0)), _mm512_castsi512_ps(at(1))], corrections: [at(2), at(3)] }
    }

    /// A group's integer sums of one row, for both tiles of columns.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn totals(&self, results: &Results, row: usize) -> [__m512; 2] {
        [0, 1].map(|tile| {
            let (high, low) =
                (_mm512_slli_epi32::<8>(load(&results[tile][row])), load(&results[2 + tile][row]));
            _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_add_epi32(high, low), self.corrections[tile]))
        })
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load(line: &Line) -> __m512i {
    // SAFETY: a line is 64 bytes, and aligned.
    unsafe { _mm512_load_si512((&raw const *line).cast()) }
}

const _: () = assert!(TILE_LINES == BLOCK_ROWS && RESIDENT_ROWS.is_multiple_of(BLOCK_ROWS));

#[cfg(test)]
mod tests {
    use super::super::super::tiles::tests::sample_tensor;
    use super::super::super::tiles::{BLOCK_COLUMNS, StoredBlocks, TILE_COLUMNS, TiledMatrix};
    use super::super::super::{InstructionSet, Kernels, Precision, Rows, ThreadPool};
    use super::super::{Activations, ColumnSource, Output, OutputMode};
    use super::*;
    use crate::gguf::TensorType;

    /// Does in plain Rust what AMX does, so that the pipeline can be tested on a CPU without it.
    struct EmulatedTiles {
        /// High bytes and low bytes.
        inputs: [InputTile; 2],
        weights: [Line; PAIR_LINES],
        sums: [[[i32; TILE_COLUMNS]; BLOCK_ROWS]; 4],
    }

    impl EmulatedTiles {
        const EMPTY: Self = Self {
            inputs: [[Line::ZERO; BLOCK_ROWS]; 2],
            weights: [Line::ZERO; PAIR_LINES],
            sums: [[[0; TILE_COLUMNS]; BLOCK_ROWS]; 4],
        };
    }

    impl TileUnit for EmulatedTiles {
        fn load(&mut self, weights: &[Line; PAIR_LINES], highs: &InputTile, lows: &InputTile) {
            (self.weights, self.inputs) = (*weights, [*highs, *lows]);
        }

        fn multiply_add(&mut self) {
            for (part, sums) in self.sums.iter_mut().enumerate() {
                let weights = &self.weights[part % 2 * TILE_LINES..][..TILE_LINES];
                for (sums, inputs) in sums.iter_mut().zip(&self.inputs[part / 2]) {
                    for (inputs, weights) in inputs.0.as_chunks::<4>().0.iter().zip(weights) {
                        for (sum, weights) in sums.iter_mut().zip(weights.0.as_chunks::<4>().0) {
                            let products = inputs.iter().zip(weights);
                            *sum += products
                                .map(|(input, weight)| i32::from(*input) * i32::from(weight.cast_signed()))
                                .sum::<i32>();
                        }
                    }
                }
            }
        }

        fn store(&mut self, results: &mut MaybeUninit<Results>) {
            let line = |sums: [i32; TILE_COLUMNS]| {
                let mut line = Line::ZERO;
                for (bytes, sum) in line.0.as_chunks_mut().0.iter_mut().zip(sums) {
                    *bytes = sum.to_ne_bytes();
                }
                line
            };
            results.write(self.sums.map(|rows| rows.map(line)));
        }

        fn clear(&mut self) {
            self.sums = Self::EMPTY.sums;
        }
    }

    /// The same products by the pipeline and by AVX-512, for some blocks of a matrix; `None` on a CPU without AVX-512.
    fn products(
        (rows, width): (usize, usize),
        blocks: Range<usize>,
        mode: OutputMode,
    ) -> Option<[Vec<f32>; 2]> {
        let lanes = Avx512::detect()?;
        let kernels =
            Kernels::new(InstructionSet::Avx512(lanes), Precision::Int8, ThreadPool::start(1).unwrap());
        let columns = 4 * BLOCK_COLUMNS;
        let bytes = sample_tensor(TensorType::F16, width, columns);
        let source = ColumnSource { kind: TensorType::F16, columns, bytes: &bytes };
        let matrix = TiledMatrix::new(&kernels, width, &[source]);
        let values: Vec<f32> =
            (0..rows * width).map(|index| ((index * 7919 % 1013) as f32 - 506.0) / 500.0).collect();
        let mut inputs = Activations::default();
        kernels.copy_rows(Rows { values: &values, stride: width }, &mut inputs);
        let run = |multiply: &dyn Fn(&MatmulTask<'_>)| {
            let mut out = vec![0.75; rows * columns];
            let target = Output { out: out.as_mut_ptr(), stride: columns, mode };
            for (blocks, stored) in matrix.stored_blocks(blocks.clone()) {
                let StoredBlocks::Int8(matrix) = stored else { panic!("int8 weights") };
                multiply(&MatmulTask { matrix, blocks, inputs: &inputs, target });
            }
            out
        };
        Some([
            run(&|task| {
                // SAFETY: an `Avx512` exists only if the CPU has the instructions.
                unsafe { multiply_blocks(lanes, EmulatedTiles::EMPTY, task) };
            }),
            run(&|task| avx512::multiply(lanes, task)),
        ])
    }

    fn assert_identical(rows: usize, width: usize, blocks: Range<usize>, mode: OutputMode) {
        if let Some([pipeline, expected]) = products((rows, width), blocks.clone(), mode) {
            let bits =
                |products: &[f32]| products.iter().map(|product| product.to_bits()).collect::<Vec<_>>();
            assert!(bits(&pipeline) == bits(&expected), "{rows} rows, {width} inputs, {blocks:?}, {mode:?}");
        }
    }

    #[test]
    fn pipeline_is_bit_identical_to_avx512_for_every_number_of_rows() {
        // Three groups. Some blocks end with fewer than 16 rows, some with too few for tiles.
        for rows in MIN_ROWS..=RESIDENT_ROWS + BLOCK_ROWS + MIN_ROWS {
            assert_identical(rows, 576, 0..2, OutputMode::Overwrite);
        }
        for rows in [2 * RESIDENT_ROWS, 2 * RESIDENT_ROWS + 1, 2 * RESIDENT_ROWS + MIN_ROWS] {
            assert_identical(rows, 576, 0..2, OutputMode::Overwrite);
        }
    }

    #[test]
    fn pipeline_is_bit_identical_to_avx512_for_groups_of_any_length() {
        // One group of one to three tiles, the last one not full; two groups; a shorter last group.
        for width in [48, 64, 128, 176, 192, 256, 448, 896] {
            for rows in [MIN_ROWS, BLOCK_ROWS, 37, RESIDENT_ROWS, RESIDENT_ROWS + 3] {
                for mode in [OutputMode::Overwrite, OutputMode::Accumulate] {
                    assert_identical(rows, width, 0..3, mode);
                }
            }
        }
    }

    #[test]
    fn pipeline_writes_only_the_blocks_of_its_task() {
        for blocks in [0..1, 1..3, 3..4] {
            for rows in [16, 20, 70] {
                assert_identical(rows, 320, blocks.clone(), OutputMode::Accumulate);
            }
        }
    }
}
