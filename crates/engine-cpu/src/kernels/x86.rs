//! `Lanes` as AVX-512 and AVX2 instructions. A value of either type is made only by `detect`, so holding one proves
//! that the machine has the instructions; that is the safety argument of every block here.

use super::lanes::{Lanes, WIDTH};
use std::arch::x86_64::*;

#[derive(Clone, Copy, Debug)]
pub(super) struct Avx512(());

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        (Avx2::detect().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni"))
        .then_some(Self(()))
    }
}

/// One vector is a pair of 256-bit halves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx2(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Self(()))
    }
}

impl Lanes for Avx512 {
    type Vector = __m512;

    const STRIPES: usize = 4;

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        // SAFETY: the machine has AVX-512 (see the file's header).
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn load(self, values: &[f32; WIDTH]) -> __m512 {
        // SAFETY: the machine has AVX-512; the reference covers the 64 bytes read.
        unsafe { _mm512_loadu_ps(values.as_ptr()) }
    }

    #[inline(always)]
    fn load_f16(self, bits: &[u16; WIDTH]) -> __m512 {
        // SAFETY: the machine has AVX-512; the reference covers the 32 bytes read.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(bits.as_ptr().cast())) }
    }

    #[inline(always)]
    fn store(self, vector: __m512, values: &mut [f32; WIDTH]) {
        // SAFETY: the machine has AVX-512; the reference covers the 64 bytes written.
        unsafe { _mm512_storeu_ps(values.as_mut_ptr(), vector) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the machine has AVX-512 (see the file's header).
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn multiply(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the machine has AVX-512 (see the file's header).
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn divide(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the machine has AVX-512 (see the file's header).
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn maximum(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the machine has AVX-512 (see the file's header).
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn minimum(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the machine has AVX-512 (see the file's header).
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    fn multiply_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the machine has AVX-512 (see the file's header).
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn scale_by_power(self, value: __m512, shifted: __m512) -> __m512 {
        // SAFETY: the machine has AVX-512 (see the file's header).
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(value), exponent))
        }
    }
}

type Halves = (__m256, __m256);

impl Lanes for Avx2 {
    type Vector = Halves;

    const STRIPES: usize = 2;

    #[inline(always)]
    fn splat(self, value: f32) -> Halves {
        // SAFETY: the machine has AVX2 (see the file's header).
        let half = unsafe { _mm256_set1_ps(value) };
        (half, half)
    }

    #[inline(always)]
    fn load(self, values: &[f32; WIDTH]) -> Halves {
        // SAFETY: the machine has AVX2; the reference covers the 64 bytes read.
        unsafe { (_mm256_loadu_ps(values.as_ptr()), _mm256_loadu_ps(values.as_ptr().add(8))) }
    }

    #[inline(always)]
    fn load_f16(self, bits: &[u16; WIDTH]) -> Halves {
        // SAFETY: the machine has F16C; the reference covers the 32 bytes read.
        unsafe {
            let bits: *const __m128i = bits.as_ptr().cast();
            (_mm256_cvtph_ps(_mm_loadu_si128(bits)), _mm256_cvtph_ps(_mm_loadu_si128(bits.add(1))))
        }
    }

    #[inline(always)]
    fn store(self, vector: Halves, values: &mut [f32; WIDTH]) {
        // SAFETY: the machine has AVX2; the reference covers the 64 bytes written.
        unsafe {
            _mm256_storeu_ps(values.as_mut_ptr(), vector.0);
            _mm256_storeu_ps(values.as_mut_ptr().add(8), vector.1);
        }
    }

    #[inline(always)]
    fn add(self, a: Halves, b: Halves) -> Halves {
        // SAFETY: the machine has AVX2 (see the file's header).
        unsafe { (_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn multiply(self, a: Halves, b: Halves) -> Halves {
        // SAFETY: the machine has AVX2 (see the file's header).
        unsafe { (_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn divide(self, a: Halves, b: Halves) -> Halves {
        // SAFETY: the machine has AVX2 (see the file's header).
        unsafe { (_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn maximum(self, a: Halves, b: Halves) -> Halves {
        // SAFETY: the machine has AVX2 (see the file's header).
        unsafe { (_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn minimum(self, a: Halves, b: Halves) -> Halves {
        // SAFETY: the machine has AVX2 (see the file's header).
        unsafe { (_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn multiply_add(self, a: Halves, b: Halves, c: Halves) -> Halves {
        // SAFETY: the machine has FMA (see the file's header).
        unsafe { (_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)) }
    }

    #[inline(always)]
    fn scale_by_power(self, value: Halves, shifted: Halves) -> Halves {
        #[inline(always)]
        fn half(value: __m256, shifted: __m256) -> __m256 {
            // SAFETY: called from a method of `Avx2` only (see the file's header).
            unsafe {
                let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(value), exponent))
            }
        }
        (half(value.0, shifted.0), half(value.1, shifted.1))
    }
}
