//! Chooses the next token of one sequence from what a survey found of its row. Draws depend on the seed, how many were
//! made before, and the weights alone. The vocabulary is never sorted: only the tokens that can matter are looked at,
//! and of these only so many are put in order as it takes to find the last one that stays.

use crate::kernels::{BLOCK_TOKENS, Survey};
use chancery_engine::Sampling;
use std::cmp::Ordering;

/// Weights down to which tokens are looked at, one after the other, until enough are found. The likeliest has weight 1,
/// and most rows are done with the first.
const LEVELS: [f32; 4] = [1.0 / 64.0, 1.0 / 16_384.0, 1.0 / 1_073_741_824.0, 0.0];
/// So few candidates are put in order whole.
const SORTED_AT_MOST: usize = 32;

#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    draws: u64,
}

/// Room that all sequences share, kept from token to token; it grows to the most candidates a row ever had.
#[derive(Debug, Default)]
pub struct SamplerRoom {
    /// In the order of their ids.
    candidates: Vec<Candidate>,
    /// The same, on the way to being ordered by weight.
    ranked: Vec<Candidate>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    weight: f32,
    id: u32,
}

impl Candidate {
    /// The likeliest first, and of equals the lowest id.
    fn rank(&self, other: &Self) -> Ordering {
        other.weight.total_cmp(&self.weight).then(self.id.cmp(&other.id))
    }
}

impl Sampler {
    pub fn new(sampling: Sampling) -> Self {
        Self { sampling, draws: 0 }
    }

    /// What the row is to be surveyed at; 0 where the likeliest token is always taken.
    pub fn temperature(&self) -> f32 {
        let Sampling { temperature, top_k, .. } = self.sampling;
        let only_one = top_k.is_some_and(|count| count.get() == 1);
        // Written so that a temperature that is not a number counts as none.
        if temperature > 0.0 && temperature.is_finite() && !only_one { temperature } else { 0.0 }
    }

    /// The next token. `weights` are what the survey left in the row.
    pub fn choose(&mut self, survey: &Survey, weights: &[f32], room: &mut SamplerRoom) -> u32 {
        if survey.blocks.is_empty() {
            return survey.likeliest;
        }
        let share = uniform(self.sampling.seed, self.draws);
        self.draws += 1;
        let Sampling { top_k, top_p, min_p, .. } = self.sampling;
        let drawn = if top_k.is_none() && top_p >= 1.0 && min_p <= 0.0 {
            draw_from_all(survey, weights, share)
        } else {
            room.keep(self.sampling, survey, weights);
            draw(room.candidates.iter().copied(), total(&room.candidates) * share)
        };
        drawn.unwrap_or(survey.likeliest)
    }
}

impl SamplerRoom {
    /// Leaves as candidates the tokens that are drawn from.
    fn keep(&mut self, sampling: Sampling, survey: &Survey, weights: &[f32]) {
        let Sampling { top_k, top_p, min_p, .. } = sampling;
        let most = top_k.map_or(usize::MAX, |count| count.get() as usize);
        let all: f64 = survey.blocks.iter().map(|block| f64::from(block.sum)).sum();
        let wanted_share = f64::from(top_p.max(0.0));
        // What `min_p` drops still counts in the share that `top_p` is of.
        let least = if top_p >= 1.0 { min_p } else { 0.0 };
        for level in LEVELS {
            let level = level.max(least);
            self.gather(survey, weights, level);
            let enough = match top_k {
                Some(_) => self.candidates.len() >= most,
                None => total(&self.candidates) >= all * wanted_share,
            };
            if enough || level <= least {
                break;
            }
        }

        let mut last = None;
        if self.candidates.len() > most || top_p < 1.0 {
            self.ranked.clone_from(&self.candidates);
            let ranked = &mut self.ranked[..];
            let ranked = if ranked.len() > most {
                let (above, at, _) = ranked.select_nth_unstable_by(most - 1, Candidate::rank);
                last = Some(*at);
                let kept = above.len() + 1;
                &mut ranked[..kept]
            } else {
                ranked
            };
            if top_p < 1.0 {
                let of = if top_k.is_some() { total(ranked) } else { all };
                last = reaching(ranked, of * wanted_share).or(last);
            }
        }
        self.candidates.retain(|candidate| {
            candidate.weight >= min_p && last.is_none_or(|last| candidate.rank(&last).is_le())
        });
    }

    /// Takes in every token that weighs anything and at least so much.
    fn gather(&mut self, survey: &Survey, weights: &[f32], least: f32) {
        self.candidates.clear();
        let counts = |weight: f32| weight >= least && weight > 0.0;
        for (index, weights) in
            blocks(survey, weights).filter(|(index, _)| counts(survey.blocks[*index].largest))
        {
            let first_id = (index * BLOCK_TOKENS) as u32;
            let candidates = (first_id..).zip(weights).map(|(id, weight)| Candidate { weight: *weight, id });
            self.candidates.extend(candidates.filter(|candidate| counts(candidate.weight)));
        }
    }
}

fn blocks<'a>(survey: &Survey, weights: &'a [f32]) -> impl Iterator<Item = (usize, &'a [f32])> {
    weights.chunks(BLOCK_TOKENS).take(survey.blocks.len()).enumerate()
}

fn total(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| f64::from(candidate.weight)).sum()
}

/// The candidate with which the likeliest reach `wanted`, or the last when all do not. Halves what is in question until
/// it is few, so that it takes time in proportion to their number.
fn reaching(mut candidates: &mut [Candidate], mut wanted: f64) -> Option<Candidate> {
    while candidates.len() > SORTED_AT_MOST {
        let half = candidates.len() / 2;
        candidates.select_nth_unstable_by(half, Candidate::rank);
        let (likelier, rest) = candidates.split_at_mut(half);
        let held = total(likelier);
        if held >= wanted {
            candidates = likelier;
        } else {
            wanted -= held;
            candidates = rest;
        }
    }
    candidates.sort_unstable_by(Candidate::rank);
    let reached = candidates.iter().find(|candidate| {
        wanted -= f64::from(candidate.weight);
        wanted <= 0.0
    });
    reached.or(candidates.last()).copied()
}

/// One token of the whole row by its weight: the block first, then the token in it.
fn draw_from_all(survey: &Survey, weights: &[f32], share: f64) -> Option<u32> {
    let mut left = survey.blocks.iter().map(|block| f64::from(block.sum)).sum::<f64>() * share;
    let mut drawn = None;
    for (index, weights) in blocks(survey, weights) {
        let sum = f64::from(survey.blocks[index].sum);
        if sum > 0.0 {
            drawn = Some((index, weights, left));
            if left < sum {
                break;
            }
        }
        left -= sum;
    }
    let (index, weights, left) = drawn?;
    let first_id = (index * BLOCK_TOKENS) as u32;
    draw((first_id..).zip(weights).map(|(id, weight)| Candidate { weight: *weight, id }), left)
}

/// The candidate in which `left` of the weight lies, or the last that weighs anything; `None` when none does.
fn draw(candidates: impl Iterator<Item = Candidate>, mut left: f64) -> Option<u32> {
    let mut drawn = None;
    for Candidate { weight, id } in candidates.filter(|candidate| candidate.weight > 0.0) {
        drawn = Some(id);
        left -= f64::from(weight);
        if left < 0.0 {
            break;
        }
    }
    drawn
}

/// The number `index` of the stream that `seed` names, from 0 to below 1 (SplitMix64).
fn uniform(seed: u64, index: u64) -> f64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    // As many bits as a float of this size holds.
    ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Arithmetic, Kernels, LogitRows};
    use proptest::prelude::*;
    use std::num::NonZeroU32;

    const DRAWING: Sampling = Sampling { temperature: 1.0, ..Sampling::GREEDY };

    /// A sampler with all it needs, for logits as they come.
    struct Bench {
        kernels: Kernels,
        sampler: Sampler,
        surveys: Vec<Survey>,
        room: SamplerRoom,
        weights: Vec<f32>,
    }

    impl Bench {
        fn new(sampling: Sampling) -> Self {
            Self::on(None, sampling)
        }

        fn on(kernel: Option<&str>, sampling: Sampling) -> Self {
            Self {
                kernels: Kernels::start_with(1, kernel, Arithmetic::Fixed).unwrap(),
                sampler: Sampler::new(sampling),
                surveys: Vec::new(),
                room: SamplerRoom::default(),
                weights: Vec::new(),
            }
        }

        fn choose(&mut self, logits: &[f32]) -> u32 {
            self.weights.clear();
            self.weights.extend_from_slice(logits);
            let rows =
                LogitRows { values: &mut self.weights, stride: logits.len(), vocabulary: logits.len() };
            self.kernels.survey(rows, &[self.sampler.temperature()], &mut self.surveys);
            self.sampler.choose(&self.surveys[0], &self.weights, &mut self.room)
        }
    }

    #[test]
    fn greedy_takes_the_likeliest_and_the_first_of_equals() {
        let mut logits = vec![0.0; 200];
        (logits[70], logits[130]) = (3.0, 3.0);
        logits[10] = f32::NAN;
        let one = Sampling { temperature: 2.0, top_k: NonZeroU32::new(1), seed: 9, ..Sampling::GREEDY };
        let no_number = Sampling { temperature: f32::NAN, ..Sampling::GREEDY };
        for sampling in [Sampling::GREEDY, one, no_number] {
            assert_eq!(Bench::new(sampling).choose(&logits), 70);
            assert_eq!(Bench::new(sampling).choose(&[f32::NAN; 3]), 0);
        }
        for top_p in [0.5, 1.0] {
            let sampling = Sampling { temperature: 1.0, top_p, seed: 1, ..Sampling::GREEDY };
            assert!(Bench::new(sampling).choose(&[f32::NAN; 3]) < 3);
        }
    }

    /// Draws 40,000 times and holds the counts against the shares.
    fn assert_draws_follow(sampling: Sampling, logits: &[f32], shares: &[f64]) {
        let mut bench = Bench::new(sampling);
        let mut counts = vec![0_i32; logits.len()];
        for _ in 0..40_000 {
            counts[bench.choose(logits) as usize] += 1;
        }
        for (count, share) in counts.iter().zip(shares) {
            assert!((f64::from(*count) - 40_000.0 * share).abs() < 500.0, "{counts:?}");
            assert!(*share > 0.0 || *count == 0, "{counts:?}");
        }
    }

    #[test]
    fn draws_follow_the_probabilities_of_what_stays() {
        let logits = [8.0_f32, 2.0, 0.0, 4.0, 1.0, 1.0].map(f32::ln);
        let seeded = Sampling { seed: 42, ..DRAWING };
        assert_draws_follow(seeded, &logits, &[0.5, 0.125, 0.0, 0.25, 0.0625, 0.0625]);
        let two = Sampling { top_k: NonZeroU32::new(2), ..seeded };
        assert_draws_follow(two, &logits, &[2.0 / 3.0, 0.0, 0.0, 1.0 / 3.0]);
        // Half of the four likeliest is the likeliest alone; a little more needs the second too.
        let four = Sampling { top_k: NonZeroU32::new(4), ..seeded };
        assert_draws_follow(Sampling { top_p: 0.53, ..four }, &logits, &[1.0]);
        assert_draws_follow(Sampling { top_p: 0.54, ..four }, &logits, &[2.0 / 3.0, 0.0, 0.0, 1.0 / 3.0]);
        let at_least = Sampling { min_p: 0.24, ..seeded };
        assert_draws_follow(at_least, &logits, &[8.0 / 14.0, 2.0 / 14.0, 0.0, 4.0 / 14.0]);
        let cooler = Sampling { temperature: 0.5, min_p: 0.24, ..seeded };
        assert_draws_follow(cooler, &logits, &[0.8, 0.0, 0.0, 0.2]);
    }

    #[test]
    fn draws_follow_the_probabilities_over_many_blocks() {
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
    fn the_same_seed_draws_the_same_tokens_and_another_does_not() {
        let logits: Vec<f32> = (0..1_000).map(|id| (id as f32).sin()).collect();
        let draw = |seed| {
            let mut bench = Bench::new(Sampling { top_p: 0.9, seed, ..DRAWING });
            (0..20).map(|_| bench.choose(&logits)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    /// What is promised of a seed: the same logits draw the same tokens. Where a machine does not fuse multiplication
    /// and addition, weights may differ in their last bits, and a draw only where it falls that near a boundary.
    #[test]
    fn the_same_seed_draws_the_same_tokens_on_every_kernel() {
        let logits: Vec<f32> = (0..5_000).map(|id| (id as f32 * 0.7).sin() * 6.0).collect();
        let narrow = Sampling { top_k: NonZeroU32::new(400), top_p: 0.95, min_p: 0.05, seed: 3, ..DRAWING };
        for sampling in [Sampling { seed: 3, ..DRAWING }, narrow] {
            let draw = |kernel: &str| {
                let mut bench = Bench::on(Some(kernel), sampling);
                (0..500).map(|_| bench.choose(&logits)).collect::<Vec<_>>()
            };
            let portable = draw("portable");
            for kernel in Kernels::available_names() {
                assert!(draw(kernel) == portable, "{kernel}");
            }
        }
    }

    #[test]
    fn numbers_drawn_are_spread_over_zero_to_one() {
        let drawn: Vec<f64> = (0..10_000).map(|index| uniform(1, index)).collect();
        assert!(drawn.iter().all(|number| (0.0..1.0).contains(number)));
        let mean = drawn.iter().sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }

    /// The plain way: sort everything, cut in the order that the documents give.
    fn kept_by_sorting(weights: &[f32], sampling: Sampling) -> (Vec<u32>, f64) {
        let mut ids: Vec<u32> = (0..weights.len() as u32).filter(|id| weights[*id as usize] > 0.0).collect();
        let weight = |id: u32| f64::from(weights[id as usize]);
        ids.sort_by(|a, b| weight(*b).total_cmp(&weight(*a)).then(a.cmp(b)));
        ids.truncate(sampling.top_k.map_or(usize::MAX, |count| count.get() as usize));
        let total: f64 = ids.iter().map(|id| weight(*id)).sum();
        // How near to the cut the nearest sum was: within rounding of it, either side is right.
        let mut margin = f64::INFINITY;
        if sampling.top_p < 1.0 {
            let wanted = total * f64::from(sampling.top_p);
            let mut held = 0.0;
            let sums: Vec<f64> = ids
                .iter()
                .map(|id| {
                    held += weight(*id);
                    held
                })
                .collect();
            let stays = sums.iter().position(|held| *held >= wanted).map_or(sums.len(), |last| last + 1);
            margin = sums.iter().map(|held| (held - wanted).abs() / total).fold(margin, f64::min);
            ids.truncate(stays);
        }
        ids.retain(|id| weights[*id as usize] >= sampling.min_p);
        ids.sort_unstable();
        (ids, margin)
    }

    /// Rows as models give them: peaked, flat, in steps, with equals.
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
        fn exactly_those_tokens_stay_that_sorting_would_leave(
            logits in rows(),
            temperature in 0.1_f32..3.0,
            top_k in proptest::option::of(1_u32..2_500),
            top_p in prop_oneof![Just(1.0_f32), 0.0_f32..1.0, 0.99_f32..1.0],
            min_p in prop_oneof![Just(0.0_f32), 0.0_f32..1.0, Just(1.0)],
            seed in any::<u64>(),
        ) {
            let sampling = Sampling { temperature, top_k: top_k.and_then(NonZeroU32::new), top_p, min_p, seed };
            let mut bench = Bench::new(sampling);
            let drawn = bench.choose(&logits);
            prop_assert!((drawn as usize) < logits.len());
            if sampling.top_k.is_some_and(|count| count.get() == 1) || (top_k.is_none() && top_p >= 1.0 && min_p <= 0.0) {
                return Ok(());
            }
            let kept: Vec<u32> = bench.room.candidates.iter().map(|candidate| candidate.id).collect();
            let (wanted, margin) = kept_by_sorting(&bench.weights, sampling);
            prop_assert!(kept.contains(&drawn));
            if margin > 1e-5 {
                prop_assert_eq!(kept, wanted);
            } else {
                prop_assert!(kept.len().abs_diff(wanted.len()) <= 1);
                let (fewer, more) = if kept.len() < wanted.len() { (kept, wanted) } else { (wanted, kept) };
                prop_assert!(fewer.iter().all(|id| more.contains(id)));
            }
        }
    }
}
