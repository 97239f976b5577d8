//! Keeps an engine serving despite its own bugs. After a panic:
//! 1. The running generations fail: their callers are told that the engine failed, and are not billed. The panic is
//!    logged with its message.
//! 2. The model, its threads and all pages are dropped, because the state that the step left is unknown. The model is
//!    rebuilt from its file.
//! 3. Meanwhile new jobs are rejected with the expected time to recovery. Waiting jobs keep waiting if the engine
//!    should be back before their deadline; otherwise they fail too.
//! 4. If a rebuild fails, all waiting jobs fail and the rebuild is retried. Each consecutive failure, panic or rebuild,
//!    lengthens the backoff, so that a permanent defect does not keep the machine busy.
//!
//! It cannot protect against what kills the whole process: a segmentation fault, or running out of memory.

use super::{JobQueue, Outage, QueuedJob, Worker, WorkerMetrics};
use crate::error::LoadError;
use crate::fair_queue::FairQueue;
use crate::forward::ForwardModel;
use crate::limits::{
    FAILURE_RESET_AFTER, FAIR_QUANTUM_TOKENS, INITIAL_REBUILD_BACKOFF, MAX_QUEUE_WAIT, MAX_REBUILD_BACKOFF,
};
use crate::tokenizer::Tokenizer;
use chancery_domain::{Clock, panic_message};
use chancery_engine::EngineError;
use metrics::{Counter, Gauge};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Everything that an engine's workers need, apart from the model.
pub struct Supervisor {
    pub tokenizer: Arc<Tokenizer>,
    pub job_queue: Arc<JobQueue>,
    pub clock: Arc<dyn Clock>,
    /// How long the last build of the model took.
    pub load_time: Duration,
    pub metrics: SupervisorMetrics,
}

/// The metrics, and the model's name in them.
pub struct SupervisorMetrics {
    pub model: String,
    pub worker: WorkerMetrics,
    /// 1 while jobs can start.
    pub serving: Gauge,
    pub panics: Counter,
}

impl Supervisor {
    /// Serves until the engine is dropped; `build` rebuilds the model.
    pub fn run<M: ForwardModel>(mut self, first: M, mut build: impl FnMut() -> Result<M, LoadError>) {
        let mut model = first;
        let mut failures = 0;
        loop {
            self.metrics.serving.set(1.0);
            let serving_since = self.clock.monotonic();
            let mut worker = Worker::new(
                model,
                Arc::clone(&self.tokenizer),
                Arc::clone(&self.job_queue),
                Arc::clone(&self.clock),
                self.metrics.worker.clone(),
            );
            let Err(panic) = catch_unwind(AssertUnwindSafe(|| worker.serve())) else { return };
            if self.clock.monotonic().saturating_duration_since(serving_since) >= FAILURE_RESET_AFTER {
                failures = 0;
            }
            failures += 1;
            let reason = format!("engine panicked: {}", panic_message(panic.as_ref()));
            tracing::error!(model = self.metrics.model, failed = worker.running.len(), "{reason}");
            self.metrics.panics.increment(1);
            self.job_queue.reset_poisoned_queue();
            // Set before the running jobs fail, so that a caller that retries immediately is told to wait.
            let next_attempt = self.enter_outage(failures, "restarting after a panic".to_owned());
            worker.fail_running(&reason);
            drop(worker);
            let Some(rebuilt) = self.rebuild(&mut build, next_attempt, &mut failures) else { return };
            model = rebuilt;
        }
    }

    /// Retries until a build succeeds; `None` if the engine is dropped meanwhile.
    fn rebuild<M>(
        &mut self,
        build: &mut impl FnMut() -> Result<M, LoadError>,
        mut next_attempt: Instant,
        failures: &mut u32,
    ) -> Option<M> {
        loop {
            if !self.job_queue.wait_until(next_attempt) {
                return None;
            }
            let started = self.clock.monotonic();
            let outcome = catch_unwind(AssertUnwindSafe(&mut *build));
            let took = self.clock.monotonic().saturating_duration_since(started);
            let model = self.metrics.model.as_str();
            let reason = match outcome {
                Ok(Ok(built)) => {
                    tracing::info!(model, took_ms = took.as_millis() as u64, "engine restarted");
                    self.load_time = took;
                    let mut state = self.job_queue.lock();
                    state.outage = None;
                    // The new KV cache is not written yet.
                    state.max_used_pages = 0;
                    return Some(built);
                }
                Ok(Err(error)) => error.to_string(),
                Err(panic) => format!("model load panicked: {}", panic_message(panic.as_ref())),
            };
            *failures += 1;
            let next_attempt_s = rebuild_backoff(*failures).as_secs();
            tracing::error!(model, next_attempt_s, "engine restart failed: {reason}");
            next_attempt = self.enter_outage(*failures, format!("restart failed: {reason}"));
            self.job_queue.reject_queued(|_| true);
        }
    }

    /// Rejects new jobs from now on, and fails waiting jobs whose deadline passes before the engine should be back.
    /// Returns when to rebuild.
    fn enter_outage(&self, failures: u32, reason: String) -> Instant {
        self.metrics.serving.set(0.0);
        let next_attempt = self.clock.monotonic() + rebuild_backoff(failures);
        let until = next_attempt + self.load_time;
        self.job_queue.lock().outage = Some(Outage { until, reason });
        self.job_queue.reject_queued(|queued| queued.queued_at + MAX_QUEUE_WAIT < until);
        next_attempt
    }
}

/// However the thread ends, no caller is left waiting.
impl Drop for Supervisor {
    fn drop(&mut self) {
        self.job_queue.close();
        for queued in self.job_queue.lock().queue.drain_all() {
            queued.sink.fail(EngineError::ShuttingDown);
        }
    }
}

impl JobQueue {
    /// Why no job is accepted right now.
    pub fn outage(&self) -> Option<String> {
        self.lock().outage.as_ref().map(|outage| outage.reason.clone())
    }

    fn reject_queued(&self, is_rejected: impl Fn(&QueuedJob) -> bool) {
        let mut state = self.lock();
        let rejected = state.queue.remove_where(is_rejected);
        let now = self.clock.monotonic();
        if let Some(outage) = &state.outage {
            for queued in rejected {
                queued.sink.fail(outage.to_error(now));
            }
        }
        self.queue_depth.set(state.queue.len() as f64);
    }

    /// A panic during a change of the queue may have left it in any state. Its jobs fail.
    fn reset_poisoned_queue(&self) {
        if self.state.is_poisoned() {
            self.state.clear_poison();
            self.lock().queue = FairQueue::new(self.worker_limits.queue, FAIR_QUANTUM_TOKENS);
        }
    }

    /// Returns false if the engine is dropped before that.
    fn wait_until(&self, end: Instant) -> bool {
        let mut state = self.lock();
        loop {
            let remaining = end.saturating_duration_since(self.clock.monotonic());
            if state.is_stopping || remaining.is_zero() {
                return !state.is_stopping;
            }
            (state, _) = self.changed.wait_timeout(state, remaining).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Backoff before the next attempt, after this many consecutive failures.
fn rebuild_backoff(failures: u32) -> Duration {
    match failures {
        0 | 1 => Duration::ZERO,
        more => INITIAL_REBUILD_BACKOFF.saturating_mul(1 << (more - 2).min(16)).min(MAX_REBUILD_BACKOFF),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_rebuild_is_immediate_and_backoff_is_bounded() {
        let backoffs_s: Vec<u64> = (1..=8).map(|failures| rebuild_backoff(failures).as_secs()).collect();
        assert_eq!(backoffs_s, [0, 1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(rebuild_backoff(u32::MAX), MAX_REBUILD_BACKOFF);
    }
}
