//! Engines in one process alternate step by step. A step uses all cores; if two ran at once, threads that spin would
//! take the cores from threads that compute. The lock is fair, so that an engine waits for at most one step of each
//! other engine.

use crate::forward::{BatchEntry, ForwardModel, Logits};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The lock that engines share; clones share it too.
#[derive(Clone, Debug, Default)]
pub struct StepLock(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    tickets: Mutex<Tickets>,
    changed: Condvar,
}

/// A ticket lock: each waiter takes the next ticket, and tickets are served in order.
#[derive(Debug, Default)]
struct Tickets {
    next_ticket: u64,
    now_serving: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Tickets> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Guard held during a step.
struct StepGuard<'a>(&'a Shared);

impl StepLock {
    fn acquire(&self) -> StepGuard<'_> {
        let mut tickets = self.0.lock();
        let ticket = tickets.next_ticket;
        tickets.next_ticket += 1;
        while tickets.now_serving != ticket {
            tickets = self.0.changed.wait(tickets).unwrap_or_else(PoisonError::into_inner);
        }
        StepGuard(&self.0)
    }
}

/// Unlocks after a panic too.
impl Drop for StepGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().now_serving += 1;
        self.0.changed.notify_all();
    }
}

/// A model that takes the lock for each step.
#[derive(Debug)]
pub struct Exclusive<M> {
    model: M,
    step_lock: StepLock,
}

impl<M> Exclusive<M> {
    pub fn new(model: M, step_lock: StepLock) -> Self {
        Self { model, step_lock }
    }
}

impl<M: ForwardModel> ForwardModel for Exclusive<M> {
    fn step(&mut self, batch: &[BatchEntry<'_>]) -> Logits<'_> {
        let _guard = self.step_lock.acquire();
        self.model.step(batch)
    }

    fn draft_rows(&self) -> usize {
        self.model.draft_rows()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    #[test]
    fn step_lock_is_exclusive_and_first_come_first_served() {
        let (step_lock, is_locked, order) =
            (StepLock::default(), AtomicBool::new(false), Mutex::new(Vec::new()));
        let first = step_lock.acquire();
        thread::scope(|scope| {
            for thread in 0..4 {
                let (step_lock, is_locked, order) = (&step_lock, &is_locked, &order);
                scope.spawn(move || {
                    let _guard = step_lock.acquire();
                    assert!(!is_locked.swap(true, Ordering::SeqCst), "two have the turn");
                    order.lock().unwrap().push(thread);
                    is_locked.store(false, Ordering::SeqCst);
                });
                // Start the next thread only after this one has drawn its ticket.
                while step_lock.0.lock().next_ticket != thread + 2 {
                    thread::yield_now();
                }
            }
            drop(first);
        });
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn panic_releases_the_step_lock() {
        let step_lock = StepLock::default();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let _guard = step_lock.acquire();
            panic!("in the middle of a step");
        }));
        assert!(outcome.is_err());
        drop(step_lock.acquire());
    }
}
