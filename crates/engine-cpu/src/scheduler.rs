//! How many tokens each running sequence gets in the next step, as a rule without a model. Who may run at all is the
//! business of `FairQueue`.

use crate::limits::{PREFILL_TOKENS_ALONE, PREFILL_TOKENS_BESIDE_DECODE};
use std::collections::HashSet;
use std::hash::Hash;

/// What a running sequence has before it.
#[derive(Clone, Copy, Debug)]
pub struct Pending<P> {
    /// Tokens of its prompt that are not computed; none when it is generating.
    pub prompt_left: usize,
    /// The page of the prefix cache that it would fill next.
    pub next_page: Option<P>,
}

/// Tokens for each running sequence in the next step, oldest sequence first. A sequence whose prompt is done gets its
/// one. Of what a step has room for, half is the oldest prompt's, so that it always moves; the rest goes to the shortest
/// first, so that a short prompt does not wait behind long ones.
///
/// A page that several would fill alike is computed by one, and the others wait for it: by the oldest prompt if it is
/// among them, otherwise by the shortest. So nobody waits for one that is served after itself.
///
/// The shares go into a buffer of the caller's; nothing else is allocated when no prompt is left.
pub fn plan_step<P: Eq + Hash>(running: &[Pending<P>], shares: &mut Vec<usize>) {
    shares.clear();
    shares.extend(running.iter().map(|pending| usize::from(pending.prompt_left == 0)));
    let decoding = shares.contains(&1);
    let mut budget = if decoding { PREFILL_TOKENS_BESIDE_DECODE } else { PREFILL_TOKENS_ALONE };
    let Some(oldest) = running.iter().position(|pending| pending.prompt_left > 0) else { return };
    shares[oldest] = running[oldest].prompt_left.min(budget.div_ceil(2));
    budget -= shares[oldest];

    let mut others: Vec<usize> =
        (oldest + 1..running.len()).filter(|index| running[*index].prompt_left > 0).collect();
    others.sort_by_key(|index| running[*index].prompt_left);
    let mut claimed = HashSet::new();
    let mut prompts: Vec<usize> = std::iter::once(oldest)
        .chain(others)
        .filter(|index| running[*index].next_page.as_ref().is_none_or(|page| claimed.insert(page)))
        .collect();
    prompts.sort_by_key(|index| running[*index].prompt_left);
    for index in prompts {
        let more = (running[index].prompt_left - shares[index]).min(budget);
        shares[index] += more;
        budget -= more;
    }
}

/// How many drafted tokens each of `drafting` sequences may add to a step that has `rows` already: equal parts of what
/// is missing to `free_rows`, the number of rows up to which one more costs next to nothing. So drafts stop as the
/// batch fills up, and never stand beside a prompt.
pub fn drafts_each(rows: usize, drafting: usize, free_rows: usize) -> usize {
    free_rows.saturating_sub(rows).checked_div(drafting).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A step of prompts that have nothing in common.
    fn plan(prompt_left: &[usize]) -> Vec<usize> {
        let pending = |left: &usize| Pending::<u32> { prompt_left: *left, next_page: None };
        shares(&prompt_left.iter().map(pending).collect::<Vec<_>>())
    }

    fn shares(running: &[Pending<u32>]) -> Vec<usize> {
        // What an earlier step left behind must not count.
        let mut shares = vec![7; 3];
        plan_step(running, &mut shares);
        shares
    }

    #[test]
    fn drafts_fill_a_step_up_to_its_free_rows_and_stop_when_the_batch_is_full() {
        assert_eq!(drafts_each(1, 1, 16), 15);
        assert_eq!(drafts_each(4, 4, 16), 3);
        assert_eq!(drafts_each(4, 2, 16), 6, "the others draw, or have nothing to go by");
        assert_eq!(drafts_each(16, 16, 16), 0);
        assert_eq!(drafts_each(1 + PREFILL_TOKENS_BESIDE_DECODE, 1, 16), 0);
        assert_eq!(drafts_each(1, 1, 1), 0);
        assert_eq!(drafts_each(1, 0, 16), 0);
    }

    #[test]
    fn a_long_prompt_takes_only_its_share_beside_others_tokens() {
        assert_eq!(plan(&[0, 5_000, 0]), [1, PREFILL_TOKENS_BESIDE_DECODE, 1]);
        assert_eq!(plan(&[5_000]), [PREFILL_TOKENS_ALONE]);
        assert_eq!(plan(&[0, 5_000, 10]), [1, PREFILL_TOKENS_BESIDE_DECODE - 10, 10]);
        assert_eq!(plan(&[]), Vec::<usize>::new());
    }

    #[test]
    fn a_short_prompt_goes_before_long_ones_but_the_oldest_always_moves() {
        let half = PREFILL_TOKENS_BESIDE_DECODE / 2;
        assert_eq!(plan(&[0, 900, 800, half]), [1, half, 0, half]);
    }

    #[test]
    fn a_page_that_several_need_is_computed_by_one_of_them() {
        let pending = |prompt_left, page: u32| Pending { prompt_left, next_page: Some(page) };
        let all = PREFILL_TOKENS_ALONE;
        assert_eq!(shares(&[pending(5_000, 1), pending(900, 1), pending(800, 1)]), [all, 0, 0]);
        let half = all / 2;
        assert_eq!(shares(&[pending(5_000, 1), pending(900, 2), pending(800, 2)]), [half, 0, half]);
    }

    proptest! {
        #[test]
        fn a_step_is_bounded_and_always_moves_the_oldest(
            running in proptest::collection::vec((0_usize..600, proptest::option::of(0_u32..4)), 1..100)
        ) {
            let running: Vec<_> = running
                .into_iter()
                .map(|(prompt_left, next_page)| Pending { prompt_left, next_page: next_page.filter(|_| prompt_left > 0) })
                .collect();
            let shares = shares(&running);
            let in_prompt = || running.iter().zip(&shares).filter(|(pending, _)| pending.prompt_left > 0);
            let decodes = in_prompt().count() < running.len();
            let most = if decodes { PREFILL_TOKENS_BESIDE_DECODE } else { PREFILL_TOKENS_ALONE };
            prop_assert!(in_prompt().map(|(_, share)| share).sum::<usize>() <= most);
            if let Some((oldest, share)) = in_prompt().next() {
                prop_assert!(*share >= oldest.prompt_left.min(most / 2));
            }
            for (pending, share) in running.iter().zip(&shares) {
                let left = pending.prompt_left;
                prop_assert!(*share <= left.max(1) && (left > 0 || *share == 1));
            }
            for page in 0..4_u32 {
                let computing = in_prompt().filter(|(pending, share)| pending.next_page == Some(page) && **share > 0);
                prop_assert!(computing.count() <= 1);
            }
        }
    }
}
