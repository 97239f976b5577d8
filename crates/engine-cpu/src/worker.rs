//! The one thread that owns the model. The life of a job:
//! 1. `JobQueue::submit` adds the job to the bounded queue, or rejects it immediately.
//! 2. The worker starts it when it is its account's turn, a slot is free, and the maximum number of pages it may need
//!    can be reserved. A job that has waited too long fails instead.
//! 3. Each step advances all running sequences together: the next chunk of a prompt, or the next token of a reply. Penalties
//!    change a sequence's logits before a token is chosen, and its log probabilities are taken before that. With
//!    few sequences, tokens are drafted and verified in the same step (see `speculation`). At the start and between
//!    steps, prompt pages that are in the account's prefix cache are reused instead of computed. Every page that a step
//!    completes is added to that cache, including generated tokens: they are a prefix of the next prompt when the
//!    conversation continues. Pages that no billed request computed or read are reused too, but give no discount.
//! 4. The job ends, by itself or because its caller is gone, and its pages are released.
//!
//! Cancellation is checked before every step, for waiting and for running jobs. `supervisor` describes what happens
//! after a panic.

mod supervisor;

pub use supervisor::{Supervisor, SupervisorMetrics};

mod logprobs;
mod scratch;
mod sequence;

use crate::fair_queue::{DequeuedJob, FairQueue, JobPosition};
use crate::forward::{BatchEntry, ForwardModel};
use crate::limits::{
    FAIR_QUANTUM_TOKENS, MAX_QUEUE_WAIT, MAX_RETRY_AFTER_S, MIN_RETRY_AFTER_S, SHORT_JOB_PAGES,
    SHORT_POOL_PAGES,
};
use crate::paging::{KvPageUsage, PageAllocator, PagePool, PageTable, pages_for};
use crate::prefill_budget::PrefillBudget;
use crate::scheduler::{drafts_per_sequence, mixed_prompt_tokens, plan_step};
use crate::tokenizer::Tokenizer;
use chancery_domain::Clock;
use chancery_engine::{EngineError, Finished, Generation, GenerationSink, Job, StopReason};
use metrics::{Counter, Gauge};
use scratch::{Scratch, clear_borrows};
use sequence::{Sequence, SequenceStart, reply_limit};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub struct WorkerLimits {
    pub context_tokens: usize,
    pub slots: usize,
    pub queue: usize,
    /// Pages for jobs of any length; short jobs have `SHORT_POOL_PAGES` more.
    pub pages: usize,
}

/// Smoothing factor of the moving average of job durations.
const EWMA_ALPHA: f64 = 0.1;

/// The queue between callers and the worker.
pub struct JobQueue {
    state: Mutex<State>,
    changed: Condvar,
    worker_limits: WorkerLimits,
    vocab_size: usize,
    clock: Arc<dyn Clock>,
    queue_depth: Gauge,
}

struct State {
    queue: FairQueue<QueuedJob>,
    /// Set while there is no model to run jobs on.
    outage: Option<Outage>,
    /// New jobs are rejected; accepted ones still run.
    is_closed: bool,
    /// All jobs end at the next step.
    is_stopping: bool,
    running: usize,
    /// As of the start of the last step.
    kv_pages: KvPageUsage,
    /// Maximum pages that were in use at once since the cache was created. The rest was never written: the pages that were
    /// freed last are taken first.
    max_used_pages: usize,
    mean_job_s: f64,
}

/// The model is being rebuilt.
struct Outage {
    /// When the rebuild should be done.
    until: Instant,
    reason: String,
}

struct QueuedJob {
    job: Job,
    sink: GenerationSink,
    queued_at: Instant,
}

impl JobQueue {
    pub fn new(
        worker_limits: WorkerLimits,
        vocab_size: usize,
        clock: Arc<dyn Clock>,
        queue_depth: Gauge,
    ) -> Self {
        let state = State {
            queue: FairQueue::new(worker_limits.queue, FAIR_QUANTUM_TOKENS),
            outage: None,
            is_closed: false,
            is_stopping: false,
            running: 0,
            kv_pages: KvPageUsage::default(),
            max_used_pages: 0,
            mean_job_s: 1.0,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            worker_limits,
            vocab_size,
            clock,
            queue_depth,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn submit(&self, job: Job) -> Result<Generation, EngineError> {
        let prompt_tokens = job.prompt.token_ids().len();
        if prompt_tokens >= self.worker_limits.context_tokens {
            return Err(EngineError::InputTooLong {
                prompt_tokens: Some(job.prompt.prompt_tokens()),
                context_tokens: u32::try_from(self.worker_limits.context_tokens).unwrap_or(u32::MAX),
            });
        }
        let is_known = |id: &u32| (*id as usize) < self.vocab_size;
        if prompt_tokens == 0 || job.max_output_tokens == 0 || !job.prompt.token_ids().iter().all(is_known) {
            return Err(EngineError::Failed("invalid prompt for this engine".to_owned()));
        }
        let mut state = self.lock();
        if state.is_closed {
            return Err(EngineError::ShuttingDown);
        }
        if let Some(outage) = &state.outage {
            return Err(outage.to_error(self.clock.monotonic()));
        }
        let (sink, generation) = chancery_engine::channel();
        let sink = sink.with_wakes_for_text(job.needs_partial_text);
        let cost =
            job.prompt.prompt_tokens().saturating_add(reply_limit(&job, self.worker_limits.context_tokens).0);
        let queued = QueuedJob { sink, queued_at: self.clock.monotonic(), job };
        if state.queue.push(queued.job.account, cost, queued).is_err() {
            return Err(EngineError::Overloaded { retry_after_s: state.retry_after_s() });
        }
        self.queue_depth.set(state.queue.len() as f64);
        drop(state);
        self.changed.notify_one();
        Ok(generation)
    }

    pub fn kv_pages(&self) -> KvPageUsage {
        self.lock().kv_pages
    }

    /// Pages that no job has written yet, so that the system has not committed memory for them.
    pub fn untouched_pages(&self) -> usize {
        (self.worker_limits.pages + SHORT_POOL_PAGES).saturating_sub(self.lock().max_used_pages)
    }

    /// Rejects new jobs from now on.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_one();
    }

    /// Rejects new jobs and fails those already accepted.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.is_stopping = true;
        drop(state);
        self.changed.notify_one();
    }
}

impl Outage {
    fn to_error(&self, now: Instant) -> EngineError {
        let remaining = self.until.saturating_duration_since(now).as_secs_f64();
        EngineError::Restarting { retry_after_s: retry_after_s(remaining) }
    }
}

/// Rounds up to whole seconds, within the bounds.
fn retry_after_s(seconds: f64) -> u32 {
    // Out-of-range floats saturate, and the clamp does the rest.
    (seconds.ceil() as u32).clamp(MIN_RETRY_AFTER_S, MAX_RETRY_AFTER_S)
}

impl State {
    /// Estimated time until a running job ends and the queue advances by one.
    fn retry_after_s(&self) -> u32 {
        retry_after_s(self.mean_job_s / self.running.max(1) as f64)
    }
}

pub struct Worker<M> {
    model: M,
    tokenizer: Arc<Tokenizer>,
    job_queue: Arc<JobQueue>,
    clock: Arc<dyn Clock>,
    allocator: PageAllocator,
    running: Vec<Sequence>,
    prefill_budget: PrefillBudget,
    scratch: Scratch,
    running_gauge: Gauge,
    steps: Counter,
    cached_tokens: Counter,
    drafted_tokens: Counter,
    accepted_tokens: Counter,
}

#[derive(Clone)]
pub struct WorkerMetrics {
    pub running: Gauge,
    pub steps: Counter,
    /// Prompt tokens that came from the prefix cache.
    pub cached_tokens: Counter,
    /// Drafted tokens, and those that were accepted.
    pub drafted_tokens: Counter,
    pub accepted_tokens: Counter,
}

impl<M: ForwardModel> Worker<M> {
    fn new(
        model: M,
        tokenizer: Arc<Tokenizer>,
        job_queue: Arc<JobQueue>,
        clock: Arc<dyn Clock>,
        metrics: WorkerMetrics,
    ) -> Self {
        let allocator = PageAllocator::new(job_queue.worker_limits.pages, SHORT_POOL_PAGES);
        // The cache of a worker before this one is gone, with the pages that it had written.
        job_queue.lock().max_used_pages = 0;
        let WorkerMetrics { running: running_gauge, steps, cached_tokens, drafted_tokens, accepted_tokens } =
            metrics;
        Self {
            model,
            tokenizer,
            job_queue,
            clock,
            allocator,
            running: Vec::new(),
            prefill_budget: PrefillBudget::new(),
            scratch: Scratch::default(),
            running_gauge,
            steps,
            cached_tokens,
            drafted_tokens,
            accepted_tokens,
        }
    }

    /// Serves until the engine is dropped.
    fn serve(&mut self) {
        while self.run_once() {}
    }

    /// Fails the running jobs with `reason`; they are not billed.
    fn fail_running(&mut self, reason: &str) {
        for sequence in self.running.drain(..) {
            sequence.sink.fail(EngineError::Failed(reason.to_owned()));
        }
        self.running_gauge.set(0.0);
        self.job_queue.lock().running = 0;
    }

    /// Waits for work, starts jobs and runs one step; returns false when it is time to stop.
    fn run_once(&mut self) -> bool {
        if !self.admit() {
            return false;
        }
        self.end_cancelled();
        if !self.running.is_empty() {
            self.step();
            self.steps.increment(1);
        }
        true
    }

    fn admit(&mut self) -> bool {
        let job_queue = Arc::clone(&self.job_queue);
        let mut state = job_queue.lock();
        state.kv_pages = self.allocator.usage();
        state.max_used_pages = state.max_used_pages.max(state.kv_pages.total - state.kv_pages.free);
        while self.running.is_empty() && state.queue.is_empty() && !state.is_stopping {
            self.running_gauge.set(0.0);
            state.running = 0;
            state = job_queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_stopping {
            let queued = state.queue.drain_all().into_iter().map(|queued| queued.sink);
            for sink in queued.chain(self.running.drain(..).map(|sequence| sequence.sink)) {
                sink.fail(EngineError::ShuttingDown);
            }
            return false;
        }
        for queued in state.queue.remove_where(|queued| queued.sink.is_cancelled()) {
            queued.sink.end(Finished {
                reason: StopReason::Cancelled,
                output_tokens: 0,
                cached_tokens: 0,
                billed_cached_tokens: 0,
                reasoning_tokens: 0,
                prefilled_tokens: 0,
                input_tokens: None,
            });
        }
        let now = self.clock.monotonic();
        let is_overdue =
            |queued: &QueuedJob| now.saturating_duration_since(queued.queued_at) >= MAX_QUEUE_WAIT;
        let overdue = state.queue.remove_where(is_overdue);
        if !overdue.is_empty() {
            tracing::warn!(rejected = overdue.len(), "queued jobs timed out");
            let retry_after_s = state.retry_after_s();
            for queued in overdue {
                queued.sink.fail(EngineError::Overloaded { retry_after_s });
            }
        }
        while self.running.len() < job_queue.worker_limits.slots {
            let Some((next, pages)) = self.next_admissible(&state.queue) else { break };
            let Some(DequeuedJob { account, job: QueuedJob { job, sink, .. }, charged }) =
                state.queue.take(next)
            else {
                self.allocator.release(pages);
                break;
            };
            let start = SequenceStart { account, charged, sink, pages, started: now };
            self.running.push(Sequence::new(&job, job_queue.worker_limits.context_tokens, start));
        }
        state.running = self.running.len();
        job_queue.queue_depth.set(state.queue.len() as f64);
        self.running_gauge.set(self.running.len() as f64);
        true
    }

    /// The next job and its pages. A job that waits for pages keeps its turn: only short jobs pass it, on pages that it
    /// could not have used. So it never starves, and they never wait for it.
    fn next_admissible(&mut self, queue: &FairQueue<QueuedJob>) -> Option<(JobPosition, PageTable)> {
        let mut is_blocked = false;
        for next in queue.in_order() {
            let job = &queue.get(next)?.job;
            let (limit, _) = reply_limit(job, self.job_queue.worker_limits.context_tokens);
            let pages = pages_for(job.prompt.token_ids().len() + limit as usize);
            let mut reserved = None;
            if pages <= SHORT_JOB_PAGES {
                reserved = self.allocator.reserve(pages, PagePool::Short);
            }
            if reserved.is_none() && !is_blocked {
                reserved = self.allocator.reserve(pages, PagePool::General);
            }
            if let Some(pages) = reserved {
                return Some((next, pages));
            }
            is_blocked = true;
        }
        None
    }

    fn end_cancelled(&mut self) {
        let mut index = 0;
        while index < self.running.len() {
            if self.running[index].sink.is_cancelled() {
                self.end(index, StopReason::Cancelled);
            } else {
                index += 1;
            }
        }
    }

    /// Takes pages of the running prompts from the prefix cache. Called before every step, because a page that one
    /// sequence completed may be what another was about to compute.
    fn reuse_cached(&mut self) {
        for sequence in self.running.iter_mut().filter(|sequence| sequence.remaining_prompt() > 0) {
            sequence.reuse_cached(&mut self.allocator);
        }
    }

    fn step(&mut self) {
        self.reuse_cached();
        self.plan();
        let Self { model, tokenizer, allocator, running, prefill_budget, scratch, clock, .. } = self;
        // The time of a step that waits for another model says nothing.
        let mixed_prompt_tokens =
            mixed_prompt_tokens(&scratch.pending, &scratch.token_counts).filter(|_| !model.shares_cores());
        let started = clock.monotonic();
        for (sequence, token_count) in running.iter_mut().zip(&scratch.token_counts) {
            allocator.grow(&mut sequence.pages, sequence.computed + token_count);
        }
        let mut batch: Vec<BatchEntry<'_>> = std::mem::take(&mut scratch.batch);
        scratch.temperatures.clear();
        for (sequence, token_count) in
            running.iter().zip(&scratch.token_counts).filter(|(_, token_count)| **token_count > 0)
        {
            let entry = sequence.batch_entry(*token_count);
            scratch.temperatures.extend(std::iter::repeat_n(sequence.temperature(), entry.logits_rows));
            batch.push(entry);
        }
        let mut logits = model.step(&batch);
        if let Some(prompt_tokens) = mixed_prompt_tokens {
            prefill_budget.record(prompt_tokens, clock.monotonic().saturating_duration_since(started));
        }
        scratch.batch = clear_borrows(batch);
        let mut first_row = 0;
        for (sequence, token_count) in running.iter_mut().zip(&scratch.token_counts) {
            let logits_rows = sequence.logits_rows(*token_count);
            if logits_rows > 0 && sequence.prepares_logits() {
                sequence.prepare_logits(logits.row_mut(first_row), tokenizer);
            }
            first_row += logits_rows;
        }
        logits.logit_stats(&scratch.temperatures, &mut scratch.logit_stats);

        let mut rows = scratch.logit_stats.iter().zip(logits.rows());
        scratch.ended.clear();
        for (index, token_count) in
            scratch.token_counts.iter().enumerate().filter(|(_, token_count)| **token_count > 0)
        {
            let sequence = &mut running[index];
            match sequence.logits_rows(*token_count) {
                0 => sequence.computed += token_count,
                logits_rows => {
                    let mut rows = rows.by_ref().take(logits_rows);
                    if let Some(reason) = sequence.accept_tokens(&mut rows, &mut scratch.sampler, tokenizer) {
                        scratch.ended.push((index, reason));
                    }
                    // Rows after a rejected draft token are meaningless.
                    rows.for_each(drop);
                    sequence.mark_billed(allocator);
                }
            }
            let computed = &sequence.tokens[..sequence.computed];
            allocator.cache_full_pages(&mut sequence.pages, sequence.account, computed);
        }
        drop(rows);
        // From the back, so that the other indexes stay valid.
        while let Some((index, reason)) = self.scratch.ended.pop() {
            self.end(index, reason);
        }
    }

    /// Decides how many tokens each sequence gets in this step, drafts included.
    fn plan(&mut self) {
        let Self { model, running, prefill_budget, scratch, .. } = self;
        scratch.pending.clear();
        scratch.pending.extend(running.iter().map(Sequence::pending));
        let mixed_budget = prefill_budget.tokens();
        plan_step(&scratch.pending, model.shares_cores(), mixed_budget, &mut scratch.token_counts);
        let ready = running.iter().filter(|sequence| sequence.can_draft()).count();
        let max_drafts = drafts_per_sequence(scratch.token_counts.iter().sum(), ready, model.draft_rows());
        for (sequence, token_count) in running.iter_mut().zip(&mut scratch.token_counts) {
            *token_count += sequence.draft(max_drafts);
        }
    }

    fn end(&mut self, index: usize, reason: StopReason) {
        let mut sequence = self.running.remove(index);
        sequence.emit_rest(reason);
        let unused = sequence.charged.saturating_sub(sequence.used_tokens());
        let prefilled_tokens = sequence.prefilled_tokens();
        self.allocator.release(sequence.pages);
        let duration: Duration = self.clock.monotonic().saturating_duration_since(sequence.started);
        let mut state = self.job_queue.lock();
        state.queue.refund(sequence.account, unused);
        state.mean_job_s += (duration.as_secs_f64() - state.mean_job_s) * EWMA_ALPHA;
        state.running = self.running.len();
        drop(state);
        self.cached_tokens.increment(sequence.cached_prompt_tokens as u64);
        self.drafted_tokens.increment(sequence.draft_state.drafted_total());
        self.accepted_tokens.increment(sequence.draft_state.accepted_total());
        sequence.sink.end(Finished {
            reason,
            output_tokens: sequence.generated,
            cached_tokens: u32::try_from(sequence.cached_prompt_tokens).unwrap_or(u32::MAX),
            billed_cached_tokens: u32::try_from(sequence.billed_cached_tokens).unwrap_or(u32::MAX),
            reasoning_tokens: 0,
            prefilled_tokens,
            input_tokens: None,
        });
    }
}

#[cfg(test)]
mod tests;
