//! Logit statistics for sampling, computed for all rows of a step together: the most likely token and, if one is to be
//! sampled, every token's softmax weight at a temperature, with sums over blocks of tokens. All instruction sets add in
//! the same order, so those with fused multiply-add agree to the last bit.

use super::lanes::{self, Lanes, WIDTH};
use super::pool::SharedPointer;
use super::{Kernels, dispatch};

/// Tokens per block of weights.
pub const BLOCK_TOKENS: usize = 256;
/// Lower bound of `lanes::exp`; tokens further below the most likely one have weight 0.
const MIN_EXPONENT: f32 = -87.0;

/// Statistics of one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogitStats {
    /// The most likely token; the lowest id among equals. NaN logits do not count; 0 if all are NaN.
    pub argmax: u32,
    /// Sums of the weights, if they were requested; the last block may be shorter than the others.
    pub blocks: Vec<WeightBlock>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WeightBlock {
    pub sum: f32,
    pub largest: f32,
}

/// Rows of logits, `stride` apart; only the first `vocab_size` values of each count.
#[derive(Debug)]
pub struct LogitRows<'a> {
    pub values: &'a mut [f32],
    pub stride: usize,
    pub vocab_size: usize,
}

impl Kernels {
    /// Computes the statistics of every row. If a row's temperature is above zero, unnormalised softmax weights replace
    /// its logits: 1 for the most likely token, `e^((logit − likeliest) ÷ temperature)` for the others, 0 if that is
    /// below e⁻⁸⁷ or NaN.
    ///
    /// # Panics
    /// If there are not as many temperatures as rows, or a row is longer than its stride.
    pub fn logit_stats(&self, rows: LogitRows<'_>, temperatures: &[f32], logit_stats: &mut Vec<LogitStats>) {
        let LogitRows { values, stride, vocab_size } = rows;
        assert!(vocab_size <= stride && values.len() == temperatures.len() * stride, "a temperature a row");
        if logit_stats.len() < temperatures.len() {
            logit_stats.resize(temperatures.len(), LogitStats::default());
        }
        let values = SharedPointer(values.as_mut_ptr());
        self.pool.run_chunks(&mut logit_stats[..temperatures.len()], 1, |row, logit_stats| {
            // SAFETY: the row lies within the values, as checked above; rows do not overlap and each is handed out
            // once.
            let logits =
                unsafe { std::slice::from_raw_parts_mut(values.get().add(row * stride), vocab_size) };
            for logit_stats in logit_stats {
                let row = Row { logits: &mut *logits, temperature: temperatures[row], logit_stats };
                dispatch!(self.set, row_logit_stats, row, Row<'_>);
            }
        });
    }
}

struct Row<'a> {
    logits: &'a mut [f32],
    temperature: f32,
    logit_stats: &'a mut LogitStats,
}

#[inline(always)]
fn row_logit_stats<L: Lanes>(lanes: L, row: Row<'_>) {
    let Row { logits, temperature, logit_stats } = row;
    logit_stats.blocks.clear();
    let (argmax, top) = argmax(lanes, logits);
    logit_stats.argmax = argmax;
    if temperature <= 0.0 {
        return;
    }
    let scaled_exp = ScaledExp {
        negative_max: lanes.splat(-top),
        temperature: lanes.splat(temperature),
        underflow_offset: lanes.multiply(lanes::exp(lanes, lanes.splat(MIN_EXPONENT)), lanes.splat(-1.0)),
    };
    for block in logits.chunks_mut(BLOCK_TOKENS) {
        let (chunks, rest) = block.as_chunks_mut::<WIDTH>();
        let mut sum = lanes.splat(0.0);
        let mut largest = lanes.splat(0.0);
        for chunk in chunks {
            let weights = scaled_exp.of(lanes, chunk);
            lanes.store(weights, chunk);
            sum = lanes.add(sum, weights);
            largest = lanes.max(weights, largest);
        }
        if !rest.is_empty() {
            let mut chunk = pad_with_neg_infinity(rest);
            let weights = scaled_exp.of(lanes, &chunk);
            lanes.store(weights, &mut chunk);
            sum = lanes.add(sum, weights);
            largest = lanes.max(weights, largest);
            rest.copy_from_slice(&chunk[..rest.len()]);
        }
        let sum = lanes.reduce_add(sum);
        logit_stats.blocks.push(WeightBlock { sum, largest: lanes.largest(largest) });
    }
}

struct ScaledExp<L: Lanes> {
    negative_max: L::Vector,
    temperature: L::Vector,
    /// `-exp(MIN_EXPONENT)`. Added to every weight, it makes the smallest exactly zero and does not change weights
    /// that matter.
    underflow_offset: L::Vector,
}

impl<L: Lanes> ScaledExp<L> {
    #[inline(always)]
    fn of(&self, lanes: L, logits: &[f32; WIDTH]) -> L::Vector {
        let shifted = lanes.add(lanes.load(logits), self.negative_max);
        let exponent = lanes.divide(shifted, self.temperature);
        // `max` returns its second operand unless the first is larger, so NaN becomes the lower bound.
        let exponent = lanes.max(exponent, lanes.splat(MIN_EXPONENT));
        lanes.add(lanes::exp(lanes, exponent), self.underflow_offset)
    }
}

/// The largest logit and its first position.
#[inline(always)]
fn argmax<L: Lanes>(lanes: L, logits: &[f32]) -> (u32, f32) {
    let mut top = f32::NEG_INFINITY;
    let mut top_block: &[f32] = &[];
    let mut top_block_start = 0;
    for (index, block) in logits.chunks(BLOCK_TOKENS).enumerate() {
        let (chunks, rest) = block.as_chunks::<WIDTH>();
        // Two accumulators, so that a comparison need not wait for the previous one.
        let mut best = [lanes.splat(f32::NEG_INFINITY); 2];
        let (pairs, last) = chunks.as_chunks::<2>();
        for [first, second] in pairs {
            best[0] = lanes.max(lanes.load(first), best[0]);
            best[1] = lanes.max(lanes.load(second), best[1]);
        }
        for chunk in last {
            best[0] = lanes.max(lanes.load(chunk), best[0]);
        }
        if !rest.is_empty() {
            best[1] = lanes.max(lanes.load(&pad_with_neg_infinity(rest)), best[1]);
        }
        let best = lanes.largest(lanes.max(best[0], best[1]));
        if best > top {
            (top, top_block, top_block_start) = (best, block, index * BLOCK_TOKENS);
        }
    }
    let offset = top_block.iter().position(|logit| *logit >= top).unwrap_or(0);
    ((top_block_start + offset) as u32, top)
}

/// Pads to a vector with values that are never the most likely.
#[inline(always)]
fn pad_with_neg_infinity(rest: &[f32]) -> [f32; WIDTH] {
    let mut chunk = [f32::NEG_INFINITY; WIDTH];
    chunk[..rest.len()].copy_from_slice(rest);
    chunk
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these results are exact")]
mod tests {
    use super::super::{InstructionSet, Precision};
    use super::*;
    use proptest::prelude::*;

    fn logit_stats(
        kernels: &Kernels,
        logits: &mut [f32],
        stride: usize,
        temperatures: &[f32],
    ) -> Vec<LogitStats> {
        let mut logit_stats = Vec::new();
        let vocab_size = stride.saturating_sub(3);
        kernels.logit_stats(LogitRows { values: logits, stride, vocab_size }, temperatures, &mut logit_stats);
        logit_stats
    }

    fn kernels() -> impl Iterator<Item = Kernels> {
        let sets = InstructionSet::available().into_iter();
        sets.map(|set| Kernels::start_with(2, Some(set.name()), Precision::Int8).unwrap())
    }

    /// Mostly numbers, plus other values that a broken model might produce.
    fn logit() -> impl Strategy<Value = f32> {
        prop_oneof![
            20 => -30.0_f32..20.0,
            2 => (-3_i8..3).prop_map(f32::from),
            1 => Just(f32::NAN),
            1 => Just(f32::NEG_INFINITY),
            1 => Just(f32::MIN),
        ]
    }

    proptest! {
        #[test]
        fn every_kernel_computes_the_argmax_and_the_weights(
            logits in proptest::collection::vec(logit(), 4..700),
            rows in 1_usize..4,
            temperature in prop_oneof![Just(0.0_f32), Just(1e-40), 0.01_f32..3.0],
        ) {
            let stride = logits.len() / rows;
            prop_assume!(stride > 3);
            let logits = &logits[..stride * rows];
            // One row stays greedy, so its logits are unchanged.
            let temperatures: Vec<f32> = (0..rows).map(|row| if row == 1 { 0.0 } else { temperature }).collect();
            let mut first_fused = None;
            for kernels in kernels() {
                let mut weights = logits.to_vec();
                let logit_stats = logit_stats(&kernels, &mut weights, stride, &temperatures);
                for (row, logit_stats) in logit_stats.iter().enumerate() {
                    let logits = &logits[row * stride..][..stride - 3];
                    let weights = &weights[row * stride..][..stride - 3];
                    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let first = logits.iter().position(|logit| *logit >= top).unwrap_or(0);
                    prop_assert_eq!(logit_stats.argmax as usize, first);
                    if temperatures[row] == 0.0 {
                        prop_assert!(logit_stats.blocks.is_empty());
                        prop_assert!(weights.iter().zip(logits).all(|(a, b)| a.to_bits() == b.to_bits()));
                        continue;
                    }
                    for (weight, logit) in weights.iter().zip(logits) {
                        let exponent = f64::from((logit - top) / temperature);
                        let expected = if exponent > -86.9 { exponent.exp() } else { 0.0 };
                        prop_assert!((f64::from(*weight) - expected).abs() <= expected * 1e-6 + 1e-37, "{weight} {expected}");
                    }
                    prop_assert_eq!(logit_stats.blocks.len(), weights.len().div_ceil(BLOCK_TOKENS));
                    for (block, weights) in logit_stats.blocks.iter().zip(weights.chunks(BLOCK_TOKENS)) {
                        prop_assert_eq!(block.largest, weights.iter().copied().fold(0.0, f32::max));
                        let sum: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
                        prop_assert!((f64::from(block.sum) - sum).abs() <= sum * 1e-5);
                    }
                }
                if kernels.name() != "portable" {
                    let bits: Vec<u32> = weights.iter().map(|weight| weight.to_bits()).collect();
                    let (first_bits, first) = first_fused.get_or_insert_with(|| (bits.clone(), logit_stats.clone()));
                    prop_assert!(*first_bits == bits && *first == logit_stats, "{}", kernels.name());
                }
            }
        }
    }

    #[test]
    fn argmax_takes_the_first_of_equals_and_ignores_nan() {
        for kernels in kernels() {
            let mut logits = vec![-1.0; 1_003];
            (logits[0], logits[700], logits[999]) = (f32::NAN, 3.0, 3.0);
            assert_eq!(logit_stats(&kernels, &mut logits, 1_003, &[0.0])[0].argmax, 700);
            let mut all_nan = vec![f32::NAN; 503];
            let logit_stats = logit_stats(&kernels, &mut all_nan, 503, &[1.0]);
            assert_eq!(logit_stats[0].argmax, 0);
            assert!(logit_stats[0].blocks.iter().all(|block| *block == WeightBlock::default()));
        }
    }

    #[test]
    fn logit_stats_keep_nothing_of_an_earlier_step() {
        for kernels in kernels() {
            let mut logit_stats = Vec::new();
            for (rows, vocab_size, temperature) in [(4, 600, 1.0), (2, 100, 1.0), (3, 300, 0.0)] {
                let mut values = vec![0.5; rows * vocab_size];
                let logits = LogitRows { values: &mut values, stride: vocab_size, vocab_size };
                kernels.logit_stats(logits, &vec![temperature; rows], &mut logit_stats);
                let blocks = if temperature > 0.0 { vocab_size.div_ceil(BLOCK_TOKENS) } else { 0 };
                assert!(logit_stats[..rows].iter().all(|logit_stats| logit_stats.blocks.len() == blocks));
            }
        }
    }
}
