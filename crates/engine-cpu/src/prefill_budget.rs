//! How many prompt tokens a step processes beside replies in progress. Every step reads all weights, so many tokens in a step make
//! prompts faster, and few make the gap between two tokens of a reply shorter. The number follows the time that such steps take
//! with this model on this machine: doubled while a full step takes less than half of `MAX_MIXED_STEP_TIME`, halved after one that
//! takes longer than that.

use crate::limits::{
    MAX_MIXED_STEP_TIME, MIN_MIXED_PREFILL_TOKENS, MIXED_PREFILL_TOKENS, PREFILL_ONLY_TOKENS,
};
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub struct PrefillBudget {
    tokens: usize,
}

impl PrefillBudget {
    pub fn new() -> Self {
        Self { tokens: MIXED_PREFILL_TOKENS }
    }

    pub fn tokens(self) -> usize {
        self.tokens
    }

    /// Takes the time of a step with so many prompt tokens beside replies.
    pub fn record(&mut self, prompt_tokens: usize, took: Duration) {
        if took > MAX_MIXED_STEP_TIME {
            self.tokens = (self.tokens / 2).max(MIN_MIXED_PREFILL_TOKENS);
        } else if prompt_tokens >= self.tokens && took < MAX_MIXED_STEP_TIME / 2 {
            self.tokens = (self.tokens * 2).min(PREFILL_ONLY_TOKENS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The budget after full steps, each as long as its tokens take.
    fn after_steps(steps: usize, time_per_token: Duration) -> PrefillBudget {
        let mut budget = PrefillBudget::new();
        for _ in 0..steps {
            let tokens = budget.tokens();
            budget.record(tokens, time_per_token * u32::try_from(tokens).unwrap());
        }
        budget
    }

    #[test]
    fn fast_machine_processes_more_tokens_in_a_step_and_a_slow_one_fewer() {
        for (micros_per_token, expected) in
            [(10, 256), (300, 256), (500, 128), (900, 64), (2_000, 32), (50_000, 32)]
        {
            let budget = after_steps(10, Duration::from_micros(micros_per_token));
            assert_eq!(budget.tokens(), expected, "{micros_per_token} µs for each token");
        }
    }

    #[test]
    fn step_with_few_tokens_says_nothing_about_full_ones() {
        let mut budget = PrefillBudget::new();
        budget.record(1, Duration::from_millis(1));
        assert_eq!(budget.tokens(), MIXED_PREFILL_TOKENS);
    }

    #[test]
    fn one_slow_step_is_made_up_for_by_fast_ones() {
        let mut budget = after_steps(10, Duration::from_micros(500));
        budget.record(128, Duration::from_secs(1));
        assert_eq!(budget.tokens(), 64);
        budget.record(64, Duration::from_millis(20));
        assert_eq!(budget.tokens(), 128);
    }

    proptest! {
        #[test]
        fn steps_stay_below_the_bound_where_the_fewest_tokens_do(micros_per_token in 1..2_400_u64) {
            let time_per_token = Duration::from_micros(micros_per_token);
            let tokens = after_steps(20, time_per_token).tokens();
            prop_assert!(time_per_token * u32::try_from(tokens).unwrap() <= MAX_MIXED_STEP_TIME);
        }
    }
}
