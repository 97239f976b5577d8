//! Who is served when, as rules without a model: a bounded queue that shares slots fairly between accounts, and how
//! many tokens each running sequence gets in the next step.

use crate::limits::{PREFILL_TOKENS_ALONE, PREFILL_TOKENS_BESIDE_DECODE};
use chancery_domain::AccountId;
use std::collections::VecDeque;

/// Jobs that wait for a slot. One account may fill three quarters of it, so that the others always find room.
#[derive(Debug)]
pub struct FairQueue<T> {
    waiting: VecDeque<(AccountId, T)>,
    capacity: usize,
}

impl<T> FairQueue<T> {
    pub fn new(capacity: usize) -> Self {
        Self { waiting: VecDeque::new(), capacity }
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Gives the job back when there is no room for it.
    pub fn push(&mut self, account: AccountId, job: T) -> Result<(), T> {
        let share = self.capacity - self.capacity / 4;
        let own = self.waiting.iter().filter(|(owner, _)| *owner == account).count();
        if self.waiting.len() >= self.capacity || own >= share {
            return Err(job);
        }
        self.waiting.push_back((account, job));
        Ok(())
    }

    /// The order in which jobs are served: those of the account with the fewest running first, and of its jobs the one
    /// that came first.
    pub fn in_order(&self, running: impl Fn(AccountId) -> usize) -> Vec<NextUp> {
        let mut order: Vec<usize> = (0..self.waiting.len()).collect();
        order.sort_by_cached_key(|index| (running(self.waiting[*index].0), *index));
        order.into_iter().map(NextUp).collect()
    }

    pub fn get(&self, next: NextUp) -> Option<&T> {
        self.waiting.get(next.0).map(|(_, job)| job)
    }

    pub fn take(&mut self, next: NextUp) -> Option<(AccountId, T)> {
        self.waiting.remove(next.0)
    }

    /// Takes out every job that `is_gone` says nobody waits for any more.
    pub fn take_gone(&mut self, is_gone: impl Fn(&T) -> bool) -> Vec<T> {
        if !self.waiting.iter().any(|(_, job)| is_gone(job)) {
            return Vec::new();
        }
        let (gone, kept): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(_, job)| is_gone(job));
        self.waiting = kept;
        gone.into_iter().map(|(_, job)| job).collect()
    }

    pub fn take_all(&mut self) -> Vec<T> {
        std::mem::take(&mut self.waiting).into_iter().map(|(_, job)| job).collect()
    }
}

/// A place in the queue, good until the queue changes.
#[derive(Clone, Copy, Debug)]
pub struct NextUp(usize);

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

    const A: AccountId = AccountId(1);
    const B: AccountId = AccountId(2);

    #[test]
    fn a_full_queue_gives_the_job_back() {
        let mut queue = FairQueue::new(2);
        assert_eq!(queue.push(A, 1), Ok(()));
        assert_eq!(queue.push(B, 2), Ok(()));
        assert_eq!(queue.push(B, 3), Err(3));
    }

    #[test]
    fn one_account_cannot_fill_the_queue() {
        let mut queue = FairQueue::new(8);
        let taken = (0..8).filter(|job| queue.push(A, *job).is_ok()).count();
        assert_eq!(taken, 6);
        assert_eq!(queue.push(B, 0), Ok(()));
    }

    #[test]
    fn the_account_with_the_fewest_running_goes_first() {
        let mut queue = FairQueue::new(8);
        for (account, job) in [(A, "a1"), (A, "a2"), (B, "b1")] {
            queue.push(account, job).unwrap();
        }
        let next = queue.in_order(|account| if account == A { 3 } else { 1 })[0];
        assert_eq!(queue.take(next), Some((B, "b1")));
        let next = queue.in_order(|_| 2)[0];
        assert_eq!(queue.take(next), Some((A, "a1")));
    }

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
