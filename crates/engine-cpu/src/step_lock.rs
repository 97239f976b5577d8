//! Engines in one process take turns step by step. A step uses almost all cores; if two ran at once, threads that spin would
//! take the cores from threads that compute.
//!
//! Engines share time, not steps: a step of a large model takes as long as many steps of a small one. The protocol is
//! start-time fair queueing:
//!
//! 1. Every engine has a tag: the compute time that it was charged. The waiting engine with the lowest tag is next; of
//!    equal tags, the one that has waited longest.
//! 2. A step is charged by its duration, up to `MAX_STEP_CHARGE`.
//! 3. An engine that was idle starts at the tag of the step that started last. It gets no credit for the time before, and
//!    what it did not need went to the others.
//! 4. Between two steps an engine samples for a moment. If its tag is lower than that of the engines that wait, they give it
//!    `RETURN_GRACE` to come back. Without that, they would take a step after each of its steps.
//!
//! So an engine waits for the step that runs, and then for at most `MAX_STEP_CHARGE` and one step of each other engine.

use crate::forward::{BatchEntry, ForwardModel, Logits};
use crate::limits::{MAX_STEP_CHARGE, RETURN_GRACE};
use chancery_domain::Clock;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The lock that engines share; clones share it too.
#[derive(Clone, Debug, Default)]
pub struct StepLock(Arc<Shared>);

#[cfg(test)]
impl StepLock {
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_locked: bool,
    /// The tag of the step that started last.
    virtual_time: Duration,
    engines: BTreeMap<u64, EngineTag>,
    next_id: u64,
    last_ticket: u64,
}

#[derive(Debug, Default)]
struct EngineTag {
    charged: Duration,
    activity: Activity,
    /// Drawn for the last step; tickets ascend from 1.
    ticket: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Activity {
    #[default]
    Idle,
    Waiting,
    Stepping,
    /// Its step has just ended, and the next one may follow.
    Returning,
}

impl State {
    /// The engine that may step next.
    fn next(&self) -> Option<u64> {
        let waiting = self.engines.iter().filter(|(_, engine)| engine.activity == Activity::Waiting);
        waiting.min_by_key(|(_, engine)| (engine.charged, engine.ticket)).map(|(id, _)| *id)
    }

    /// Whether an engine with a lower tag may come back at any moment.
    fn has_returning_below(&self, charged: Duration) -> bool {
        self.engines.values().any(|engine| engine.activity == Activity::Returning && engine.charged < charged)
    }

    fn end_grace(&mut self) {
        for engine in self.engines.values_mut() {
            if engine.activity == Activity::Returning {
                engine.activity = Activity::Idle;
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One engine's part of the lock.
struct StepQueue {
    shared: Arc<Shared>,
    id: u64,
    clock: Arc<dyn Clock>,
}

impl StepQueue {
    fn new(step_lock: &StepLock, clock: Arc<dyn Clock>) -> Self {
        let shared = Arc::clone(&step_lock.0);
        let mut state = shared.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.engines.insert(id, EngineTag::default());
        drop(state);
        Self { shared, id, clock }
    }

    fn acquire(&self) -> StepGuard<'_> {
        let mut state = self.shared.lock();
        state.last_ticket += 1;
        let (ticket, virtual_time) = (state.last_ticket, state.virtual_time);
        let engine = state.engines.entry(self.id).or_default();
        engine.charged = engine.charged.max(virtual_time);
        engine.activity = Activity::Waiting;
        engine.ticket = ticket;
        let charged = engine.charged;
        // A step that waits for this engine to come back waits no longer.
        self.shared.changed.notify_all();
        loop {
            if state.is_locked || state.next() != Some(self.id) {
                state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else if state.has_returning_below(charged) {
                let waited = self.shared.changed.wait_timeout(state, RETURN_GRACE);
                let (waiting_state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                state = waiting_state;
                if timeout.timed_out() {
                    state.end_grace();
                }
            } else {
                break;
            }
        }
        state.is_locked = true;
        state.virtual_time = state.virtual_time.max(charged);
        state.engines.entry(self.id).or_default().activity = Activity::Stepping;
        drop(state);
        StepGuard { queue: self, started: self.clock.monotonic() }
    }

    /// Whether another engine steps, waits, or has stepped since this one's last step.
    fn is_contended(&self) -> bool {
        let state = self.shared.lock();
        let own_ticket = state.engines.get(&self.id).map_or(0, |engine| engine.ticket);
        state.engines.iter().any(|(id, engine)| {
            let is_active = match engine.activity {
                Activity::Waiting | Activity::Stepping => true,
                Activity::Idle | Activity::Returning => engine.ticket > own_ticket,
            };
            *id != self.id && is_active
        })
    }
}

impl fmt::Debug for StepQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepQueue").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for StepQueue {
    fn drop(&mut self) {
        self.shared.lock().engines.remove(&self.id);
        self.shared.changed.notify_all();
    }
}

/// Guard held during a step.
struct StepGuard<'a> {
    queue: &'a StepQueue,
    started: Instant,
}

/// Charges the step and unlocks, after a panic too.
impl Drop for StepGuard<'_> {
    fn drop(&mut self) {
        let took = self.queue.clock.monotonic().saturating_duration_since(self.started);
        let mut state = self.queue.shared.lock();
        state.is_locked = false;
        if let Some(engine) = state.engines.get_mut(&self.queue.id) {
            engine.charged += took.min(MAX_STEP_CHARGE);
            engine.activity = Activity::Returning;
        }
        drop(state);
        self.queue.shared.changed.notify_all();
    }
}

/// A model that takes the lock for each step.
#[derive(Debug)]
pub struct Exclusive<M> {
    model: M,
    queue: StepQueue,
}

impl<M> Exclusive<M> {
    pub fn new(model: M, step_lock: &StepLock, clock: Arc<dyn Clock>) -> Self {
        Self { model, queue: StepQueue::new(step_lock, clock) }
    }
}

impl<M: ForwardModel> ForwardModel for Exclusive<M> {
    fn step(&mut self, batch: &[BatchEntry<'_>]) -> Logits<'_> {
        let _guard = self.queue.acquire();
        self.model.step(batch)
    }

    fn draft_rows(&self) -> usize {
        self.model.draft_rows()
    }

    fn shares_cores(&self) -> bool {
        self.queue.is_contended()
    }
}

#[cfg(test)]
mod tests;
