//! What happens to each row on its own: normalisation, the gated activation, rotation by position, and sums.

use super::lanes::{self, Lanes};
use super::{Kernels, dispatch};

/// Below this many values a second thread costs more than it saves.
const MIN_SHARED_VALUES: usize = 8_192;

impl Kernels {
    /// `out = rows / root-mean-square(rows) × weights`, for each row of `weights.len()` values.
    pub fn rms_norm(&self, rows: &[f32], weights: &[f32], epsilon: f32, out: &mut [f32]) {
        assert_eq!(rows.len(), out.len(), "room for the normalised rows");
        let width = weights.len();
        self.each_row(out, width, |row, out| {
            let row = &rows[row * width..][..width];
            dispatch!(self.set, rms_norm, (row, weights, epsilon, out), (&[f32], &[f32], f32, &mut [f32]));
        });
    }

    /// `gate = gate × sigmoid(gate) × up`, for rows of `width` values.
    pub fn gate(&self, gate: &mut [f32], up: &[f32], width: usize) {
        assert_eq!(gate.len(), up.len(), "as many gates as values");
        self.each_row(gate, width, |row, gate| {
            let up = &up[row * width..][..width];
            dispatch!(self.set, swiglu, (gate, up), (&mut [f32], &[f32]));
        });
    }

    /// `sums = sums + terms`.
    pub fn add(&self, sums: &mut [f32], terms: &[f32]) {
        assert_eq!(sums.len(), terms.len(), "as many terms as sums");
        for (sum, term) in sums.iter_mut().zip(terms) {
            *sum += term;
        }
    }

    /// Calls `work` for each row, on one thread when there is little to do.
    fn each_row(&self, data: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
        if data.len() < MIN_SHARED_VALUES {
            data.chunks_exact_mut(width).enumerate().for_each(|(row, part)| work(row, part));
        } else {
            self.pool.run_pieces(data, width, work);
        }
    }
}

#[inline(always)]
fn rms_norm<L: Lanes>(lanes: L, (row, weights, epsilon, out): (&[f32], &[f32], f32, &mut [f32])) {
    let (row_chunks, _) = row.as_chunks();
    let mut squares = lanes.splat(0.0);
    for chunk in row_chunks {
        let values = lanes.load(chunk);
        squares = lanes.multiply_add(values, values, squares);
    }
    let mean = lanes::sum(lanes, squares) / row.len() as f32;
    let scale = lanes.splat(1.0 / (mean + epsilon).sqrt());
    let (weight_chunks, _) = weights.as_chunks();
    let (out_chunks, _) = out.as_chunks_mut();
    for ((chunk, weights), out) in row_chunks.iter().zip(weight_chunks).zip(out_chunks) {
        let scaled = lanes.multiply(lanes.load(chunk), scale);
        lanes.store(lanes.multiply(scaled, lanes.load(weights)), out);
    }
}

#[inline(always)]
fn swiglu<L: Lanes>(lanes: L, (gate, up): (&mut [f32], &[f32])) {
    let (gate_chunks, _) = gate.as_chunks_mut();
    let (up_chunks, _) = up.as_chunks();
    for (gate, up) in gate_chunks.iter_mut().zip(up_chunks) {
        let value = lanes.load(gate);
        let decay = lanes::exp(lanes, lanes.multiply(value, lanes.splat(-1.0)));
        let activated = lanes.divide(value, lanes.add(decay, lanes.splat(1.0)));
        lanes.store(lanes.multiply(activated, lanes.load(up)), gate);
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
    use super::super::{InstructionSet, Pool};
    use super::*;

    fn kernels() -> Vec<Kernels> {
        let sets = InstructionSet::available().into_iter();
        sets.map(|set| Kernels { set, pool: Pool::start(2).unwrap() }).collect()
    }

    fn values(len: usize) -> Vec<f32> {
        (0..len).map(|index| (index as f32 * 0.37).sin() * 3.0).collect()
    }

    #[test]
    fn a_normalised_row_has_the_weights_size() {
        let (rows, weights) = (values(96 * 3), values(96));
        for kernels in kernels() {
            let mut out = vec![0.0; rows.len()];
            kernels.rms_norm(&rows, &weights, 1e-5, &mut out);
            for (row, out) in rows.chunks(96).zip(out.chunks(96)) {
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
    fn the_gate_is_the_sigmoid_linear_unit_times_the_value() {
        let (gates, ups) = (values(64), values(64));
        for kernels in kernels() {
            let mut out = gates.clone();
            kernels.gate(&mut out, &ups, 64);
            for ((gate, up), out) in gates.iter().zip(&ups).zip(&out) {
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
