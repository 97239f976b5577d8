//! Engines that run side by side take turns by steps. A step uses all cores; in two at once, threads that spin would take
//! the cores from those that calculate. Whoever has waited longest is next, so that no engine's replies wait for more
//! than one step of each other engine.

use crate::forward::{Logits, Segment, StepModel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The one turn that engines share; a clone shares it too.
#[derive(Clone, Debug, Default)]
pub struct StepTurns(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    numbers: Mutex<Numbers>,
    changed: Condvar,
}

/// As at a counter: everybody draws a number, and numbers are called in their order.
#[derive(Debug, Default)]
struct Numbers {
    drawn: u64,
    called: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Held during a step.
struct Turn<'a>(&'a Shared);

impl StepTurns {
    fn take(&self) -> Turn<'_> {
        let mut numbers = self.0.lock();
        let own = numbers.drawn;
        numbers.drawn += 1;
        while numbers.called != own {
            numbers = self.0.changed.wait(numbers).unwrap_or_else(PoisonError::into_inner);
        }
        Turn(&self.0)
    }
}

/// The turn goes on after a panic too.
impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lock().called += 1;
        self.0.changed.notify_all();
    }
}

/// A model that steps when it is its turn.
#[derive(Debug)]
pub struct InTurn<M> {
    model: M,
    turns: StepTurns,
}

impl<M> InTurn<M> {
    pub fn new(model: M, turns: StepTurns) -> Self {
        Self { model, turns }
    }
}

impl<M: StepModel> StepModel for InTurn<M> {
    fn step(&mut self, segments: &[Segment<'_>]) -> Logits<'_> {
        let _turn = self.turns.take();
        self.model.step(segments)
    }

    fn free_rows(&self) -> usize {
        self.model.free_rows()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    #[test]
    fn one_has_the_turn_at_a_time_and_those_who_wait_are_served_in_order() {
        let (turns, taken, order) = (StepTurns::default(), AtomicBool::new(false), Mutex::new(Vec::new()));
        let first = turns.take();
        thread::scope(|scope| {
            for thread in 0..4 {
                let (turns, taken, order) = (&turns, &taken, &order);
                scope.spawn(move || {
                    let _turn = turns.take();
                    assert!(!taken.swap(true, Ordering::SeqCst), "two have the turn");
                    order.lock().unwrap().push(thread);
                    taken.store(false, Ordering::SeqCst);
                });
                // The next one comes when this one has drawn its number.
                while turns.0.lock().drawn != thread + 2 {
                    thread::yield_now();
                }
            }
            drop(first);
        });
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn a_panic_gives_the_turn_back() {
        let turns = StepTurns::default();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let _turn = turns.take();
            panic!("in the middle of a step");
        }));
        assert!(outcome.is_err());
        drop(turns.take());
    }
}
