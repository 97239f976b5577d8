//! Chooses the next token from a row of logits. Draws depend on the seed, how many were made before, and the logits
//! alone. The vocabulary is never sorted as a whole: tokens are counted into bins by how far they lie below the best,
//! and only the bin where the wanted share is reached is put in order.

use chancery_engine::Sampling;

/// Bins per factor of e below the best token, and how many there are; the last takes all the rest.
const BINS_PER_NAT: f32 = 8.0;
const BINS: usize = 256;

#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    draws: u64,
    weights: Vec<f32>,
    boundary: Vec<u32>,
}

impl Sampler {
    pub fn new(sampling: Sampling) -> Self {
        Self { sampling, draws: 0, weights: Vec::new(), boundary: Vec::new() }
    }

    /// The next token. Logits that are not numbers are never chosen; among equals the lowest id is.
    pub fn choose(&mut self, logits: &[f32]) -> u32 {
        let best = likeliest(logits);
        let Sampling { temperature, top_p, .. } = self.sampling;
        // Written so that a temperature that is not a number counts as none.
        if !(temperature > 0.0 && temperature.is_finite()) {
            return best;
        }
        let top = logits.get(best as usize).copied().unwrap_or_default();
        self.weights.clear();
        self.weights.extend(logits.iter().map(|logit| {
            let weight = ((logit - top) / temperature).exp();
            if weight.is_finite() { weight } else { 0.0 }
        }));
        if top_p < 1.0 {
            self.keep_likeliest(top_p.max(0.0));
        }
        self.draw().unwrap_or(best)
    }

    /// Sets the weight of every token to zero but the likeliest that together hold `share` of the total.
    fn keep_likeliest(&mut self, share: f32) {
        let bin_of = |weight: f32| ((-weight.ln() * BINS_PER_NAT) as usize).min(BINS - 1);
        let mut sums = [0.0_f64; BINS];
        for weight in self.weights.iter().filter(|weight| **weight > 0.0) {
            sums[bin_of(*weight)] += f64::from(*weight);
        }
        let wanted = sums.iter().sum::<f64>() * f64::from(share);
        let mut held = 0.0;
        let mut boundary_bin = BINS - 1;
        for (bin, sum) in sums.iter().enumerate() {
            if held + sum >= wanted {
                boundary_bin = bin;
                break;
            }
            held += sum;
        }
        let weights = &mut self.weights;
        self.boundary.clear();
        for (id, weight) in (0_u32..).zip(weights.iter_mut()).filter(|(_, weight)| **weight > 0.0) {
            match bin_of(*weight).cmp(&boundary_bin) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => self.boundary.push(id),
                std::cmp::Ordering::Greater => *weight = 0.0,
            }
        }
        self.boundary.sort_by(|a, b| weights[*b as usize].total_cmp(&weights[*a as usize]).then(a.cmp(b)));
        // The token that reaches the share is kept too, so one is always left.
        let mut reached = false;
        for id in &self.boundary {
            let weight = &mut weights[*id as usize];
            if reached {
                *weight = 0.0;
            } else {
                held += f64::from(*weight);
                reached = held >= wanted;
            }
        }
    }

    /// One token by its weight; `None` when nothing has any.
    fn draw(&mut self) -> Option<u32> {
        let total: f64 = self.weights.iter().map(|weight| f64::from(*weight)).sum();
        let mut left = uniform(self.sampling.seed, self.draws) * total;
        self.draws += 1;
        let mut last = None;
        for (id, weight) in (0_u32..).zip(&self.weights).filter(|(_, weight)| **weight > 0.0) {
            last = Some(id);
            left -= f64::from(*weight);
            if left < 0.0 {
                break;
            }
        }
        last
    }
}

fn likeliest(logits: &[f32]) -> u32 {
    let mut best = f32::NEG_INFINITY;
    let mut best_id = 0;
    for (block_index, block) in (0_u32..).zip(logits.chunks(64)) {
        // Most blocks hold nothing better, and this test of a whole block vectorises.
        let block_best =
            block.iter().fold(f32::NEG_INFINITY, |best, logit| if *logit > best { *logit } else { best });
        if block_best > best {
            best = block_best;
            let place = block.iter().position(|logit| *logit >= block_best).unwrap_or(0);
            best_id = block_index * 64 + place as u32;
        }
    }
    best_id
}

/// The number `index` of the stream that `seed` names, between 0 and 1 (SplitMix64).
fn uniform(seed: u64, index: u64) -> f64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) as f64 / 2.0_f64.powi(64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sampling(temperature: f32, top_p: f32, seed: u64) -> Sampling {
        Sampling { temperature, top_p, seed }
    }

    #[test]
    fn greedy_takes_the_likeliest_and_the_first_of_equals() {
        let mut logits = vec![0.0; 200];
        (logits[70], logits[130]) = (3.0, 3.0);
        logits[10] = f32::NAN;
        assert_eq!(Sampler::new(Sampling::GREEDY).choose(&logits), 70);
        assert_eq!(Sampler::new(Sampling::GREEDY).choose(&[f32::NAN; 3]), 0);
        assert!(Sampler::new(sampling(1.0, 0.5, 1)).choose(&[f32::NAN; 3]) < 3);
        assert_eq!(Sampler::new(sampling(f32::NAN, 1.0, 1)).choose(&logits), 70);
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits = [0.0, 2.0_f32.ln(), f32::NEG_INFINITY, 1.0_f32.ln()];
        let mut sampler = Sampler::new(sampling(1.0, 1.0, 42));
        let mut counts = [0_i32; 4];
        for _ in 0..40_000 {
            counts[sampler.choose(&logits) as usize] += 1;
        }
        assert_eq!(counts[2], 0);
        for (count, wanted) in [(counts[0], 10_000), (counts[1], 20_000), (counts[3], 10_000)] {
            assert!((count - wanted).abs() < 500, "{counts:?}");
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_tokens_and_another_does_not() {
        let logits: Vec<f32> = (0..1_000).map(|id| (id as f32).sin()).collect();
        let draw = |seed| {
            let mut sampler = Sampler::new(sampling(1.0, 0.9, seed));
            (0..20).map(|_| sampler.choose(&logits)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    proptest! {
        #[test]
        fn top_p_keeps_exactly_the_tokens_that_sorting_would(
            logits in proptest::collection::vec(-20.0_f32..5.0, 1..300),
            temperature in 0.1_f32..3.0,
            top_p in 0.0_f32..1.0,
        ) {
            let mut sampler = Sampler::new(sampling(temperature, top_p, 0));
            sampler.choose(&logits);
            let kept: Vec<u32> =
                (0_u32..).zip(&sampler.weights).filter(|(_, weight)| **weight > 0.0).map(|(id, _)| id).collect();

            let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weight = |id: u32| f64::from(((logits[id as usize] - top) / temperature).exp());
            let mut ids: Vec<u32> = (0..logits.len() as u32).filter(|id| weight(*id) > 0.0).collect();
            ids.sort_by(|a, b| weight(*b).total_cmp(&weight(*a)).then(a.cmp(b)));
            let total: f64 = ids.iter().map(|id| weight(*id)).sum();
            let mut wanted = Vec::new();
            let mut held = 0.0;
            for id in ids {
                wanted.push(id);
                held += weight(id);
                // Within rounding of the boundary either side is right.
                if held >= total * f64::from(top_p) {
                    break;
                }
            }
            prop_assert!(kept.len().abs_diff(wanted.len()) <= 1, "{} kept, {} wanted", kept.len(), wanted.len());
            let common = wanted.len().min(kept.len());
            prop_assert!(wanted[..common].iter().all(|id| kept.contains(id)));
            prop_assert!(!kept.is_empty());
        }
    }
}
