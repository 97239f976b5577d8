//! Weights repacked for the kernels: int8, requantised once when the model loads. 32 columns (outputs) form a block of
//! two adjacent tiles. A tile is 16 columns × 64 inputs, and each of its 64-byte lines holds four consecutive inputs of
//! all 16 columns. AMX multiplies whole tiles, AVX-512 line by line.
//!
//! A block is contiguous, in reading order. For each group of inputs: the tiles, then a scale for each column, then a
//! correction for each column, which is what the offset of 128 in both bytes of every activation adds to its sum.

use super::Kernels;
use super::lanes::round;
use super::weight_memory::Lines;
use crate::gguf::TensorType;
use crate::quantized;
use std::ops::Range;

pub(super) const TILE_COLUMNS: usize = 16;
pub(super) const BLOCK_COLUMNS: usize = 2 * TILE_COLUMNS;
pub(super) const TILE_INPUTS: usize = 64;
/// Consecutive inputs of one column in a line.
const LINE_INPUTS: usize = 4;
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
const OFFSET: i32 = 128 * 256 + 128;

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
    lines: Lines,
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
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Block<'a> {
    pub(super) lines: &'a [Line],
    pub(super) tile_groups: TileGroups,
}

/// Size of a matrix after repacking; `None` on overflow.
pub fn tiled_bytes(inputs: usize, columns: usize) -> Option<u64> {
    let blocks = columns.div_ceil(BLOCK_COLUMNS) as u64;
    blocks.checked_mul((TileGroups::of(inputs.max(1)).block_lines() * size_of::<Line>()) as u64)
}

impl TiledMatrix {
    pub(super) fn new(kernels: &Kernels, inputs: usize, sources: &[ColumnSource<'_>]) -> Self {
        let columns = sources.iter().map(|source| source.columns).sum::<usize>();
        let tile_groups = TileGroups::of(inputs);
        let mut lines = kernels.weights.allocate(columns.div_ceil(BLOCK_COLUMNS) * tile_groups.block_lines());
        kernels.pool.run_chunks(&mut lines, tile_groups.block_lines(), |block, lines| {
            let mut values = vec![0.0; inputs];
            for column in block * BLOCK_COLUMNS..((block + 1) * BLOCK_COLUMNS).min(columns) {
                read_column(sources, column, &mut values);
                requantize(&values, tile_groups, column % BLOCK_COLUMNS, lines);
            }
        });
        Self { columns, inputs, tile_groups, lines }
    }

    pub(super) fn block(&self, index: usize) -> Block<'_> {
        let len = self.tile_groups.block_lines();
        Block { lines: &self.lines[index * len..][..len], tile_groups: self.tile_groups }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }
}

/// Dequantises one column, counted over all sources.
///
/// # Panics
/// If the sources have too few columns, or columns of another length than `values.len()`.
pub(super) fn read_column(sources: &[ColumnSource<'_>], mut column: usize, values: &mut [f32]) {
    for source in sources {
        if column < source.columns {
            let bytes = values.len() / source.kind.block_len() * source.kind.block_bytes();
            quantized::dequantize(source.kind, &source.bytes[column * bytes..][..bytes], values);
            return;
        }
        column -= source.columns;
    }
    unreachable!("{column} columns past the last one");
}

/// Quantises one column to int8, group by group, and writes it into a block.
fn requantize(values: &[f32], tile_groups: TileGroups, column: usize, lines: &mut [Line]) {
    let (tile, lane) = (column / TILE_COLUMNS, column % TILE_COLUMNS);
    for group in 0..tile_groups.groups() {
        let tiles = tile_groups.group(group);
        let values = &values[tiles.start * TILE_INPUTS..values.len().min(tiles.end * TILE_INPUTS)];
        let lines = &mut lines[tile_groups.lines_before(group)..];
        // The bits of non-negative floats order like the floats.
        let largest =
            values.iter().fold(0, |largest: i32, value| largest.max(value.abs().to_bits().cast_signed()));
        let largest = f32::from_bits(largest.cast_unsigned());
        let usable = largest.is_finite() && largest > MIN_LARGEST;
        let inverse = if usable { MAX_WEIGHT / largest } else { 0.0 };
        let mut sum = 0_i32;
        for (part, values) in values.chunks(TILE_INPUTS).enumerate() {
            let mut weights = [0_i8; TILE_INPUTS];
            for (weight, value) in weights.iter_mut().zip(values) {
                *weight = round(value * inverse) as i8;
            }
            // A corrupted file may contain infinities or NaN; the scale is then NaN.
            if !usable {
                weights = [0; TILE_INPUTS];
            }
            sum += weights.iter().map(|weight| i32::from(*weight)).sum::<i32>();
            let lines = &mut lines[(part * 2 + tile) * TILE_LINES..][..TILE_LINES];
            for (line, weights) in lines.iter_mut().zip(weights.as_chunks::<LINE_INPUTS>().0) {
                line.0.as_chunks_mut().0[lane] = weights.map(i8::cast_unsigned);
            }
        }
        let trailer = &mut lines[tiles.len() * PAIR_LINES..];
        let scale = if largest.is_finite() { largest / MAX_WEIGHT } else { f32::NAN };
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

    #[test]
    fn weight_error_is_at_most_half_a_quantization_step() {
        let (inputs, columns) = (704, 37);
        let kernels = Kernels::start(2).unwrap();
        let bytes = sample_tensor(TensorType::Q4_1, inputs, columns);
        let source = ColumnSource { kind: TensorType::Q4_1, columns, bytes: &bytes };
        let matrix = TiledMatrix::new(&kernels, inputs, &[source]);
        assert_eq!(tiled_bytes(inputs, columns), Some(matrix.memory_bytes() as u64));
        let mut expected = vec![0.0; inputs];
        for column in 0..columns {
            read_column(&[source], column, &mut expected);
            let block = matrix.block(column / BLOCK_COLUMNS);
            let (tile, lane) = (column % BLOCK_COLUMNS / TILE_COLUMNS, column % TILE_COLUMNS);
            for group in 0..block.tile_groups.groups() {
                let tiles = block.tile_groups.group(group);
                let lines = &block.lines[block.tile_groups.lines_before(group)..];
                let expected = &expected[tiles.start * TILE_INPUTS..tiles.end * TILE_INPUTS];
                let word = |line: usize| lines[tiles.len() * PAIR_LINES + line].0.as_chunks().0[lane];
                let scale = f32::from_ne_bytes(word(tile));
                let mut sum = 0;
                for (input, expected) in expected.iter().enumerate() {
                    let line = (input / 64 * 2 + tile) * TILE_LINES + input % 64 / 4;
                    let weight = lines[line].0[lane * 4 + input % 4].cast_signed();
                    sum += i32::from(weight);
                    assert!(
                        (f32::from(weight) * scale - expected).abs() <= scale * 0.501,
                        "{column}, {input}"
                    );
                }
                assert_eq!(i32::from_ne_bytes(word(2 + tile)), sum * 32_896);
            }
        }
    }
}
