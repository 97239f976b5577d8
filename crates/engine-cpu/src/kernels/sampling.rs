//! What choosing a token needs to know of a row of logits, found for all rows of a step together: the likeliest token,
//! and, where one is to be drawn, every token's weight at a temperature with sums over blocks of tokens. Sums are added
//! in one order whatever the instruction set, so where it fuses multiplication and addition, the bits are the same too.

use super::lanes::{self, Lanes, WIDTH};
use super::pool::SharedPointer;
use super::{Kernels, dispatch};

/// Tokens of one block.
pub const BLOCK_TOKENS: usize = 256;
/// Where the exponential of the lanes ends; what lies further below the likeliest weighs nothing.
const LEAST_EXPONENT: f32 = -87.0;

/// What is known of one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Survey {
    /// The likeliest token; the lowest of equals. Logits that are not numbers do not count, and 0 is taken when none
    /// is one.
    pub likeliest: u32,
    /// Of the weights, if they were asked for; the last block may be shorter than the others.
    pub blocks: Vec<WeightBlock>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WeightBlock {
    pub sum: f32,
    pub largest: f32,
}

/// Rows of logits, `stride` apart, of which the first `vocabulary` of each count.
#[derive(Debug)]
pub struct LogitRows<'a> {
    pub values: &'a mut [f32],
    pub stride: usize,
    pub vocabulary: usize,
}

impl Kernels {
    /// Surveys every row. Where its temperature is above zero, weights take the place of the logits: 1 for the likeliest
    /// token, `e^((logit − likeliest) ÷ temperature)` for the others, 0 where that is below e⁻⁸⁷ or not a number.
    ///
    /// # Panics
    /// When there are not as many temperatures as rows, or a row is longer than its stride.
    pub fn survey(&self, rows: LogitRows<'_>, temperatures: &[f32], surveys: &mut Vec<Survey>) {
        let LogitRows { values, stride, vocabulary } = rows;
        assert!(vocabulary <= stride && values.len() == temperatures.len() * stride, "a temperature a row");
        if surveys.len() < temperatures.len() {
            surveys.resize(temperatures.len(), Survey::default());
        }
        let values = SharedPointer(values.as_mut_ptr());
        self.pool.run_pieces(&mut surveys[..temperatures.len()], 1, |row, surveys| {
            // SAFETY: the row lies within the values, as was checked; rows do not overlap and each is handed out once.
            let logits =
                unsafe { std::slice::from_raw_parts_mut(values.get().add(row * stride), vocabulary) };
            for survey in surveys {
                let row = Row { logits: &mut *logits, temperature: temperatures[row], survey };
                dispatch!(self.set, survey_row, row, Row<'_>);
            }
        });
    }
}

struct Row<'a> {
    logits: &'a mut [f32],
    temperature: f32,
    survey: &'a mut Survey,
}

#[inline(always)]
fn survey_row<L: Lanes>(lanes: L, row: Row<'_>) {
    let Row { logits, temperature, survey } = row;
    survey.blocks.clear();
    let (likeliest, top) = likeliest(lanes, logits);
    survey.likeliest = likeliest;
    if temperature <= 0.0 {
        return;
    }
    let weigh = Weigh {
        negative_top: lanes.splat(-top),
        temperature: lanes.splat(temperature),
        nothing: lanes.multiply(lanes::exp(lanes, lanes.splat(LEAST_EXPONENT)), lanes.splat(-1.0)),
    };
    for block in logits.chunks_mut(BLOCK_TOKENS) {
        let (chunks, rest) = block.as_chunks_mut::<WIDTH>();
        let mut sum = lanes.splat(0.0);
        let mut largest = lanes.splat(0.0);
        for chunk in chunks {
            let weights = weigh.of(lanes, chunk);
            lanes.store(weights, chunk);
            sum = lanes.add(sum, weights);
            largest = lanes.maximum(weights, largest);
        }
        if !rest.is_empty() {
            let mut chunk = filled_up(rest);
            let weights = weigh.of(lanes, &chunk);
            lanes.store(weights, &mut chunk);
            sum = lanes.add(sum, weights);
            largest = lanes.maximum(weights, largest);
            rest.copy_from_slice(&chunk[..rest.len()]);
        }
        let sum = lanes.sum(sum);
        survey.blocks.push(WeightBlock { sum, largest: lanes.largest(largest) });
    }
}

struct Weigh<L: Lanes> {
    negative_top: L::Vector,
    temperature: L::Vector,
    /// What the least exponent comes to, below zero: taken off every weight, it leaves exactly none of the least and
    /// does not change those that count.
    nothing: L::Vector,
}

impl<L: Lanes> Weigh<L> {
    #[inline(always)]
    fn of(&self, lanes: L, logits: &[f32; WIDTH]) -> L::Vector {
        let below = lanes.add(lanes.load(logits), self.negative_top);
        let exponent = lanes.divide(below, self.temperature);
        // The first of two where that is larger, and the second otherwise: also where the first is not a number.
        let exponent = lanes.maximum(exponent, lanes.splat(LEAST_EXPONENT));
        lanes.add(lanes::exp(lanes, exponent), self.nothing)
    }
}

/// The largest logit and the first place where it stands.
#[inline(always)]
fn likeliest<L: Lanes>(lanes: L, logits: &[f32]) -> (u32, f32) {
    let mut top = f32::NEG_INFINITY;
    let mut top_block: &[f32] = &[];
    let mut top_block_start = 0;
    for (index, block) in logits.chunks(BLOCK_TOKENS).enumerate() {
        let (chunks, rest) = block.as_chunks::<WIDTH>();
        // Two, so that one comparison need not wait for the one before.
        let mut best = [lanes.splat(f32::NEG_INFINITY); 2];
        let (pairs, last) = chunks.as_chunks::<2>();
        for [first, second] in pairs {
            best[0] = lanes.maximum(lanes.load(first), best[0]);
            best[1] = lanes.maximum(lanes.load(second), best[1]);
        }
        for chunk in last {
            best[0] = lanes.maximum(lanes.load(chunk), best[0]);
        }
        if !rest.is_empty() {
            best[1] = lanes.maximum(lanes.load(&filled_up(rest)), best[1]);
        }
        let best = lanes.largest(lanes.maximum(best[0], best[1]));
        if best > top {
            (top, top_block, top_block_start) = (best, block, index * BLOCK_TOKENS);
        }
    }
    let place = top_block.iter().position(|logit| *logit >= top).unwrap_or(0);
    ((top_block_start + place) as u32, top)
}

/// A vector that begins with these and is never the likeliest behind them.
#[inline(always)]
fn filled_up(rest: &[f32]) -> [f32; WIDTH] {
    let mut chunk = [f32::NEG_INFINITY; WIDTH];
    chunk[..rest.len()].copy_from_slice(rest);
    chunk
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these results are exact")]
mod tests {
    use super::super::{Arithmetic, InstructionSet};
    use super::*;
    use proptest::prelude::*;

    fn survey(kernels: &Kernels, logits: &mut [f32], stride: usize, temperatures: &[f32]) -> Vec<Survey> {
        let mut surveys = Vec::new();
        let vocabulary = stride.saturating_sub(3);
        kernels.survey(LogitRows { values: logits, stride, vocabulary }, temperatures, &mut surveys);
        surveys
    }

    fn kernels() -> impl Iterator<Item = Kernels> {
        let sets = InstructionSet::available().into_iter();
        sets.map(|set| Kernels::start_with(2, Some(set.name()), Arithmetic::Fixed).unwrap())
    }

    /// Mostly numbers, and what else a broken model might say.
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
        fn every_kernel_finds_the_likeliest_and_the_weights(
            logits in proptest::collection::vec(logit(), 4..700),
            rows in 1_usize..4,
            temperature in prop_oneof![Just(0.0_f32), Just(1e-40), 0.01_f32..3.0],
        ) {
            let stride = logits.len() / rows;
            prop_assume!(stride > 3);
            let logits = &logits[..stride * rows];
            // One row is left as it is.
            let temperatures: Vec<f32> = (0..rows).map(|row| if row == 1 { 0.0 } else { temperature }).collect();
            let mut by_fused = None;
            for kernels in kernels() {
                let mut weights = logits.to_vec();
                let surveys = survey(&kernels, &mut weights, stride, &temperatures);
                for (row, survey) in surveys.iter().enumerate() {
                    let logits = &logits[row * stride..][..stride - 3];
                    let weights = &weights[row * stride..][..stride - 3];
                    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let first = logits.iter().position(|logit| *logit >= top).unwrap_or(0);
                    prop_assert_eq!(survey.likeliest as usize, first);
                    if temperatures[row] == 0.0 {
                        prop_assert!(survey.blocks.is_empty());
                        prop_assert!(weights.iter().zip(logits).all(|(a, b)| a.to_bits() == b.to_bits()));
                        continue;
                    }
                    for (weight, logit) in weights.iter().zip(logits) {
                        let exponent = f64::from((logit - top) / temperature);
                        let wanted = if exponent > -86.9 { exponent.exp() } else { 0.0 };
                        prop_assert!((f64::from(*weight) - wanted).abs() <= wanted * 1e-6 + 1e-37, "{weight} {wanted}");
                    }
                    prop_assert_eq!(survey.blocks.len(), weights.len().div_ceil(BLOCK_TOKENS));
                    for (block, weights) in survey.blocks.iter().zip(weights.chunks(BLOCK_TOKENS)) {
                        prop_assert_eq!(block.largest, weights.iter().copied().fold(0.0, f32::max));
                        let sum: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
                        prop_assert!((f64::from(block.sum) - sum).abs() <= sum * 1e-5);
                    }
                }
                if kernels.name() != "portable" {
                    let bits: Vec<u32> = weights.iter().map(|weight| weight.to_bits()).collect();
                    let (first_bits, first) = by_fused.get_or_insert_with(|| (bits.clone(), surveys.clone()));
                    prop_assert!(*first_bits == bits && *first == surveys, "{}", kernels.name());
                }
            }
        }
    }

    #[test]
    fn of_equals_the_first_is_the_likeliest_and_nothing_is_as_good_as_no_number() {
        for kernels in kernels() {
            let mut logits = vec![-1.0; 1_003];
            (logits[0], logits[700], logits[999]) = (f32::NAN, 3.0, 3.0);
            assert_eq!(survey(&kernels, &mut logits, 1_003, &[0.0])[0].likeliest, 700);
            let mut nothing = vec![f32::NAN; 503];
            let survey = survey(&kernels, &mut nothing, 503, &[1.0]);
            assert_eq!(survey[0].likeliest, 0);
            assert!(survey[0].blocks.iter().all(|block| *block == WeightBlock::default()));
        }
    }

    #[test]
    fn surveys_of_an_earlier_step_leave_nothing_behind() {
        for kernels in kernels() {
            let mut surveys = Vec::new();
            for (rows, vocabulary, temperature) in [(4, 600, 1.0), (2, 100, 1.0), (3, 300, 0.0)] {
                let mut values = vec![0.5; rows * vocabulary];
                let logits = LogitRows { values: &mut values, stride: vocabulary, vocabulary };
                kernels.survey(logits, &vec![temperature; rows], &mut surveys);
                let blocks = if temperature > 0.0 { vocabulary.div_ceil(BLOCK_TOKENS) } else { 0 };
                assert!(surveys[..rows].iter().all(|survey| survey.blocks.len() == blocks));
            }
        }
    }
}
