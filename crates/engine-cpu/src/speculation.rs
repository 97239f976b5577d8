//! Guesses at the tokens to come, for texts that repeat their prompt or themselves: where the text ended like this
//! before, it may go on as it did then. Where few sequences run, a step checks several guesses of one sequence for
//! little more than it takes without them. What it chooses does not depend on them, so a wrong guess costs time and
//! never changes the text.

use crate::limits::{MAX_DRAFT_PAUSE_STEPS, MAX_DRAFT_TOKENS, MAX_LOOKUP_TOKENS};

/// A place counts when at least so many tokens before it are those at the end; two are needed to tell most phrases.
const MIN_MATCH_TOKENS: usize = 2;
/// More than this many need not be compared: a longer match is no better.
const MAX_MATCH_TOKENS: usize = 8;
/// The first guess of a sequence: few, because nothing is known of it yet.
const FIRST_DRAFT_TOKENS: usize = 3;

/// How one sequence's guesses have gone, and how much is guessed next: twice as much after all were right, as many as
/// were right and one when some were; and after none was, fewer, with a pause twice as long each time.
#[derive(Clone, Debug)]
pub struct Drafting {
    next: usize,
    pause_steps: u32,
    misses: u32,
    drafted_total: u64,
    right_total: u64,
}

impl Default for Drafting {
    fn default() -> Self {
        Self { next: FIRST_DRAFT_TOKENS, pause_steps: 0, misses: 0, drafted_total: 0, right_total: 0 }
    }
}

impl Drafting {
    pub fn drafted_total(&self) -> u64 {
        self.drafted_total
    }

    pub fn right_total(&self) -> u64 {
        self.right_total
    }

    /// Whether it is worth asking for a guess.
    pub fn is_ready(&self) -> bool {
        self.pause_steps == 0
    }

    /// A step goes by without a guess.
    pub fn wait_a_step(&mut self) {
        self.pause_steps = self.pause_steps.saturating_sub(1);
    }

    /// Appends up to `most` guesses; returns how many.
    pub fn draft(&self, tokens: &mut Vec<u32>, most: usize) -> usize {
        let most = most.min(self.next);
        let Some(from) = went_on_at(tokens).filter(|_| most > 0) else { return 0 };
        // One by one, because the guess may repeat what it has itself appended.
        for at in from..from + most {
            tokens.push(tokens[at]);
        }
        most
    }

    /// What came of a guess of so many tokens: how many, from the first, were right.
    pub fn settle(&mut self, drafted: usize, right: usize) {
        self.drafted_total += drafted as u64;
        self.right_total += right as u64;
        if right == 0 {
            self.misses += 1;
            self.pause_steps = (1_u32 << self.misses.min(31)).min(MAX_DRAFT_PAUSE_STEPS);
            self.next = (self.next / 2).max(1);
        } else {
            self.misses = 0;
            let next = if right == drafted { 2 * self.next.max(drafted) } else { right + 1 };
            self.next = next.min(MAX_DRAFT_TOKENS);
        }
    }
}

/// Where the text went on when it last ended as it does now; the longest such ending counts, and of equals the latest.
/// Looks back a bounded way.
fn went_on_at(tokens: &[u32]) -> Option<usize> {
    let last = tokens.len().checked_sub(1)?;
    let first = last.saturating_sub(MAX_LOOKUP_TOKENS);
    let mut best = (MIN_MATCH_TOKENS - 1, None);
    for place in (first..last).rev().filter(|place| tokens[*place] == tokens[last]) {
        let before = tokens[..place].iter().rev().zip(tokens[..last].iter().rev());
        let matched = 1 + before.take(MAX_MATCH_TOKENS - 1).take_while(|(then, now)| then == now).count();
        if matched > best.0 {
            best = (matched, Some(place + 1));
            if matched == MAX_MATCH_TOKENS {
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

    fn drafted(tokens: &[u32], most: usize) -> Vec<u32> {
        let mut all = tokens.to_vec();
        let count = Drafting { next: MAX_DRAFT_TOKENS, ..Drafting::default() }.draft(&mut all, most);
        assert_eq!(all[..tokens.len()], *tokens);
        assert_eq!(all.len(), tokens.len() + count);
        all.split_off(tokens.len())
    }

    #[test]
    fn a_draft_goes_on_as_the_text_did_before() {
        assert_eq!(drafted(&[1, 2, 3, 4, 5, 9, 2, 3], 2), [4, 5]);
        assert_eq!(drafted(&[1, 2, 3, 4, 2, 3, 5, 2, 3], 1), [5], "the latest of equals");
        assert_eq!(drafted(&[1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3], 1), [4], "the longest ending first");
        assert_eq!(drafted(&[1, 2, 3, 4], 4), [0; 0]);
        assert_eq!(drafted(&[3, 1, 2, 3], 4), [0; 0], "one token alone says too little");
        assert_eq!(drafted(&[], 4), [0; 0]);
    }

    #[test]
    fn a_draft_may_repeat_itself() {
        assert_eq!(drafted(&[1, 2, 3, 1, 2, 3], 7), [1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(drafted(&[7, 7, 7], 4), [7, 7, 7, 7]);
    }

    #[test]
    fn a_draft_is_looked_for_a_bounded_way_back() {
        let mut tokens = vec![1, 2, 3];
        tokens.extend(10..MAX_LOOKUP_TOKENS as u32 + 10);
        tokens.extend([1, 2]);
        assert_eq!(drafted(&tokens, 4), [0; 0]);
        tokens.drain(3..6);
        assert_eq!(drafted(&tokens, 1), [3]);
    }

    /// The plain way: every place, from the last to the first, and every length.
    fn plainly(tokens: &[u32]) -> Option<usize> {
        let lens = (MIN_MATCH_TOKENS..=MAX_MATCH_TOKENS.min(tokens.len())).rev();
        let mut places = lens.flat_map(|len| {
            let ending = &tokens[tokens.len() - len..];
            (len..tokens.len()).rev().filter(move |end| &tokens[end - len..*end] == ending)
        });
        places.next()
    }

    proptest! {
        #[test]
        fn the_place_found_is_that_of_a_plain_search(tokens in proptest::collection::vec(0_u32..4, 0..60)) {
            prop_assert_eq!(went_on_at(&tokens), plainly(&tokens));
        }

        #[test]
        fn guesses_stay_within_what_was_asked_and_come_from_the_text(
            tokens in proptest::collection::vec(0_u32..3, 0..40), most in 0_usize..40,
        ) {
            let drafted = drafted(&tokens, most);
            prop_assert!(drafted.len() <= most.min(MAX_DRAFT_TOKENS));
            prop_assert!(drafted.iter().all(|token| tokens.contains(token)));
        }

        /// However the guesses go: they stay within their bound, and where none is ever right, ever fewer are made.
        #[test]
        fn wrong_guesses_become_rare_and_right_ones_grow(outcomes in proptest::collection::vec(0_usize..20, 1..200)) {
            let mut drafting = Drafting::default();
            for outcome in outcomes {
                while !drafting.is_ready() {
                    drafting.wait_a_step();
                }
                let drafted = drafting.next;
                prop_assert!((1..=MAX_DRAFT_TOKENS).contains(&drafted));
                drafting.settle(drafted, outcome.min(drafted));
                prop_assert!(drafting.pause_steps <= MAX_DRAFT_PAUSE_STEPS);
                prop_assert_eq!(drafting.is_ready(), outcome > 0);
                if outcome >= drafted {
                    prop_assert_eq!(drafting.next, (2 * drafted).min(MAX_DRAFT_TOKENS));
                }
            }
            let (mut steps, mut drafted) = (0, 0);
            while steps < 1_000 {
                if drafting.is_ready() {
                    drafted += drafting.next;
                    drafting.settle(drafting.next, 0);
                } else {
                    drafting.wait_a_step();
                }
                steps += 1;
            }
            prop_assert!(drafted < 80, "{drafted} guesses in {steps} steps");
        }
    }
}
