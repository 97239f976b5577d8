//! Keeps an engine serving through its own defects. What happens after a panic:
//! 1. The generations that were running end with an error: their callers are told that the engine failed, and nobody
//!    pays. The panic is logged with its message.
//! 2. The model, its threads and all pages are dropped, because nobody knows what that step wrote, and the model is
//!    built anew from its file.
//! 3. Meanwhile new jobs are refused with the time it should take. Those that were waiting go on waiting if the engine
//!    should be back before their time is up; otherwise they are refused as well.
//! 4. A rebuild that fails refuses everybody and is tried again. Each failure in a row, panic or rebuild, makes the
//!    pause before the next try longer, so that a lasting defect does not keep the machine busy.
//!
//! It cannot help against what ends the whole process: a fault in memory, or memory running out.

use super::{Away, Requests, Waiting, Worker, WorkerMetrics};
use crate::error::LoadError;
use crate::fair_queue::FairQueue;
use crate::forward::StepModel;
use crate::limits::{FAIR_QUANTUM_TOKENS, FIRST_REBUILD_PAUSE, LAST_REBUILD_PAUSE, MAX_WAIT, STEADY_AFTER};
use crate::tokenizer::Tokenizer;
use chancery_domain::{Clock, panic_message};
use chancery_engine::EngineError;
use metrics::{Counter, Gauge};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// What every worker of an engine is made of, apart from its model.
pub struct Supervisor {
    pub tokenizer: Arc<Tokenizer>,
    pub requests: Arc<Requests>,
    pub clock: Arc<dyn Clock>,
    /// What building the model took the last time.
    pub build_time: Duration,
    pub metrics: SupervisorMetrics,
}

/// Where its numbers go, and the name they go by.
pub struct SupervisorMetrics {
    pub model: String,
    pub worker: WorkerMetrics,
    /// 1 while jobs can be started.
    pub serving: Gauge,
    pub panics: Counter,
}

impl Supervisor {
    /// Serves until the engine is dropped; `build` makes the model anew.
    pub fn run<M: StepModel>(mut self, first: M, mut build: impl FnMut() -> Result<M, LoadError>) {
        let mut model = first;
        let mut failures = 0;
        loop {
            self.metrics.serving.set(1.0);
            let serving_since = self.clock.monotonic();
            let mut worker = Worker::new(
                model,
                Arc::clone(&self.tokenizer),
                Arc::clone(&self.requests),
                Arc::clone(&self.clock),
                self.metrics.worker.clone(),
            );
            let Err(panic) = catch_unwind(AssertUnwindSafe(|| worker.serve())) else { return };
            if self.clock.monotonic().saturating_duration_since(serving_since) >= STEADY_AFTER {
                failures = 0;
            }
            failures += 1;
            let reason = format!("the engine panicked: {}", panic_message(panic.as_ref()));
            tracing::error!(model = self.metrics.model, failed = worker.running.len(), "{reason}");
            self.metrics.panics.increment(1);
            self.requests.replace_broken_queue();
            // Said before the running ones are told, so that whoever tries again at once is told to wait.
            let next_try = self.leave(failures, "it is being set up anew after a panic".to_owned());
            worker.fail_running(&reason);
            drop(worker);
            let Some(rebuilt) = self.rebuild(&mut build, next_try, &mut failures) else { return };
            model = rebuilt;
        }
    }

    /// Builds until it works; `None` when the engine is dropped meanwhile.
    fn rebuild<M>(
        &mut self,
        build: &mut impl FnMut() -> Result<M, LoadError>,
        mut next_try: Instant,
        failures: &mut u32,
    ) -> Option<M> {
        loop {
            if !self.requests.pause_until(next_try) {
                return None;
            }
            let started = self.clock.monotonic();
            let outcome = catch_unwind(AssertUnwindSafe(&mut *build));
            let took = self.clock.monotonic().saturating_duration_since(started);
            let model = self.metrics.model.as_str();
            let problem = match outcome {
                Ok(Ok(built)) => {
                    tracing::info!(model, took_ms = took.as_millis() as u64, "the engine serves again");
                    self.build_time = took;
                    self.requests.lock().away = None;
                    return Some(built);
                }
                Ok(Err(error)) => error.to_string(),
                Err(panic) => format!("building it panicked: {}", panic_message(panic.as_ref())),
            };
            *failures += 1;
            let next_try_s = pause_after(*failures).as_secs();
            tracing::error!(model, next_try_s, "the engine cannot be set up anew: {problem}");
            next_try = self.leave(*failures, format!("it cannot be set up anew: {problem}"));
            self.requests.refuse_waiting(|_| true);
        }
    }

    /// Refuses new jobs from now on, and those waiting jobs whose time is up before the engine should be back. Returns
    /// when to try and build it.
    fn leave(&self, failures: u32, reason: String) -> Instant {
        self.metrics.serving.set(0.0);
        let next_try = self.clock.monotonic() + pause_after(failures);
        let until = next_try + self.build_time;
        self.requests.lock().away = Some(Away { until, reason });
        self.requests.refuse_waiting(|waiting| waiting.since + MAX_WAIT < until);
        next_try
    }
}

/// Whatever ends the thread, nobody waits for it.
impl Drop for Supervisor {
    fn drop(&mut self) {
        self.requests.close();
        for waiting in self.requests.lock().queue.take_all() {
            waiting.sink.fail(EngineError::ShuttingDown);
        }
    }
}

impl Requests {
    /// Why no job is taken at the moment.
    pub fn outage(&self) -> Option<String> {
        self.lock().away.as_ref().map(|away| away.reason.clone())
    }

    fn refuse_waiting(&self, is_refused: impl Fn(&Waiting) -> bool) {
        let mut state = self.lock();
        let refused = state.queue.take_gone(is_refused);
        let now = self.clock.monotonic();
        if let Some(away) = &state.away {
            for waiting in refused {
                waiting.sink.fail(away.refusal(now));
            }
        }
        self.queue_depth.set(state.queue.len() as f64);
    }

    /// A panic while the queue was being changed may have left it in any state. Its jobs fail with it.
    fn replace_broken_queue(&self) {
        if self.state.is_poisoned() {
            self.state.clear_poison();
            self.lock().queue = FairQueue::new(self.bounds.queue, FAIR_QUANTUM_TOKENS);
        }
    }

    /// False when the engine is dropped before that.
    fn pause_until(&self, end: Instant) -> bool {
        let mut state = self.lock();
        loop {
            let left = end.saturating_duration_since(self.clock.monotonic());
            if state.stopping || left.is_zero() {
                return !state.stopping;
            }
            (state, _) = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The pause before the next try, after so many failures in a row.
fn pause_after(failures: u32) -> Duration {
    match failures {
        0 | 1 => Duration::ZERO,
        more => FIRST_REBUILD_PAUSE.saturating_mul(1 << (more - 2).min(16)).min(LAST_REBUILD_PAUSE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rebuild_is_at_once_and_the_pauses_grow_to_a_bound() {
        let pauses_s: Vec<u64> = (1..=8).map(|failures| pause_after(failures).as_secs()).collect();
        assert_eq!(pauses_s, [0, 1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(pause_after(u32::MAX), LAST_REBUILD_PAUSE);
    }
}
