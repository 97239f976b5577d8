//! Weights of 4-bit formats, stored with their 4-bit codes: about 5 bits a weight instead of 8. For each column and 32
//! inputs there is a step and an offset, 16 bits each, and the int8 weight is `(step × code + offset) >> 8`. So both
//! forms of a matrix hold the same int8 weights, and give the same products.
//!
//! A block has the groups, scales and corrections of `tiles`. In place of a pair of tiles it has two halves of 32 inputs.
//! A half is a line of steps and offsets for each tile, then four lines of codes for each tile, the two tiles
//! alternating. A line of codes holds two lines of the tile: one in the low halves of its bytes, the other in the high
//! ones.

use super::InstructionSet;
use super::lanes::Lanes;
use super::tiles::{
    GroupScale, LINE_INPUTS, Line, OFFSET, PAIR_LINES, TILE_COLUMNS, TILE_INPUTS, TILE_LINES, TRAILER_LINES,
    TileGroups,
};
use crate::quantized::QuantizedColumn;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Inputs that share a step and an offset: those that share a scale in every 4-bit format.
pub(super) const HALF_INPUTS: usize = 32;
/// Lines of codes of one tile in a half.
pub(super) const HALF_CODE_LINES: usize = HALF_INPUTS / LINE_INPUTS / 2;
/// Lines of a half: steps and offsets of both tiles, then their codes.
pub(super) const HALF_LINES: usize = 2 + 2 * HALF_CODE_LINES;
/// Lines of both halves of a pair of tiles.
pub(super) const PACKED_PAIR_LINES: usize = TILE_INPUTS / HALF_INPUTS * HALF_LINES;
/// The middle of the codes' range, where the offset compensates for the rounding of the step.
const MIDDLE_CODE: f64 = 7.5;

/// The int8 weights of 32 inputs of one column, as a function of their codes.
#[derive(Clone, Copy, Debug, Default)]
struct StepAndOffset {
    step: i16,
    offset: i16,
}

impl StepAndOffset {
    /// For weights `(scale × code + minimum) × inverse`. The code of a weight within ±127 never leaves that range; for
    /// codes that do not occur the result may wrap.
    fn new(scale: f32, minimum: f32, inverse: f32) -> Self {
        let factor = 256.0 * f64::from(inverse);
        let (scale, minimum) = (factor * f64::from(scale), factor * f64::from(minimum));
        let step = scale.round_ties_even();
        let offset = (minimum + (scale - step) * MIDDLE_CODE).round_ties_even() + 128.0;
        // Arithmetic is modulo 2^16, so only the low bits count.
        Self { step: step as i64 as i16, offset: offset as i64 as i16 }
    }

    fn weight(self, code: u8) -> i8 {
        (self.step.wrapping_mul(i16::from(code)).wrapping_add(self.offset) >> 8) as i8
    }
}

/// Packs one column, given by its codes and its values, into a block.
pub(super) fn pack_column(
    source: &QuantizedColumn,
    values: &[f32],
    tile_groups: TileGroups,
    column: usize,
    lines: &mut [Line],
) {
    let (tile, lane) = (column / TILE_COLUMNS, column % TILE_COLUMNS);
    for group in 0..tile_groups.groups() {
        let tiles = tile_groups.group(group);
        let inputs = tiles.start * TILE_INPUTS..values.len().min(tiles.end * TILE_INPUTS);
        let lines = &mut lines[tile_groups.packed_lines_before(group)..];
        let group_scale = GroupScale::new(&values[inputs.clone()]);
        let mut sum = 0_i32;
        for (half, first) in inputs.step_by(HALF_INPUTS).enumerate() {
            let index = first / HALF_INPUTS;
            let to_weight = match group_scale.inverse {
                Some(inverse) => StepAndOffset::new(source.scales[index], source.minimums[index], inverse),
                None => StepAndOffset::default(),
            };
            let (codes, _) = source.quants[first..first + HALF_INPUTS].as_chunks::<LINE_INPUTS>();
            sum += codes.as_flattened().iter().map(|code| i32::from(to_weight.weight(*code))).sum::<i32>();
            let lines = &mut lines[half * HALF_LINES..][..HALF_LINES];
            let [low, high] = to_weight.step.to_le_bytes();
            let [offset_low, offset_high] = to_weight.offset.to_le_bytes();
            lines[tile].0.as_chunks_mut().0[lane] = [low, high, offset_low, offset_high];
            for (pair, codes) in codes.as_chunks::<2>().0.iter().enumerate() {
                let [low, high] = codes.map(u32::from_le_bytes);
                let bytes = &mut lines[2 + 2 * pair + tile].0.as_chunks_mut::<LINE_INPUTS>().0[lane];
                // All codes are below 16, so no bit crosses into another byte.
                *bytes = (low | high << 4).to_le_bytes();
            }
        }
        let trailer = &mut lines[tiles.len() * PACKED_PAIR_LINES..];
        trailer[tile].0.as_chunks_mut().0[lane] = group_scale.scale.to_ne_bytes();
        trailer[2 + tile].0.as_chunks_mut().0[lane] = (sum * OFFSET).to_ne_bytes();
    }
}

/// Writes a packed block's int8 weights, scales and corrections to `out`, as `tiles` describes them.
///
/// # Panics
/// If the lengths of `packed` and `out` are not those of a block.
pub(super) fn unpack_block(set: InstructionSet, packed: &[Line], tile_groups: TileGroups, out: &mut [Line]) {
    assert_eq!(packed.len(), tile_groups.packed_block_lines(), "a packed block");
    assert_eq!(out.len(), tile_groups.block_lines(), "a block");
    let (mut packed, mut out) = (packed, out);
    for group in 0..tile_groups.groups() {
        let tiles = tile_groups.group(group).len();
        let (tiles_in, rest) = packed.split_at(tiles * PACKED_PAIR_LINES);
        let (tiles_out, rest_out) = out.split_at_mut(tiles * PAIR_LINES);
        match set {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512(_) | InstructionSet::Amx(_) => {
                // SAFETY: these sets exist only if the CPU has the instructions.
                unsafe { unpack_tiles_avx512(tiles_in, tiles_out) };
            }
            _ => super::dispatch!(set, unpack_tiles, (tiles_in, tiles_out), (&[Line], &mut [Line])),
        }
        let (trailer, rest) = rest.split_at(TRAILER_LINES);
        let (trailer_out, rest_out) = rest_out.split_at_mut(TRAILER_LINES);
        trailer_out.copy_from_slice(trailer);
        (packed, out) = (rest, rest_out);
    }
}

/// The line of a pair of tiles at which a line of codes begins, in an unpacked pair of tiles.
const fn unpacked_line(half: usize, pair: usize, tile: usize) -> usize {
    tile * TILE_LINES + half * 2 * HALF_CODE_LINES + 2 * pair
}

#[inline(always)]
fn unpack_tiles<L: Lanes>(_lanes: L, (packed, out): (&[Line], &mut [Line])) {
    let pairs = packed.chunks_exact(PACKED_PAIR_LINES).zip(out.chunks_exact_mut(PAIR_LINES));
    for (packed, out) in pairs {
        for (half, packed) in packed.chunks_exact(HALF_LINES).enumerate() {
            for tile in 0..2 {
                let mut steps = [0_i16; 32];
                let mut offsets = [0_i16; 32];
                for (lane, bytes) in packed[tile].0.as_chunks::<4>().0.iter().enumerate() {
                    let step = i16::from_le_bytes([bytes[0], bytes[1]]);
                    let offset = i16::from_le_bytes([bytes[2], bytes[3]]);
                    (steps[2 * lane], steps[2 * lane + 1]) = (step, step);
                    (offsets[2 * lane], offsets[2 * lane + 1]) = (offset, offset);
                }
                for pair in 0..HALF_CODE_LINES {
                    let codes = packed[2 + 2 * pair + tile].0.as_chunks::<2>().0;
                    let [first, second] =
                        &mut out[unpacked_line(half, pair, tile)..].as_chunks_mut::<2>().0[0];
                    let first = first.0.as_chunks_mut::<2>().0;
                    let second = second.0.as_chunks_mut::<2>().0;
                    for lane in 0..32 {
                        let codes = u16::from_le_bytes(codes[lane]);
                        let high_byte = |code: u16| {
                            let code = (code & 15).cast_signed();
                            code.wrapping_mul(steps[lane]).wrapping_add(offsets[lane]).cast_unsigned()
                        };
                        let both = |even: u16, odd: u16| (even >> 8 | odd & 0xff00).to_le_bytes();
                        first[lane] = both(high_byte(codes), high_byte(codes >> 8));
                        second[lane] = both(high_byte(codes >> 4), high_byte(codes >> 12));
                    }
                }
            }
        }
    }
}

/// Steps and offsets of 16 columns in registers, each repeated for both 16-bit halves of a column.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Decoder {
    steps: __m512i,
    offsets: __m512i,
}

#[cfg(target_arch = "x86_64")]
impl Decoder {
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    pub(super) fn new(line: &Line) -> Self {
        // SAFETY: a line is 64 aligned bytes.
        let both = unsafe { _mm512_load_si512((&raw const line.0).cast()) };
        let repeat = |bytes: i32| {
            let next = |column: i32| bytes + column * 0x0404_0404;
            _mm512_shuffle_epi8(both, _mm512_set4_epi32(next(3), next(2), next(1), bytes))
        };
        Self { steps: repeat(0x0100_0100), offsets: repeat(0x0302_0302) }
    }

    /// The two lines of int8 weights of a line of codes.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    pub(super) fn decode(self, codes: __m512i) -> [__m512i; 2] {
        /// Bits of the third operand where the first is set, otherwise bits of the second.
        const SELECT: i32 = 0b1100_1010;
        let low = _mm512_set1_epi16(15);
        let high_bytes = _mm512_set1_epi16(0xff00_u16.cast_signed());
        let weights = |codes| _mm512_add_epi16(_mm512_mullo_epi16(codes, self.steps), self.offsets);
        let both = |even, odd| {
            let (even, odd) = (_mm512_srli_epi16::<8>(weights(even)), weights(odd));
            _mm512_ternarylogic_epi32::<SELECT>(high_bytes, odd, even)
        };
        [
            both(_mm512_and_si512(codes, low), _mm512_and_si512(_mm512_srli_epi16::<8>(codes), low)),
            both(_mm512_and_si512(_mm512_srli_epi16::<4>(codes), low), _mm512_srli_epi16::<12>(codes)),
        ]
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
fn unpack_tiles_avx512(packed: &[Line], out: &mut [Line]) {
    /// Prefetch distance.
    const PREFETCH_LINES: usize = 48;
    let pairs =
        packed.as_chunks::<PACKED_PAIR_LINES>().0.iter().zip(out.as_chunks_mut::<PAIR_LINES>().0.iter_mut());
    for (packed, out) in pairs {
        for (half, packed) in packed.as_chunks::<HALF_LINES>().0.iter().enumerate() {
            for line in packed {
                // Any address may be prefetched.
                _mm_prefetch::<_MM_HINT_T0>((&raw const *line).wrapping_add(PREFETCH_LINES).cast());
            }
            for tile in 0..2 {
                let decoder = Decoder::new(&packed[tile]);
                for pair in 0..HALF_CODE_LINES {
                    let line = unpacked_line(half, pair, tile);
                    // SAFETY: a line is 64 aligned bytes.
                    unsafe {
                        let codes = _mm512_load_si512((&raw const packed[2 + 2 * pair + tile].0).cast());
                        for (line, weights) in out[line..line + 2].iter_mut().zip(decoder.decode(codes)) {
                            _mm512_store_si512((&raw mut line.0).cast(), weights);
                        }
                    }
                }
            }
        }
    }
}
