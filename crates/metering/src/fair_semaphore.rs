//! A semaphore whose permits are shared fairly between accounts. When all permits are taken, callers wait in one queue per
//! account, and a released permit goes to the next account in round-robin order. So an account with many waiting callers delays
//! another one by at most one permit, however many it has. Pure except for the lock.

use chancery_domain::AccountId;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// How many callers may wait, per account and in total. Beyond either, a caller is rejected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub(crate) per_account: usize,
    pub(crate) total: usize,
}

/// Too many callers wait already.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct QueueFull;

pub(crate) struct FairSemaphore {
    limits: QueueLimits,
    state: Mutex<State>,
}

struct State {
    free: usize,
    waiting: usize,
    next_waiter_id: u64,
    /// Accounts with waiting callers, the next to be served first. So there is no entry for an idle account.
    accounts: VecDeque<AccountQueue>,
}

struct AccountQueue {
    account: AccountId,
    /// Oldest first.
    waiters: VecDeque<Waiter>,
}

struct Waiter {
    id: u64,
    sender: oneshot::Sender<Permit>,
}

/// Dropping it passes it on to the next waiter, so the work must own it.
pub(crate) struct Permit(Option<Arc<FairSemaphore>>);

impl FairSemaphore {
    pub(crate) fn new(max_permits: usize, limits: QueueLimits) -> Arc<Self> {
        let state = State { free: max_permits, waiting: 0, next_waiter_id: 0, accounts: VecDeque::new() };
        Arc::new(Self { limits, state: Mutex::new(state) })
    }

    /// Waits for a permit. A dropped future leaves the queue.
    pub(crate) async fn acquire(self: &Arc<Self>, account: AccountId) -> Result<Permit, QueueFull> {
        let (id, receiver) = {
            let mut state = self.lock();
            if state.free > 0 {
                state.free -= 1;
                return Ok(Permit(Some(Arc::clone(self))));
            }
            state.enqueue(account, self.limits)?
        };
        let _guard = WaiterGuard { semaphore: self, account, id };
        // The sender leaves the queue only to send, or with the place.
        receiver.await.map_err(|_| QueueFull)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a permit that ended to the next waiter, or keeps it free.
    fn pass_on(self: Arc<Self>) {
        let mut semaphore = self;
        loop {
            // The lock is released before the permit is sent, because dropping an undelivered permit takes the lock again.
            let Some(waiter) = semaphore.lock().next_waiter_or_free() else { return };
            let Err(mut unreceived) = waiter.sender.send(Permit(Some(semaphore))) else { return };
            match unreceived.0.take() {
                Some(returned) => semaphore = returned,
                None => return,
            }
        }
    }
}

impl State {
    fn enqueue(
        &mut self,
        account: AccountId,
        limits: QueueLimits,
    ) -> Result<(u64, oneshot::Receiver<Permit>), QueueFull> {
        let index = self.accounts.iter().position(|queue| queue.account == account);
        let account_waiters = index.map_or(0, |index| self.accounts[index].waiters.len());
        if self.waiting >= limits.total || account_waiters >= limits.per_account {
            return Err(QueueFull);
        }
        let (sender, receiver) = oneshot::channel();
        let id = self.next_waiter_id;
        self.next_waiter_id += 1;
        let waiter = Waiter { id, sender };
        match index {
            Some(index) => self.accounts[index].waiters.push_back(waiter),
            None => self.accounts.push_back(AccountQueue { account, waiters: VecDeque::from([waiter]) }),
        }
        self.waiting += 1;
        Ok((id, receiver))
    }

    /// The oldest waiter of the next account, which then goes to the end of the round. Without one, the permit becomes free.
    fn next_waiter_or_free(&mut self) -> Option<Waiter> {
        while let Some(mut queue) = self.accounts.pop_front() {
            let Some(waiter) = queue.waiters.pop_front() else { continue };
            self.waiting -= 1;
            if !queue.waiters.is_empty() {
                self.accounts.push_back(queue);
            }
            return Some(waiter);
        }
        self.free += 1;
        None
    }

    fn leave(&mut self, account: AccountId, id: u64) {
        let Some(index) = self.accounts.iter().position(|queue| queue.account == account) else { return };
        let waiters = &mut self.accounts[index].waiters;
        let before = waiters.len();
        waiters.retain(|waiter| waiter.id != id);
        self.waiting -= before - waiters.len();
        if waiters.is_empty() {
            self.accounts.remove(index);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(semaphore) = self.0.take() {
            semaphore.pass_on();
        }
    }
}

/// A place in the queue. Leaving it early frees it; after the permit has come there is nothing to leave.
struct WaiterGuard<'a> {
    semaphore: &'a FairSemaphore,
    account: AccountId,
    id: u64,
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.semaphore.lock().leave(self.account, self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{Randomness, SeededRandomness};
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    const LIMITS: QueueLimits = QueueLimits { per_account: 2_000, total: 4_000 };

    type Waiting<'a> = Pin<Box<dyn Future<Output = Result<Permit, QueueFull>> + 'a>>;

    fn poll(waiting: &mut Waiting<'_>) -> Poll<Result<Permit, QueueFull>> {
        waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    /// A caller that waits, polled once so that it is in the queue.
    fn wait(semaphore: &Arc<FairSemaphore>, account: i64) -> Waiting<'_> {
        let mut waiting: Waiting<'_> = Box::pin(semaphore.acquire(AccountId(account)));
        assert!(poll(&mut waiting).is_pending());
        waiting
    }

    fn take(semaphore: &Arc<FairSemaphore>, account: i64) -> Permit {
        match poll(&mut (Box::pin(semaphore.acquire(AccountId(account))) as Waiting<'_>)) {
            Poll::Ready(Ok(permit)) => permit,
            other => panic!("no free permit: {}", other.is_pending()),
        }
    }

    #[test]
    fn flood_by_one_account_delays_another_by_one_permit() {
        let semaphore = FairSemaphore::new(1, LIMITS);
        let mut running = take(&semaphore, 1);
        let mut flood: VecDeque<Waiting<'_>> = (0..1_000).map(|_| wait(&semaphore, 1)).collect();
        let mut other = wait(&semaphore, 2);
        let mut permits_before = 0;
        loop {
            drop(running);
            if let Poll::Ready(permit) = poll(&mut other) {
                drop(permit);
                break;
            }
            let mut first = flood.pop_front().unwrap();
            let Poll::Ready(Ok(permit)) = poll(&mut first) else {
                panic!("the first waiter did not get the permit")
            };
            running = permit;
            permits_before += 1;
        }
        assert_eq!(permits_before, 1);
    }

    #[test]
    fn full_queue_rejects_callers_per_account_and_in_total() {
        let semaphore = FairSemaphore::new(1, QueueLimits { per_account: 2, total: 3 });
        let _running = take(&semaphore, 1);
        let full = |account| {
            let mut waiting: Waiting<'_> = Box::pin(semaphore.acquire(AccountId(account)));
            matches!(poll(&mut waiting), Poll::Ready(Err(QueueFull)))
        };
        let first = [wait(&semaphore, 1), wait(&semaphore, 1)];
        assert!(full(1));
        let _other = wait(&semaphore, 2);
        assert!(full(2) && full(3));
        drop(first);
        assert!(!full(3), "who leaves makes room");
    }

    /// Random arrivals, departures and ends, compared with plain lists: no permit is lost or given twice, each goes to the account
    /// that has waited for the most semaphore, and idle accounts leave nothing behind.
    #[test]
    fn permits_go_round_robin_to_waiting_accounts_and_none_is_lost() {
        for seed in 0..200 {
            let randomness = SeededRandomness::new(seed);
            let draw = |bound: usize| (randomness.next_u64() % bound as u64) as usize;
            let max_permits = 1 + draw(3);
            let semaphore = FairSemaphore::new(max_permits, LIMITS);
            let mut running: Vec<Permit> = Vec::new();
            let mut waiting: Vec<(i64, Waiting<'_>)> = Vec::new();
            // The accounts in the order in which they are served next.
            let mut round: VecDeque<i64> = VecDeque::new();
            for step in 0..300 {
                match draw(4) {
                    0 | 1 => {
                        let account = draw(5) as i64;
                        if running.len() < max_permits {
                            running.push(take(&semaphore, account));
                        } else {
                            waiting.push((account, wait(&semaphore, account)));
                            if !round.contains(&account) {
                                round.push_back(account);
                            }
                        }
                    }
                    2 if !waiting.is_empty() => {
                        let (account, left) = waiting.remove(draw(waiting.len()));
                        drop(left);
                        if !waiting.iter().any(|(other, _)| *other == account) {
                            round.retain(|other| *other != account);
                        }
                    }
                    3 if !running.is_empty() => {
                        drop(running.swap_remove(draw(running.len())));
                        if let Some(account) = round.pop_front() {
                            let index = waiting.iter().position(|(other, _)| *other == account).unwrap();
                            let (_, mut served) = waiting.remove(index);
                            let Poll::Ready(Ok(permit)) = poll(&mut served) else {
                                panic!("seed {seed}, step {step}: {account} was not served");
                            };
                            running.push(permit);
                            if waiting.iter().any(|(other, _)| *other == account) {
                                round.push_back(account);
                            }
                        }
                    }
                    _ => {}
                }
                assert!(running.len() <= max_permits);
                let state = semaphore.lock();
                assert_eq!(state.free, max_permits - running.len(), "seed {seed}, step {step}");
                assert_eq!(state.waiting, waiting.len());
                assert_eq!(state.accounts.len(), round.len());
            }
            drop(waiting);
            drop(running);
            let state = semaphore.lock();
            assert_eq!((state.free, state.waiting, state.accounts.len()), (max_permits, 0, 0));
        }
    }

    #[test]
    fn permit_for_a_caller_who_left_is_passed_on() {
        let semaphore = FairSemaphore::new(1, LIMITS);
        let running = take(&semaphore, 1);
        let left = wait(&semaphore, 1);
        let mut next = wait(&semaphore, 2);
        drop(running);
        // It has its permit, but was never polled again.
        drop(left);
        assert!(matches!(poll(&mut next), Poll::Ready(Ok(_))));
    }
}
