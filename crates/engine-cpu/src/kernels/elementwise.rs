//! What happens to each row on its own: normalisation, the gated activation, rotation by position.

use super::inputs::Inputs;
use super::lanes::{self, Lanes};
use super::{Kernels, dispatch};

/// Rows of values; a row begins `stride` values after the one before.
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
    /// Inputs of the rows' first `weights.len()` values, each row divided by its root mean square, times the weights.
    pub fn normalise(&self, rows: Rows<'_>, weights: &[f32], epsilon: f32, inputs: &mut Inputs) {
        self.make_inputs(inputs, rows.count(), weights.len(), |row, out| {
            let row = &rows.row(row)[..weights.len()];
            dispatch!(self.set, rms_norm, (row, weights, epsilon, out), (&[f32], &[f32], f32, &mut [f32]));
        });
    }

    /// Each head of a row divided by its root mean square, times the weights; all heads share them.
    pub fn normalise_heads(&self, heads: &mut [f32], weights: &[f32], epsilon: f32) {
        for head in heads.chunks_exact_mut(weights.len()) {
            dispatch!(self.set, rms_norm_in_place, (head, weights, epsilon), (&mut [f32], &[f32], f32));
        }
    }

    /// Inputs `gate × sigmoid(gate) × up`, where each row holds `width` gates and then `width` ups.
    pub fn gate(&self, rows: Rows<'_>, width: usize, inputs: &mut Inputs) {
        self.make_inputs(inputs, rows.count(), width, |row, out| {
            let (gate, up) = rows.row(row)[..2 * width].split_at(width);
            dispatch!(self.set, swiglu, (gate, up, out), (&[f32], &[f32], &mut [f32]));
        });
    }

    /// Inputs that are the rows as they are.
    pub fn take_rows(&self, rows: Rows<'_>, inputs: &mut Inputs) {
        self.make_inputs(inputs, rows.count(), rows.stride, |row, out| out.copy_from_slice(rows.row(row)));
    }
}

/// What a row is multiplied by, so that its root mean square becomes 1.
#[inline(always)]
fn inverse_of_size<L: Lanes>(lanes: L, row: &[f32], epsilon: f32) -> L::Vector {
    let mut squares = lanes.splat(0.0);
    for chunk in row.as_chunks().0 {
        let values = lanes.load(chunk);
        squares = lanes.multiply_add(values, values, squares);
    }
    let mean = lanes::sum(lanes, squares) / row.len() as f32;
    lanes.splat(1.0 / (mean + epsilon).sqrt())
}

#[inline(always)]
fn rms_norm<L: Lanes>(lanes: L, (row, weights, epsilon, out): (&[f32], &[f32], f32, &mut [f32])) {
    let scale = inverse_of_size(lanes, row, epsilon);
    let (row_chunks, _) = row.as_chunks();
    let (weight_chunks, _) = weights.as_chunks();
    let (out_chunks, _) = out.as_chunks_mut();
    for ((chunk, weights), out) in row_chunks.iter().zip(weight_chunks).zip(out_chunks) {
        let scaled = lanes.multiply(lanes.load(chunk), scale);
        lanes.store(lanes.multiply(scaled, lanes.load(weights)), out);
    }
}

#[inline(always)]
fn rms_norm_in_place<L: Lanes>(lanes: L, (row, weights, epsilon): (&mut [f32], &[f32], f32)) {
    let scale = inverse_of_size(lanes, row, epsilon);
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
        let decay = lanes::exp(lanes, lanes.multiply(value, lanes.splat(-1.0)));
        let activated = lanes.divide(value, lanes.add(decay, lanes.splat(1.0)));
        lanes.store(lanes.multiply(activated, lanes.load(up)), out);
    }
}

/// Adds the bias to a row of as many values.
pub fn add_bias(row: &mut [f32], bias: &[f32]) {
    for (value, bias) in row.iter_mut().zip(bias) {
        *value += bias;
    }
}

/// Rotates neighbouring pairs of each head by the angles of one position; values past the angles stay.
pub fn rotate_pairs(heads: &mut [f32], head_len: usize, cosines: &[f32], sines: &[f32]) {
    for head in heads.chunks_exact_mut(head_len) {
        for ((pair, cosine), sine) in head.chunks_exact_mut(2).zip(cosines).zip(sines) {
            let (first, second) = (pair[0], pair[1]);
            pair[0] = first * cosine - second * sine;
            pair[1] = first * sine + second * cosine;
        }
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these results are exact")]
mod tests {
    use super::super::{Arithmetic, InstructionSet, Pool};
    use super::*;

    fn kernels() -> Vec<Kernels> {
        let sets = InstructionSet::available().into_iter();
        sets.map(|set| Kernels { set, arithmetic: Arithmetic::Exact, pool: Pool::start(2).unwrap() })
            .collect()
    }

    fn values(len: usize) -> Vec<f32> {
        (0..len).map(|index| (index as f32 * 0.37).sin() * 3.0).collect()
    }

    #[test]
    fn a_normalised_row_has_the_weights_size() {
        let (rows, weights) = (values(96 * 3), values(96));
        for kernels in kernels() {
            let mut inputs = Inputs::default();
            kernels.normalise(Rows { values: &rows, stride: 96 }, &weights, 1e-5, &mut inputs);
            for (index, row) in rows.chunks(96).enumerate() {
                let out = inputs.row(index);
                let mean = row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / 96.0;
                let scale = 1.0 / (mean + 1e-5).sqrt();
                for ((value, weight), out) in row.iter().zip(&weights).zip(out) {
                    let wanted = f64::from(*value) * scale * f64::from(*weight);
                    assert!((f64::from(*out) - wanted).abs() < 1e-5, "{}", kernels.name());
                }
            }
        }
    }

    #[test]
    fn every_head_is_normalised_on_its_own_to_the_same_bits_as_a_row() {
        let (heads, weights) = (values(48 * 3), values(48));
        for kernels in kernels() {
            let mut inputs = Inputs::default();
            kernels.normalise(Rows { values: &heads, stride: 48 }, &weights, 1e-5, &mut inputs);
            let mut in_place = heads.clone();
            kernels.normalise_heads(&mut in_place, &weights, 1e-5);
            for (index, head) in in_place.chunks(48).enumerate() {
                assert_eq!(head, inputs.row(index), "{}", kernels.name());
            }
        }
    }

    #[test]
    fn the_gate_is_the_sigmoid_linear_unit_times_the_value() {
        let (gates, ups) = (values(64), values(64));
        for kernels in kernels() {
            let mut inputs = Inputs::default();
            let both = [gates.clone(), ups.clone()].concat();
            kernels.gate(Rows { values: &both, stride: 128 }, 64, &mut inputs);
            for ((gate, up), out) in gates.iter().zip(&ups).zip(inputs.row(0)) {
                let gate = f64::from(*gate);
                let wanted = gate / (1.0 + (-gate).exp()) * f64::from(*up);
                assert!((f64::from(*out) - wanted).abs() < 1e-5, "{}", kernels.name());
            }
        }
    }

    #[test]
    fn rotation_turns_pairs_and_leaves_the_rest() {
        let mut head = [1.0, 0.0, 0.0, 2.0, 5.0, 6.0];
        rotate_pairs(&mut head, 6, &[0.0, 0.0], &[1.0, 1.0]);
        assert_eq!(head, [0.0, 1.0, -2.0, 0.0, 5.0, 6.0]);
    }
}
