//! Penalties against repeated text, applied to the logits of one sequence's next token before temperature and filters.
//! Repetition, frequency and presence penalties mean what vLLM means by them, and DRY what llama.cpp does, over the whole
//! context. The buffers are reserved when the sequence starts, so that no token allocates.

use chancery_engine::{Dry, Penalties};
use rustc_hash::FxHashMap;

/// A token with one of these bytes ends the sequences that DRY looks for, so that the structure of lists, dialogue and
/// headings may repeat. llama.cpp's default breakers, each a single character: a token that contains one is a breaker.
const DRY_BREAKERS: &[u8; 4] = b"\n:\"*";
/// Natural logarithm of the largest `f32`: bounds DRY's exponent.
const MAX_LN: f64 = 88.722_839_1;

pub fn is_dry_breaker(token_bytes: &[u8]) -> bool {
    token_bytes.iter().any(|byte| DRY_BREAKERS.contains(byte))
}

/// The penalties of one sequence, and the tokens that they are about.
#[derive(Debug)]
pub struct PenaltyState {
    penalties: Penalties,
    /// Every distinct token of prompt and reply.
    seen: Vec<SeenToken>,
    /// Where each of them is in `seen`.
    positions: FxHashMap<u32, u32>,
    /// For DRY: by distance, how many of the last tokens equal those that far before.
    match_lens: Vec<u32>,
}

#[derive(Debug)]
struct SeenToken {
    token: u32,
    /// How often the reply has it.
    reply_count: u32,
    /// Length of the longest repeated sequence that it would continue; 0 if DRY does not apply.
    match_len: u32,
}

impl PenaltyState {
    /// `None` if there is nothing to penalise. `max_tokens` bounds prompt and reply together.
    pub fn new(penalties: Penalties, prompt: &[u32], max_tokens: usize) -> Option<Self> {
        if penalties.is_none() {
            return None;
        }
        let match_lens_capacity = if penalties.dry.is_none() { 0 } else { max_tokens };
        let mut state = Self {
            penalties,
            seen: Vec::with_capacity(max_tokens),
            positions: FxHashMap::with_capacity_and_hasher(max_tokens, Default::default()),
            match_lens: Vec::with_capacity(match_lens_capacity),
        };
        for token in prompt {
            state.find_or_insert(*token);
        }
        Some(state)
    }

    /// Counts a token of the reply.
    pub fn push(&mut self, token: u32) {
        self.find_or_insert(token).reply_count += 1;
    }

    fn find_or_insert(&mut self, token: u32) -> &mut SeenToken {
        let next = self.seen.len();
        let position = *self.positions.entry(token).or_insert(next as u32) as usize;
        if position == next {
            self.seen.push(SeenToken { token, reply_count: 0, match_len: 0 });
        }
        &mut self.seen[position]
    }

    /// Changes the logits of the token after `tokens`, which are the prompt and the reply so far. Takes time linear in the
    /// number of distinct tokens, and with DRY in the number of tokens.
    pub fn apply(&mut self, logits: &mut [f32], tokens: &[u32], is_breaker: impl Fn(u32) -> bool) {
        let Penalties { repetition, frequency, presence, dry } = self.penalties;
        // Written so that NaN counts as disabled.
        let repetition = if repetition > 0.0 { repetition } else { 1.0 };
        if !dry.is_none() {
            self.find_matches(tokens, &is_breaker);
        }
        for seen in &mut self.seen {
            let match_len = std::mem::take(&mut seen.match_len);
            let Some(logit) = logits.get_mut(seen.token as usize) else { continue };
            *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
            if seen.reply_count > 0 {
                *logit -= frequency * seen.reply_count as f32;
                *logit -= presence;
            }
            if match_len > 0 && !is_breaker(seen.token) {
                *logit -= dry_penalty(dry, match_len);
            }
        }
    }

    /// Sets `match_len` of every token that would continue a repeated sequence. Computes how much the end of the text has
    /// in common with every place before it, in linear time (Z-algorithm on the reversed tokens).
    fn find_matches(&mut self, tokens: &[u32], is_breaker: impl Fn(u32) -> bool) {
        let allowed_length = self.penalties.dry.allowed_length.max(1) as usize;
        let max_len = tokens.iter().rev().take_while(|token| !is_breaker(**token)).count();
        if tokens.len() <= allowed_length || max_len < allowed_length {
            return;
        }
        let from_end = |index: usize| tokens[tokens.len() - 1 - index];
        self.match_lens.resize(tokens.len(), 0);
        // The match that reaches furthest: its distance, and the end of the earlier occurrence.
        let (mut furthest, mut furthest_end) = (0, 0);
        for distance in 1..tokens.len() {
            let mut len = 0;
            if distance < furthest_end {
                len = (self.match_lens[distance - furthest] as usize).min(furthest_end - distance);
            }
            while len < max_len && distance + len < tokens.len() && from_end(len) == from_end(distance + len)
            {
                len += 1;
            }
            self.match_lens[distance] = len as u32;
            if distance + len > furthest_end {
                (furthest, furthest_end) = (distance, distance + len);
            }
            if len >= allowed_length {
                let continuation = from_end(distance - 1);
                if let Some(position) = self.positions.get(&continuation) {
                    let seen = &mut self.seen[*position as usize];
                    seen.match_len = seen.match_len.max(len as u32);
                }
            }
        }
    }
}

/// `multiplier × base^(match_len − allowed_length)`, with the exponent bounded so that the power fits an `f32`.
fn dry_penalty(dry: Dry, match_len: u32) -> f32 {
    let base = f64::from(dry.base);
    let exponent = f64::from(match_len.saturating_sub(dry.allowed_length.max(1)));
    let max_exponent = if dry.base > 1.000_001 { (MAX_LN / base.ln()).floor() } else { f64::INFINITY };
    let penalty = f64::from(dry.multiplier) * base.powf(exponent.min(max_exponent));
    penalty.min(f64::from(f32::MAX)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VOCABULARY: usize = 12;
    /// Tokens from here on are breakers in these tests.
    const FIRST_BREAKER: u32 = 10;

    fn is_breaker(token: u32) -> bool {
        token >= FIRST_BREAKER
    }

    /// The logits after penalties, token by token as an engine applies them.
    fn penalised(penalties: Penalties, prompt: &[u32], reply: &[u32], logits: &[f32]) -> Vec<f32> {
        let mut logits = logits.to_vec();
        let tokens = [prompt, reply].concat();
        if let Some(mut state) = PenaltyState::new(penalties, prompt, tokens.len()) {
            for (index, token) in reply.iter().enumerate() {
                // Earlier steps leave nothing behind that changes later ones.
                state.apply(&mut logits.clone(), &tokens[..prompt.len() + index], is_breaker);
                state.push(*token);
            }
            state.apply(&mut logits, &tokens, is_breaker);
        }
        logits
    }

    fn assert_near(logits: &[f32], expected: &[f32]) {
        let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * b.abs().max(1.0);
        assert!(logits.iter().zip(expected).all(is_near), "{logits:?} instead of {expected:?}");
    }

    #[test]
    fn repetition_penalty_covers_prompt_and_reply() {
        let penalties = Penalties { repetition: 2.0, ..Penalties::NONE };
        let logits = [3.0, -3.0, 3.0, -3.0, 3.0];
        assert_near(&penalised(penalties, &[0, 1, 0], &[2, 2], &logits), &[1.5, -6.0, 1.5, -3.0, 3.0]);
        let raised = Penalties { repetition: 0.5, ..Penalties::NONE };
        assert_near(&penalised(raised, &[0, 1], &[], &logits), &[6.0, -1.5, 3.0, -3.0, 3.0]);
    }

    #[test]
    fn frequency_and_presence_penalties_cover_the_reply_only() {
        let frequency = Penalties { frequency: 0.5, ..Penalties::NONE };
        assert_near(&penalised(frequency, &[0, 0, 1], &[1, 2, 2], &[1.0; 4]), &[1.0, 0.5, 0.0, 1.0]);
        let presence = Penalties { presence: 0.5, ..Penalties::NONE };
        assert_near(&penalised(presence, &[0, 0, 1], &[1, 2, 2], &[1.0; 4]), &[1.0, 0.5, 0.5, 1.0]);
        let both = Penalties { frequency: -0.5, presence: -1.0, ..Penalties::NONE };
        assert_near(&penalised(both, &[0], &[1, 1], &[1.0; 3]), &[1.0, 3.0, 1.0]);
    }

    const DRY: Dry = Dry { multiplier: 1.0, base: 2.0, allowed_length: 2 };

    #[test]
    fn dry_penalises_what_continues_a_repeated_sequence() {
        let penalties = Penalties { dry: DRY, ..Penalties::NONE };
        // The last three tokens, 1 2 3, were followed by 4; 2 3 also by 5.
        let prompt = [1, 2, 3, 4, 9, 2, 3, 5, 8];
        let mut expected = [0.0; VOCABULARY];
        (expected[4], expected[5]) = (-2.0, -1.0);
        assert_near(&penalised(penalties, &prompt, &[1, 2, 3], &[0.0; VOCABULARY]), &expected);
        // Shorter than what is allowed.
        assert_near(&penalised(penalties, &prompt, &[3], &[0.0; VOCABULARY]), &[0.0; VOCABULARY]);
    }

    /// Cases with the results of llama.cpp's sampler, for equal logits.
    #[test]
    fn dry_gives_the_probabilities_of_llama_cpp() {
        let cases: [(&[u32], f32, u32, &[f32]); 4] = [
            (&[0, 1], 1.0, 2, &[0.25, 0.25, 0.25, 0.25]),
            (&[0, 1, 2, 0, 1], 1.0, 2, &[0.296_923, 0.296_923, 0.109_232, 0.296_923]),
            (&[0, 1, 2, 0, 1], 2.0, 2, &[0.241_818, 0.241_818, 0.032_727, 0.241_818, 0.241_818]),
            (&[0, 1, 2, 3, 4, 0, 1], 1.0, 4, &[0.2, 0.2, 0.2, 0.2, 0.2]),
        ];
        for (tokens, multiplier, allowed_length, expected) in cases {
            let dry = Dry { multiplier, base: 1.1, allowed_length };
            let penalties = Penalties { dry, ..Penalties::NONE };
            let weights: Vec<f32> = penalised(penalties, tokens, &[], &vec![0.0; expected.len()])
                .iter()
                .map(|logit| logit.exp())
                .collect();
            let total: f32 = weights.iter().sum();
            let probabilities: Vec<f32> = weights.iter().map(|weight| weight / total).collect();
            assert_near(&probabilities, expected);
        }
    }

    #[test]
    fn dry_breakers_end_sequences_and_are_not_penalised() {
        let penalties = Penalties { dry: DRY, ..Penalties::NONE };
        let none = [0.0; VOCABULARY];
        assert_near(&penalised(penalties, &[1, 10, 2, 4, 9], &[1, 10, 2], &none), &none);
        assert_near(&penalised(penalties, &[1, 2, 3, 10, 9], &[1, 2, 3], &none), &none);
        let mut expected = none;
        // Only the two tokens after the breaker count.
        expected[4] = -1.0;
        assert_near(&penalised(penalties, &[1, 10, 2, 3, 4, 9], &[1, 10, 2, 3], &none), &expected);
    }

    #[test]
    fn dry_penalty_of_a_long_loop_is_finite() {
        let dry = Dry { multiplier: 5.0, base: 4.0, allowed_length: 1 };
        let penalties = Penalties { dry, ..Penalties::NONE };
        let logits = penalised(penalties, &[1; 500], &[], &[0.0; 2]);
        assert!(logits[1] < -1e30 && logits[1].is_finite(), "{logits:?}");
        let flat = Penalties { dry: Dry { base: 1.0, ..dry }, ..Penalties::NONE };
        assert_near(&penalised(flat, &[1; 500], &[], &[0.0; 2]), &[0.0, -5.0]);
    }

    #[test]
    fn breakers_are_tokens_that_contain_one() {
        assert!(
            [b"\n".as_slice(), b".\n\n", b" \"", b"**", b"12:30"].iter().all(|bytes| is_dry_breaker(bytes))
        );
        assert!([b"".as_slice(), b" word", "é".as_bytes(), b"'"].iter().all(|bytes| !is_dry_breaker(bytes)));
    }

    #[test]
    fn penalties_outside_their_range_do_not_panic() {
        let dry = Dry { multiplier: f32::NAN, base: f32::NAN, allowed_length: 0 };
        let invalid = Penalties { repetition: f32::NAN, frequency: 0.0, presence: 0.0, dry };
        assert_near(&penalised(invalid, &[0, 9], &[9, 9], &[1.0; 2]), &[1.0; 2]);
    }

    /// Reference for DRY: compares the end of the text with every place before it.
    fn naive_match_len(tokens: &[u32], token: u32) -> usize {
        let max_len = tokens.iter().rev().take_while(|token| !is_breaker(**token)).count();
        let places = (1..tokens.len()).filter(|end| tokens[*end] == token);
        let lens = places.map(|end| {
            let common = tokens[..end].iter().rev().zip(tokens.iter().rev()).take_while(|(a, b)| a == b);
            common.count().min(max_len)
        });
        lens.max().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn logits_equal_those_of_the_definition(
            prompt in proptest::collection::vec(0..VOCABULARY as u32, 1..40),
            reply in proptest::collection::vec(0..4_u32, 0..40),
            logits in proptest::collection::vec(-20.0_f32..20.0, VOCABULARY),
            (repetition, frequency, presence) in (0.1_f32..2.0, -2.0_f32..2.0, -2.0_f32..2.0),
            (multiplier, base, allowed_length) in (0.0_f32..5.0, 1.0_f32..1.5, 1_u32..6),
        ) {
            let dry = Dry { multiplier, base, allowed_length };
            let penalties = Penalties { repetition, frequency, presence, dry };
            let tokens = [prompt.as_slice(), &reply].concat();
            let expected: Vec<f32> = (0..).zip(&logits).map(|(token, logit)| {
                let mut logit = *logit;
                if tokens.contains(&token) {
                    logit = if logit > 0.0 { logit / repetition } else { logit * repetition };
                }
                let count = reply.iter().filter(|other| **other == token).count();
                logit -= frequency * count as f32 + if count > 0 { presence } else { 0.0 };
                let len = naive_match_len(&tokens, token);
                if len >= allowed_length as usize && !is_breaker(token) {
                    logit -= multiplier * base.powi(len as i32 - allowed_length as i32);
                }
                logit
            }).collect();
            let actual = penalised(penalties, &prompt, &reply, &logits);
            for (actual, expected) in actual.iter().zip(&expected) {
                prop_assert!((actual - expected).abs() <= 1e-3 * expected.abs().max(1.0), "{actual} {expected}");
            }
        }
    }
}
