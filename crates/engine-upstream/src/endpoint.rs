//! One server of a pool: what it has to do, whether it is well, and the leases by which jobs go there.

use super::breaker::{Breaker, Pass, Verdict};
use super::fault::{Fault, Trouble};
use super::limits::{BUSY_PAUSE, FAILED_LOOKS, HUNG_AFTER, LAST_BUSY_PAUSE};
use super::transport::Addressee;
use chancery_domain::Clock;
use chancery_engine::{EndpointState, EndpointStatus};
use metrics::Counter;
use reqwest::header::HeaderValue;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(super) struct Endpoint {
    /// Up to and with `/v1`, without a slash at the end.
    pub(super) url: String,
    state: Mutex<State>,
    outcomes: Outcomes,
}

struct State {
    /// The key that this server is sent, which is kept with it so that no other's ever is.
    authorization: Option<HeaderValue>,
    outstanding_tokens: u64,
    running: usize,
    breaker: Breaker,
    /// It has said that it has too much to do.
    busy_until: Option<Instant>,
    failed_looks: u32,
    /// When a reply of it last showed life, whosever it was.
    last_life: Option<Instant>,
    /// The last thing that went wrong.
    trouble: Option<String>,
    is_draining: bool,
    /// The length of the context that it said last.
    context_tokens: Option<u32>,
    /// Whether it refused to report usage all along.
    has_no_running_usage: bool,
}

struct Outcomes {
    good: Counter,
    bad: Counter,
    busy: Counter,
    refused: Counter,
    cancelled: Counter,
}

impl State {
    fn is_down(&self) -> bool {
        self.failed_looks >= FAILED_LOOKS
    }

    fn is_busy(&self, now: Instant) -> bool {
        self.busy_until.is_some_and(|until| now < until)
    }
}

/// How well a server could take a job now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fitness {
    /// The last looks at it failed; but looks may fail where jobs do not, so it is better than nothing.
    Doubtful,
    Fit,
}

impl Endpoint {
    pub(super) fn new(model: &str, url: &str, authorization: Option<HeaderValue>) -> Self {
        let outcome = |outcome: &'static str| {
            let labels =
                [("model", model.to_owned()), ("endpoint", url.to_owned()), ("outcome", outcome.to_owned())];
            metrics::counter!("chancery_upstream_jobs_total", &labels)
        };
        Self {
            url: url.to_owned(),
            state: Mutex::new(State {
                authorization,
                outstanding_tokens: 0,
                running: 0,
                breaker: Breaker::new(),
                busy_until: None,
                failed_looks: 0,
                last_life: None,
                trouble: None,
                is_draining: false,
                context_tokens: None,
                has_no_running_usage: false,
            }),
            outcomes: Outcomes {
                good: outcome("good"),
                bad: outcome("failed"),
                busy: outcome("busy"),
                refused: outcome("refused"),
                cancelled: outcome("cancelled"),
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn authorization(&self) -> Option<HeaderValue> {
        self.lock().authorization.clone()
    }

    /// With its own authorization, which the caller has asked it for.
    pub(super) fn addressee<'a>(&'a self, authorization: Option<&'a HeaderValue>) -> Addressee<'a> {
        Addressee { url: &self.url, authorization }
    }

    pub(super) fn outstanding_tokens(&self) -> u64 {
        self.lock().outstanding_tokens
    }

    pub(super) fn is_idle(&self) -> bool {
        self.lock().running == 0
    }

    /// It gets jobs from now on, or goes on getting them, with this key.
    pub(super) fn serve_with(&self, authorization: Option<HeaderValue>) {
        let mut state = self.lock();
        state.is_draining = false;
        state.authorization = authorization;
    }

    /// From now on it gets no new jobs.
    pub(super) fn drain(&self) {
        self.lock().is_draining = true;
    }

    pub(super) fn takes_running_usage(&self) -> bool {
        !self.lock().has_no_running_usage
    }

    pub(super) fn set_no_running_usage(&self) {
        self.lock().has_no_running_usage = true;
    }

    /// Something of a reply has come from it.
    pub(super) fn shows_life(&self, now: Instant) {
        self.lock().last_life = Some(now);
    }

    /// None where it takes nothing now.
    pub(super) fn fitness(&self, now: Instant) -> Option<Fitness> {
        let state = self.lock();
        if state.is_draining || !state.breaker.would_pass(now) || state.is_busy(now) {
            return None;
        }
        Some(if state.is_down() { Fitness::Doubtful } else { Fitness::Fit })
    }

    /// What is wrong with it, where it is out of use: it does not answer, or its breaker keeps jobs away. Once its pause
    /// is over it is not out any more: only a job can close the breaker, and a node that is taken for unusable gets none.
    pub(super) fn outage(&self, now: Instant) -> Option<String> {
        let state = self.lock();
        let is_out = state.is_down() || state.breaker.is_pausing(now);
        is_out.then(|| state.trouble.clone().unwrap_or_default())
    }

    /// When a server that is busy says it will not be any more.
    pub(super) fn busy_for(&self, now: Instant) -> Option<Duration> {
        self.lock().busy_until.and_then(|until| until.checked_duration_since(now))
    }

    pub(super) fn status(&self, now: Instant) -> EndpointStatus {
        let state = self.lock();
        let kind = match &*state {
            state if state.is_draining => EndpointState::Draining,
            state if !state.breaker.is_closed() => EndpointState::Open,
            state if state.is_down() => EndpointState::Down,
            state if state.is_busy(now) => EndpointState::Busy,
            _ => EndpointState::Up,
        };
        EndpointStatus {
            url: self.url.clone(),
            state: kind,
            trouble: if kind == EndpointState::Up { None } else { state.trouble.clone() },
            running: state.running,
            outstanding_tokens: state.outstanding_tokens,
        }
    }

    /// None where somebody else has just taken the place of the one probe.
    pub(super) fn lease(self: &Arc<Self>, tokens: u64, clock: &Arc<dyn Clock>) -> Option<Lease> {
        let now = clock.monotonic();
        let mut state = self.lock();
        let pass = state.breaker.pass(now)?;
        state.running += 1;
        state.outstanding_tokens += tokens;
        drop(state);
        Some(Lease {
            endpoint: Arc::clone(self),
            clock: Arc::clone(clock),
            began: now,
            tokens,
            pass: Some(pass),
            has_text: false,
        })
    }

    /// What a look at its health gave.
    pub(super) fn looked(&self, outcome: Result<(), &Fault>) {
        let mut state = self.lock();
        let was_down = state.is_down();
        match outcome {
            Ok(()) => state.failed_looks = 0,
            Err(fault) => {
                state.failed_looks = state.failed_looks.saturating_add(1);
                state.trouble = Some(fault.story.clone());
            }
        }
        let is_down = state.is_down();
        drop(state);
        match (was_down, is_down, outcome) {
            (false, true, Err(fault)) => {
                tracing::warn!(
                    endpoint = self.url,
                    trouble = fault.story,
                    "an upstream server does not answer"
                );
            }
            (true, false, _) => tracing::info!(endpoint = self.url, "an upstream server answers again"),
            _ => {}
        }
    }

    /// A server that was exchanged for one with a shorter context refuses what the others take; that is told once.
    pub(super) fn says_context(&self, context_tokens: u32, assumed_tokens: u32) {
        let last = self.lock().context_tokens.replace(context_tokens);
        if context_tokens < assumed_tokens && last != Some(context_tokens) {
            tracing::warn!(
                endpoint = self.url,
                context_tokens,
                assumed_tokens,
                "an upstream server's context is shorter than this model's; restart, or set `context_tokens`"
            );
        }
    }
}

/// A job's place at a server, to be given back with what was learnt of it. Dropping it is for a job that nobody waits for
/// any more: that says nothing about the server, unless it kept the caller waiting in vain.
pub(super) struct Lease {
    endpoint: Arc<Endpoint>,
    clock: Arc<dyn Clock>,
    began: Instant,
    tokens: u64,
    pass: Option<Pass>,
    has_text: bool,
}

impl Lease {
    pub(super) fn url(&self) -> &str {
        &self.endpoint.url
    }

    pub(super) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// A server that brings text works again: where this job was the probe, others need not wait for its end.
    pub(super) fn note_text(&mut self) {
        self.has_text = true;
        let now = self.clock.monotonic();
        let mut state = self.endpoint.lock();
        state.last_life = Some(now);
        if let Some(pass) = self.pass.filter(|_| !state.breaker.is_closed()) {
            state.breaker.judge(pass, Verdict::Good, now);
            // One that began before the breaker opened does not become its probe by this.
            if state.breaker.is_closed() {
                self.pass = state.breaker.pass(now);
            }
        }
    }

    /// A job that went well answers every doubt that looks may have left.
    pub(super) fn went_well(mut self) {
        self.endpoint.outcomes.good.increment(1);
        self.endpoint.lock().failed_looks = 0;
        self.judge(Verdict::Good);
    }

    /// It is not held against the server where it is not blamed.
    pub(super) fn failed(mut self, fault: &Fault, is_blamed: bool) {
        let outcomes = &self.endpoint.outcomes;
        if fault.speaks_against_the_server() {
            outcomes.bad.increment(1);
            if !is_blamed {
                return self.judge(Verdict::None);
            }
            self.endpoint.lock().trouble = Some(fault.story.clone());
            return self.judge(Verdict::Bad);
        }
        match fault.trouble {
            Trouble::Busy { retry_after_s } => {
                outcomes.busy.increment(1);
                let pause = retry_after_s.map_or(BUSY_PAUSE, |seconds| Duration::from_secs(seconds.into()));
                let mut state = self.endpoint.lock();
                state.busy_until = Some(self.clock.monotonic() + pause.min(LAST_BUSY_PAUSE));
                state.trouble = Some(fault.story.clone());
                drop(state);
                self.judge(Verdict::None);
            }
            Trouble::Unusable => {
                outcomes.refused.increment(1);
                self.judge(Verdict::None);
            }
            _ => {
                outcomes.refused.increment(1);
                // It answered, and rightly.
                self.judge(Verdict::Good);
            }
        }
    }

    fn judge(&mut self, verdict: Verdict) {
        let Some(pass) = self.pass.take() else { return };
        let now = self.clock.monotonic();
        let mut state = self.endpoint.lock();
        let has_opened = state.breaker.judge(pass, verdict, now);
        let trouble = state.trouble.clone();
        drop(state);
        if has_opened {
            tracing::warn!(
                endpoint = self.endpoint.url,
                trouble,
                "an upstream server gets no jobs for a while"
            );
        }
    }

    fn was_dropped(&mut self) {
        self.endpoint.outcomes.cancelled.increment(1);
        let waited = self.clock.monotonic().saturating_duration_since(self.began);
        let has_worked = self.endpoint.lock().last_life.is_some_and(|at| at >= self.began);
        if self.has_text || has_worked || waited < HUNG_AFTER {
            return self.judge(Verdict::None);
        }
        let trouble = format!("nobody waited any longer, {} s after a job was sent", waited.as_secs());
        self.endpoint.lock().trouble = Some(trouble);
        self.judge(Verdict::Bad);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.pass.is_some() {
            self.was_dropped();
        }
        let mut state = self.endpoint.lock();
        state.running = state.running.saturating_sub(1);
        state.outstanding_tokens = state.outstanding_tokens.saturating_sub(self.tokens);
    }
}
