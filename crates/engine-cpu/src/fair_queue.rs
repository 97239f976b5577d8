//! The jobs that wait, shared out between accounts by deficit round robin in tokens; a bounded queue without clock,
//! threads or model.
//!
//! 1. The accounts stand in a circle. When the turn comes to one, its balance grows by one quantum.
//! 2. While its balance is above zero, its jobs go, oldest first, each for its cost; the last may take it below zero.
//!    Then the turn goes on. So between two accounts that both have jobs waiting, what has gone differs by less than
//!    one quantum and one job.
//! 3. A new account comes last in the circle. So its first job waits for less than one quantum and one job of every
//!    other account, however much they have waiting.
//! 4. An account without jobs saves nothing up, but stays until its debt is worked off, so that sending one job at a
//!    time gains nothing. When nobody waits, all is forgotten: then nobody was kept waiting.
//! 5. What a job did not use of its cost is given back when it ends, up to a balance of one quantum.
//! 6. A job may go out of turn where it takes nothing from the one whose turn it is (short jobs have pages of their
//!    own). It pays, but never into a debt of more than a quantum: otherwise its account would wait long for having
//!    used what nobody else could.

use chancery_domain::AccountId;
use std::collections::VecDeque;

/// Jobs that wait for a slot. One account may fill three quarters of it, so that the others always find room.
#[derive(Debug)]
pub struct FairQueue<T> {
    circle: Vec<Share<T>>,
    /// Whose turn it is, as a place in the circle.
    turn: usize,
    /// Whether that turn is over already: whoever had the turn after it has left, and the next one's is to come.
    turn_is_over: bool,
    waiting: usize,
    capacity: usize,
    quantum: i64,
}

/// One account's part.
#[derive(Debug)]
struct Share<T> {
    account: AccountId,
    balance: i64,
    jobs: VecDeque<Costly<T>>,
}

#[derive(Debug)]
struct Costly<T> {
    cost: u32,
    job: T,
}

/// A place in the queue, good until the queue changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextUp {
    share: usize,
    job: usize,
}

/// A job out of the queue.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken<T> {
    pub account: AccountId,
    pub job: T,
    /// What its account paid for it: the most that can be given back.
    pub paid: u32,
}

impl<T> FairQueue<T> {
    /// # Panics
    /// When the quantum is zero: then no turn would ever come.
    pub fn new(capacity: usize, quantum_tokens: u32) -> Self {
        assert!(quantum_tokens > 0, "a quantum of nothing");
        Self {
            circle: Vec::new(),
            turn: 0,
            turn_is_over: false,
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

    /// `cost` is what the job may use at most, in tokens. Gives the job back when there is no room for it.
    pub fn push(&mut self, account: AccountId, cost: u32, job: T) -> Result<(), T> {
        let most = self.capacity - self.capacity / 4;
        let share = self.circle.iter().position(|share| share.account == account);
        let own = share.map_or(0, |share| self.circle[share].jobs.len());
        if self.waiting >= self.capacity || own >= most {
            return Err(job);
        }
        let share = share.unwrap_or_else(|| self.join(account));
        self.circle[share].jobs.push_back(Costly { cost, job });
        self.waiting += 1;
        Ok(())
    }

    /// The order in which jobs go if no more come.
    pub fn in_order(&self) -> impl Iterator<Item = NextUp> {
        let mut turns = self.turns();
        let mut gone = vec![0; self.circle.len()];
        std::iter::repeat_with(move || {
            let share = turns.next(self.quantum, |share| gone[share] < self.circle[share].jobs.len());
            let next = NextUp { share, job: gone[share] };
            turns.balances[share] -= i64::from(self.circle[share].jobs[next.job].cost);
            gone[share] += 1;
            next
        })
        .take(self.waiting)
    }

    fn turns(&self) -> Turns {
        let balances = self.circle.iter().map(|share| share.balance).collect();
        Turns { at: self.turn, is_over: self.turn_is_over, balances }
    }

    pub fn get(&self, next: NextUp) -> Option<&T> {
        self.circle.get(next.share)?.jobs.get(next.job).map(|costly| &costly.job)
    }

    /// Takes a job. The first of `in_order` moves the turn; any other goes out of turn.
    pub fn take(&mut self, next: NextUp) -> Option<Taken<T>> {
        self.get(next)?;
        let in_turn = self.in_order().next() == Some(next);
        if in_turn {
            let mut turns = self.turns();
            self.turn = turns.next(self.quantum, |share| !self.circle[share].jobs.is_empty());
            self.turn_is_over = false;
            for (share, balance) in self.circle.iter_mut().zip(turns.balances) {
                share.balance = balance;
            }
        }
        let quantum = self.quantum;
        let share = &mut self.circle[next.share];
        let Costly { cost, job } = share.jobs.remove(next.job)?;
        let most = if in_turn { i64::MAX } else { (share.balance + quantum).max(0) };
        let paid = u32::try_from(i64::from(cost).min(most)).unwrap_or(cost);
        share.balance -= i64::from(paid);
        let account = share.account;
        self.waiting -= 1;
        self.tidy();
        Some(Taken { account, job, paid })
    }

    /// Gives an account back what a job of its did not use.
    pub fn refund(&mut self, account: AccountId, tokens: u32) {
        if let Some(share) = self.circle.iter_mut().find(|share| share.account == account) {
            share.balance = share.balance.max((share.balance + i64::from(tokens)).min(self.quantum));
        }
        self.tidy();
    }

    /// Takes out every job that `is_gone` says nobody waits for any more; they cost nothing.
    pub fn take_gone(&mut self, is_gone: impl Fn(&T) -> bool) -> Vec<T> {
        let mut gone = Vec::new();
        for share in &mut self.circle {
            if share.jobs.iter().any(|costly| is_gone(&costly.job)) {
                let (leaving, staying): (VecDeque<_>, VecDeque<_>) =
                    std::mem::take(&mut share.jobs).into_iter().partition(|costly| is_gone(&costly.job));
                share.jobs = staying;
                gone.extend(leaving.into_iter().map(|costly| costly.job));
            }
        }
        self.waiting -= gone.len();
        self.tidy();
        gone
    }

    pub fn take_all(&mut self) -> Vec<T> {
        self.take_gone(|_| true)
    }

    /// A place for a new account, the last one in the circle.
    fn join(&mut self, account: AccountId) -> usize {
        let place = self.turn;
        // The first of all has its turn at once.
        let balance = if self.circle.is_empty() { self.quantum } else { 0 };
        self.circle.insert(place, Share { account, balance, jobs: VecDeque::new() });
        self.turn = (place + 1) % self.circle.len();
        place
    }

    /// Lets those leave the circle who have no jobs and owe nothing.
    fn tidy(&mut self) {
        if self.waiting == 0 {
            self.circle.clear();
            self.turn = 0;
            self.turn_is_over = false;
            return;
        }
        let mut place = 0;
        while place < self.circle.len() {
            let share = &self.circle[place];
            if !share.jobs.is_empty() || share.balance < 0 {
                place += 1;
                continue;
            }
            self.circle.remove(place);
            if place <= self.turn {
                // Of whoever leaves in the middle of a turn, the one before is the place in the circle; that one has had
                // its turn, whatever was given back to it since.
                self.turn_is_over |= place == self.turn;
                self.turn = self.turn.checked_sub(1).unwrap_or(self.circle.len() - 1);
            }
        }
    }
}

/// How the turn goes round: on the queue's own balances, or on a copy of them to look ahead.
struct Turns {
    at: usize,
    is_over: bool,
    balances: Vec<i64>,
}

impl Turns {
    /// Moves the turn on to the next account whose job goes. Somebody must have one.
    fn next(&mut self, quantum: i64, has_job: impl Fn(usize) -> bool) -> usize {
        loop {
            for _ in 0..=self.balances.len() {
                if !self.is_over && has_job(self.at) && self.balances[self.at] > 0 {
                    return self.at;
                }
                self.is_over = false;
                self.at = (self.at + 1) % self.balances.len();
                self.grow(self.at, quantum, 1, &has_job);
            }
            // All are in debt: as many rounds at once as nobody's turn comes in.
            let rounds = self.balances.iter().enumerate().filter(|(share, _)| has_job(*share));
            let rounds = rounds.map(|(_, balance)| -balance / quantum).min().unwrap_or(0).max(0);
            for share in 0..self.balances.len() {
                self.grow(share, quantum, rounds, &has_job);
            }
        }
    }

    fn grow(&mut self, share: usize, quantum: i64, rounds: i64, has_job: impl Fn(usize) -> bool) {
        let most = if has_job(share) { quantum } else { 0 };
        let balance = &mut self.balances[share];
        *balance = (*balance + quantum * rounds).min(most).max(*balance);
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

    fn take_first<T>(queue: &mut FairQueue<T>) -> Option<Taken<T>> {
        let first = queue.in_order().next()?;
        queue.take(first)
    }

    #[test]
    fn a_full_queue_gives_the_job_back() {
        let mut queue = FairQueue::new(2, QUANTUM);
        assert_eq!(queue.push(A, 1, 1), Ok(()));
        assert_eq!(queue.push(B, 1, 2), Ok(()));
        assert_eq!(queue.push(B, 1, 3), Err(3));
    }

    #[test]
    fn one_account_cannot_fill_the_queue() {
        let mut queue = FairQueue::new(8, QUANTUM);
        let taken = (0..8).filter(|job| queue.push(A, 1, *job).is_ok()).count();
        assert_eq!(taken, 6);
        assert_eq!(queue.push(B, 1, 0), Ok(()));
    }

    #[test]
    fn sending_one_large_job_at_a_time_gains_nothing() {
        let mut queue = queue();
        for _ in 0..2_000 {
            queue.push(A, 10, ()).unwrap();
        }
        let mut tokens_of_b = 0;
        for _ in 0..1_000 {
            if !queue.circle.iter().any(|share| share.account == B && !share.jobs.is_empty()) {
                queue.push(B, 1_000, ()).unwrap();
            }
            let taken = take_first(&mut queue).unwrap();
            tokens_of_b += if taken.account == B { taken.paid } else { 0 };
        }
        let tokens_of_a = (1_000 - tokens_of_b / 1_000) * 10;
        assert!(tokens_of_a.abs_diff(tokens_of_b) <= QUANTUM + 1_000, "{tokens_of_a} and {tokens_of_b}");
    }

    #[test]
    fn a_job_out_of_turn_leaves_the_turn_where_it_is_and_its_debt_is_bounded() {
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
        let debt = queue.circle.iter().find(|share| share.account == B).unwrap().balance;
        assert_eq!(debt, -i64::from(QUANTUM));
        assert_eq!(take_first(&mut queue).unwrap().job, "long");
    }

    #[test]
    fn what_a_job_did_not_use_is_given_back_but_not_saved_up() {
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
        assert!(queue.circle.iter().all(|share| share.balance <= i64::from(QUANTUM)));
        queue.refund(C, 5);
        assert_eq!(queue.circle.len(), 2, "nobody joins by a refund");
    }

    #[test]
    fn when_nobody_waits_all_is_forgotten() {
        let mut queue = queue();
        queue.push(A, 1_000_000, ()).unwrap();
        assert!(take_first(&mut queue).is_some());
        assert!(queue.circle.is_empty() && queue.in_order().next().is_none());
    }

    fn backlog() -> impl Strategy<Value = Vec<(i64, u32)>> {
        proptest::collection::vec((1_i64..4, 1_u32..1_000), 1..200)
    }

    proptest! {
        #[test]
        fn what_two_waiting_accounts_got_differs_by_less_than_a_quantum_and_a_job(jobs in backlog()) {
            let mut queue = queue();
            let mut left = [0; 4];
            for (account, cost) in &jobs {
                queue.push(AccountId(*account), *cost, ()).unwrap();
                left[*account as usize] += 1;
            }
            let largest = jobs.iter().map(|(_, cost)| *cost).max().unwrap();
            let mut got = [0_u32; 4];
            while let Some(taken) = take_first(&mut queue) {
                let account = taken.account.0 as usize;
                got[account] += taken.paid;
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
        fn a_flood_delays_anothers_first_job_by_less_than_a_quantum_and_a_job_each(
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
            let mut before_it = [0; 4];
            loop {
                let taken = take_first(&mut queue).unwrap();
                if taken.account == newcomer {
                    break;
                }
                before_it[taken.account.0 as usize] += taken.paid;
            }
            let largest = jobs.iter().map(|(_, cost)| *cost).max().unwrap();
            prop_assert!(before_it.iter().all(|tokens| *tokens < QUANTUM + largest), "{:?}", before_it);
        }

        /// Pushes, takes in and out of turn, refunds and hang-ups in any order: nothing is lost or doubled, the jobs of
        /// an account go in the order they came unless one is picked, and looking ahead tells what then happens.
        #[test]
        fn nothing_is_lost_and_order_within_an_account_is_kept(
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
                    3 => if let Some(taken) = take_first(&mut queue) {
                        let oldest = waiting.iter().position(|job| job.0 == taken.account).unwrap();
                        prop_assert_eq!(waiting.remove(oldest), taken.job);
                    },
                    4 => {
                        let pick = queue.in_order().nth(amount as usize % 5);
                        if let Some(taken) = pick.and_then(|next| queue.take(next)) {
                            waiting.retain(|job| *job != taken.job);
                        }
                        queue.refund(AccountId(account), amount);
                    }
                    _ => {
                        let gone = queue.take_gone(|(_, number)| number % 7 == amount as usize % 7);
                        waiting.retain(|job| !gone.contains(job));
                    }
                }
                prop_assert_eq!(queue.len(), waiting.len());
            }
            let foreseen: Vec<_> = queue.in_order().map(|next| *queue.get(next).unwrap()).collect();
            let seen: Vec<_> = std::iter::from_fn(|| take_first(&mut queue)).map(|taken| taken.job).collect();
            prop_assert_eq!(&foreseen, &seen);
            for account in 1..5 {
                let of = |job: &&(AccountId, usize)| job.0 == AccountId(account);
                prop_assert!(seen.iter().filter(of).eq(waiting.iter().filter(of)));
            }
        }
    }
}
