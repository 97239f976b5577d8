//! `Lanes` as NEON instructions, which every 64-bit ARM CPU has; a vector is four registers. `Dotprod` adds the
//! instruction that multiplies bytes four at a time; a value of it exists only if the CPU has that.

use super::lanes::{Lanes, WIDTH};
use crate::half_precision::MAX_F16;
use std::arch::aarch64::*;
use std::arch::is_aarch64_feature_detected;

#[derive(Clone, Copy, Debug)]
pub(super) struct Neon(());

impl Neon {
    pub(super) fn detect() -> Option<Self> {
        is_aarch64_feature_detected!("neon").then_some(Self(()))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Dotprod {
    pub(super) lanes: Neon,
}

impl Dotprod {
    pub(super) fn detect() -> Option<Self> {
        let lanes = Neon::detect()?;
        is_aarch64_feature_detected!("dotprod").then_some(Self { lanes })
    }
}

type NeonVector = [float32x4_t; 4];

/// Applies one instruction to the four registers of each vector.
macro_rules! quarters {
    ($instruction:ident($($vector:expr),+)) => {
        std::array::from_fn(|quarter| {
            // SAFETY: a `Neon` exists only if the CPU has these instructions.
            unsafe { $instruction($($vector[quarter]),+) }
        })
    };
}

impl Lanes for Neon {
    type Vector = NeonVector;

    const STRIPES: usize = 2;

    #[inline(always)]
    fn splat(self, value: f32) -> NeonVector {
        // SAFETY: the machine has NEON (see the file's header).
        [unsafe { vdupq_n_f32(value) }; 4]
    }

    #[inline(always)]
    fn load(self, values: &[f32; WIDTH]) -> NeonVector {
        // SAFETY: the machine has NEON; the reference covers four times four values.
        std::array::from_fn(|quarter| unsafe { vld1q_f32(values.as_ptr().add(quarter * 4)) })
    }

    #[inline(always)]
    fn load_f16(self, bits: &[u16; WIDTH]) -> NeonVector {
        std::array::from_fn(|quarter| {
            // SAFETY: the machine has NEON; the reference covers four times four values.
            unsafe { vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(bits.as_ptr().add(quarter * 4)))) }
        })
    }

    #[inline(always)]
    fn store(self, vector: NeonVector, values: &mut [f32; WIDTH]) {
        for (quarter, value) in vector.into_iter().enumerate() {
            // SAFETY: the machine has NEON; the reference covers four times four values.
            unsafe { vst1q_f32(values.as_mut_ptr().add(quarter * 4), value) };
        }
    }

    #[inline(always)]
    fn add(self, a: NeonVector, b: NeonVector) -> NeonVector {
        quarters!(vaddq_f32(a, b))
    }

    #[inline(always)]
    fn multiply(self, a: NeonVector, b: NeonVector) -> NeonVector {
        quarters!(vmulq_f32(a, b))
    }

    #[inline(always)]
    fn divide(self, a: NeonVector, b: NeonVector) -> NeonVector {
        quarters!(vdivq_f32(a, b))
    }

    #[inline(always)]
    fn max(self, a: NeonVector, b: NeonVector) -> NeonVector {
        quarters!(vmaxq_f32(a, b))
    }

    #[inline(always)]
    fn min(self, a: NeonVector, b: NeonVector) -> NeonVector {
        quarters!(vminq_f32(a, b))
    }

    #[inline(always)]
    fn multiply_add(self, a: NeonVector, b: NeonVector, c: NeonVector) -> NeonVector {
        quarters!(vfmaq_f32(c, a, b))
    }

    #[inline(always)]
    fn scale_by_power(self, value: NeonVector, shifted: NeonVector) -> NeonVector {
        std::array::from_fn(|quarter| {
            // SAFETY: the machine has NEON (see the file's header).
            unsafe {
                let exponent = vshlq_n_s32::<23>(vreinterpretq_s32_f32(shifted[quarter]));
                vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(value[quarter]), exponent))
            }
        })
    }

    #[inline(always)]
    fn reduce_add(self, vector: NeonVector) -> f32 {
        // SAFETY: the machine has NEON (see the file's header).
        unsafe {
            let four = vaddq_f32(vaddq_f32(vector[0], vector[2]), vaddq_f32(vector[1], vector[3]));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }

    #[inline(always)]
    fn largest(self, vector: NeonVector) -> f32 {
        // SAFETY: the machine has NEON (see the file's header).
        unsafe { vmaxvq_f32(vmaxq_f32(vmaxq_f32(vector[0], vector[1]), vmaxq_f32(vector[2], vector[3]))) }
    }

    #[inline(always)]
    fn max_magnitude(self, largest: NeonVector, vector: NeonVector) -> NeonVector {
        std::array::from_fn(|quarter| {
            // SAFETY: the machine has NEON (see the file's header).
            unsafe {
                let magnitude = vreinterpretq_u32_f32(vabsq_f32(vector[quarter]));
                vreinterpretq_f32_u32(vmaxq_u32(vreinterpretq_u32_f32(largest[quarter]), magnitude))
            }
        })
    }

    #[inline(always)]
    fn swap_pairs(self, vector: NeonVector) -> NeonVector {
        quarters!(vrev64q_f32(vector))
    }

    #[inline(always)]
    fn store_f16(self, vector: NeonVector, bits: &mut [u16; WIDTH]) {
        for (quarter, value) in vector.into_iter().enumerate() {
            // SAFETY: the machine has NEON; the reference covers four times four values.
            unsafe {
                // NaN is not equal to itself, so it becomes zero.
                let numbers = vandq_u32(vreinterpretq_u32_f32(value), vceqq_f32(value, value));
                let bounded = vminq_f32(vreinterpretq_f32_u32(numbers), vdupq_n_f32(MAX_F16));
                let bounded = vmaxq_f32(bounded, vdupq_n_f32(-MAX_F16));
                let halves = vreinterpret_u16_f16(vcvt_f16_f32(bounded));
                vst1_u16(bits.as_mut_ptr().add(quarter * 4), halves);
            }
        }
    }

    #[inline(always)]
    fn store_bytes(self, vector: NeonVector, high: &mut [u8; WIDTH], low: &mut [u8; WIDTH]) {
        for (half, words) in rounded(vector).into_iter().enumerate() {
            // SAFETY: the machine has NEON; the references cover two times eight bytes each.
            unsafe {
                let offset = vaddq_s16(words, vdupq_n_s16(128));
                let upper = vaddq_s16(vshrq_n_s16::<8>(offset), vdupq_n_s16(128));
                vst1_s8(high.as_mut_ptr().add(half * 8).cast(), vmovn_s16(upper));
                vst1_s8(low.as_mut_ptr().add(half * 8).cast(), vmovn_s16(offset));
            }
        }
    }

    #[inline(always)]
    fn store_i16(self, vector: NeonVector, words: &mut [i16; WIDTH]) {
        for (half, rounded) in rounded(vector).into_iter().enumerate() {
            // SAFETY: the machine has NEON; the reference covers two times eight values.
            unsafe { vst1q_s16(words.as_mut_ptr().add(half * 8), rounded) };
        }
    }
}

/// Rounds lanes to integers, ties to even.
#[inline(always)]
fn rounded(vector: NeonVector) -> [int16x8_t; 2] {
    std::array::from_fn(|half| {
        // SAFETY: called from methods of `Neon` only (see the file's header).
        unsafe {
            let narrow = |quarter: float32x4_t| vmovn_s32(vcvtnq_s32_f32(quarter));
            vcombine_s16(narrow(vector[half * 2]), narrow(vector[half * 2 + 1]))
        }
    })
}
