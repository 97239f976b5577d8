//! Threads that take jobs from one queue, and what a job is: a step with its caller. Each thread starts when it is first needed.

use super::error_codes::QueryError;
use super::tx::Tx;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A step with its caller.
pub(super) trait Job: Send {
    /// Runs the step, which may have run before. Returns whether its changes are to be kept. A panic undoes them.
    fn run(&mut self, tx: &mut Tx<'_>) -> bool;

    /// Gives the caller the step's result, or why it does not hold.
    fn answer(self: Box<Self>, failure: Option<QueryError>);

    /// Whether the caller is gone. What nobody waits for need not begin.
    fn is_abandoned(&self) -> bool;
}

/// What a step does with the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// One statement that reads.
    Statement,
    /// Several that read from one snapshot.
    Snapshot,
    Write,
}

/// A job with its limits.
pub(super) struct WaitingJob {
    pub(super) job: Box<dyn Job>,
    pub(super) access: Access,
    /// When it was queued.
    pub(super) since: Instant,
    /// How long it waits for SQLite's write lock.
    pub(super) lock_limit: Duration,
    /// How long it may run on SQLite.
    pub(super) limit: Duration,
}

impl WaitingJob {
    pub(super) fn answer(self, failure: Option<QueryError>) {
        self.job.answer(failure);
    }
}

pub(super) struct StepJob<S, T, E> {
    step: S,
    outcome: Option<Result<T, E>>,
    responder: oneshot::Sender<Result<T, E>>,
}

impl<S, T, E> StepJob<S, T, E> {
    pub(super) fn new(step: S) -> (Self, oneshot::Receiver<Result<T, E>>) {
        let (responder, response) = oneshot::channel();
        (Self { step, outcome: None, responder }, response)
    }
}

impl<S, T, E> Job for StepJob<S, T, E>
where
    S: FnMut(&mut Tx<'_>) -> Result<T, E> + Send,
    T: Send,
    E: From<QueryError> + Send,
{
    fn run(&mut self, tx: &mut Tx<'_>) -> bool {
        self.outcome = catch_unwind(AssertUnwindSafe(|| (self.step)(tx))).ok();
        matches!(self.outcome, Some(Ok(_)))
    }

    fn answer(self: Box<Self>, failure: Option<QueryError>) {
        let outcome = match (self.outcome, failure) {
            (_, Some(failure)) => Err(failure.into()),
            (Some(done), None) => done,
            (None, None) => Err(QueryError::Panicked.into()),
        };
        // The caller may have gone away.
        let _ = self.responder.send(outcome);
    }

    fn is_abandoned(&self) -> bool {
        self.responder.is_closed()
    }
}

/// Most jobs that wait. Each has a caller with a request of its own, so that this is only reached when nothing is answered.
const MAX_WAITING: usize = 16_384;

/// What a thread runs: it takes jobs until there are no more.
pub(super) type Work = Arc<dyn Fn(&Queue) + Send + Sync>;

pub(super) struct Threads {
    queue: Arc<Queue>,
    name: &'static str,
    max: usize,
    work: Work,
}

pub(super) struct Queue {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<WaitingJob>,
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    is_closed: bool,
}

impl Queue {
    /// Waits for a job. `None` once the queue is closed and empty.
    pub(super) fn take(&self) -> Option<WaitingJob> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.waiting.pop_front() {
                return Some(job);
            }
            if state.is_closed {
                return None;
            }
            state.idle += 1;
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The threads of a store that nobody closed end too.
impl Drop for Threads {
    fn drop(&mut self) {
        self.close();
    }
}

impl Threads {
    pub(super) fn new(name: &'static str, max: usize, work: Work) -> Self {
        let queue = Queue { state: Mutex::default(), arrived: Condvar::new() };
        Self { queue: Arc::new(queue), name, max, work }
    }

    pub(super) fn push(&self, job: WaitingJob) {
        let mut state = self.queue.lock();
        if state.is_closed {
            drop(state);
            return job.answer(Some(QueryError::Closed));
        }
        if state.waiting.len() >= MAX_WAITING {
            drop(state);
            return job.answer(Some(QueryError::Overloaded));
        }
        state.waiting.push_back(job);
        if state.waiting.len() > state.idle && state.threads.len() < self.max {
            let (queue, work) = (Arc::clone(&self.queue), Arc::clone(&self.work));
            match thread::Builder::new().name(self.name.to_owned()).spawn(move || work(&queue)) {
                Ok(thread) => state.threads.push(thread),
                Err(error) if state.threads.is_empty() => {
                    tracing::error!(%error, "cannot start a thread for the database");
                    let jobs = std::mem::take(&mut state.waiting);
                    drop(state);
                    jobs.into_iter().for_each(|job| job.answer(Some(QueryError::Overloaded)));
                    return;
                }
                Err(error) => tracing::warn!(%error, "cannot start another thread for the database"),
            }
        }
        drop(state);
        self.queue.arrived.notify_one();
    }

    /// Rejects later jobs. Returns the threads, which end when they have run what waits.
    pub(super) fn close(&self) -> Vec<JoinHandle<()>> {
        let mut state = self.queue.lock();
        state.is_closed = true;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.queue.arrived.notify_all();
        threads
    }
}
