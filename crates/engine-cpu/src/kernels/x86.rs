//! `Lanes` as AVX-512 and AVX2 instructions. Only `detect` creates a value of either type, so holding one proves that
//! the CPU has the instructions; that is the safety argument of every block here.

use super::lanes::{LINE_VECTORS, Lanes, WIDTH};
use super::tiles::Line;
use crate::half_precision::MAX_F16;
use std::arch::x86_64::*;

/// Folds sixteen lanes, given as two halves, into one: upper half with lower half, repeatedly.
macro_rules! fold {
    ($lower:expr, $upper:expr, $eights:ident, $fours:ident) => {{
        // SAFETY: used in methods of `Avx512` and `Avx2` only (see the file's header).
        unsafe {
            let eight = $eights($lower, $upper);
            let four = $fours(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = $fours(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32($fours(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }};
}

/// Permutation of four lanes that swaps neighbours.
const SWAP_PAIRS: i32 = 0b10_11_00_01;

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
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the machine has AVX-512 (see the file's header).
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
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

    #[inline(always)]
    fn reduce_add(self, vector: __m512) -> f32 {
        // SAFETY: the machine has AVX-512 (see the file's header).
        let (lower, upper) = unsafe { (_mm512_castps512_ps256(vector), _mm512_extractf32x8_ps::<1>(vector)) };
        fold!(lower, upper, _mm256_add_ps, _mm_add_ps)
    }

    #[inline(always)]
    fn largest(self, vector: __m512) -> f32 {
        // SAFETY: the machine has AVX-512 (see the file's header).
        let (lower, upper) = unsafe { (_mm512_castps512_ps256(vector), _mm512_extractf32x8_ps::<1>(vector)) };
        fold!(lower, upper, _mm256_max_ps, _mm_max_ps)
    }

    #[inline(always)]
    fn max_magnitude(self, largest: __m512, vector: __m512) -> __m512 {
        // SAFETY: the machine has AVX-512 (see the file's header).
        unsafe {
            let magnitude = _mm512_castps_si512(_mm512_abs_ps(vector));
            _mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(largest), magnitude))
        }
    }

    #[inline(always)]
    fn prefetch(self, address: *const f32) {
        // SAFETY: every x86-64 CPU has the instruction, and any address may be prefetched.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    fn swap_pairs(self, vector: __m512) -> __m512 {
        // SAFETY: the machine has AVX-512 (see the file's header).
        unsafe { _mm512_permute_ps::<SWAP_PAIRS>(vector) }
    }

    #[inline(always)]
    fn store_f16(self, vector: __m512, bits: &mut [u16; WIDTH]) {
        // SAFETY: the machine has AVX-512; the reference covers the 32 bytes written.
        unsafe {
            let numbers = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(vector, vector);
            let bounded = _mm512_maskz_min_ps(numbers, vector, _mm512_set1_ps(MAX_F16));
            let bounded = _mm512_max_ps(bounded, _mm512_set1_ps(-MAX_F16));
            _mm256_storeu_si256(
                bits.as_mut_ptr().cast(),
                _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(bounded),
            );
        }
    }

    #[inline(always)]
    fn store_bytes(self, vector: __m512, high: &mut [u8; WIDTH], low: &mut [u8; WIDTH]) {
        // SAFETY: the machine has AVX-512; the references cover the 16 bytes written to each.
        unsafe {
            let offset = _mm512_set1_epi32(128);
            let quanta = _mm512_add_epi32(_mm512_cvtps_epi32(vector), offset);
            let upper = _mm512_add_epi32(_mm512_srai_epi32::<8>(quanta), offset);
            _mm_storeu_si128(high.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(upper));
            _mm_storeu_si128(low.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(quanta));
        }
    }

    #[inline(always)]
    fn store_byte_lines(self, vectors: [__m512; LINE_VECTORS], high: &mut Line, low: &mut Line) {
        // SAFETY: the machine has AVX-512; the references cover the 64 bytes written to each, and lines are aligned.
        unsafe {
            let [a, b, c, d] = vectors;
            let first = _mm512_packs_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
            let second = _mm512_packs_epi32(_mm512_cvtps_epi32(c), _mm512_cvtps_epi32(d));
            let offset = _mm512_set1_epi16(128);
            let (first, second) = (_mm512_add_epi16(first, offset), _mm512_add_epi16(second, offset));
            let highs = _mm512_packs_epi16(_mm512_srai_epi16::<8>(first), _mm512_srai_epi16::<8>(second));
            let highs = _mm512_xor_si512(highs, _mm512_set1_epi8(i8::MIN));
            let mask = _mm512_set1_epi16(255);
            let lows = _mm512_packus_epi16(_mm512_and_si512(first, mask), _mm512_and_si512(second, mask));
            // Packing works within quarters of a register: each has four bytes of every vector.
            let order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
            _mm512_store_si512((&raw mut *high).cast(), _mm512_permutexvar_epi32(order, highs));
            _mm512_store_si512((&raw mut *low).cast(), _mm512_permutexvar_epi32(order, lows));
        }
    }

    #[inline(always)]
    unsafe fn store_byte_of_four(self, vector: __m512, high: *mut Line, low: *mut Line, byte: usize) {
        // SAFETY: the machine has AVX-512; the caller guarantees the bytes that the mask selects, and no others are
        // written.
        unsafe {
            let quanta = _mm512_cvtps_epi32(vector);
            let upper = _mm512_srai_epi32::<8>(_mm512_add_epi32(quanta, _mm512_set1_epi32(128)));
            let shift = _mm_cvtsi32_si128(8 * byte as i32);
            let mask = 0x1111_1111_1111_1111 << byte;
            _mm512_mask_storeu_epi8(high.cast(), mask, _mm512_sll_epi32(upper, shift));
            _mm512_mask_storeu_epi8(low.cast(), mask, _mm512_sll_epi32(quanta, shift));
        }
    }
}

type Avx2Vector = (__m256, __m256);

impl Lanes for Avx2 {
    type Vector = Avx2Vector;

    const STRIPES: usize = 2;

    #[inline(always)]
    fn splat(self, value: f32) -> Avx2Vector {
        // SAFETY: the machine has AVX2 (see the file's header).
        let half = unsafe { _mm256_set1_ps(value) };
        (half, half)
    }

    #[inline(always)]
    fn load(self, values: &[f32; WIDTH]) -> Avx2Vector {
        // SAFETY: the machine has AVX2; the reference covers the 64 bytes read.
        unsafe { (_mm256_loadu_ps(values.as_ptr()), _mm256_loadu_ps(values.as_ptr().add(8))) }
    }

    #[inline(always)]
    fn load_f16(self, bits: &[u16; WIDTH]) -> Avx2Vector {
        // SAFETY: the machine has F16C; the reference covers the 32 bytes read.
        unsafe {
            let bits: *const __m128i = bits.as_ptr().cast();
            (_mm256_cvtph_ps(_mm_loadu_si128(bits)), _mm256_cvtph_ps(_mm_loadu_si128(bits.add(1))))
        }
    }

    #[inline(always)]
    fn store(self, vector: Avx2Vector, values: &mut [f32; WIDTH]) {
        // SAFETY: the machine has AVX2; the reference covers the 64 bytes written.
        unsafe {
            _mm256_storeu_ps(values.as_mut_ptr(), vector.0);
            _mm256_storeu_ps(values.as_mut_ptr().add(8), vector.1);
        }
    }

    #[inline(always)]
    fn add(self, a: Avx2Vector, b: Avx2Vector) -> Avx2Vector {
        // SAFETY: the machine has AVX2 (see the file's header).
        unsafe { (_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn multiply(self, a: Avx2Vector, b: Avx2Vector) -> Avx2Vector {
        // SAFETY: the machine has AVX2 (see the file's header).
        unsafe { (_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn divide(self, a: Avx2Vector, b: Avx2Vector) -> Avx2Vector {
        // SAFETY: the machine has AVX2 (see the file's header).
        unsafe { (_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn max(self, a: Avx2Vector, b: Avx2Vector) -> Avx2Vector {
        // SAFETY: the machine has AVX2 (see the file's header).
        unsafe { (_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn min(self, a: Avx2Vector, b: Avx2Vector) -> Avx2Vector {
        // SAFETY: the machine has AVX2 (see the file's header).
        unsafe { (_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn multiply_add(self, a: Avx2Vector, b: Avx2Vector, c: Avx2Vector) -> Avx2Vector {
        // SAFETY: the machine has FMA (see the file's header).
        unsafe { (_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)) }
    }

    #[inline(always)]
    fn scale_by_power(self, value: Avx2Vector, shifted: Avx2Vector) -> Avx2Vector {
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

    #[inline(always)]
    fn reduce_add(self, vector: Avx2Vector) -> f32 {
        fold!(vector.0, vector.1, _mm256_add_ps, _mm_add_ps)
    }

    #[inline(always)]
    fn largest(self, vector: Avx2Vector) -> f32 {
        fold!(vector.0, vector.1, _mm256_max_ps, _mm_max_ps)
    }

    #[inline(always)]
    fn max_magnitude(self, largest: Avx2Vector, vector: Avx2Vector) -> Avx2Vector {
        #[inline(always)]
        fn half(largest: __m256, vector: __m256) -> __m256 {
            // SAFETY: called from a method of `Avx2` only (see the file's header).
            unsafe {
                let magnitude = _mm256_castps_si256(_mm256_andnot_ps(_mm256_set1_ps(-0.0), vector));
                _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(largest), magnitude))
            }
        }
        (half(largest.0, vector.0), half(largest.1, vector.1))
    }

    #[inline(always)]
    fn prefetch(self, address: *const f32) {
        // SAFETY: every x86-64 CPU has the instruction, and any address may be prefetched.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    fn swap_pairs(self, vector: Avx2Vector) -> Avx2Vector {
        // SAFETY: the machine has AVX2 (see the file's header).
        unsafe { (_mm256_permute_ps::<SWAP_PAIRS>(vector.0), _mm256_permute_ps::<SWAP_PAIRS>(vector.1)) }
    }

    #[inline(always)]
    fn store_f16(self, vector: Avx2Vector, bits: &mut [u16; WIDTH]) {
        #[inline(always)]
        fn half(vector: __m256) -> __m128i {
            // SAFETY: called from a method of `Avx2` only (see the file's header).
            unsafe {
                let numbers = _mm256_and_ps(vector, _mm256_cmp_ps::<_CMP_ORD_Q>(vector, vector));
                let bounded = _mm256_min_ps(numbers, _mm256_set1_ps(MAX_F16));
                let bounded = _mm256_max_ps(bounded, _mm256_set1_ps(-MAX_F16));
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(bounded)
            }
        }
        let bits: *mut __m128i = bits.as_mut_ptr().cast();
        // SAFETY: the reference covers the 32 bytes written.
        unsafe {
            _mm_storeu_si128(bits, half(vector.0));
            _mm_storeu_si128(bits.add(1), half(vector.1));
        }
    }

    #[inline(always)]
    fn store_i16(self, vector: Avx2Vector, words: &mut [i16; WIDTH]) {
        // SAFETY: the machine has AVX2; the reference covers the 32 bytes written.
        unsafe {
            let (first, second) = (_mm256_cvtps_epi32(vector.0), _mm256_cvtps_epi32(vector.1));
            // Packing works within halves of a register; the permutation restores the order of the quarters.
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(first, second));
            _mm256_storeu_si256(words.as_mut_ptr().cast(), packed);
        }
    }
}
