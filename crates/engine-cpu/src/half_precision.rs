//! Bit conversions for 16-bit floats: IEEE half precision and bfloat16. Portable; the kernels use CPU instructions. The
//! crate `half` would replace only twenty lines, which are tested for every value. It would not replace our own rule: a
//! value out of range becomes the largest finite one, exactly as the kernels' instructions store it.

/// Largest finite half-precision value.
pub const MAX_F16: f32 = 65_504.0;

pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let exponent = u32::from(bits >> 10 & 0x1f);
    let fraction = u32::from(bits & 0x3ff);
    match exponent {
        // Zero and subnormals: the fraction counts units of 2^-24.
        0 => f32::from_bits(sign | (fraction as f32 * 2.0_f32.powi(-24)).to_bits()),
        0x1f => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

/// The nearest half-precision value, ties to even. Values out of range become the largest finite value and NaN becomes
/// zero: a stored value is always finite, so that a masked one can be multiplied by zero.
pub fn f32_to_f16_finite(value: f32) -> u16 {
    if value.is_nan() {
        return 0;
    }
    let clamped = value.clamp(-MAX_F16, MAX_F16);
    let sign = (clamped.to_bits() >> 16 & 0x8000) as u16;
    let magnitude = clamped.abs();
    if magnitude < 2.0_f32.powi(-14) {
        // Subnormal: adding 2^23 units leaves the rounded count of 2^-24 units in the low bits.
        let units = (magnitude * 2.0_f32.powi(24) + 8_388_608.0).to_bits() & 0x7f_ffff;
        return sign | units as u16;
    }
    let bits = magnitude.to_bits();
    let rounded = bits + 0xfff + (bits >> 13 & 1);
    // The exponent is rebased from 127 to 15; a carry out of the fraction correctly increments it.
    sign | ((rounded >> 13) - (112 << 10)) as u16
}

pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these results are exact")]
mod tests {
    use super::*;

    #[test]
    fn every_finite_f16_round_trips() {
        for bits in 0..=u16::MAX {
            let value = f16_to_f32(bits);
            if value.is_finite() {
                assert_eq!(f32_to_f16_finite(value), bits, "{value}");
            }
        }
    }

    #[test]
    fn f16_rounds_to_nearest_with_ties_to_even() {
        assert_eq!(f16_to_f32(0x3c00), 1.0);
        assert_eq!(f16_to_f32(0x0001), 2.0_f32.powi(-24));
        assert_eq!(f32_to_f16_finite(1.0 + 2.0_f32.powi(-11)), 0x3c00);
        assert_eq!(f32_to_f16_finite(1.0 + 3.0 * 2.0_f32.powi(-11)), 0x3c02);
        assert_eq!(f32_to_f16_finite(1.0 + 1.1 * 2.0_f32.powi(-11)), 0x3c01);
    }

    #[test]
    fn out_of_range_values_saturate_to_finite_f16() {
        assert_eq!(f16_to_f32(f32_to_f16_finite(f32::INFINITY)), MAX_F16);
        assert_eq!(f16_to_f32(f32_to_f16_finite(-1e9)), -MAX_F16);
        assert_eq!(f16_to_f32(f32_to_f16_finite(f32::NAN)), 0.0);
    }
}
