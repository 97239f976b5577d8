//! The block formats of GGUF. Every quantised one reduces to the same form: small unsigned codes in groups, each group
//! with a scale and a minimum, `value = scale × code + minimum`. Decoding into that form is lossless; the kernels keep
//! it and never need to know a weight's original format.

use crate::gguf::TensorType;
use crate::half_precision::{bf16_to_f32, f16_to_f32};

/// Values in the largest block, and its groups.
const MAX_BLOCK_LEN: usize = 256;
const MAX_GROUPS: usize = 16;

/// One decoded block; only the first `block_len` codes and their groups are valid.
pub struct Block {
    pub quants: [u8; MAX_BLOCK_LEN],
    pub scales: [f32; MAX_GROUPS],
    pub minimums: [f32; MAX_GROUPS],
}

impl Default for Block {
    fn default() -> Self {
        Self { quants: [0; MAX_BLOCK_LEN], scales: [0.0; MAX_GROUPS], minimums: [0.0; MAX_GROUPS] }
    }
}

/// How a quantised format groups its codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantGroups {
    /// Values that share a scale and a minimum.
    pub group_len: usize,
    /// 4 if all codes are below 16, otherwise 8.
    pub quant_bits: u32,
}

/// `None` for unquantised formats.
pub fn quant_groups(kind: TensorType) -> Option<QuantGroups> {
    match kind {
        TensorType::F32 | TensorType::F16 | TensorType::Bf16 => None,
        TensorType::Q4_0 | TensorType::Q4_1 | TensorType::Q4K => {
            Some(QuantGroups { group_len: 32, quant_bits: 4 })
        }
        TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q8_0 | TensorType::Q5K => {
            Some(QuantGroups { group_len: 32, quant_bits: 8 })
        }
        TensorType::Q6K => Some(QuantGroups { group_len: 16, quant_bits: 8 }),
    }
}

/// Decodes one block of a quantised format.
///
/// # Panics
/// If `bytes` is not `kind.block_bytes()` long, or `kind` is not quantised.
pub fn decode_block(kind: TensorType, bytes: &[u8], block: &mut Block) {
    assert_eq!(bytes.len(), kind.block_bytes(), "a {kind} block has a fixed size");
    let half = |at: usize| f16_to_f32(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    match kind {
        TensorType::Q4_0 => {
            let scale = half(0);
            split_nibbles(&bytes[2..18], &mut block.quants);
            block.scales[0] = scale;
            block.minimums[0] = -8.0 * scale;
        }
        TensorType::Q4_1 => {
            split_nibbles(&bytes[4..20], &mut block.quants);
            block.scales[0] = half(0);
            block.minimums[0] = half(2);
        }
        TensorType::Q5_0 => {
            let scale = half(0);
            split_nibbles(&bytes[6..22], &mut block.quants);
            set_fifth_bits(&bytes[2..6], &mut block.quants);
            block.scales[0] = scale;
            block.minimums[0] = -16.0 * scale;
        }
        TensorType::Q5_1 => {
            split_nibbles(&bytes[8..24], &mut block.quants);
            set_fifth_bits(&bytes[4..8], &mut block.quants);
            block.scales[0] = half(0);
            block.minimums[0] = half(2);
        }
        TensorType::Q8_0 => {
            let scale = half(0);
            for (code, byte) in block.quants.iter_mut().zip(&bytes[2..34]) {
                // Signed bytes shifted up by 128; the minimum undoes the shift.
                *code = byte ^ 0x80;
            }
            block.scales[0] = scale;
            block.minimums[0] = -128.0 * scale;
        }
        TensorType::Q4K => {
            decode_k_scales(half(0), half(2), &bytes[4..16], block);
            for (chunk, nibbles) in bytes[16..144].chunks_exact(32).enumerate() {
                split_wide_nibbles(nibbles, &mut block.quants[chunk * 64..][..64]);
            }
        }
        TensorType::Q5K => {
            decode_k_scales(half(0), half(2), &bytes[4..16], block);
            let high = &bytes[16..48];
            for (chunk, nibbles) in bytes[48..176].chunks_exact(32).enumerate() {
                let quants = &mut block.quants[chunk * 64..][..64];
                split_wide_nibbles(nibbles, quants);
                for (index, bits) in high.iter().enumerate() {
                    quants[index] |= (bits >> (2 * chunk) & 1) << 4;
                    quants[index + 32] |= (bits >> (2 * chunk + 1) & 1) << 4;
                }
            }
        }
        TensorType::Q6K => decode_q6_k(bytes, half(208), block),
        TensorType::F32 | TensorType::F16 | TensorType::Bf16 => {
            unreachable!("{kind} is not a quantised format")
        }
    }
}

/// Codes, scales and minimums of consecutive blocks; the buffers are reused.
#[derive(Debug, Default)]
pub struct QuantizedColumn {
    pub quants: Vec<u8>,
    /// One for each group of `quant_groups`, like the minimums.
    pub scales: Vec<f32>,
    pub minimums: Vec<f32>,
}

impl QuantizedColumn {
    /// Decodes whole blocks of a quantised format.
    ///
    /// # Panics
    /// If `kind` is not quantised.
    pub fn decode(&mut self, kind: TensorType, bytes: &[u8]) {
        self.quants.clear();
        self.scales.clear();
        self.minimums.clear();
        let groups = quant_groups(kind).map_or(0, |groups| kind.block_len() / groups.group_len);
        let mut block = Block::default();
        for bytes in bytes.chunks_exact(kind.block_bytes()) {
            decode_block(kind, bytes, &mut block);
            self.quants.extend_from_slice(&block.quants[..kind.block_len()]);
            self.scales.extend_from_slice(&block.scales[..groups]);
            self.minimums.extend_from_slice(&block.minimums[..groups]);
        }
    }

    /// The values of the decoded blocks.
    ///
    /// # Panics
    /// If nothing was decoded.
    pub fn dequantize(&self, values: &mut [f32]) {
        let group_len = self.quants.len() / self.scales.len();
        dequantize_groups(group_len, &self.quants, &self.scales, &self.minimums, values);
    }
}

/// Writes the values of whole groups. The inner loop has neither a division nor a bounds check, so that it becomes vector
/// instructions: every weight of a model goes through it at a start.
fn dequantize_groups(group_len: usize, quants: &[u8], scales: &[f32], minimums: &[f32], values: &mut [f32]) {
    let groups = values.chunks_exact_mut(group_len).zip(quants.chunks_exact(group_len));
    for ((values, quants), (scale, minimum)) in groups.zip(scales.iter().zip(minimums)) {
        for (value, quant) in values.iter_mut().zip(quants) {
            *value = scale * f32::from(*quant) + minimum;
        }
    }
}

/// Unpacks 16 bytes to 32 codes: all low nibbles first, then all high ones.
fn split_nibbles(bytes: &[u8], quants: &mut [u8]) {
    for (index, byte) in bytes.iter().enumerate() {
        quants[index] = byte & 15;
        quants[index + 16] = byte >> 4;
    }
}

fn split_wide_nibbles(bytes: &[u8], quants: &mut [u8]) {
    for (index, byte) in bytes.iter().enumerate() {
        quants[index] = byte & 15;
        quants[index + 32] = byte >> 4;
    }
}

fn set_fifth_bits(bytes: &[u8], quants: &mut [u8]) {
    let bits = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    for (index, code) in quants.iter_mut().take(32).enumerate() {
        *code |= ((bits >> index & 1) as u8) << 4;
    }
}

/// Eight 6-bit scales and eight 6-bit minimums, packed into twelve bytes.
fn decode_k_scales(scale: f32, minimum: f32, packed: &[u8], block: &mut Block) {
    for group in 0..8 {
        let (group_scale, group_minimum) = if group < 4 {
            (packed[group] & 63, packed[group + 4] & 63)
        } else {
            (
                packed[group + 4] & 15 | packed[group - 4] >> 6 << 4,
                packed[group + 4] >> 4 | packed[group] >> 6 << 4,
            )
        };
        block.scales[group] = scale * f32::from(group_scale);
        block.minimums[group] = -(minimum * f32::from(group_minimum));
    }
}

fn decode_q6_k(bytes: &[u8], scale: f32, block: &mut Block) {
    for half in 0..2 {
        let low = &bytes[half * 64..][..64];
        let high = &bytes[128 + half * 32..][..32];
        let quants = &mut block.quants[half * 128..][..128];
        for index in 0..32 {
            let bits = high[index];
            quants[index] = low[index] & 15 | (bits & 3) << 4;
            quants[index + 32] = low[index + 32] & 15 | (bits >> 2 & 3) << 4;
            quants[index + 64] = low[index] >> 4 | (bits >> 4 & 3) << 4;
            quants[index + 96] = low[index + 32] >> 4 | (bits >> 6) << 4;
        }
    }
    for (group, byte) in bytes[192..208].iter().enumerate() {
        block.scales[group] = scale * f32::from(*byte as i8);
        block.minimums[group] = -32.0 * block.scales[group];
    }
}

/// Dequantises whole blocks of any format.
///
/// # Panics
/// If `bytes` does not hold exactly `values.len()` values of the format.
pub fn dequantize(kind: TensorType, bytes: &[u8], values: &mut [f32]) {
    assert_eq!(values.len() % kind.block_len(), 0, "whole {kind} blocks");
    assert_eq!(values.len() / kind.block_len() * kind.block_bytes(), bytes.len(), "whole {kind} blocks");
    let halves = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    match kind {
        TensorType::F32 => {
            for (value, quad) in values.iter_mut().zip(bytes.chunks_exact(4)) {
                *value = f32::from_le_bytes([quad[0], quad[1], quad[2], quad[3]]);
            }
        }
        TensorType::F16 => values.iter_mut().zip(halves).for_each(|(value, bits)| *value = f16_to_f32(bits)),
        TensorType::Bf16 => {
            values.iter_mut().zip(halves).for_each(|(value, bits)| *value = bf16_to_f32(bits));
        }
        _ => {
            let group_len = quant_groups(kind).map_or(1, |quant_groups| quant_groups.group_len);
            let mut block = Block::default();
            for (bytes, values) in
                bytes.chunks_exact(kind.block_bytes()).zip(values.chunks_exact_mut(kind.block_len()))
            {
                decode_block(kind, bytes, &mut block);
                dequantize_groups(group_len, &block.quants, &block.scales, &block.minimums, values);
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these results are exact")]
mod tests {
    use super::*;

    const ONE: [u8; 2] = 0x3c00_u16.to_le_bytes();
    const HALF: [u8; 2] = 0x3800_u16.to_le_bytes();
    const TWO: [u8; 2] = 0x4000_u16.to_le_bytes();

    fn values(kind: TensorType, bytes: &[u8]) -> Vec<f32> {
        let mut values = vec![0.0; kind.block_len()];
        dequantize(kind, bytes, &mut values);
        values
    }

    #[test]
    fn unquantized_formats_are_read_directly() {
        assert_eq!(values(TensorType::F32, &1.25_f32.to_le_bytes()), [1.25]);
        assert_eq!(values(TensorType::F16, &TWO), [2.0]);
        assert_eq!(values(TensorType::Bf16, &0xbf80_u16.to_le_bytes()), [-1.0]);
    }

    #[test]
    fn q4_0_has_offset_8_and_low_nibbles_first() {
        let mut bytes = HALF.to_vec();
        bytes.extend([0x80; 16]);
        bytes[2] = 0xf1;
        let values = values(TensorType::Q4_0, &bytes);
        assert_eq!((values[0], values[1], values[16], values[17]), (-3.5, -4.0, 3.5, 0.0));
    }

    #[test]
    fn q4_1_adds_its_minimum() {
        let mut bytes = [ONE, HALF].concat();
        bytes.extend([0x21; 16]);
        let values = values(TensorType::Q4_1, &bytes);
        assert_eq!((values[0], values[15], values[16], values[31]), (1.5, 1.5, 2.5, 2.5));
    }

    #[test]
    fn q5_0_takes_its_fifth_bit_from_the_mask() {
        let mut bytes = ONE.to_vec();
        bytes.extend((1_u32 | 1 << 31).to_le_bytes());
        bytes.extend([0x10; 16]);
        let values = values(TensorType::Q5_0, &bytes);
        assert_eq!((values[0], values[1], values[16], values[31]), (0.0, -16.0, -15.0, 1.0));
    }

    #[test]
    fn q5_1_takes_its_fifth_bit_and_adds_its_minimum() {
        let mut bytes = [TWO, ONE].concat();
        bytes.extend((1_u32 << 16).to_le_bytes());
        bytes.extend([0x31; 16]);
        let values = values(TensorType::Q5_1, &bytes);
        assert_eq!((values[0], values[16], values[17]), (3.0, 2.0 * 19.0 + 1.0, 7.0));
    }

    #[test]
    fn q8_0_is_signed() {
        let mut bytes = HALF.to_vec();
        bytes.extend([0_u8; 32]);
        (bytes[2], bytes[3], bytes[33]) = (127, 0x80, 0xff);
        let values = values(TensorType::Q8_0, &bytes);
        assert_eq!((values[0], values[1], values[2], values[31]), (63.5, -64.0, 0.0, -0.5));
    }

    /// Scales 5, 10, … 40 and minimums 7, 14, … 56, so that the last groups use the upper two bits.
    fn k_scales() -> [u8; 12] {
        let mut packed = [0_u8; 12];
        let (scales, minimums): (Vec<u8>, Vec<u8>) = (1..=8).map(|group| (group * 5, group * 7)).unzip();
        for group in 0..4 {
            packed[group] = scales[group] | scales[group + 4] >> 4 << 6;
            packed[group + 4] = minimums[group] | minimums[group + 4] >> 4 << 6;
            packed[group + 8] = scales[group + 4] & 15 | minimums[group + 4] << 4;
        }
        packed
    }

    #[test]
    fn q4_k_has_a_scale_and_a_minimum_per_32_values() {
        let mut bytes = [ONE, HALF].concat();
        bytes.extend(k_scales());
        bytes.extend([0x52; 128]);
        let values = values(TensorType::Q4K, &bytes);
        for (group, chunk) in values.chunks(32).enumerate() {
            let code = if group % 2 == 0 { 2.0 } else { 5.0 };
            let (scale, minimum) = ((group + 1) as f32 * 5.0, (group + 1) as f32 * 3.5);
            assert!(chunk.iter().all(|value| *value == scale * code - minimum), "group {group}");
        }
    }

    #[test]
    fn q5_k_takes_its_fifth_bit_from_the_group_mask() {
        let mut bytes = [ONE, HALF].concat();
        bytes.extend(k_scales());
        // Bit g of each mask byte belongs to group g: here groups 1 and 6.
        bytes.extend([0b0100_0010; 32]);
        bytes.extend([0x52; 128]);
        let values = values(TensorType::Q5K, &bytes);
        for (group, chunk) in values.chunks(32).enumerate() {
            let code =
                if group % 2 == 0 { 2.0 } else { 5.0 } + if [1, 6].contains(&group) { 16.0 } else { 0.0 };
            let (scale, minimum) = ((group + 1) as f32 * 5.0, (group + 1) as f32 * 3.5);
            assert!(chunk.iter().all(|value| *value == scale * code - minimum), "group {group}");
        }
    }

    #[test]
    fn q6_k_has_a_signed_scale_per_16_values() {
        let mut bytes = vec![0x21; 128];
        bytes.extend([0b11_10_01_00; 64]);
        bytes.extend((0..16).map(|group: i8| (group - 8) as u8));
        bytes.extend(HALF);
        let values = values(TensorType::Q6K, &bytes);
        for (group, chunk) in values.chunks(16).enumerate() {
            let code = [1.0, 1.0 + 16.0, 2.0 + 32.0, 2.0 + 48.0][group % 8 / 2];
            let scale = (group as f32 - 8.0) * 0.5;
            assert!(chunk.iter().all(|value| *value == scale * (code - 32.0)), "group {group}");
        }
    }

    #[test]
    fn codes_of_4_bit_formats_are_below_16() {
        for kind in TensorType::ALL {
            let Some(QuantGroups { quant_bits: 4, .. }) = quant_groups(kind) else { continue };
            let mut block = Block::default();
            decode_block(kind, &vec![0xff; kind.block_bytes()], &mut block);
            assert!(block.quants[..kind.block_len()].iter().all(|code| *code < 16), "{kind}");
        }
    }
}
