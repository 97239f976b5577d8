//! How many tokens each running sequence gets in the next step, as a rule without a model. Who may run at all is the
//! business of `FairQueue`.

use crate::limits::{PREFILL_TOKENS_ALONE, PREFILL_TOKENS_BESIDE_DECODE};

/// Tokens for each running sequence in the next step, given how much of each prompt is left, oldest sequence first. A
/// sequence whose prompt is done gets its one. Of what a step has room for, half is the oldest prompt's, so that it
/// always moves; the rest goes to the shortest first, so that a short prompt does not wait behind long ones.
pub fn plan_step(prompt_left: &[usize]) -> Vec<usize> {
    let mut shares: Vec<usize> = prompt_left.iter().map(|left| usize::from(*left == 0)).collect();
    let decoding = shares.contains(&1);
    let mut budget = if decoding { PREFILL_TOKENS_BESIDE_DECODE } else { PREFILL_TOKENS_ALONE };
    if let Some(oldest) = prompt_left.iter().position(|left| *left > 0) {
        shares[oldest] = prompt_left[oldest].min(budget.div_ceil(2));
        budget -= shares[oldest];
    }
    let mut prompts: Vec<usize> = (0..prompt_left.len()).filter(|index| prompt_left[*index] > 0).collect();
    prompts.sort_by_key(|index| prompt_left[*index]);
    for index in prompts {
        let more = (prompt_left[index] - shares[index]).min(budget);
        shares[index] += more;
        budget -= more;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_long_prompt_takes_only_its_share_beside_others_tokens() {
        assert_eq!(plan_step(&[0, 5_000, 0]), [1, PREFILL_TOKENS_BESIDE_DECODE, 1]);
        assert_eq!(plan_step(&[5_000]), [PREFILL_TOKENS_ALONE]);
        assert_eq!(plan_step(&[0, 5_000, 10]), [1, PREFILL_TOKENS_BESIDE_DECODE - 10, 10]);
        assert_eq!(plan_step(&[]), Vec::<usize>::new());
    }

    #[test]
    fn a_short_prompt_goes_before_long_ones_but_the_oldest_always_moves() {
        let half = PREFILL_TOKENS_BESIDE_DECODE / 2;
        assert_eq!(plan_step(&[0, 900, 800, half]), [1, half, 0, half]);
    }

    proptest! {
        #[test]
        fn a_step_is_bounded_and_always_moves_something(prompts in proptest::collection::vec(0_usize..600, 1..100)) {
            let shares = plan_step(&prompts);
            let prefill: usize = shares.iter().zip(&prompts).filter(|(_, left)| **left > 0).map(|(share, _)| share).sum();
            prop_assert!(prefill <= PREFILL_TOKENS_ALONE);
            prop_assert!(shares.iter().sum::<usize>() > 0);
            for (share, left) in shares.iter().zip(&prompts) {
                let most = if *left == 0 { 1 } else { *left };
                prop_assert!(*share <= most && (*left > 0 || *share == 1));
            }
        }
    }
}
