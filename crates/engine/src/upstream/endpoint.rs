//! One server of a pool: what it has to do, whether it is well, and the leases by which jobs go there.

use super::breaker::{Breaker, Pass, Verdict};
use super::fault::{Fault, Trouble};
use super::limits::{BUSY_PAUSE, FAILED_LOOKS, LAST_BUSY_PAUSE};
use super::status::{EndpointState, EndpointStatus};
use metrics::{Counter, Gauge};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(super) struct Endpoint {
    /// Up to and with `/v1`, without a slash at the end.
    pub(super) url: String,
    state: Mutex<State>,
    outstanding_tokens: Gauge,
    usable: Gauge,
    outcomes: Outcomes,
}

struct State {
    outstanding_tokens: u64,
    running: usize,
    breaker: Breaker,
    /// It has said that it has too much to do.
    busy_until: Option<Instant>,
    failed_looks: u32,
    /// The last thing that went wrong.
    trouble: Option<String>,
    is_draining: bool,
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

    /// As the metric tells it.
    fn is_usable(&self) -> bool {
        !self.is_draining && !self.is_down() && self.breaker.is_closed()
    }

    fn is_busy(&self, now: Instant) -> bool {
        self.busy_until.is_some_and(|until| now < until)
    }
}

/// How well a server could take a job now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fitness {
    /// The last looks at it failed, but nobody has tried it with a job since; better than nothing.
    Doubtful,
    Fit,
}

impl Endpoint {
    pub(super) fn new(model: &str, url: &str) -> Self {
        let labels = || [("model", model.to_owned()), ("endpoint", url.to_owned())];
        let outcome = |outcome: &'static str| {
            let [model, endpoint] = labels();
            metrics::counter!(
                "chancery_upstream_jobs_total",
                &[model, endpoint, ("outcome", outcome.to_owned())]
            )
        };
        let usable = metrics::gauge!("chancery_upstream_usable", &labels());
        usable.set(1.0);
        Self {
            url: url.to_owned(),
            state: Mutex::new(State {
                outstanding_tokens: 0,
                running: 0,
                breaker: Breaker::new(),
                busy_until: None,
                failed_looks: 0,
                trouble: None,
                is_draining: false,
            }),
            outstanding_tokens: metrics::gauge!("chancery_upstream_outstanding_tokens", &labels()),
            usable,
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

    pub(super) fn outstanding_tokens(&self) -> u64 {
        self.lock().outstanding_tokens
    }

    pub(super) fn is_idle(&self) -> bool {
        self.lock().running == 0
    }

    /// From now on it gets no new jobs, or it does again.
    pub(super) fn set_draining(&self, is_draining: bool) {
        let mut state = self.lock();
        state.is_draining = is_draining;
        let is_usable = state.is_usable();
        drop(state);
        self.show_usable(is_usable);
    }

    /// None where it takes nothing now.
    pub(super) fn fitness(&self, now: Instant) -> Option<Fitness> {
        let state = self.lock();
        if state.is_draining || !state.breaker.would_pass(now) || state.is_busy(now) {
            return None;
        }
        Some(if state.is_down() { Fitness::Doubtful } else { Fitness::Fit })
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
    pub(super) fn lease(self: &Arc<Self>, tokens: u64, now: Instant) -> Option<Lease> {
        let mut state = self.lock();
        let pass = state.breaker.pass(now)?;
        state.running += 1;
        state.outstanding_tokens += tokens;
        self.outstanding_tokens.set(state.outstanding_tokens as f64);
        drop(state);
        Some(Lease { endpoint: Arc::clone(self), tokens, pass: Some(pass) })
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
        let (is_down, is_usable) = (state.is_down(), state.is_usable());
        drop(state);
        self.show_usable(is_usable);
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

    fn show_usable(&self, is_usable: bool) {
        self.usable.set(if is_usable { 1.0 } else { 0.0 });
    }
}

/// A job's place at a server. Dropping it without a verdict says nothing about the server.
pub(super) struct Lease {
    endpoint: Arc<Endpoint>,
    tokens: u64,
    pass: Option<Pass>,
}

impl Lease {
    pub(super) fn url(&self) -> &str {
        &self.endpoint.url
    }

    pub(super) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    pub(super) fn went_well(mut self, now: Instant) {
        self.endpoint.outcomes.good.increment(1);
        self.judge(Verdict::Good, now);
    }

    pub(super) fn was_cancelled(mut self, now: Instant) {
        self.endpoint.outcomes.cancelled.increment(1);
        self.judge(Verdict::None, now);
    }

    pub(super) fn failed(mut self, fault: &Fault, now: Instant) {
        let outcomes = &self.endpoint.outcomes;
        if fault.speaks_against_the_server() {
            outcomes.bad.increment(1);
            self.endpoint.lock().trouble = Some(fault.story.clone());
            return self.judge(Verdict::Bad, now);
        }
        if let Trouble::Busy { retry_after_s } = fault.trouble {
            outcomes.busy.increment(1);
            let pause = retry_after_s.map_or(BUSY_PAUSE, |seconds| Duration::from_secs(seconds.into()));
            let mut state = self.endpoint.lock();
            state.busy_until = Some(now + pause.min(LAST_BUSY_PAUSE));
            state.trouble = Some(fault.story.clone());
            drop(state);
            return self.judge(Verdict::None, now);
        }
        outcomes.refused.increment(1);
        // It answered, and rightly.
        self.judge(Verdict::Good, now);
    }

    fn judge(&mut self, verdict: Verdict, now: Instant) {
        let Some(pass) = self.pass.take() else { return };
        let mut state = self.endpoint.lock();
        let has_opened = state.breaker.judge(pass, verdict, now);
        let is_usable = state.is_usable();
        let trouble = state.trouble.clone();
        drop(state);
        self.endpoint.show_usable(is_usable);
        if has_opened {
            tracing::warn!(
                endpoint = self.endpoint.url,
                trouble,
                "an upstream server gets no jobs for a while"
            );
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.endpoint.lock();
        state.running = state.running.saturating_sub(1);
        state.outstanding_tokens = state.outstanding_tokens.saturating_sub(self.tokens);
        self.endpoint.outstanding_tokens.set(state.outstanding_tokens as f64);
        drop(state);
        if let Some(pass) = self.pass.take() {
            // A task that was dropped: its probe's place must not stay taken. `None` keeps whatever pause there was.
            self.endpoint.lock().breaker.give_up(pass);
        }
    }
}
