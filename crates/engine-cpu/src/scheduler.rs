//! Decides how many tokens each running sequence gets in the next step, independent of the model. `FairQueue` decides
//! which jobs run at all.

use crate::limits::{MIXED_PREFILL_TOKENS, PREFILL_ONLY_TOKENS};
use std::collections::HashSet;
use std::hash::Hash;

/// What a running sequence still has to compute.
#[derive(Clone, Copy, Debug)]
pub struct PendingWork<P> {
    /// Prompt tokens not computed yet; 0 while decoding.
    pub remaining_prompt: usize,
    /// The prefix cache page that it would fill next.
    pub next_page: Option<P>,
}

/// Computes the tokens of each running sequence in the next step, oldest sequence first. A decoding sequence gets one
/// token. Of the prefill budget, half goes to the oldest prompt, so that it always progresses. The rest goes to the
/// shortest prompts first, so that a short prompt does not wait behind long ones.
///
/// If several sequences would fill the same page, one computes it and the others wait: the oldest prompt if it is among
/// them, otherwise the shortest. So no sequence waits for one that is served after itself.
///
/// The prefill budget is `mixed_budget` while a sequence decodes, and small while another model waits for the cores
/// (`shares_cores`).
///
/// The shares go into the caller's buffer; without prefill work, nothing else is allocated.
pub fn plan_step<P: Eq + Hash>(
    running: &[PendingWork<P>],
    shares_cores: bool,
    mixed_budget: usize,
    token_counts: &mut Vec<usize>,
) {
    token_counts.clear();
    token_counts.extend(running.iter().map(|pending| usize::from(pending.remaining_prompt == 0)));
    let decoding = token_counts.contains(&1);
    let mut budget = match (decoding, shares_cores) {
        (_, true) => mixed_budget.min(MIXED_PREFILL_TOKENS),
        (true, false) => mixed_budget,
        (false, false) => PREFILL_ONLY_TOKENS,
    };
    let Some(oldest) = running.iter().position(|pending| pending.remaining_prompt > 0) else { return };
    token_counts[oldest] = running[oldest].remaining_prompt.min(budget.div_ceil(2));
    budget -= token_counts[oldest];

    let mut others: Vec<usize> =
        (oldest + 1..running.len()).filter(|index| running[*index].remaining_prompt > 0).collect();
    others.sort_by_key(|index| running[*index].remaining_prompt);
    let mut claimed = HashSet::new();
    let mut prompts: Vec<usize> = std::iter::once(oldest)
        .chain(others)
        .filter(|index| running[*index].next_page.as_ref().is_none_or(|page| claimed.insert(page)))
        .collect();
    prompts.sort_by_key(|index| running[*index].remaining_prompt);
    for index in prompts {
        let extra = (running[index].remaining_prompt - token_counts[index]).min(budget);
        token_counts[index] += extra;
        budget -= extra;
    }
}

/// The prompt tokens of a step that also continues replies; `None` if it does not do both.
pub fn mixed_prompt_tokens<P>(running: &[PendingWork<P>], token_counts: &[usize]) -> Option<usize> {
    let has_replies = running.iter().any(|pending| pending.remaining_prompt == 0);
    let works = running.iter().zip(token_counts);
    let tokens: usize =
        works.filter(|(pending, _)| pending.remaining_prompt > 0).map(|(_, tokens)| tokens).sum();
    (has_replies && tokens > 0).then_some(tokens)
}

/// How many drafted tokens each of `drafting` sequences may add to a step that already has `rows`: equal parts of the
/// rows left up to `draft_rows`, below which one more costs next to nothing. So drafting stops as the batch fills up,
/// and never happens beside a prefill.
pub fn drafts_per_sequence(rows: usize, drafting: usize, draft_rows: usize) -> usize {
    draft_rows.saturating_sub(rows).checked_div(drafting).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Plans a step of prompts that share no pages.
    fn plan(remaining_prompt: &[usize]) -> Vec<usize> {
        let pending = |left: &usize| PendingWork::<u32> { remaining_prompt: *left, next_page: None };
        token_counts(&remaining_prompt.iter().map(pending).collect::<Vec<_>>())
    }

    fn token_counts(running: &[PendingWork<u32>]) -> Vec<usize> {
        // Leftovers from an earlier step must not count.
        let mut token_counts = vec![7; 3];
        plan_step(running, false, MIXED_PREFILL_TOKENS, &mut token_counts);
        token_counts
    }

    #[test]
    fn drafts_fill_only_the_free_rows_of_a_step() {
        assert_eq!(drafts_per_sequence(1, 1, 16), 15);
        assert_eq!(drafts_per_sequence(4, 4, 16), 3);
        assert_eq!(drafts_per_sequence(4, 2, 16), 6, "the others draw, or have nothing to go by");
        assert_eq!(drafts_per_sequence(16, 16, 16), 0);
        assert_eq!(drafts_per_sequence(1 + MIXED_PREFILL_TOKENS, 1, 16), 0);
        assert_eq!(drafts_per_sequence(1, 1, 1), 0);
        assert_eq!(drafts_per_sequence(1, 0, 16), 0);
    }

    #[test]
    fn long_prefill_takes_only_its_share_beside_decode() {
        assert_eq!(plan(&[0, 5_000, 0]), [1, MIXED_PREFILL_TOKENS, 1]);
        assert_eq!(plan(&[5_000]), [PREFILL_ONLY_TOKENS]);
        assert_eq!(plan(&[0, 5_000, 10]), [1, MIXED_PREFILL_TOKENS - 10, 10]);
        assert_eq!(plan(&[]), Vec::<usize>::new());
    }

    #[test]
    fn prefill_beside_decode_has_the_given_budget() {
        let mut token_counts = Vec::new();
        let pending = [0, 5_000].map(|left| PendingWork::<u32> { remaining_prompt: left, next_page: None });
        plan_step(&pending, false, 128, &mut token_counts);
        assert_eq!(token_counts, [1, 128]);
    }

    #[test]
    fn only_steps_with_prompts_and_replies_are_mixed() {
        let mixed = |remaining: &[usize], tokens: &[usize]| {
            let pending = |left: &usize| PendingWork::<u32> { remaining_prompt: *left, next_page: None };
            mixed_prompt_tokens(&remaining.iter().map(pending).collect::<Vec<_>>(), tokens)
        };
        assert_eq!(mixed(&[0, 500, 9], &[1, 55, 9]), Some(64));
        assert_eq!(mixed(&[500], &[256]), None);
        assert_eq!(mixed(&[0, 0], &[1, 4]), None);
        assert_eq!(mixed(&[0, 500], &[1, 0]), None);
    }

    #[test]
    fn prefill_is_short_while_another_model_shares_the_cores() {
        let mut token_counts = Vec::new();
        let pending = PendingWork::<u32> { remaining_prompt: 5_000, next_page: None };
        plan_step(&[pending], true, PREFILL_ONLY_TOKENS, &mut token_counts);
        assert_eq!(token_counts, [MIXED_PREFILL_TOKENS]);
    }

    #[test]
    fn short_prompt_goes_first_but_the_oldest_always_progresses() {
        let half = MIXED_PREFILL_TOKENS / 2;
        assert_eq!(plan(&[0, 900, 800, half]), [1, half, 0, half]);
    }

    #[test]
    fn shared_page_is_computed_by_one_sequence() {
        let pending = |remaining_prompt, page: u32| PendingWork { remaining_prompt, next_page: Some(page) };
        let all = PREFILL_ONLY_TOKENS;
        assert_eq!(token_counts(&[pending(5_000, 1), pending(900, 1), pending(800, 1)]), [all, 0, 0]);
        let half = all / 2;
        assert_eq!(token_counts(&[pending(5_000, 1), pending(900, 2), pending(800, 2)]), [half, 0, half]);
    }

    proptest! {
        #[test]
        fn step_is_bounded_and_the_oldest_always_progresses(
            running in proptest::collection::vec((0_usize..600, proptest::option::of(0_u32..4)), 1..100)
        ) {
            let running: Vec<_> = running
                .into_iter()
                .map(|(remaining_prompt, next_page)| PendingWork { remaining_prompt, next_page: next_page.filter(|_| remaining_prompt > 0) })
                .collect();
            let token_counts = token_counts(&running);
            let in_prompt = || running.iter().zip(&token_counts).filter(|(pending, _)| pending.remaining_prompt > 0);
            let decodes = in_prompt().count() < running.len();
            let budget = if decodes { MIXED_PREFILL_TOKENS } else { PREFILL_ONLY_TOKENS };
            prop_assert!(in_prompt().map(|(_, share)| share).sum::<usize>() <= budget);
            if let Some((oldest, share)) = in_prompt().next() {
                prop_assert!(*share >= oldest.remaining_prompt.min(budget / 2));
            }
            for (pending, share) in running.iter().zip(&token_counts) {
                let left = pending.remaining_prompt;
                prop_assert!(*share <= left.max(1) && (left > 0 || *share == 1));
            }
            for page in 0..4_u32 {
                let computing = in_prompt().filter(|(pending, share)| pending.next_page == Some(page) && **share > 0);
                prop_assert!(computing.count() <= 1);
            }
        }
    }
}
