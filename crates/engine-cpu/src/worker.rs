//! The one thread that owns the model. How a job goes through it:
//! 1. `Requests::submit` puts the job into the bounded queue, or refuses it at once.
//! 2. The worker takes it when it is its account's turn, a slot is free and the pages it may need at most can be
//!    promised to it; a job that has waited too long is refused instead.
//! 3. Each step moves all running sequences together: the next part of a prompt, or the next token of a reply; where few
//!    run, tokens that the reply may go on with are drafted and checked in the same step (see `speculation`). Pages of
//!    the prompt that the account's prefix cache holds are taken from there instead, at the start and between steps.
//!    Every page that a step completed goes into that cache, generated tokens included: they begin the next prompt
//!    when a reply is followed up.
//! 4. It ends, by its own end or because its caller is gone, and its pages go back.
//!
//! Whether a caller is gone is asked before every step, of the waiting as well as of the running. What happens after a
//! panic is told in `supervisor`.

mod supervisor;

pub use supervisor::{Supervisor, SupervisorMetrics};

mod sequence;

use crate::fair_queue::{FairQueue, NextUp, Taken};
use crate::forward::{Segment, StepModel};
use crate::kernels::Survey;
use crate::kv::{KvPages, Lane, PageLedger, PageTable, pages_for};
use crate::limits::{
    FAIR_QUANTUM_TOKENS, MAX_RETRY_AFTER_S, MAX_WAIT, MIN_RETRY_AFTER_S, SHORT_JOB_PAGES, SHORT_LANE_PAGES,
};
use crate::prefix_cache::PageKey;
use crate::sampler::SamplerRoom;
use crate::scheduler::{Pending, drafts_each, plan_step};
use crate::tokenizer::Tokenizer;
use chancery_domain::Clock;
use chancery_engine::{Ended, EngineError, Generation, GenerationSink, Job, StopReason};
use metrics::{Counter, Gauge};
use sequence::{Sequence, Start, reply_limit};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What bounds the worker.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub context_tokens: usize,
    pub slots: usize,
    pub queue: usize,
    /// Pages for jobs of any length; short jobs have `SHORT_LANE_PAGES` more.
    pub pages: usize,
}

/// How much a finished job's time moves the running mean.
const MEAN_WEIGHT: f64 = 0.1;

/// The queue between callers and the worker.
pub struct Requests {
    state: Mutex<State>,
    changed: Condvar,
    bounds: Bounds,
    vocabulary: usize,
    clock: Arc<dyn Clock>,
    queue_depth: Gauge,
}

struct State {
    queue: FairQueue<Waiting>,
    /// Set while there is no model to run jobs on.
    away: Option<Away>,
    /// No new jobs; those that are here still run.
    closed: bool,
    /// Everything ends at the next step.
    stopping: bool,
    running: usize,
    /// As they were before the last step.
    kv_pages: KvPages,
    mean_job_s: f64,
}

/// The model is being built anew.
struct Away {
    /// When that should be done.
    until: Instant,
    reason: String,
}

struct Waiting {
    job: Job,
    sink: GenerationSink,
    since: Instant,
}

impl Requests {
    pub fn new(bounds: Bounds, vocabulary: usize, clock: Arc<dyn Clock>, queue_depth: Gauge) -> Self {
        let state = State {
            queue: FairQueue::new(bounds.queue, FAIR_QUANTUM_TOKENS),
            away: None,
            closed: false,
            stopping: false,
            running: 0,
            kv_pages: KvPages::default(),
            mean_job_s: 1.0,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), bounds, vocabulary, clock, queue_depth }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn submit(&self, job: Job) -> Result<Generation, EngineError> {
        let prompt_tokens = job.prompt.token_ids().len();
        if prompt_tokens >= self.bounds.context_tokens {
            return Err(EngineError::InputTooLong {
                prompt_tokens: Some(job.prompt.prompt_tokens()),
                context_tokens: u32::try_from(self.bounds.context_tokens).unwrap_or(u32::MAX),
            });
        }
        let is_known = |id: &u32| (*id as usize) < self.vocabulary;
        if prompt_tokens == 0 || job.max_output_tokens == 0 || !job.prompt.token_ids().iter().all(is_known) {
            return Err(EngineError::Failed("the job is not one of this engine's prompts".to_owned()));
        }
        let mut state = self.lock();
        if state.closed {
            return Err(EngineError::ShuttingDown);
        }
        if let Some(away) = &state.away {
            return Err(away.refusal(self.clock.monotonic()));
        }
        let (sink, generation) = chancery_engine::channel();
        let cost = job.prompt.prompt_tokens().saturating_add(reply_limit(&job, self.bounds.context_tokens).0);
        let waiting = Waiting { sink, since: self.clock.monotonic(), job };
        if state.queue.push(waiting.job.account, cost, waiting).is_err() {
            return Err(EngineError::Overloaded { retry_after_s: state.retry_after_s() });
        }
        self.queue_depth.set(state.queue.len() as f64);
        drop(state);
        self.changed.notify_one();
        Ok(generation)
    }

    pub fn kv_pages(&self) -> KvPages {
        self.lock().kv_pages
    }

    /// Refuses new jobs from now on.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// Refuses new jobs and fails those that are here.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.stopping = true;
        drop(state);
        self.changed.notify_one();
    }
}

impl Away {
    fn refusal(&self, now: Instant) -> EngineError {
        let left = self.until.saturating_duration_since(now).as_secs_f64();
        EngineError::Restarting { retry_after_s: retry_after_s(left) }
    }
}

/// Whole seconds, within the bounds of what is advised.
fn retry_after_s(seconds: f64) -> u32 {
    // A float that is out of range saturates, and the clamp does the rest.
    (seconds.ceil() as u32).clamp(MIN_RETRY_AFTER_S, MAX_RETRY_AFTER_S)
}

impl State {
    /// About when a running job ends and the queue moves up by one.
    fn retry_after_s(&self) -> u32 {
        retry_after_s(self.mean_job_s / self.running.max(1) as f64)
    }
}

pub struct Worker<M> {
    model: M,
    tokenizer: Arc<Tokenizer>,
    requests: Arc<Requests>,
    clock: Arc<dyn Clock>,
    ledger: PageLedger,
    running: Vec<Sequence>,
    room: Room,
    running_gauge: Gauge,
    steps: Counter,
    cached_tokens: Counter,
    drafted_tokens: Counter,
    accepted_tokens: Counter,
}

/// Buffers that are kept from step to step. A step in which no job comes or goes, no prompt is read and no page begins
/// or is completed allocates nothing.
#[derive(Default)]
struct Room {
    pending: Vec<Pending<PageKey>>,
    shares: Vec<usize>,
    /// Empty between steps.
    segments: Vec<Segment<'static>>,
    /// Of every row of logits.
    temperatures: Vec<f32>,
    surveys: Vec<Survey>,
    sampler: SamplerRoom,
    ended: Vec<(usize, StopReason)>,
}

/// The same buffer without its contents, and so without what they borrowed: collecting in place keeps the allocation.
fn emptied(mut segments: Vec<Segment<'_>>) -> Vec<Segment<'static>> {
    segments.clear();
    segments.into_iter().map(|_| unreachable!("there are none")).collect()
}

/// Where the worker's numbers go.
#[derive(Clone)]
pub struct WorkerMetrics {
    pub running: Gauge,
    pub steps: Counter,
    /// Prompt tokens that the prefix cache saved.
    pub cached_tokens: Counter,
    /// Tokens that were guessed, and those of them that proved right.
    pub drafted_tokens: Counter,
    pub accepted_tokens: Counter,
}

impl<M: StepModel> Worker<M> {
    fn new(
        model: M,
        tokenizer: Arc<Tokenizer>,
        requests: Arc<Requests>,
        clock: Arc<dyn Clock>,
        metrics: WorkerMetrics,
    ) -> Self {
        let ledger = PageLedger::new(requests.bounds.pages, SHORT_LANE_PAGES);
        let WorkerMetrics { running: running_gauge, steps, cached_tokens, drafted_tokens, accepted_tokens } =
            metrics;
        Self {
            model,
            tokenizer,
            requests,
            clock,
            ledger,
            running: Vec::new(),
            room: Room::default(),
            running_gauge,
            steps,
            cached_tokens,
            drafted_tokens,
            accepted_tokens,
        }
    }

    /// Serves until the engine is dropped.
    fn serve(&mut self) {
        while self.turn() {}
    }

    /// Ends what runs with an error that says `reason`, and nobody pays for it.
    fn fail_running(&mut self, reason: &str) {
        for sequence in self.running.drain(..) {
            sequence.sink.fail(EngineError::Failed(reason.to_owned()));
        }
        self.running_gauge.set(0.0);
        self.requests.lock().running = 0;
    }

    /// Waits for work, lets jobs in and makes one step; false when it is time to stop.
    fn turn(&mut self) -> bool {
        if !self.let_in() {
            return false;
        }
        self.end_cancelled();
        if !self.running.is_empty() {
            self.step();
            self.steps.increment(1);
        }
        true
    }

    fn let_in(&mut self) -> bool {
        let requests = Arc::clone(&self.requests);
        let mut state = requests.lock();
        state.kv_pages = self.ledger.usage();
        while self.running.is_empty() && state.queue.is_empty() && !state.stopping {
            self.running_gauge.set(0.0);
            state.running = 0;
            state = requests.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stopping {
            let waiting = state.queue.take_all().into_iter().map(|waiting| waiting.sink);
            for sink in waiting.chain(self.running.drain(..).map(|sequence| sequence.sink)) {
                sink.fail(EngineError::ShuttingDown);
            }
            return false;
        }
        for waiting in state.queue.take_gone(|waiting| waiting.sink.is_cancelled()) {
            waiting.sink.end(Ended {
                reason: StopReason::Cancelled,
                output_tokens: 0,
                cached_tokens: 0,
                input_tokens: None,
            });
        }
        let now = self.clock.monotonic();
        let too_long = |waiting: &Waiting| now.saturating_duration_since(waiting.since) >= MAX_WAIT;
        let overdue = state.queue.take_gone(too_long);
        if !overdue.is_empty() {
            tracing::warn!(refused = overdue.len(), "jobs waited too long for their turn");
            let retry_after_s = state.retry_after_s();
            for waiting in overdue {
                waiting.sink.fail(EngineError::Overloaded { retry_after_s });
            }
        }
        while self.running.len() < requests.bounds.slots {
            let Some((next, pages)) = self.first_that_fits(&state.queue) else { break };
            let Some(Taken { account, job: Waiting { job, sink, .. }, paid }) = state.queue.take(next) else {
                self.ledger.release(pages);
                break;
            };
            let start = Start { account, paid, sink, pages, started: now };
            self.running.push(Sequence::new(&job, requests.bounds.context_tokens, start));
        }
        state.running = self.running.len();
        requests.queue_depth.set(state.queue.len() as f64);
        self.running_gauge.set(self.running.len() as f64);
        true
    }

    /// The next job and its pages. A job that has to wait for room keeps its turn: only short jobs go past it, on pages
    /// that it could not have. So it never starves, and they never wait for it.
    fn first_that_fits(&mut self, queue: &FairQueue<Waiting>) -> Option<(NextUp, PageTable)> {
        let mut somebody_waits = false;
        for next in queue.in_order() {
            let job = &queue.get(next)?.job;
            let (limit, _) = reply_limit(job, self.requests.bounds.context_tokens);
            let pages = pages_for(job.prompt.token_ids().len() + limit as usize);
            let mut promised = None;
            if pages <= SHORT_JOB_PAGES {
                promised = self.ledger.promise(pages, Lane::Short);
            }
            if promised.is_none() && !somebody_waits {
                promised = self.ledger.promise(pages, Lane::Any);
            }
            if let Some(pages) = promised {
                return Some((next, pages));
            }
            somebody_waits = true;
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

    /// Takes from the prefix cache what it has of the running prompts. Asked before every step, because one sequence's
    /// page may be what another was about to compute.
    fn reuse(&mut self) {
        for sequence in self.running.iter_mut().filter(|sequence| sequence.prompt_left() > 0) {
            sequence.reuse(&mut self.ledger);
        }
    }

    fn step(&mut self) {
        self.reuse();
        self.plan();
        let Self { model, tokenizer, ledger, running, room, .. } = self;
        for (sequence, share) in running.iter_mut().zip(&room.shares) {
            ledger.grow(&mut sequence.pages, sequence.computed + share);
        }
        let mut segments: Vec<Segment<'_>> = std::mem::take(&mut room.segments);
        room.temperatures.clear();
        for (sequence, share) in running.iter().zip(&room.shares).filter(|(_, share)| **share > 0) {
            let segment = sequence.segment(*share);
            room.temperatures.extend(std::iter::repeat_n(sequence.temperature(), segment.logits_rows));
            segments.push(segment);
        }
        let mut logits = model.step(&segments);
        room.segments = emptied(segments);
        logits.survey(&room.temperatures, &mut room.surveys);

        let mut rows = room.surveys.iter().zip(logits.rows());
        room.ended.clear();
        for (index, share) in room.shares.iter().enumerate().filter(|(_, share)| **share > 0) {
            let sequence = &mut running[index];
            match sequence.logits_rows(*share) {
                0 => sequence.computed += share,
                wanted => {
                    let mut rows = rows.by_ref().take(wanted);
                    if let Some(reason) = sequence.take(&mut rows, &mut room.sampler, tokenizer) {
                        room.ended.push((index, reason));
                    }
                    // What follows a wrong draft says nothing.
                    rows.for_each(drop);
                }
            }
            let computed = &sequence.tokens[..sequence.computed];
            ledger.keep(&mut sequence.pages, sequence.account, computed);
        }
        drop(rows);
        // From the back, so that the places of the others stay right.
        while let Some((index, reason)) = self.room.ended.pop() {
            self.end(index, reason);
        }
    }

    /// How many tokens each sequence gets in this step, drafts included.
    fn plan(&mut self) {
        let Self { model, running, room, .. } = self;
        room.pending.clear();
        room.pending.extend(running.iter().map(Sequence::pending));
        plan_step(&room.pending, &mut room.shares);
        let ready = running.iter().filter(|sequence| sequence.may_draft()).count();
        let most = drafts_each(room.shares.iter().sum(), ready, model.free_rows());
        for (sequence, share) in running.iter_mut().zip(&mut room.shares) {
            *share += sequence.draft(most);
        }
    }

    fn end(&mut self, index: usize, reason: StopReason) {
        let sequence = self.running.remove(index);
        let unused = sequence.paid.saturating_sub(sequence.used_tokens());
        self.ledger.release(sequence.pages);
        if reason != StopReason::StopSequence {
            let rest = sequence.text.held_back();
            if !rest.is_empty() {
                sequence.sink.text(rest);
            }
        }
        let took: Duration = self.clock.monotonic().saturating_duration_since(sequence.started);
        let mut state = self.requests.lock();
        state.queue.refund(sequence.account, unused);
        state.mean_job_s += (took.as_secs_f64() - state.mean_job_s) * MEAN_WEIGHT;
        state.running = self.running.len();
        drop(state);
        self.cached_tokens.increment(sequence.from_cache as u64);
        self.drafted_tokens.increment(sequence.drafting.drafted_total());
        self.accepted_tokens.increment(sequence.drafting.right_total());
        sequence.sink.end(Ended {
            reason,
            output_tokens: sequence.generated,
            cached_tokens: u32::try_from(sequence.from_cache).unwrap_or(u32::MAX),
            input_tokens: None,
        });
    }
}

#[cfg(test)]
mod tests;
