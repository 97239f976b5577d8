//! Vectors of sixteen 32-bit floats, the one shape in which the kernels are written. A `Lanes` value proves that the
//! CPU has the instructions, so its methods are safe to call. Methods are always inlined: they become single
//! instructions only inside a function compiled for the instruction set.

use super::tiles::Line;
use crate::half_precision::{f16_to_f32, f32_to_f16_finite};

/// Floats per vector.
pub(super) const WIDTH: usize = 16;
/// Vectors whose bytes fill a line.
pub(super) const LINE_VECTORS: usize = size_of::<Line>() / WIDTH;

pub(super) trait Lanes: Copy + Send + Sync {
    type Vector: Copy;

    /// Adjacent vectors that attention keeps for each of four queries: 4 or 2, depending on the number of registers.
    const STRIPES: usize;

    fn splat(self, value: f32) -> Self::Vector;
    fn load(self, values: &[f32; WIDTH]) -> Self::Vector;
    fn load_f16(self, bits: &[u16; WIDTH]) -> Self::Vector;
    fn store(self, vector: Self::Vector, values: &mut [f32; WIDTH]);
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn multiply(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn divide(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a × b + c`, rounded once if the CPU can.
    fn multiply_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// `value × 2^n`, where `shifted` is `n + EXPONENT_SHIFT`.
    fn scale_by_power(self, value: Self::Vector, shifted: Self::Vector) -> Self::Vector;
    /// The sum of all lanes: the upper half is added to the lower, and so on until one is left.
    fn reduce_add(self, vector: Self::Vector) -> f32;
    /// The largest lane; lanes must not be NaN.
    fn largest(self, vector: Self::Vector) -> f32;
    /// The larger magnitude of each lane. Magnitudes are compared as bits, so that infinities and NaN are the largest.
    fn max_magnitude(self, largest: Self::Vector, vector: Self::Vector) -> Self::Vector;
    /// Swaps adjacent lanes.
    fn swap_pairs(self, vector: Self::Vector) -> Self::Vector;
    /// Rounds like `f32_to_f16_finite`.
    fn store_f16(self, vector: Self::Vector, bits: &mut [u16; WIDTH]);

    /// The bits of the largest result of `max_magnitude`.
    #[inline(always)]
    fn largest_bits(self, magnitudes: Self::Vector) -> u32 {
        let mut values = [0.0; WIDTH];
        self.store(magnitudes, &mut values);
        values.iter().fold(0, |largest, value| largest.max(value.to_bits()))
    }

    /// Starts to load the line of an address, which need not be valid.
    #[inline(always)]
    fn prefetch(self, _address: *const f32) {}

    /// Rounds each lane to an integer, ties to even, and stores its two bytes, each offset by 128 to be unsigned.
    #[inline(always)]
    fn store_bytes(self, vector: Self::Vector, high: &mut [u8; WIDTH], low: &mut [u8; WIDTH]) {
        let mut values = [0.0; WIDTH];
        self.store(vector, &mut values);
        for lane in 0..WIDTH {
            let offset = round(values[lane]) + 128;
            high[lane] = ((offset >> 8) + 128) as u8;
            low[lane] = offset as u8;
        }
    }

    /// Like `store_bytes`, for the vectors of one line.
    #[inline(always)]
    fn store_byte_lines(self, vectors: [Self::Vector; LINE_VECTORS], high: &mut Line, low: &mut Line) {
        let (highs, lows) = (high.0.as_chunks_mut().0, low.0.as_chunks_mut().0);
        for ((vector, high), low) in vectors.into_iter().zip(highs).zip(lows) {
            self.store_bytes(vector, high, low);
        }
    }

    /// Rounds like `store_bytes`, but without the offset, and stores the high bytes in one line, the low bytes in another:
    /// the byte with index `byte` of every four. The other bytes stay untouched, as other threads may write them.
    ///
    /// # Safety
    /// `byte` is below 4. Both lines are valid to write, and no other thread accesses these bytes of them.
    #[inline(always)]
    unsafe fn store_byte_of_four(self, vector: Self::Vector, high: *mut Line, low: *mut Line, byte: usize) {
        let (mut highs, mut lows) = ([0; WIDTH], [0; WIDTH]);
        self.store_bytes(vector, &mut highs, &mut lows);
        for lane in 0..WIDTH {
            // SAFETY: a line has four bytes for each lane; the caller guarantees the rest.
            unsafe {
                *high.cast::<u8>().add(4 * lane + byte) = highs[lane] ^ 0x80;
                *low.cast::<u8>().add(4 * lane + byte) = lows[lane] ^ 0x80;
            }
        }
    }

    /// Rounds each lane to an integer, ties to even, and stores it.
    #[inline(always)]
    fn store_i16(self, vector: Self::Vector, words: &mut [i16; WIDTH]) {
        let mut values = [0.0; WIDTH];
        self.store(vector, &mut values);
        for lane in 0..WIDTH {
            words[lane] = round(values[lane]) as i16;
        }
    }
}

/// The nearest integer for magnitudes up to 2^22, ties to even.
#[inline(always)]
pub(super) fn round(value: f32) -> i32 {
    (value + EXPONENT_SHIFT).to_bits().wrapping_sub(EXPONENT_SHIFT.to_bits()).cast_signed()
}

/// Adding this rounds a small float to an integer and leaves that in the lowest bits.
const EXPONENT_SHIFT: f32 = 12_582_912.0;

/// e to the power of each lane, accurate to a few units in the last place. Arguments are clamped to a range whose
/// results are finite.
#[inline(always)]
pub(super) fn exp<L: Lanes>(lanes: L, x: L::Vector) -> L::Vector {
    exp_each(lanes, [x])[0]
}

/// `exp` of several vectors, one operation after the other for all of them: each takes a while, and none of them waits
/// for the others.
#[inline(always)]
pub(super) fn exp_each<L: Lanes, const COUNT: usize>(
    lanes: L,
    mut x: [L::Vector; COUNT],
) -> [L::Vector; COUNT] {
    // ln 2 in two parts: the first has so few bits that its product with n is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const POLYNOMIAL: [f32; 6] =
        [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    for x in &mut x {
        *x = lanes.min(lanes.max(*x, lanes.splat(-87.0)), lanes.splat(88.0));
    }
    let mut shifted = x;
    for shifted in &mut shifted {
        let shift = lanes.splat(EXPONENT_SHIFT);
        *shifted = lanes.multiply_add(*shifted, lanes.splat(std::f32::consts::LOG2_E), shift);
    }
    let mut n = shifted;
    for n in &mut n {
        *n = lanes.add(*n, lanes.splat(-EXPONENT_SHIFT));
    }
    let mut r = x;
    for part in [LN2_HIGH, LN2_LOW] {
        for (r, n) in r.iter_mut().zip(n) {
            *r = lanes.multiply_add(n, lanes.splat(-part), *r);
        }
    }
    let mut result = [lanes.splat(POLYNOMIAL[0]); COUNT];
    for coefficient in &POLYNOMIAL[1..] {
        for (result, r) in result.iter_mut().zip(r) {
            *result = lanes.multiply_add(*result, r, lanes.splat(*coefficient));
        }
    }
    for (result, r) in result.iter_mut().zip(r) {
        *result = lanes.multiply_add(*result, lanes.multiply(r, r), lanes.add(r, lanes.splat(1.0)));
    }
    for (result, shifted) in result.iter_mut().zip(shifted) {
        *result = lanes.scale_by_power(*result, shifted);
    }
    result
}

/// Plain arrays: runs on any CPU, and is the reference in tests of the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portable;

macro_rules! each_lane {
    ($lane:ident => $value:expr) => {{
        let mut result = [0.0; WIDTH];
        for $lane in 0..WIDTH {
            result[$lane] = $value;
        }
        result
    }};
}

impl Lanes for Portable {
    type Vector = [f32; WIDTH];

    const STRIPES: usize = 2;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Vector {
        [value; WIDTH]
    }

    #[inline(always)]
    fn load(self, values: &[f32; WIDTH]) -> Self::Vector {
        *values
    }

    #[inline(always)]
    fn load_f16(self, bits: &[u16; WIDTH]) -> Self::Vector {
        each_lane!(lane => f16_to_f32(bits[lane]))
    }

    #[inline(always)]
    fn store(self, vector: Self::Vector, values: &mut [f32; WIDTH]) {
        *values = vector;
    }

    #[inline(always)]
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        each_lane!(lane => a[lane] + b[lane])
    }

    #[inline(always)]
    fn multiply(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        each_lane!(lane => a[lane] * b[lane])
    }

    #[inline(always)]
    fn divide(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        each_lane!(lane => a[lane] / b[lane])
    }

    #[inline(always)]
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        each_lane!(lane => if a[lane] > b[lane] { a[lane] } else { b[lane] })
    }

    #[inline(always)]
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        each_lane!(lane => if a[lane] < b[lane] { a[lane] } else { b[lane] })
    }

    #[inline(always)]
    fn multiply_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        each_lane!(lane => a[lane] * b[lane] + c[lane])
    }

    #[inline(always)]
    fn scale_by_power(self, value: Self::Vector, shifted: Self::Vector) -> Self::Vector {
        each_lane!(lane => f32::from_bits(value[lane].to_bits().wrapping_add(shifted[lane].to_bits() << 23)))
    }

    #[inline(always)]
    fn reduce_add(self, mut vector: Self::Vector) -> f32 {
        let mut width = WIDTH / 2;
        while width > 0 {
            for lane in 0..width {
                vector[lane] += vector[lane + width];
            }
            width /= 2;
        }
        vector[0]
    }

    #[inline(always)]
    fn largest(self, vector: Self::Vector) -> f32 {
        vector.into_iter().fold(vector[0], |best, value| if value > best { value } else { best })
    }

    #[inline(always)]
    fn max_magnitude(self, largest: Self::Vector, vector: Self::Vector) -> Self::Vector {
        each_lane!(lane => f32::from_bits(largest[lane].to_bits().max(vector[lane].abs().to_bits())))
    }

    #[inline(always)]
    fn swap_pairs(self, vector: Self::Vector) -> Self::Vector {
        each_lane!(lane => vector[lane ^ 1])
    }

    #[inline(always)]
    fn store_f16(self, vector: Self::Vector, bits: &mut [u16; WIDTH]) {
        *bits = vector.map(f32_to_f16_finite);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{InstructionSet, dispatch};
    use super::*;

    #[test]
    fn exp_is_accurate_to_a_few_ulp() {
        for step in -2_000..2_000 {
            let x = step as f32 * 0.043;
            let got = exp(Portable, [x; WIDTH])[0];
            let expected = f64::from(x).exp();
            assert!(
                ((f64::from(got) - expected) / expected).abs() < 4e-7,
                "exp({x}) = {got}, not {expected}"
            );
        }
    }

    #[test]
    fn exp_of_extreme_values_is_finite() {
        assert!(exp(Portable, [f32::MAX; WIDTH])[0].is_finite());
        assert!(exp(Portable, [f32::MIN; WIDTH])[0] < 1e-37);
    }

    type Stored = ([f32; WIDTH], [u16; WIDTH], [[u8; WIDTH]; 2], [i16; WIDTH], [f32; 2]);

    #[inline(always)]
    fn store_all<L: Lanes>(lanes: L, (values, stored): (&[f32; WIDTH], &mut Stored)) {
        let vector = lanes.load(values);
        lanes.store(lanes.swap_pairs(vector), &mut stored.0);
        lanes.store_f16(vector, &mut stored.1);
        let [high, low] = &mut stored.2;
        lanes.store_bytes(vector, high, low);
        lanes.store_i16(vector, &mut stored.3);
        stored.4 = [lanes.reduce_add(vector), lanes.largest(vector)];
    }

    #[test]
    fn every_instruction_set_matches_the_portable_rounding_and_sums() {
        let mut sample: Vec<f32> = (-33_000..33_000).map(|step| step as f32 * 0.985).collect();
        sample.extend(
            (0..4_096).flat_map(|step| [step as f32 * 0.25, step as f32 * -1e-7, step as f32 * 1.5e-5]),
        );
        sample.retain(|value| value.abs() <= 32_512.0);
        for values in sample.as_chunks().0 {
            let mut expected = Stored::default();
            store_all(Portable, (values, &mut expected));
            for set in InstructionSet::available() {
                let mut stored = Stored::default();
                dispatch!(set, store_all, (values, &mut stored), (&[f32; WIDTH], &mut Stored));
                assert!(stored == expected, "{}: {values:?}", set.name());
            }
        }
    }

    #[inline(always)]
    fn store_lines<L: Lanes>(lanes: L, (values, lines): (&[[f32; WIDTH]; LINE_VECTORS], &mut [Line; 2])) {
        let [high, low] = lines;
        let [a, b, c, d] = values;
        lanes.store_byte_lines([lanes.load(a), lanes.load(b), lanes.load(c), lanes.load(d)], high, low);
    }

    #[test]
    fn byte_lines_are_the_bytes_of_their_vectors_in_order() {
        let sample: Vec<f32> = (-32_512..=32_512).step_by(2).map(|step| step as f32 + 0.25).collect();
        for values in sample.as_chunks().0.as_chunks().0 {
            let mut expected = [Line::ZERO; 2];
            store_lines(Portable, (values, &mut expected));
            for (lane, value) in values.as_flattened().iter().enumerate() {
                let [high, low] = [0, 1].map(|line| i32::from(expected[line].0[lane]) - 128);
                assert_eq!(256 * high + low, value.round() as i32);
            }
            for set in InstructionSet::available() {
                let mut lines = [Line::ZERO; 2];
                let arguments = (values, &mut lines);
                dispatch!(set, store_lines, arguments, (&[[f32; WIDTH]; LINE_VECTORS], &mut [Line; 2]));
                assert!(lines[0].0 == expected[0].0 && lines[1].0 == expected[1].0, "{}", set.name());
            }
        }
    }

    #[inline(always)]
    fn largest_of<L: Lanes>(lanes: L, (values, bits): (&[[f32; WIDTH]; 2], &mut u32)) {
        let magnitudes = lanes.max_magnitude(lanes.splat(0.0), lanes.load(&values[0]));
        *bits = lanes.largest_bits(lanes.max_magnitude(magnitudes, lanes.load(&values[1])));
    }

    #[test]
    fn largest_magnitude_is_that_of_nan_then_of_infinity_then_of_a_number() {
        let numbers: [f32; WIDTH] = std::array::from_fn(|lane| (lane as f32 - 11.0) * 0.5);
        for (value, expected) in
            [(1.0, 5.5), (-7.0, 7.0), (f32::NEG_INFINITY, f32::INFINITY), (-f32::NAN, f32::NAN)]
        {
            for lane in 1..WIDTH {
                let mut values = [numbers; 2];
                values[lane % 2][lane] = value;
                for set in InstructionSet::available() {
                    let mut bits = 0;
                    dispatch!(set, largest_of, (&values, &mut bits), (&[[f32; WIDTH]; 2], &mut u32));
                    assert_eq!(bits, expected.to_bits(), "{}, {value}, {lane}", set.name());
                }
            }
        }
    }

    #[inline(always)]
    fn store_byte<L: Lanes>(lanes: L, (values, lines, byte): (&[f32; WIDTH], &mut [Line; 2], usize)) {
        let [high, low] = lines;
        // SAFETY: the byte is one of four, and the lines are not shared.
        unsafe { lanes.store_byte_of_four(lanes.load(values), high, low, byte) };
    }

    #[test]
    fn byte_of_four_is_stored_and_the_others_stay() {
        for (step, byte) in (-130..130).zip([0, 1, 2, 3].into_iter().cycle()) {
            let values: [f32; WIDTH] = std::array::from_fn(|lane| (step * 250 + lane as i32) as f32);
            for set in InstructionSet::available() {
                let mut lines = [Line([0xa5; 64]); 2];
                dispatch!(
                    set,
                    store_byte,
                    (&values, &mut lines, byte),
                    (&[f32; WIDTH], &mut [Line; 2], usize)
                );
                for (lane, value) in values.iter().enumerate() {
                    let [high, low] = [0, 1].map(|line| lines[line].0.as_chunks::<4>().0[lane]);
                    let stored =
                        256 * i32::from(high[byte].cast_signed()) + i32::from(low[byte].cast_signed());
                    assert_eq!(stored, *value as i32, "{}", set.name());
                    for other in (0..4).filter(|other| *other != byte) {
                        assert_eq!((high[other], low[other]), (0xa5, 0xa5), "{}", set.name());
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn store_halves<L: Lanes>(lanes: L, (values, bits): (&[f32; WIDTH], &mut [u16; WIDTH])) {
        lanes.store_f16(lanes.load(values), bits);
    }

    #[test]
    fn stored_f16_is_always_finite() {
        let mut values = [f32::NAN; WIDTH];
        values[1..7].copy_from_slice(&[f32::INFINITY, f32::NEG_INFINITY, 1e6, -1e6, 65_519.0, -65_520.0]);
        let expected = values.map(f32_to_f16_finite);
        for set in InstructionSet::available() {
            let mut bits = [1; WIDTH];
            dispatch!(set, store_halves, (&values, &mut bits), (&[f32; WIDTH], &mut [u16; WIDTH]));
            assert_eq!(bits, expected, "{}", set.name());
        }
    }
}
