//! Row-wise operations: RMSNorm and SwiGLU.

use super::activations::{Activations, RowBuffer};
use super::lanes::{self, Lanes, WIDTH};
use super::{Kernels, dispatch};

/// Vectors that SwiGLU computes together, so that none waits for the exponential and the division of another.
const SWIGLU_VECTORS: usize = 4;

/// Rows of values; consecutive rows start `stride` values apart.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    pub values: &'a [f32],
    pub stride: usize,
}

impl Rows<'_> {
    fn count(self) -> usize {
        self.values.len() / self.stride
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.stride..][..self.stride]
    }
}

impl Kernels {
    /// Inputs from the RMSNorm of the rows' first `weights.len()` values.
    pub fn rms_norm_rows(&self, rows: Rows<'_>, weights: &[f32], epsilon: f32, inputs: &mut Activations) {
        self.quantize_rows(inputs, rows.count(), weights.len(), |row, out| {
            let row = &rows.row(row)[..weights.len()];
            dispatch!(self.set, rms_norm, (row, weights, epsilon, out), (&[f32], &[f32], f32, RowBuffer<'_>));
        });
    }

    /// Inputs from SwiGLU, `gate × sigmoid(gate) × up`; each row holds `width` gate values, then `width` up values.
    pub fn swiglu_rows(&self, rows: Rows<'_>, width: usize, inputs: &mut Activations) {
        self.quantize_rows(inputs, rows.count(), width, |row, out| {
            let (gate, up) = rows.row(row)[..2 * width].split_at(width);
            let arguments = (gate, up, rows.stride, out);
            dispatch!(self.set, swiglu, arguments, (&[f32], &[f32], usize, RowBuffer<'_>));
        });
    }

    /// Inputs from the rows unchanged.
    pub fn copy_rows(&self, rows: Rows<'_>, inputs: &mut Activations) {
        self.quantize_rows(inputs, rows.count(), rows.stride, |row, out| {
            dispatch!(self.set, copy, (rows.row(row), out), (&[f32], RowBuffer<'_>));
        });
    }
}

/// The factor that brings a row's root mean square to 1.
#[inline(always)]
fn inverse_rms<L: Lanes>(lanes: L, row: &[f32], epsilon: f32) -> L::Vector {
    let mut squares = lanes.splat(0.0);
    for chunk in row.as_chunks().0 {
        let values = lanes.load(chunk);
        squares = lanes.multiply_add(values, values, squares);
    }
    let mean = lanes.reduce_add(squares) / row.len() as f32;
    lanes.splat(1.0 / (mean + epsilon).sqrt())
}

#[inline(always)]
fn rms_norm<L: Lanes>(lanes: L, (row, weights, epsilon, out): (&[f32], &[f32], f32, RowBuffer<'_>)) {
    let scale = inverse_rms(lanes, row, epsilon);
    let (row_chunks, _) = row.as_chunks();
    let (weight_chunks, _) = weights.as_chunks();
    let mut magnitudes = lanes.splat(0.0);
    for ((chunk, weights), out) in row_chunks.iter().zip(weight_chunks).zip(out.values.as_chunks_mut().0) {
        let scaled = lanes.multiply(lanes.load(chunk), scale);
        let normed = lanes.multiply(scaled, lanes.load(weights));
        magnitudes = lanes.max_magnitude(magnitudes, normed);
        lanes.store(normed, out);
    }
    out.finish(lanes, magnitudes);
}

#[inline(always)]
pub(super) fn rms_norm_in_place<L: Lanes>(lanes: L, (row, weights, epsilon): (&mut [f32], &[f32], f32)) {
    let scale = inverse_rms(lanes, row, epsilon);
    for (chunk, weights) in row.as_chunks_mut().0.iter_mut().zip(weights.as_chunks().0) {
        let scaled = lanes.multiply(lanes.load(chunk), scale);
        lanes.store(lanes.multiply(scaled, lanes.load(weights)), chunk);
    }
}

#[inline(always)]
fn swiglu<L: Lanes>(lanes: L, (gate, up, stride, out): (&[f32], &[f32], usize, RowBuffer<'_>)) {
    let (gates, last_gates) = gate.as_chunks().0.as_chunks::<SWIGLU_VECTORS>();
    let (ups, last_ups) = up.as_chunks().0.as_chunks::<SWIGLU_VECTORS>();
    let (outs, last_outs) = out.values.as_chunks_mut().0.as_chunks_mut::<SWIGLU_VECTORS>();
    let mut magnitudes = lanes.splat(0.0);
    for ((gates, ups), outs) in gates.iter().zip(ups).zip(outs) {
        for (gate, up) in gates.iter().zip(ups) {
            // The same values of the next row.
            lanes.prefetch(gate.as_ptr().wrapping_add(stride));
            lanes.prefetch(up.as_ptr().wrapping_add(stride));
        }
        magnitudes = swiglu_vectors(lanes, gates, ups, outs, magnitudes);
    }
    for ((gate, up), out) in last_gates.iter().zip(last_ups).zip(last_outs) {
        magnitudes = swiglu_vectors(lanes, &[*gate], &[*up], std::array::from_mut(out), magnitudes);
    }
    out.finish(lanes, magnitudes);
}

/// SwiGLU of a few vectors at once. Returns the larger of `magnitudes` and theirs.
#[inline(always)]
fn swiglu_vectors<L: Lanes, const COUNT: usize>(
    lanes: L,
    gates: &[[f32; WIDTH]; COUNT],
    ups: &[[f32; WIDTH]; COUNT],
    outs: &mut [[f32; WIDTH]; COUNT],
    mut magnitudes: L::Vector,
) -> L::Vector {
    let mut values = [lanes.splat(0.0); COUNT];
    for (value, gate) in values.iter_mut().zip(gates) {
        *value = lanes.load(gate);
    }
    let mut negated = values;
    for negated in &mut negated {
        *negated = lanes.multiply(*negated, lanes.splat(-1.0));
    }
    let exponentials = lanes::exp_each(lanes, negated);
    for index in 0..COUNT {
        let divisor = lanes.add(exponentials[index], lanes.splat(1.0));
        let activated = lanes.divide(values[index], divisor);
        let gated = lanes.multiply(activated, lanes.load(&ups[index]));
        magnitudes = lanes.max_magnitude(magnitudes, gated);
        lanes.store(gated, &mut outs[index]);
    }
    magnitudes
}

#[inline(always)]
fn copy<L: Lanes>(lanes: L, (row, out): (&[f32], RowBuffer<'_>)) {
    let (chunks, rest) = row.as_chunks();
    let (out_chunks, out_rest) = out.values.as_chunks_mut();
    let mut magnitudes = lanes.splat(0.0);
    for (chunk, out) in chunks.iter().zip(out_chunks) {
        let values = lanes.load(chunk);
        magnitudes = lanes.max_magnitude(magnitudes, values);
        lanes.store(values, out);
    }
    if !rest.is_empty() {
        out_rest.copy_from_slice(rest);
        let mut last = [0.0; WIDTH];
        last[..rest.len()].copy_from_slice(rest);
        magnitudes = lanes.max_magnitude(magnitudes, lanes.load(&last));
    }
    out.finish(lanes, magnitudes);
}

#[cfg(test)]
mod tests {
    use super::super::{InstructionSet, Precision, ThreadPool};
    use super::*;

    fn kernels() -> Vec<Kernels> {
        let sets = InstructionSet::available().into_iter();
        sets.map(|set| Kernels::new(set, Precision::F32, ThreadPool::start(2).unwrap())).collect()
    }

    fn values(len: usize) -> Vec<f32> {
        (0..len).map(|index| (index as f32 * 0.37).sin() * 3.0).collect()
    }

    #[test]
    fn rms_norm_equals_the_reference() {
        let (rows, weights) = (values(96 * 3), values(96));
        for kernels in kernels() {
            let mut inputs = Activations::default();
            kernels.rms_norm_rows(Rows { values: &rows, stride: 96 }, &weights, 1e-5, &mut inputs);
            for (index, row) in rows.chunks(96).enumerate() {
                let out = inputs.row(index);
                let mean = row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / 96.0;
                let scale = 1.0 / (mean + 1e-5).sqrt();
                for ((value, weight), out) in row.iter().zip(&weights).zip(out) {
                    let expected = f64::from(*value) * scale * f64::from(*weight);
                    assert!((f64::from(*out) - expected).abs() < 1e-5, "{}", kernels.name());
                }
            }
        }
    }

    #[test]
    fn gate_is_silu_times_up() {
        let (gates, ups) = (values(96), values(96));
        for kernels in kernels() {
            let mut inputs = Activations::default();
            let both = [gates.clone(), ups.clone()].concat();
            kernels.swiglu_rows(Rows { values: &both, stride: 192 }, 96, &mut inputs);
            for ((gate, up), out) in gates.iter().zip(&ups).zip(inputs.row(0)) {
                let gate = f64::from(*gate);
                let expected = gate / (1.0 + (-gate).exp()) * f64::from(*up);
                assert!((f64::from(*out) - expected).abs() < 1e-5, "{}", kernels.name());
            }
        }
    }

    #[test]
    fn rows_of_any_width_are_copied_whole_and_scaled_by_their_largest_value() {
        for (width, set) in [16, 40, 64, 71]
            .into_iter()
            .flat_map(|width| InstructionSet::available().into_iter().map(move |set| (width, set)))
        {
            let mut rows = values(2 * width);
            rows[width - 1] = -4.0;
            let inputs = |precision: Precision| {
                let mut inputs = Activations::default();
                let kernels = Kernels::new(set, precision, ThreadPool::start(1).unwrap());
                kernels.copy_rows(Rows { values: &rows, stride: width }, &mut inputs);
                inputs
            };
            assert_eq!(inputs(Precision::F32).row(0), &rows[..width], "{}, {width}", set.name());
            let scale = inputs(Precision::Int8).scale(0);
            assert!((scale - 4.0 / 32_512.0).abs() < 1e-10, "{}, {width}: {scale}", set.name());
        }
    }
}
