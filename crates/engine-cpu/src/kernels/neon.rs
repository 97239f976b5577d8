//! `Lanes` as NEON instructions, which every 64-bit ARM processor has; a vector is four registers. `Dotprod` adds the
//! instruction that multiplies bytes four at a time, and a value of it is made only where the machine has that.

use super::lanes::{Lanes, WIDTH};
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

type Quarters = [float32x4_t; 4];

/// The same instruction on the four registers of each vector.
macro_rules! quarters {
    ($instruction:ident($($vector:expr),+)) => {
        std::array::from_fn(|quarter| {
            // SAFETY: a `Neon` exists only where the machine has these instructions.
            unsafe { $instruction($($vector[quarter]),+) }
        })
    };
}

impl Lanes for Neon {
    type Vector = Quarters;

    const STRIPES: usize = 2;

    #[inline(always)]
    fn splat(self, value: f32) -> Quarters {
        // SAFETY: the machine has NEON (see the file's header).
        [unsafe { vdupq_n_f32(value) }; 4]
    }

    #[inline(always)]
    fn load(self, values: &[f32; WIDTH]) -> Quarters {
        // SAFETY: the machine has NEON; the reference covers four times four values.
        std::array::from_fn(|quarter| unsafe { vld1q_f32(values.as_ptr().add(quarter * 4)) })
    }

    #[inline(always)]
    fn load_f16(self, bits: &[u16; WIDTH]) -> Quarters {
        std::array::from_fn(|quarter| {
            // SAFETY: the machine has NEON; the reference covers four times four values.
            unsafe { vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(bits.as_ptr().add(quarter * 4)))) }
        })
    }

    #[inline(always)]
    fn store(self, vector: Quarters, values: &mut [f32; WIDTH]) {
        for (quarter, value) in vector.into_iter().enumerate() {
            // SAFETY: the machine has NEON; the reference covers four times four values.
            unsafe { vst1q_f32(values.as_mut_ptr().add(quarter * 4), value) };
        }
    }

    #[inline(always)]
    fn add(self, a: Quarters, b: Quarters) -> Quarters {
        quarters!(vaddq_f32(a, b))
    }

    #[inline(always)]
    fn multiply(self, a: Quarters, b: Quarters) -> Quarters {
        quarters!(vmulq_f32(a, b))
    }

    #[inline(always)]
    fn divide(self, a: Quarters, b: Quarters) -> Quarters {
        quarters!(vdivq_f32(a, b))
    }

    #[inline(always)]
    fn maximum(self, a: Quarters, b: Quarters) -> Quarters {
        quarters!(vmaxq_f32(a, b))
    }

    #[inline(always)]
    fn minimum(self, a: Quarters, b: Quarters) -> Quarters {
        quarters!(vminq_f32(a, b))
    }

    #[inline(always)]
    fn multiply_add(self, a: Quarters, b: Quarters, c: Quarters) -> Quarters {
        quarters!(vfmaq_f32(c, a, b))
    }

    #[inline(always)]
    fn scale_by_power(self, value: Quarters, shifted: Quarters) -> Quarters {
        std::array::from_fn(|quarter| {
            // SAFETY: the machine has NEON (see the file's header).
            unsafe {
                let exponent = vshlq_n_s32::<23>(vreinterpretq_s32_f32(shifted[quarter]));
                vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(value[quarter]), exponent))
            }
        })
    }
}
