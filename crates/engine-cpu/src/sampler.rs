//! Samples the next token of one sequence from the statistics of its logits row. The result depends only on the seed,
//! the number of earlier draws, and the weights. The vocabulary is never sorted: only tokens that can matter become
//! candidates, and only as many of these are ranked as it takes to find the cutoff.

use crate::kernels::{BLOCK_TOKENS, LogitStats};
use chancery_engine::Sampling;
use std::cmp::Ordering;

/// Weight thresholds for collecting candidates, tried in order until enough are found. The most likely token has weight
/// 1, and the first threshold suffices for most rows.
const WEIGHT_THRESHOLDS: [f32; 4] = [1.0 / 64.0, 1.0 / 16_384.0, 1.0 / 1_073_741_824.0, 0.0];
/// Up to this many candidates are sorted outright.
const MAX_SORTED: usize = 32;

#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    draw_count: u64,
}

/// Buffers shared by all sequences and reused from token to token; they grow to the largest candidate count of any row.
#[derive(Debug, Default)]
pub struct SamplerScratch {
    /// Ordered by id.
    candidates: Vec<Candidate>,
    /// The same, partially ordered by weight.
    ranked: Vec<Candidate>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    weight: f32,
    id: u32,
}

impl Candidate {
    /// Most likely first; among equals, lowest id first.
    fn rank(&self, other: &Self) -> Ordering {
        other.weight.total_cmp(&self.weight).then(self.id.cmp(&other.id))
    }
}

impl Sampler {
    pub fn new(sampling: Sampling) -> Self {
        Self { sampling, draw_count: 0 }
    }

    /// The temperature for the row's softmax; 0 means greedy.
    pub fn temperature(&self) -> f32 {
        let Sampling { temperature, top_k, .. } = self.sampling;
        let only_one = top_k.is_some_and(|count| count.get() == 1);
        // Written so that NaN counts as 0.
        if temperature > 0.0 && temperature.is_finite() && !only_one { temperature } else { 0.0 }
    }

    /// Samples the next token. `weights` are the softmax weights that the statistics pass left in the row.
    pub fn sample(&mut self, logit_stats: &LogitStats, weights: &[f32], scratch: &mut SamplerScratch) -> u32 {
        if logit_stats.blocks.is_empty() {
            return logit_stats.argmax;
        }
        let quantile = uniform(self.sampling.seed, self.draw_count);
        self.draw_count += 1;
        let Sampling { top_k, top_p, min_p, .. } = self.sampling;
        let sampled = if top_k.is_none() && top_p >= 1.0 && min_p <= 0.0 {
            sample_unfiltered(logit_stats, weights, quantile)
        } else {
            scratch.filter_candidates(self.sampling, logit_stats, weights);
            sample_from(scratch.candidates.iter().copied(), total(&scratch.candidates) * quantile)
        };
        sampled.unwrap_or(logit_stats.argmax)
    }
}

impl SamplerScratch {
    /// Reduces the candidates to the tokens that remain after top-k, top-p and min-p.
    fn filter_candidates(&mut self, sampling: Sampling, logit_stats: &LogitStats, weights: &[f32]) {
        let Sampling { top_k, top_p, min_p, .. } = sampling;
        let max_candidates = top_k.map_or(usize::MAX, |count| count.get() as usize);
        let total_weight: f64 = logit_stats.blocks.iter().map(|block| f64::from(block.sum)).sum();
        let top_p_share = f64::from(top_p.max(0.0));
        // Tokens that `min_p` drops still count in the probability mass for `top_p`.
        let minimum = if top_p >= 1.0 { min_p } else { 0.0 };
        for threshold in WEIGHT_THRESHOLDS {
            let threshold = threshold.max(minimum);
            self.collect_candidates(logit_stats, weights, threshold);
            let enough = match top_k {
                Some(_) => self.candidates.len() >= max_candidates,
                None => total(&self.candidates) >= total_weight * top_p_share,
            };
            if enough || threshold <= minimum {
                break;
            }
        }

        let mut cutoff = None;
        if self.candidates.len() > max_candidates || top_p < 1.0 {
            self.ranked.clone_from(&self.candidates);
            let ranked = &mut self.ranked[..];
            let ranked = if ranked.len() > max_candidates {
                let (above, at, _) = ranked.select_nth_unstable_by(max_candidates - 1, Candidate::rank);
                cutoff = Some(*at);
                let retained = above.len() + 1;
                &mut ranked[..retained]
            } else {
                ranked
            };
            if top_p < 1.0 {
                let mass = if top_k.is_some() { total(ranked) } else { total_weight };
                cutoff = top_p_cutoff(ranked, mass * top_p_share).or(cutoff);
            }
        }
        self.candidates.retain(|candidate| {
            candidate.weight >= min_p && cutoff.is_none_or(|cutoff| candidate.rank(&cutoff).is_le())
        });
    }

    /// Collects every token with nonzero weight of at least `minimum`.
    fn collect_candidates(&mut self, logit_stats: &LogitStats, weights: &[f32], minimum: f32) {
        self.candidates.clear();
        let is_candidate = |weight: f32| weight >= minimum && weight > 0.0;
        for (index, weights) in
            blocks(logit_stats, weights).filter(|(index, _)| is_candidate(logit_stats.blocks[*index].largest))
        {
            let first_id = (index * BLOCK_TOKENS) as u32;
            let candidates = (first_id..).zip(weights).map(|(id, weight)| Candidate { weight: *weight, id });
            self.candidates.extend(candidates.filter(|candidate| is_candidate(candidate.weight)));
        }
    }
}

fn blocks<'a>(logit_stats: &LogitStats, weights: &'a [f32]) -> impl Iterator<Item = (usize, &'a [f32])> {
    weights.chunks(BLOCK_TOKENS).take(logit_stats.blocks.len()).enumerate()
}

fn total(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| f64::from(candidate.weight)).sum()
}

/// The candidate with which the cumulative weight, most likely first, reaches `target`, or the last one if the total is
/// less. Quickselect: halves the range until it is small, so that it takes linear time.
fn top_p_cutoff(mut candidates: &mut [Candidate], mut target: f64) -> Option<Candidate> {
    while candidates.len() > MAX_SORTED {
        let half = candidates.len() / 2;
        candidates.select_nth_unstable_by(half, Candidate::rank);
        let (likelier, rest) = candidates.split_at_mut(half);
        let likelier_mass = total(likelier);
        if likelier_mass >= target {
            candidates = likelier;
        } else {
            target -= likelier_mass;
            candidates = rest;
        }
    }
    candidates.sort_unstable_by(Candidate::rank);
    let reached = candidates.iter().find(|candidate| {
        target -= f64::from(candidate.weight);
        target <= 0.0
    });
    reached.or(candidates.last()).copied()
}

/// Samples from the whole row: the block first, then the token in it.
fn sample_unfiltered(logit_stats: &LogitStats, weights: &[f32], quantile: f64) -> Option<u32> {
    let mut remaining = logit_stats.blocks.iter().map(|block| f64::from(block.sum)).sum::<f64>() * quantile;
    let mut sampled = None;
    for (index, weights) in blocks(logit_stats, weights) {
        let sum = f64::from(logit_stats.blocks[index].sum);
        if sum > 0.0 {
            sampled = Some((index, weights, remaining));
            if remaining < sum {
                break;
            }
        }
        remaining -= sum;
    }
    let (index, weights, remaining) = sampled?;
    let first_id = (index * BLOCK_TOKENS) as u32;
    sample_from((first_id..).zip(weights).map(|(id, weight)| Candidate { weight: *weight, id }), remaining)
}

/// Inverse CDF: the candidate at cumulative weight `remaining`, or the last with nonzero weight; `None` if all weights are
/// 0.
fn sample_from(candidates: impl Iterator<Item = Candidate>, mut remaining: f64) -> Option<u32> {
    let mut sampled = None;
    for Candidate { weight, id } in candidates.filter(|candidate| candidate.weight > 0.0) {
        sampled = Some(id);
        remaining -= f64::from(weight);
        if remaining < 0.0 {
            break;
        }
    }
    sampled
}

/// Number `index` of the stream for `seed`, in [0, 1) (SplitMix64).
fn uniform(seed: u64, index: u64) -> f64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    // An f64 holds 53 bits.
    ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Kernels, LogitRows, Precision};
    use proptest::prelude::*;
    use std::num::NonZeroU32;

    const DRAWING: Sampling = Sampling { temperature: 1.0, ..Sampling::GREEDY };

    /// A sampler with everything it needs, for raw logits.
    struct Harness {
        kernels: Kernels,
        sampler: Sampler,
        logit_stats: Vec<LogitStats>,
        scratch: SamplerScratch,
        weights: Vec<f32>,
    }

    impl Harness {
        fn new(sampling: Sampling) -> Self {
            Self::on(None, sampling)
        }

        fn on(kernel: Option<&str>, sampling: Sampling) -> Self {
            Self {
                kernels: Kernels::start_with(1, kernel, Precision::Int8).unwrap(),
                sampler: Sampler::new(sampling),
                logit_stats: Vec::new(),
                scratch: SamplerScratch::default(),
                weights: Vec::new(),
            }
        }

        fn sample(&mut self, logits: &[f32]) -> u32 {
            self.weights.clear();
            self.weights.extend_from_slice(logits);
            let rows =
                LogitRows { values: &mut self.weights, stride: logits.len(), vocab_size: logits.len() };
            self.kernels.logit_stats(rows, &[self.sampler.temperature()], &mut self.logit_stats);
            self.sampler.sample(&self.logit_stats[0], &self.weights, &mut self.scratch)
        }
    }

    #[test]
    fn greedy_selects_the_first_token_with_the_highest_logit() {
        let mut logits = vec![0.0; 200];
        (logits[70], logits[130]) = (3.0, 3.0);
        logits[10] = f32::NAN;
        let one = Sampling { temperature: 2.0, top_k: NonZeroU32::new(1), seed: 9, ..Sampling::GREEDY };
        let nan_temperature = Sampling { temperature: f32::NAN, ..Sampling::GREEDY };
        for sampling in [Sampling::GREEDY, one, nan_temperature] {
            assert_eq!(Harness::new(sampling).sample(&logits), 70);
            assert_eq!(Harness::new(sampling).sample(&[f32::NAN; 3]), 0);
        }
        for top_p in [0.5, 1.0] {
            let sampling = Sampling { temperature: 1.0, top_p, seed: 1, ..Sampling::GREEDY };
            assert!(Harness::new(sampling).sample(&[f32::NAN; 3]) < 3);
        }
    }

    /// Draws 40,000 times and compares the counts with the expected shares.
    fn assert_draws_follow(sampling: Sampling, logits: &[f32], shares: &[f64]) {
        let mut harness = Harness::new(sampling);
        let mut counts = vec![0_i32; logits.len()];
        for _ in 0..40_000 {
            counts[harness.sample(logits) as usize] += 1;
        }
        for (count, share) in counts.iter().zip(shares) {
            assert!((f64::from(*count) - 40_000.0 * share).abs() < 500.0, "{counts:?}");
            assert!(*share > 0.0 || *count == 0, "{counts:?}");
        }
    }

    #[test]
    fn samples_follow_the_truncated_distribution() {
        let logits = [8.0_f32, 2.0, 0.0, 4.0, 1.0, 1.0].map(f32::ln);
        let seeded = Sampling { seed: 42, ..DRAWING };
        assert_draws_follow(seeded, &logits, &[0.5, 0.125, 0.0, 0.25, 0.0625, 0.0625]);
        let two = Sampling { top_k: NonZeroU32::new(2), ..seeded };
        assert_draws_follow(two, &logits, &[2.0 / 3.0, 0.0, 0.0, 1.0 / 3.0]);
        // Half of the top four is the most likely token alone; slightly more needs the second too.
        let four = Sampling { top_k: NonZeroU32::new(4), ..seeded };
        assert_draws_follow(Sampling { top_p: 0.53, ..four }, &logits, &[1.0]);
        assert_draws_follow(Sampling { top_p: 0.54, ..four }, &logits, &[2.0 / 3.0, 0.0, 0.0, 1.0 / 3.0]);
        let at_least = Sampling { min_p: 0.24, ..seeded };
        assert_draws_follow(at_least, &logits, &[8.0 / 14.0, 2.0 / 14.0, 0.0, 4.0 / 14.0]);
        let cooler = Sampling { temperature: 0.5, min_p: 0.24, ..seeded };
        assert_draws_follow(cooler, &logits, &[0.8, 0.0, 0.0, 0.2]);
    }

    #[test]
    fn samples_follow_the_distribution_across_blocks() {
        let mut logits = vec![f32::NEG_INFINITY; 2_000];
        for at in [3, 255, 256, 1_999] {
            logits[at] = 1.0;
        }
        let mut shares = vec![0.0; 2_000];
        for at in [3, 255, 256, 1_999] {
            shares[at] = 0.25;
        }
        assert_draws_follow(DRAWING, &logits, &shares);
        assert_draws_follow(Sampling { top_p: 0.999, ..DRAWING }, &logits, &shares);
    }

    #[test]
    fn same_seed_samples_the_same_tokens() {
        let logits: Vec<f32> = (0..1_000).map(|id| (id as f32).sin()).collect();
        let sample_from = |seed| {
            let mut harness = Harness::new(Sampling { top_p: 0.9, seed, ..DRAWING });
            (0..20).map(|_| harness.sample(&logits)).collect::<Vec<_>>()
        };
        assert_eq!(sample_from(7), sample_from(7));
        assert_ne!(sample_from(7), sample_from(8));
    }

    /// The guarantee of a seed: the same logits sample the same tokens. On a machine without fused multiply-add,
    /// weights may differ in their last bits, so a draw may differ only if it falls that close to a boundary.
    #[test]
    fn same_seed_samples_the_same_tokens_on_every_kernel() {
        let logits: Vec<f32> = (0..5_000).map(|id| (id as f32 * 0.7).sin() * 6.0).collect();
        let narrow = Sampling { top_k: NonZeroU32::new(400), top_p: 0.95, min_p: 0.05, seed: 3, ..DRAWING };
        for sampling in [Sampling { seed: 3, ..DRAWING }, narrow] {
            let sample_from = |kernel: &str| {
                let mut harness = Harness::on(Some(kernel), sampling);
                (0..500).map(|_| harness.sample(&logits)).collect::<Vec<_>>()
            };
            let portable = sample_from("portable");
            for kernel in Kernels::available_names() {
                assert!(sample_from(kernel) == portable, "{kernel}");
            }
        }
    }

    #[test]
    fn random_numbers_are_uniform_in_0_to_1() {
        let sampled: Vec<f64> = (0..10_000).map(|index| uniform(1, index)).collect();
        assert!(sampled.iter().all(|number| (0.0..1.0).contains(number)));
        let mean = sampled.iter().sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }

    /// Reference: sorts everything and applies the filters in their documented order.
    fn reference_filter(weights: &[f32], sampling: Sampling) -> (Vec<u32>, f64) {
        let mut ids: Vec<u32> = (0..weights.len() as u32).filter(|id| weights[*id as usize] > 0.0).collect();
        let weight = |id: u32| f64::from(weights[id as usize]);
        ids.sort_by(|a, b| weight(*b).total_cmp(&weight(*a)).then(a.cmp(b)));
        ids.truncate(sampling.top_k.map_or(usize::MAX, |count| count.get() as usize));
        let total: f64 = ids.iter().map(|id| weight(*id)).sum();
        // Distance from the cutoff to the nearest cumulative sum: within rounding error, either side is correct.
        let mut margin = f64::INFINITY;
        if sampling.top_p < 1.0 {
            let expected = total * f64::from(sampling.top_p);
            let mut cumulative = 0.0;
            let sums: Vec<f64> = ids
                .iter()
                .map(|id| {
                    cumulative += weight(*id);
                    cumulative
                })
                .collect();
            let cutoff_len = sums
                .iter()
                .position(|cumulative| *cumulative >= expected)
                .map_or(sums.len(), |last| last + 1);
            margin =
                sums.iter().map(|cumulative| (cumulative - expected).abs() / total).fold(margin, f64::min);
            ids.truncate(cutoff_len);
        }
        ids.retain(|id| weights[*id as usize] >= sampling.min_p);
        ids.sort_unstable();
        (ids, margin)
    }

    /// Rows as models produce them: peaked, flat, in steps, with ties.
    fn rows() -> impl Strategy<Value = Vec<f32>> {
        let len = 1_usize..2_000;
        prop_oneof![
            (len.clone(), 0.1_f32..30.0, any::<u32>()).prop_map(|(len, spread, seed)| {
                (0..len as u64).map(|id| uniform(u64::from(seed), id) as f32 * spread).collect()
            }),
            (len.clone(), 1_u32..20, any::<u32>()).prop_map(|(len, steps, seed)| {
                (0..len as u64)
                    .map(|id| (uniform(u64::from(seed), id) * f64::from(steps)).floor() as f32)
                    .collect()
            }),
            (len, any::<u32>()).prop_map(|(len, seed)| {
                (0..len as u64).map(|id| -(uniform(u64::from(seed), id).ln() as f32) * 4.0).collect()
            }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn truncation_keeps_the_same_tokens_as_sorting(
            logits in rows(),
            temperature in 0.1_f32..3.0,
            top_k in proptest::option::of(1_u32..2_500),
            top_p in prop_oneof![Just(1.0_f32), 0.0_f32..1.0, 0.99_f32..1.0],
            min_p in prop_oneof![Just(0.0_f32), 0.0_f32..1.0, Just(1.0)],
            seed in any::<u64>(),
        ) {
            let top_k_count = top_k.and_then(NonZeroU32::new);
            let sampling = Sampling { temperature, top_k: top_k_count, top_p, min_p, seed, ..Sampling::GREEDY };
            let mut harness = Harness::new(sampling);
            let sampled = harness.sample(&logits);
            prop_assert!((sampled as usize) < logits.len());
            if sampling.top_k.is_some_and(|count| count.get() == 1) || (top_k.is_none() && top_p >= 1.0 && min_p <= 0.0) {
                return Ok(());
            }
            let retained: Vec<u32> = harness.scratch.candidates.iter().map(|candidate| candidate.id).collect();
            let (expected, margin) = reference_filter(&harness.weights, sampling);
            prop_assert!(retained.contains(&sampled));
            if margin > 1e-5 {
                prop_assert_eq!(retained, expected);
            } else {
                prop_assert!(retained.len().abs_diff(expected.len()) <= 1);
                let (fewer, more) = if retained.len() < expected.len() { (retained, expected) } else { (expected, retained) };
                prop_assert!(fewer.iter().all(|id| more.contains(id)));
            }
        }
    }
}
