//! Row-wise operations: RMSNorm and SwiGLU.

use super::activations::Activations;
use super::lanes::{self, Lanes};
use super::{Kernels, dispatch};

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
            dispatch!(self.set, rms_norm, (row, weights, epsilon, out), (&[f32], &[f32], f32, &mut [f32]));
        });
    }

    /// Inputs from SwiGLU, `gate × sigmoid(gate) × up`; each row holds `width` gate values, then `width` up values.
    pub fn swiglu_rows(&self, rows: Rows<'_>, width: usize, inputs: &mut Activations) {
        self.quantize_rows(inputs, rows.count(), width, |row, out| {
            let (gate, up) = rows.row(row)[..2 * width].split_at(width);
            dispatch!(self.set, swiglu, (gate, up, out), (&[f32], &[f32], &mut [f32]));
        });
    }

    /// Inputs from the rows unchanged.
    pub fn copy_rows(&self, rows: Rows<'_>, inputs: &mut Activations) {
        self.quantize_rows(inputs, rows.count(), rows.stride, |row, out| out.copy_from_slice(rows.row(row)));
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
fn rms_norm<L: Lanes>(lanes: L, (row, weights, epsilon, out): (&[f32], &[f32], f32, &mut [f32])) {
    let scale = inverse_rms(lanes, row, epsilon);
    let (row_chunks, _) = row.as_chunks();
    let (weight_chunks, _) = weights.as_chunks();
    let (out_chunks, _) = out.as_chunks_mut();
    for ((chunk, weights), out) in row_chunks.iter().zip(weight_chunks).zip(out_chunks) {
        let scaled = lanes.multiply(lanes.load(chunk), scale);
        lanes.store(lanes.multiply(scaled, lanes.load(weights)), out);
    }
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
fn swiglu<L: Lanes>(lanes: L, (gate, up, out): (&[f32], &[f32], &mut [f32])) {
    let gates = gate.as_chunks().0.iter().zip(up.as_chunks().0);
    for ((gate, up), out) in gates.zip(out.as_chunks_mut().0) {
        let value = lanes.load(gate);
        let exp_negated = lanes::exp(lanes, lanes.multiply(value, lanes.splat(-1.0)));
        let activated = lanes.divide(value, lanes.add(exp_negated, lanes.splat(1.0)));
        lanes.store(lanes.multiply(activated, lanes.load(up)), out);
    }
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
        let (gates, ups) = (values(64), values(64));
        for kernels in kernels() {
            let mut inputs = Activations::default();
            let both = [gates.clone(), ups.clone()].concat();
            kernels.swiglu_rows(Rows { values: &both, stride: 128 }, 64, &mut inputs);
            for ((gate, up), out) in gates.iter().zip(&ups).zip(inputs.row(0)) {
                let gate = f64::from(*gate);
                let expected = gate / (1.0 + (-gate).exp()) * f64::from(*up);
                assert!((f64::from(*out) - expected).abs() < 1e-5, "{}", kernels.name());
            }
        }
    }
}
