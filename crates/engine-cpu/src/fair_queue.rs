//! The waiting jobs, scheduled between accounts by deficit round robin in tokens: a bounded queue without clock,
//! threads or model.
//!
//! 1. Accounts take turns in a ring. When an account's turn comes, its balance grows by one quantum.
//! 2. While its balance is above zero, its jobs start, oldest first, and each costs its tokens; the last may overdraw
//!    the balance. Then the next account is served. So between two accounts that both have jobs waiting, the tokens
//!    started differ by less than one quantum and one job.
//! 3. A new account joins at the end of the ring. So its first job waits for less than one quantum and one job of every
//!    other account, however many jobs they have waiting.
//! 4. An account without jobs accrues nothing, but stays until its debt is paid off, so that sending one job at a time
//!    gains nothing. When the queue is empty, all balances are dropped: nobody was kept waiting.
//! 5. The unused part of a job's cost is refunded when it ends, up to a balance of one quantum.
//! 6. A job may start out of turn if it takes nothing from the account whose turn it is (short jobs have their own
//!    pages). It pays, but its debt is capped at one quantum: otherwise its account would wait long for having used
//!    what nobody else could.

use chancery_domain::AccountId;
use std::collections::VecDeque;

/// Jobs that wait for a slot. One account may fill three quarters of the queue, so that others always find space.
#[derive(Debug)]
pub struct FairQueue<T> {
    accounts: Vec<AccountQueue<T>>,
    /// Index in the ring of the account whose turn it is.
    turn: usize,
    /// Whether that turn is over: the account served after it has left, and the next one's turn is due.
    is_turn_over: bool,
    waiting: usize,
    capacity: usize,
    quantum: i64,
}

/// One account's share of the ring.
#[derive(Debug)]
struct AccountQueue<T> {
    account: AccountId,
    deficit: i64,
    jobs: VecDeque<CostedJob<T>>,
}

#[derive(Debug)]
struct CostedJob<T> {
    cost: u32,
    job: T,
}

/// The position of a job in the queue, valid until the queue changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobPosition {
    account_index: usize,
    job: usize,
}

/// A job removed from the queue.
#[derive(Debug, PartialEq, Eq)]
pub struct DequeuedJob<T> {
    pub account: AccountId,
    pub job: T,
    /// What its account paid: the maximum refund.
    pub charged: u32,
}

impl<T> FairQueue<T> {
    /// # Panics
    /// If the quantum is zero: no account would ever be served.
    pub fn new(capacity: usize, quantum_tokens: u32) -> Self {
        assert!(quantum_tokens > 0, "a quantum of nothing");
        Self {
            accounts: Vec::new(),
            turn: 0,
            is_turn_over: false,
            waiting: 0,
            capacity,
            quantum: i64::from(quantum_tokens),
        }
    }

    pub fn len(&self) -> usize {
        self.waiting
    }

    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// `cost` is the maximum number of tokens that the job may use. Returns the job if the queue has no space for it.
    pub fn push(&mut self, account: AccountId, cost: u32, job: T) -> Result<(), T> {
        let limit = self.capacity - self.capacity / 4;
        let index = self.accounts.iter().position(|queue| queue.account == account);
        let account_jobs = index.map_or(0, |index| self.accounts[index].jobs.len());
        if self.waiting >= self.capacity || account_jobs >= limit {
            return Err(job);
        }
        let index = index.unwrap_or_else(|| self.add_account(account));
        self.accounts[index].jobs.push_back(CostedJob { cost, job });
        self.waiting += 1;
        Ok(())
    }

    /// The order in which jobs start if no more arrive.
    pub fn in_order(&self) -> impl Iterator<Item = JobPosition> {
        let mut round_robin = self.round_robin();
        let mut dequeued = vec![0; self.accounts.len()];
        std::iter::repeat_with(move || {
            let account_index =
                round_robin.next(self.quantum, |index| dequeued[index] < self.accounts[index].jobs.len());
            let next = JobPosition { account_index, job: dequeued[account_index] };
            round_robin.deficits[account_index] -=
                i64::from(self.accounts[account_index].jobs[next.job].cost);
            dequeued[account_index] += 1;
            next
        })
        .take(self.waiting)
    }

    fn round_robin(&self) -> RoundRobin {
        let deficits = self.accounts.iter().map(|queue| queue.deficit).collect();
        RoundRobin { turn: self.turn, is_turn_over: self.is_turn_over, deficits }
    }

    pub fn get(&self, next: JobPosition) -> Option<&T> {
        self.accounts.get(next.account_index)?.jobs.get(next.job).map(|costed| &costed.job)
    }

    /// Removes a job. The first of `in_order` advances the turn; any other starts out of turn.
    pub fn take(&mut self, next: JobPosition) -> Option<DequeuedJob<T>> {
        self.get(next)?;
        let in_turn = self.in_order().next() == Some(next);
        if in_turn {
            let mut round_robin = self.round_robin();
            self.turn = round_robin.next(self.quantum, |index| !self.accounts[index].jobs.is_empty());
            self.is_turn_over = false;
            for (queue, deficit) in self.accounts.iter_mut().zip(round_robin.deficits) {
                queue.deficit = deficit;
            }
        }
        let quantum = self.quantum;
        let queue = &mut self.accounts[next.account_index];
        let CostedJob { cost, job } = queue.jobs.remove(next.job)?;
        let limit = if in_turn { i64::MAX } else { (queue.deficit + quantum).max(0) };
        let charged = u32::try_from(i64::from(cost).min(limit)).unwrap_or(cost);
        queue.deficit -= i64::from(charged);
        let account = queue.account;
        self.waiting -= 1;
        self.remove_idle_accounts();
        Some(DequeuedJob { account, job, charged })
    }

    /// Refunds an account the unused cost of a job.
    pub fn refund(&mut self, account: AccountId, tokens: u32) {
        if let Some(queue) = self.accounts.iter_mut().find(|queue| queue.account == account) {
            queue.deficit = queue.deficit.max((queue.deficit + i64::from(tokens)).min(self.quantum));
        }
        self.remove_idle_accounts();
    }

    /// Removes every job that matches `should_remove` because its caller is gone; they cost nothing.
    pub fn remove_where(&mut self, should_remove: impl Fn(&T) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        for queue in &mut self.accounts {
            if queue.jobs.iter().any(|costed| should_remove(&costed.job)) {
                let (matching, rest): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut queue.jobs)
                    .into_iter()
                    .partition(|costed| should_remove(&costed.job));
                queue.jobs = rest;
                removed.extend(matching.into_iter().map(|costed| costed.job));
            }
        }
        self.waiting -= removed.len();
        self.remove_idle_accounts();
        removed
    }

    pub fn drain_all(&mut self) -> Vec<T> {
        self.remove_where(|_| true)
    }

    /// Adds a new account at the end of the ring, and returns its index.
    fn add_account(&mut self, account: AccountId) -> usize {
        let index = self.turn;
        // In an empty ring, it is this account's turn immediately.
        let deficit = if self.accounts.is_empty() { self.quantum } else { 0 };
        self.accounts.insert(index, AccountQueue { account, deficit, jobs: VecDeque::new() });
        self.turn = (index + 1) % self.accounts.len();
        index
    }

    /// Removes accounts that have no jobs and no debt.
    fn remove_idle_accounts(&mut self) {
        if self.waiting == 0 {
            self.accounts.clear();
            self.turn = 0;
            self.is_turn_over = false;
            return;
        }
        let mut index = 0;
        while index < self.accounts.len() {
            let queue = &self.accounts[index];
            if !queue.jobs.is_empty() || queue.deficit < 0 {
                index += 1;
                continue;
            }
            self.accounts.remove(index);
            if index <= self.turn {
                // If an account leaves during its turn, `turn` moves to the one before it. That one has already had its
                // turn, whatever was refunded to it since.
                self.is_turn_over |= index == self.turn;
                self.turn = self.turn.checked_sub(1).unwrap_or(self.accounts.len() - 1);
            }
        }
    }
}

/// Advances the turn: on the queue's own balances, or on a copy of them to look ahead.
struct RoundRobin {
    turn: usize,
    is_turn_over: bool,
    deficits: Vec<i64>,
}

impl RoundRobin {
    /// Advances to the next account whose job starts. At least one account must have a job.
    fn next(&mut self, quantum: i64, has_job: impl Fn(usize) -> bool) -> usize {
        loop {
            for _ in 0..=self.deficits.len() {
                if !self.is_turn_over && has_job(self.turn) && self.deficits[self.turn] > 0 {
                    return self.turn;
                }
                self.is_turn_over = false;
                self.turn = (self.turn + 1) % self.deficits.len();
                self.add_quanta(self.turn, quantum, 1, &has_job);
            }
            // All are in debt: skip as many whole rounds as nobody would be served in.
            let rounds = self.deficits.iter().enumerate().filter(|(index, _)| has_job(*index));
            let rounds = rounds.map(|(_, deficit)| -deficit / quantum).min().unwrap_or(0).max(0);
            for index in 0..self.deficits.len() {
                self.add_quanta(index, quantum, rounds, &has_job);
            }
        }
    }

    fn add_quanta(&mut self, index: usize, quantum: i64, rounds: i64, has_job: impl Fn(usize) -> bool) {
        let limit = if has_job(index) { quantum } else { 0 };
        let deficit = &mut self.deficits[index];
        *deficit = (*deficit + quantum * rounds).min(limit).max(*deficit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: AccountId = AccountId(1);
    const B: AccountId = AccountId(2);
    const C: AccountId = AccountId(3);
    const QUANTUM: u32 = 100;

    fn queue<T>() -> FairQueue<T> {
        FairQueue::new(10_000, QUANTUM)
    }

    fn take_first<T>(queue: &mut FairQueue<T>) -> Option<DequeuedJob<T>> {
        let first = queue.in_order().next()?;
        queue.take(first)
    }

    #[test]
    fn full_queue_returns_the_job() {
        let mut queue = FairQueue::new(2, QUANTUM);
        assert_eq!(queue.push(A, 1, 1), Ok(()));
        assert_eq!(queue.push(B, 1, 2), Ok(()));
        assert_eq!(queue.push(B, 1, 3), Err(3));
    }

    #[test]
    fn one_account_cannot_fill_the_queue() {
        let mut queue = FairQueue::new(8, QUANTUM);
        let accepted = (0..8).filter(|job| queue.push(A, 1, *job).is_ok()).count();
        assert_eq!(accepted, 6);
        assert_eq!(queue.push(B, 1, 0), Ok(()));
    }

    #[test]
    fn submitting_one_large_job_at_a_time_gains_no_share() {
        let mut queue = queue();
        for _ in 0..2_000 {
            queue.push(A, 10, ()).unwrap();
        }
        let mut tokens_of_b = 0;
        for _ in 0..1_000 {
            if !queue.accounts.iter().any(|queue| queue.account == B && !queue.jobs.is_empty()) {
                queue.push(B, 1_000, ()).unwrap();
            }
            let dequeued = take_first(&mut queue).unwrap();
            tokens_of_b += if dequeued.account == B { dequeued.charged } else { 0 };
        }
        let tokens_of_a = (1_000 - tokens_of_b / 1_000) * 10;
        assert!(tokens_of_a.abs_diff(tokens_of_b) <= QUANTUM + 1_000, "{tokens_of_a} and {tokens_of_b}");
    }

    #[test]
    fn job_started_out_of_turn_keeps_the_turn_and_has_bounded_debt() {
        let mut queue = queue();
        queue.push(A, 5_000, "long").unwrap();
        for _ in 0..50 {
            queue.push(B, 60, "short").unwrap();
        }
        for _ in 0..40 {
            let short = queue.in_order().find(|next| queue.get(*next) == Some(&"short")).unwrap();
            assert_eq!(queue.take(short).unwrap().account, B);
            assert_eq!(queue.in_order().next().and_then(|next| queue.get(next)), Some(&"long"));
        }
        let debt = queue.accounts.iter().find(|queue| queue.account == B).unwrap().deficit;
        assert_eq!(debt, -i64::from(QUANTUM));
        assert_eq!(take_first(&mut queue).unwrap().job, "long");
    }

    #[test]
    fn unused_tokens_are_refunded_but_not_accumulated() {
        let mut queue = queue();
        for _ in 0..4 {
            queue.push(A, 1_000, ()).unwrap();
            queue.push(B, 1_000, ()).unwrap();
        }
        let first = take_first(&mut queue).unwrap();
        queue.refund(first.account, 990);
        assert_eq!(
            take_first(&mut queue).unwrap().account,
            first.account,
            "it has used ten tokens of its hundred"
        );
        for _ in 0..5 {
            queue.refund(first.account, 100_000);
        }
        assert!(queue.accounts.iter().all(|queue| queue.deficit <= i64::from(QUANTUM)));
        queue.refund(C, 5);
        assert_eq!(queue.accounts.len(), 2, "a refund adds no account");
    }

    #[test]
    fn empty_queue_keeps_no_account_state() {
        let mut queue = queue();
        queue.push(A, 1_000_000, ()).unwrap();
        assert!(take_first(&mut queue).is_some());
        assert!(queue.accounts.is_empty() && queue.in_order().next().is_none());
    }

    fn backlog() -> impl Strategy<Value = Vec<(i64, u32)>> {
        proptest::collection::vec((1_i64..4, 1_u32..1_000), 1..200)
    }

    proptest! {
        #[test]
        fn shares_of_waiting_accounts_differ_by_less_than_a_quantum_and_a_job(jobs in backlog()) {
            let mut queue = queue();
            let mut left = [0; 4];
            for (account, cost) in &jobs {
                queue.push(AccountId(*account), *cost, ()).unwrap();
                left[*account as usize] += 1;
            }
            let largest = jobs.iter().map(|(_, cost)| *cost).max().unwrap();
            let mut got = [0_u32; 4];
            while let Some(dequeued) = take_first(&mut queue) {
                let account = dequeued.account.0 as usize;
                got[account] += dequeued.charged;
                left[account] -= 1;
                for (one, other) in [(1, 2), (1, 3), (2, 3)] {
                    if left[one] > 0 && left[other] > 0 {
                        prop_assert!(got[one].abs_diff(got[other]) < QUANTUM + largest, "{:?}", got);
                    }
                }
            }
            prop_assert_eq!(left, [0; 4]);
        }

        #[test]
        fn flood_delays_a_newcomer_by_at_most_a_quantum_and_a_job_each(
            jobs in backlog(), taken_before in 0_usize..100, cost in 1_u32..5_000
        ) {
            let newcomer = AccountId(9);
            let mut queue = queue();
            for (account, cost) in &jobs {
                queue.push(AccountId(*account), *cost, ()).unwrap();
            }
            for _ in 0..taken_before {
                take_first(&mut queue);
            }
            queue.push(newcomer, cost, ()).unwrap();
            let mut tokens_before = [0; 4];
            loop {
                let dequeued = take_first(&mut queue).unwrap();
                if dequeued.account == newcomer {
                    break;
                }
                tokens_before[dequeued.account.0 as usize] += dequeued.charged;
            }
            let largest = jobs.iter().map(|(_, cost)| *cost).max().unwrap();
            prop_assert!(tokens_before.iter().all(|tokens| *tokens < QUANTUM + largest), "{:?}", tokens_before);
        }

        /// With pushes, takes in and out of turn, refunds and cancellations in any order: no job is lost or duplicated,
        /// jobs of an account start in order of arrival unless picked, and `in_order` predicts what happens.
        #[test]
        fn no_job_is_lost_and_order_within_an_account_is_preserved(
            steps in proptest::collection::vec((0_u8..6, 1_i64..5, 1_u32..2_000), 1..150)
        ) {
            let mut queue = queue();
            let mut waiting: Vec<(AccountId, usize)> = Vec::new();
            for (number, (action, account, amount)) in steps.into_iter().enumerate() {
                match action {
                    0..=2 => {
                        let job = (AccountId(account), number);
                        queue.push(job.0, amount, job).unwrap();
                        waiting.push(job);
                    }
                    3 => if let Some(dequeued) = take_first(&mut queue) {
                        let oldest = waiting.iter().position(|job| job.0 == dequeued.account).unwrap();
                        prop_assert_eq!(waiting.remove(oldest), dequeued.job);
                    },
                    4 => {
                        let pick = queue.in_order().nth(amount as usize % 5);
                        if let Some(dequeued) = pick.and_then(|next| queue.take(next)) {
                            waiting.retain(|job| *job != dequeued.job);
                        }
                        queue.refund(AccountId(account), amount);
                    }
                    _ => {
                        let removed = queue.remove_where(|(_, number)| number % 7 == amount as usize % 7);
                        waiting.retain(|job| !removed.contains(job));
                    }
                }
                prop_assert_eq!(queue.len(), waiting.len());
            }
            let predicted: Vec<_> = queue.in_order().map(|next| *queue.get(next).unwrap()).collect();
            let seen: Vec<_> = std::iter::from_fn(|| take_first(&mut queue)).map(|dequeued| dequeued.job).collect();
            prop_assert_eq!(&predicted, &seen);
            for account in 1..5 {
                let of = |job: &&(AccountId, usize)| job.0 == AccountId(account);
                prop_assert!(seen.iter().filter(of).eq(waiting.iter().filter(of)));
            }
        }
    }
}
