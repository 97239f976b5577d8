//! Speculative decoding by prompt lookup: if the last tokens occurred earlier in the text, the tokens that followed
//! them are the draft. With few sequences, a step verifies several drafted tokens for little more than the cost of one.
//! The chosen tokens do not depend on the draft, so a wrong draft costs time and never changes the text.

use crate::limits::{MAX_DRAFT_BACKOFF_STEPS, MAX_DRAFT_TOKENS, MAX_LOOKUP_TOKENS};

/// Minimum n-gram length of a match; two tokens identify most phrases.
const MIN_NGRAM_TOKENS: usize = 2;
/// Maximum n-gram length to compare: a longer match predicts no better.
const MAX_NGRAM_TOKENS: usize = 8;
/// Length of a sequence's first draft: short, because its acceptance rate is unknown.
const INITIAL_DRAFT_TOKENS: usize = 3;

/// Adapts the draft length of one sequence to its acceptance rate. If all tokens were accepted, the length doubles; if
/// some were, it is their number plus one. If none was, it halves, and drafting pauses, twice as long each time.
#[derive(Clone, Debug)]
pub struct DraftState {
    draft_len: usize,
    backoff_steps: u32,
    misses: u32,
    drafted_total: u64,
    accepted_total: u64,
}

impl Default for DraftState {
    fn default() -> Self {
        Self {
            draft_len: INITIAL_DRAFT_TOKENS,
            backoff_steps: 0,
            misses: 0,
            drafted_total: 0,
            accepted_total: 0,
        }
    }
}

impl DraftState {
    pub fn drafted_total(&self) -> u64 {
        self.drafted_total
    }

    pub fn accepted_total(&self) -> u64 {
        self.accepted_total
    }

    /// Whether to draft in this step.
    pub fn is_ready(&self) -> bool {
        self.backoff_steps == 0
    }

    /// Counts down the pause by one step.
    pub fn skip_step(&mut self) {
        self.backoff_steps = self.backoff_steps.saturating_sub(1);
    }

    /// Appends up to `max_drafts` drafted tokens; returns how many.
    pub fn draft(&self, tokens: &mut Vec<u32>, max_drafts: usize) -> usize {
        let max_drafts = max_drafts.min(self.draft_len);
        let Some(start) = find_ngram_match(tokens).filter(|_| max_drafts > 0) else { return 0 };
        // One by one, because the draft may repeat tokens that it appended itself.
        for index in start..start + max_drafts {
            tokens.push(tokens[index]);
        }
        max_drafts
    }

    /// Records the outcome of a draft: how many leading tokens were accepted.
    pub fn record_outcome(&mut self, drafted: usize, accepted: usize) {
        self.drafted_total += drafted as u64;
        self.accepted_total += accepted as u64;
        if accepted == 0 {
            self.misses += 1;
            self.backoff_steps = (1_u32 << self.misses.min(31)).min(MAX_DRAFT_BACKOFF_STEPS);
            self.draft_len = (self.draft_len / 2).max(1);
        } else {
            self.misses = 0;
            let draft_len = if accepted == drafted { 2 * self.draft_len.max(drafted) } else { accepted + 1 };
            self.draft_len = draft_len.min(MAX_DRAFT_TOKENS);
        }
    }
}

/// The position after the latest earlier occurrence of the current ending. The longest match wins, and among equals the
/// latest. Searches at most `MAX_LOOKUP_TOKENS` back.
fn find_ngram_match(tokens: &[u32]) -> Option<usize> {
    let last = tokens.len().checked_sub(1)?;
    let first = last.saturating_sub(MAX_LOOKUP_TOKENS);
    let mut best = (MIN_NGRAM_TOKENS - 1, None);
    for position in (first..last).rev().filter(|position| tokens[*position] == tokens[last]) {
        let before = tokens[..position].iter().rev().zip(tokens[..last].iter().rev());
        let matched =
            1 + before.take(MAX_NGRAM_TOKENS - 1).take_while(|(earlier, current)| earlier == current).count();
        if matched > best.0 {
            best = (matched, Some(position + 1));
            if matched == MAX_NGRAM_TOKENS {
                break;
            }
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drafted(tokens: &[u32], max_drafts: usize) -> Vec<u32> {
        let mut all = tokens.to_vec();
        let count =
            DraftState { draft_len: MAX_DRAFT_TOKENS, ..DraftState::default() }.draft(&mut all, max_drafts);
        assert_eq!(all[..tokens.len()], *tokens);
        assert_eq!(all.len(), tokens.len() + count);
        all.split_off(tokens.len())
    }

    #[test]
    fn draft_continues_the_longest_earlier_match() {
        assert_eq!(drafted(&[1, 2, 3, 4, 5, 9, 2, 3], 2), [4, 5]);
        assert_eq!(drafted(&[1, 2, 3, 4, 2, 3, 5, 2, 3], 1), [5], "the latest of equals");
        assert_eq!(drafted(&[1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3], 1), [4], "the longest ending first");
        assert_eq!(drafted(&[1, 2, 3, 4], 4), [0; 0]);
        assert_eq!(drafted(&[3, 1, 2, 3], 4), [0; 0], "one token alone says too little");
        assert_eq!(drafted(&[], 4), [0; 0]);
    }

    #[test]
    fn draft_may_overlap_its_own_match() {
        assert_eq!(drafted(&[1, 2, 3, 1, 2, 3], 7), [1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(drafted(&[7, 7, 7], 4), [7, 7, 7, 7]);
    }

    #[test]
    fn draft_lookup_is_bounded() {
        let mut tokens = vec![1, 2, 3];
        tokens.extend(10..MAX_LOOKUP_TOKENS as u32 + 10);
        tokens.extend([1, 2]);
        assert_eq!(drafted(&tokens, 4), [0; 0]);
        tokens.drain(3..6);
        assert_eq!(drafted(&tokens, 1), [3]);
    }

    /// Brute-force reference: every match length from the longest, every position from the last.
    fn naive_search(tokens: &[u32]) -> Option<usize> {
        let lens = (MIN_NGRAM_TOKENS..=MAX_NGRAM_TOKENS.min(tokens.len())).rev();
        let mut matches = lens.flat_map(|len| {
            let suffix = &tokens[tokens.len() - len..];
            (len..tokens.len()).rev().filter(move |end| &tokens[end - len..*end] == suffix)
        });
        matches.next()
    }

    proptest! {
        #[test]
        fn draft_lookup_equals_a_naive_search(tokens in proptest::collection::vec(0_u32..4, 0..60)) {
            prop_assert_eq!(find_ngram_match(&tokens), naive_search(&tokens));
        }

        #[test]
        fn drafts_respect_the_requested_length_and_come_from_the_text(
            tokens in proptest::collection::vec(0_u32..3, 0..40), max_drafts in 0_usize..40,
        ) {
            let drafted = drafted(&tokens, max_drafts);
            prop_assert!(drafted.len() <= max_drafts.min(MAX_DRAFT_TOKENS));
            prop_assert!(drafted.iter().all(|token| tokens.contains(token)));
        }

        /// Whatever the outcomes, the draft length stays within its bound, and drafts become rare if none is ever
        /// accepted.
        #[test]
        fn rejected_drafts_become_rare_and_accepted_drafts_grow(outcomes in proptest::collection::vec(0_usize..20, 1..200)) {
            let mut draft_state = DraftState::default();
            for outcome in outcomes {
                while !draft_state.is_ready() {
                    draft_state.skip_step();
                }
                let drafted = draft_state.draft_len;
                prop_assert!((1..=MAX_DRAFT_TOKENS).contains(&drafted));
                draft_state.record_outcome(drafted, outcome.min(drafted));
                prop_assert!(draft_state.backoff_steps <= MAX_DRAFT_BACKOFF_STEPS);
                prop_assert_eq!(draft_state.is_ready(), outcome > 0);
                if outcome >= drafted {
                    prop_assert_eq!(draft_state.draft_len, (2 * drafted).min(MAX_DRAFT_TOKENS));
                }
            }
            let (mut steps, mut drafted) = (0, 0);
            while steps < 1_000 {
                if draft_state.is_ready() {
                    drafted += draft_state.draft_len;
                    draft_state.record_outcome(draft_state.draft_len, 0);
                } else {
                    draft_state.skip_step();
                }
                steps += 1;
            }
            prop_assert!(drafted < 80, "{drafted} guesses in {steps} steps");
        }
    }
}
