//! Weights repacked for the kernels: int8, requantised once when the model loads. 32 columns (outputs) form a block of
//! two adjacent tiles. A tile is 16 columns × 64 inputs, and each of its 64-byte lines holds four consecutive inputs of
//! all 16 columns. AMX multiplies whole tiles, AVX-512 line by line.
//!
//! A block is contiguous, in reading order. For each group of inputs: the tiles, then a scale for each column, then a
//! correction for each column, which is what the offset of 128 in both bytes of every activation adds to its sum.
//!
//! Blocks of 4-bit formats are stored with their 4-bit codes instead (`nibbles`).

use super::lanes::round;
use super::nibbles::{self, HALF_INPUTS, PACKED_PAIR_LINES};
use super::weight_memory::Lines;
use super::{InstructionSet, Kernels};
use crate::gguf::TensorType;
use crate::quantized::{self, QuantGroups, QuantizedColumn, quant_groups};
use std::ops::Range;

pub(super) const TILE_COLUMNS: usize = 16;
pub(super) const BLOCK_COLUMNS: usize = 2 * TILE_COLUMNS;
pub(super) const TILE_INPUTS: usize = 64;
/// Consecutive inputs of one column in a line.
pub(super) const LINE_INPUTS: usize = 4;
pub(super) const TILE_LINES: usize = TILE_INPUTS / LINE_INPUTS;
/// Lines of the two tiles of a block.
pub(super) const PAIR_LINES: usize = 2 * TILE_LINES;
/// Lines after a group's tiles: 32 scales, then 32 corrections, four bytes each.
pub(super) const TRAILER_LINES: usize = 4;
/// Maximum tiles per group. Larger groups are faster, because every group costs time, but less accurate, because the
/// largest weight sets the rounding step of all: docs/engine.md has the accuracy. A group's sum fits 32 bits for up to
/// eight tiles.
const MAX_GROUP_TILES: usize = 3;
const MAX_WEIGHT: f32 = 127.0;
/// A group whose largest magnitude is below this counts as zero: the inverse would overflow.
pub(super) const MIN_LARGEST: f32 = 1e-30;
/// What the activation offsets add per unit of weight: 128 in the high byte and 128 in the low one.
pub(super) const OFFSET: i32 = 128 * 256 + 128;

/// A cache line, aligned like one.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u8; 64]);

impl Line {
    pub(super) const ZERO: Self = Self([0; 64]);
}

/// Consecutive columns of a matrix in the file's format: one run of blocks for each column.
#[derive(Clone, Copy, Debug)]
pub struct ColumnSource<'a> {
    pub kind: TensorType,
    pub columns: usize,
    pub bytes: &'a [u8],
}

#[derive(Debug)]
pub(super) struct TiledMatrix {
    pub(super) columns: usize,
    pub(super) inputs: usize,
    pub(super) tile_groups: TileGroups,
    /// All blocks, in order.
    runs: Vec<Run>,
    lines: Lines,
}

/// Consecutive blocks that are stored alike.
#[derive(Clone, Debug)]
struct Run {
    blocks: Range<usize>,
    storage: WeightStorage,
    first_line: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WeightStorage {
    Int8,
    Nibbles,
}

impl WeightStorage {
    /// The storage of weights in this format: 4-bit codes wherever the file has them. They are faster for every number
    /// of rows that is bound by memory, and as fast for more, because a block is widened once for all rows:
    /// docs/engine.md has measurements.
    fn of(kind: TensorType) -> Self {
        match quant_groups(kind) {
            Some(QuantGroups { group_len: HALF_INPUTS, quant_bits: 4 }) => Self::Nibbles,
            _ => Self::Int8,
        }
    }

    /// The storage of one block: 4-bit codes only if all of its columns have them.
    fn of_block(sources: &[ColumnSource<'_>], block: usize) -> Self {
        let columns = block * BLOCK_COLUMNS..(block + 1) * BLOCK_COLUMNS;
        let mut first = 0;
        for source in sources {
            let end = first + source.columns;
            if first < columns.end && columns.start < end && Self::of(source.kind) == Self::Int8 {
                return Self::Int8;
            }
            first = end;
        }
        Self::Nibbles
    }

    fn block_lines(self, tile_groups: TileGroups) -> usize {
        match self {
            Self::Int8 => tile_groups.block_lines(),
            Self::Nibbles => tile_groups.packed_block_lines(),
        }
    }
}

/// Some blocks of a matrix, in one of the two forms.
pub(super) enum StoredBlocks<'a> {
    Int8(TiledBlocks<'a>),
    Nibbles(NibbleBlocks<'a>),
}

/// Consecutive blocks of int8 weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct TiledBlocks<'a> {
    first_block: usize,
    lines: &'a [Line],
    tile_groups: TileGroups,
}

impl<'a> TiledBlocks<'a> {
    /// A block, by its index in the matrix.
    pub(super) fn block(&self, index: usize) -> Block<'a> {
        let len = self.tile_groups.block_lines();
        Block { lines: &self.lines[(index - self.first_block) * len..][..len], tile_groups: self.tile_groups }
    }
}

/// Consecutive blocks of 4-bit weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct NibbleBlocks<'a> {
    first_block: usize,
    lines: &'a [Line],
    pub(super) tile_groups: TileGroups,
}

impl<'a> NibbleBlocks<'a> {
    /// A block, by its index in the matrix.
    pub(super) fn packed_block(&self, index: usize) -> &'a [Line] {
        let len = self.tile_groups.packed_block_lines();
        &self.lines[(index - self.first_block) * len..][..len]
    }

    /// Widens blocks to int8 weights in `buffer`, which grows if it is too small.
    pub(super) fn unpack<'b>(
        &self,
        set: InstructionSet,
        blocks: Range<usize>,
        buffer: &'b mut Vec<Line>,
    ) -> TiledBlocks<'b> {
        let len = self.tile_groups.block_lines();
        if buffer.len() < blocks.len() * len {
            buffer.resize(blocks.len() * len, Line::ZERO);
        }
        let lines = &mut buffer[..blocks.len() * len];
        for (index, lines) in blocks.clone().zip(lines.chunks_exact_mut(len)) {
            nibbles::unpack_block(set, self.packed_block(index), self.tile_groups, lines);
        }
        TiledBlocks { first_block: blocks.start, lines, tile_groups: self.tile_groups }
    }
}

/// How a column's tiles are split into groups: as evenly as whole tiles allow, the last one possibly shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TileGroups {
    /// Tiles of all groups together.
    pub(super) tiles: usize,
    tiles_per_group: usize,
}

impl TileGroups {
    fn of(inputs: usize) -> Self {
        let tiles = inputs.div_ceil(TILE_INPUTS);
        Self { tiles, tiles_per_group: tiles.div_ceil(tiles.div_ceil(MAX_GROUP_TILES).max(1)) }
    }

    pub(super) fn groups(self) -> usize {
        self.tiles.div_ceil(self.tiles_per_group)
    }

    /// The tiles of one group, counted over all groups.
    pub(super) fn group(self, group: usize) -> Range<usize> {
        let first = group * self.tiles_per_group;
        first..self.tiles.min(first + self.tiles_per_group)
    }

    /// Number of lines before a group.
    pub(super) fn lines_before(self, group: usize) -> usize {
        group * (self.tiles_per_group * PAIR_LINES + TRAILER_LINES)
    }

    pub(super) fn block_lines(self) -> usize {
        self.tiles * PAIR_LINES + self.groups() * TRAILER_LINES
    }

    /// Number of lines before a group of 4-bit weights.
    pub(super) fn packed_lines_before(self, group: usize) -> usize {
        group * (self.tiles_per_group * PACKED_PAIR_LINES + TRAILER_LINES)
    }

    pub(super) fn packed_block_lines(self) -> usize {
        self.tiles * PACKED_PAIR_LINES + self.groups() * TRAILER_LINES
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Block<'a> {
    pub(super) lines: &'a [Line],
    pub(super) tile_groups: TileGroups,
}

/// Upper bound of what a tensor adds to the size of the matrix that it becomes part of; `None` on overflow.
pub fn tiled_bytes(kind: TensorType, inputs: usize, columns: usize) -> Option<u64> {
    /// A tensor that does not fill its last block shifts those after it in the matrix, and up to this many blocks may
    /// then have to be stored as int8 because they contain columns of two tensors.
    const SHARED_BLOCKS: usize = 2;
    let tile_groups = TileGroups::of(inputs.max(1));
    let storage = WeightStorage::of(kind);
    let (blocks, rest) = (columns / BLOCK_COLUMNS, columns % BLOCK_COLUMNS);
    let shared = if rest == 0 { 0 } else { 1 + SHARED_BLOCKS };
    let bytes = |blocks: usize, storage: WeightStorage| {
        (blocks as u64).checked_mul((storage.block_lines(tile_groups) * size_of::<Line>()) as u64)
    };
    bytes(blocks, storage)?.checked_add(bytes(shared, WeightStorage::Int8)?)
}

impl TiledMatrix {
    pub(super) fn new(kernels: &Kernels, inputs: usize, sources: &[ColumnSource<'_>]) -> Self {
        let columns = sources.iter().map(|source| source.columns).sum::<usize>();
        let tile_groups = TileGroups::of(inputs);
        let mut runs: Vec<Run> = Vec::new();
        let mut first_line = 0;
        for block in 0..columns.div_ceil(BLOCK_COLUMNS) {
            let storage = WeightStorage::of_block(sources, block);
            match runs.last_mut() {
                Some(run) if run.storage == storage => run.blocks.end = block + 1,
                _ => runs.push(Run { blocks: block..block + 1, storage, first_line }),
            }
            first_line += storage.block_lines(tile_groups);
        }
        let mut lines = kernels.weights.allocate(first_line);
        for Run { blocks, storage, first_line } in &runs {
            let len = storage.block_lines(tile_groups);
            kernels.pool.run_chunks(&mut lines[*first_line..][..blocks.len() * len], len, |block, lines| {
                let first = (blocks.start + block) * BLOCK_COLUMNS;
                let mut values = vec![0.0; inputs];
                let mut quantized = QuantizedColumn::default();
                for column in first..(first + BLOCK_COLUMNS).min(columns) {
                    let (kind, bytes) = column_bytes(sources, column, inputs);
                    match storage {
                        WeightStorage::Int8 => {
                            quantized::dequantize(kind, bytes, &mut values);
                            requantize(&values, tile_groups, column - first, lines);
                        }
                        WeightStorage::Nibbles => {
                            quantized.decode(kind, bytes);
                            quantized.dequantize(&mut values);
                            nibbles::pack_column(&quantized, &values, tile_groups, column - first, lines);
                        }
                    }
                }
            });
        }
        Self { columns, inputs, tile_groups, runs, lines }
    }

    /// These blocks in runs of one form each.
    pub(super) fn stored_blocks(
        &self,
        blocks: Range<usize>,
    ) -> impl Iterator<Item = (Range<usize>, StoredBlocks<'_>)> {
        let tile_groups = self.tile_groups;
        self.runs.iter().filter_map(move |run| {
            let part = blocks.start.max(run.blocks.start)..blocks.end.min(run.blocks.end);
            let len = run.storage.block_lines(tile_groups);
            let first_block = run.blocks.start;
            let lines = &self.lines[run.first_line..][..run.blocks.len() * len];
            let stored = match run.storage {
                WeightStorage::Int8 => StoredBlocks::Int8(TiledBlocks { first_block, lines, tile_groups }),
                WeightStorage::Nibbles => {
                    StoredBlocks::Nibbles(NibbleBlocks { first_block, lines, tile_groups })
                }
            };
            (!part.is_empty()).then_some((part, stored))
        })
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }
}

/// Dequantises one column, counted over all sources.
///
/// # Panics
/// If the sources have too few columns, or columns of another length than `values.len()`.
pub(super) fn read_column(sources: &[ColumnSource<'_>], column: usize, values: &mut [f32]) {
    let (kind, bytes) = column_bytes(sources, column, values.len());
    quantized::dequantize(kind, bytes, values);
}

/// Format and bytes of one column, counted over all sources.
fn column_bytes<'a>(
    sources: &[ColumnSource<'a>],
    mut column: usize,
    inputs: usize,
) -> (TensorType, &'a [u8]) {
    for source in sources {
        if column < source.columns {
            let len = inputs / source.kind.block_len() * source.kind.block_bytes();
            return (source.kind, &source.bytes[column * len..][..len]);
        }
        column -= source.columns;
    }
    unreachable!("{column} columns past the last one");
}

/// The scale of a group of one column.
pub(super) struct GroupScale {
    /// What a weight is per unit of int8 weight. A corrupted file may contain infinities or NaN; the scale is then NaN.
    pub(super) scale: f32,
    /// `None` if all int8 weights are zero.
    pub(super) inverse: Option<f32>,
}

impl GroupScale {
    pub(super) fn new(values: &[f32]) -> Self {
        // The bits of non-negative floats order like the floats.
        let largest =
            values.iter().fold(0, |largest: i32, value| largest.max(value.abs().to_bits().cast_signed()));
        let largest = f32::from_bits(largest.cast_unsigned());
        let usable = largest.is_finite() && largest > MIN_LARGEST;
        Self {
            scale: if largest.is_finite() { largest / MAX_WEIGHT } else { f32::NAN },
            inverse: usable.then_some(MAX_WEIGHT / largest),
        }
    }
}

/// Quantises one column to int8, group by group, and writes it into a block.
fn requantize(values: &[f32], tile_groups: TileGroups, column: usize, lines: &mut [Line]) {
    let (tile, lane) = (column / TILE_COLUMNS, column % TILE_COLUMNS);
    for group in 0..tile_groups.groups() {
        let tiles = tile_groups.group(group);
        let values = &values[tiles.start * TILE_INPUTS..values.len().min(tiles.end * TILE_INPUTS)];
        let lines = &mut lines[tile_groups.lines_before(group)..];
        let GroupScale { scale, inverse } = GroupScale::new(values);
        let mut sum = 0_i32;
        for (part, values) in values.chunks(TILE_INPUTS).enumerate() {
            let mut weights = [0_i8; TILE_INPUTS];
            if let Some(inverse) = inverse {
                for (weight, value) in weights.iter_mut().zip(values) {
                    *weight = round(value * inverse) as i8;
                }
            }
            sum += weights.iter().map(|weight| i32::from(*weight)).sum::<i32>();
            let lines = &mut lines[(part * 2 + tile) * TILE_LINES..][..TILE_LINES];
            for (line, weights) in lines.iter_mut().zip(weights.as_chunks::<LINE_INPUTS>().0) {
                line.0.as_chunks_mut().0[lane] = weights.map(i8::cast_unsigned);
            }
        }
        let trailer = &mut lines[tiles.len() * PAIR_LINES..];
        trailer[tile].0.as_chunks_mut().0[lane] = scale.to_ne_bytes();
        trailer[2 + tile].0.as_chunks_mut().0[lane] = (sum * OFFSET).to_ne_bytes();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Varying tensor bytes, with scales that are small finite numbers.
    pub(in crate::kernels) fn sample_tensor(kind: TensorType, inputs: usize, columns: usize) -> Vec<u8> {
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 32) as u8
        };
        let mut bytes: Vec<u8> =
            (0..inputs / kind.block_len() * kind.block_bytes() * columns).map(|_| next()).collect();
        // Half-precision numbers between 2^-6 and 2^-5 wherever a format stores one; similarly for unquantised formats.
        for block in bytes.chunks_exact_mut(kind.block_bytes()) {
            let halves: &[usize] = match kind {
                TensorType::F32 => {
                    block[3] = 0x3c | block[3] & 0x80;
                    &[]
                }
                TensorType::Bf16 => {
                    block[1] = 0x3c | block[1] & 0x80;
                    &[]
                }
                TensorType::F16 | TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 => &[0],
                TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4K | TensorType::Q5K => &[0, 2],
                TensorType::Q6K => &[208],
            };
            for at in halves {
                block[at + 1] = 0x24 | block[at + 1] & 0x83;
            }
        }
        bytes
    }

    #[test]
    fn groups_are_even_and_within_the_maximum_length() {
        let tiles = |inputs| -> Vec<usize> {
            let tile_groups = TileGroups::of(inputs);
            (0..tile_groups.groups()).map(|group| tile_groups.group(group).len()).collect()
        };
        assert_eq!(tiles(48), [1]);
        assert_eq!(tiles(384), [3, 3]);
        assert_eq!(tiles(576), [3, 3, 3]);
        assert_eq!(tiles(896), [3, 3, 3, 3, 2]);
        assert_eq!(tiles(1_536), [3; 8]);
        for inputs in (16..4_000).step_by(16) {
            let tiles = tiles(inputs);
            assert_eq!(tiles.iter().sum::<usize>(), inputs.div_ceil(TILE_INPUTS));
            assert!(tiles.iter().all(|count| (1..=MAX_GROUP_TILES).contains(count)), "{inputs}: {tiles:?}");
        }
    }

    /// All blocks as int8, with the same weights.
    fn unpacked(matrix: &TiledMatrix, set: InstructionSet) -> Vec<Line> {
        let mut all = Vec::new();
        for (blocks, stored) in matrix.stored_blocks(0..matrix.columns.div_ceil(BLOCK_COLUMNS)) {
            let mut buffer = Vec::new();
            let tiled = match stored {
                StoredBlocks::Int8(tiled) => tiled,
                StoredBlocks::Nibbles(packed) => packed.unpack(set, blocks.clone(), &mut buffer),
            };
            blocks.for_each(|block| all.extend_from_slice(tiled.block(block).lines));
        }
        all
    }

    /// The same matrix with its blocks stored as int8.
    pub(in crate::kernels) fn as_int8(kernels: &Kernels, matrix: &TiledMatrix) -> TiledMatrix {
        let unpacked = unpacked(matrix, kernels.set);
        let mut lines = kernels.weights.allocate(unpacked.len());
        lines.copy_from_slice(&unpacked);
        let blocks = 0..matrix.columns.div_ceil(BLOCK_COLUMNS);
        let run = Run { blocks, storage: WeightStorage::Int8, first_line: 0 };
        let TiledMatrix { columns, inputs, tile_groups, .. } = *matrix;
        TiledMatrix { columns, inputs, tile_groups, runs: vec![run], lines }
    }

    pub(in crate::kernels) fn is_packed(matrix: &TiledMatrix) -> bool {
        matrix.runs.iter().any(|run| run.storage == WeightStorage::Nibbles)
    }

    /// The largest error of a weight, in steps of the column's scale.
    fn max_weight_error(kind: TensorType, inputs: usize, columns: usize) -> f32 {
        let kernels = Kernels::start(2).unwrap();
        let bytes = sample_tensor(kind, inputs, columns);
        let source = ColumnSource { kind, columns, bytes: &bytes };
        let matrix = TiledMatrix::new(&kernels, inputs, &[source]);
        assert!(matrix.memory_bytes() as u64 <= tiled_bytes(kind, inputs, columns).unwrap(), "{kind}");
        assert_eq!(is_packed(&matrix), [TensorType::Q4_0, TensorType::Q4_1, TensorType::Q4K].contains(&kind));
        let tile_groups = matrix.tile_groups;
        let all = unpacked(&matrix, kernels.set);
        let mut max_error = 0.0_f32;
        let mut expected = vec![0.0; inputs];
        for column in 0..columns {
            read_column(&[source], column, &mut expected);
            let block = &all[column / BLOCK_COLUMNS * tile_groups.block_lines()..];
            let (tile, lane) = (column % BLOCK_COLUMNS / TILE_COLUMNS, column % TILE_COLUMNS);
            for group in 0..tile_groups.groups() {
                let tiles = tile_groups.group(group);
                let lines = &block[tile_groups.lines_before(group)..];
                let expected = &expected[tiles.start * TILE_INPUTS..tiles.end * TILE_INPUTS];
                let word = |line: usize| lines[tiles.len() * PAIR_LINES + line].0.as_chunks().0[lane];
                let scale = f32::from_ne_bytes(word(tile));
                let mut sum = 0;
                for (input, expected) in expected.iter().enumerate() {
                    let line = (input / 64 * 2 + tile) * TILE_LINES + input % 64 / 4;
                    let weight = lines[line].0[lane * 4 + input % 4].cast_signed();
                    assert_ne!(weight, i8::MIN);
                    sum += i32::from(weight);
                    max_error = max_error.max((f32::from(weight) - expected / scale).abs());
                }
                assert_eq!(i32::from_ne_bytes(word(2 + tile)), sum * 32_896);
            }
        }
        max_error
    }

    #[test]
    fn weight_error_is_at_most_half_a_quantization_step() {
        for kind in [TensorType::Q8_0, TensorType::Q5_1, TensorType::F16] {
            let error = max_weight_error(kind, 704, 37);
            assert!(error <= 0.501, "{kind}: {error}");
        }
    }

    /// The step has 16 bits, so a code at the end of its range may be off by 7.5 × 0.5 + 0.5 parts of 256.
    #[test]
    fn weight_error_of_packed_4_bit_formats_is_hardly_more() {
        for kind in [TensorType::Q4_0, TensorType::Q4_1, TensorType::Q4K] {
            let error = max_weight_error(kind, 2_816, 67);
            assert!(error <= 0.518, "{kind}: {error}");
        }
    }

    #[test]
    fn blocks_are_packed_where_all_columns_have_4_bits_and_never_exceed_the_estimate() {
        let kernels = Kernels::start(1).unwrap();
        for columns in [[32, 32, 64], [40, 64, 32], [33, 31, 95], [7, 128, 1]] {
            for kinds in [
                [TensorType::Q4_0, TensorType::Q8_0, TensorType::Q4_1],
                [TensorType::Q8_0, TensorType::Q4_1, TensorType::Q8_0],
                [TensorType::Q4_0; 3],
            ] {
                let bytes = [0, 1, 2].map(|part| sample_tensor(kinds[part], 96, columns[part]));
                let sources = [0, 1, 2].map(|part| ColumnSource {
                    kind: kinds[part],
                    columns: columns[part],
                    bytes: &bytes[part],
                });
                let matrix = TiledMatrix::new(&kernels, 96, &sources);
                let estimate: u64 =
                    [0, 1, 2].map(|part| tiled_bytes(kinds[part], 96, columns[part]).unwrap()).iter().sum();
                assert!(matrix.memory_bytes() as u64 <= estimate, "{columns:?} {kinds:?}");
                let mut next = 0;
                for (blocks, stored) in matrix.stored_blocks(0..columns.iter().sum::<usize>().div_ceil(32)) {
                    assert_eq!(blocks.start, next);
                    next = blocks.end;
                    for block in blocks {
                        let is_packed = matches!(stored, StoredBlocks::Nibbles(_));
                        let mut kinds_of_block = (block * 32..(block + 1) * 32).filter_map(|column| {
                            let ends = [columns[0], columns[0] + columns[1], columns.iter().sum()];
                            ends.iter().position(|end| column < *end).map(|part| kinds[part])
                        });
                        assert_eq!(is_packed, kinds_of_block.all(|kind| kind != TensorType::Q8_0));
                    }
                }
            }
        }
    }
}
