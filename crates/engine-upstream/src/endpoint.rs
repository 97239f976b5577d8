//! One server of a pool: its load, its health, and the leases under which jobs run on it.

use super::breaker::{Breaker, CallOutcome, CallPermit, Effect, ProbeOutcome, ProbePermit};
use super::capabilities::Capabilities;
use super::error::{UpstreamError, UpstreamErrorKind};
use super::limits::{DEFAULT_BUSY_BACKOFF, HANG_THRESHOLD, MAX_BUSY_BACKOFF, MAX_FAILED_HEALTH_CHECKS};
use super::transport::EndpointAddress;
use chancery_domain::{AccountId, Clock};
use chancery_engine::{EndpointState, EndpointStatus};
use hyper::header::HeaderValue;
use metrics::Counter;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

pub(super) struct Endpoint {
    /// Includes `/v1`, without a trailing slash.
    pub(super) url: String,
    state: Mutex<State>,
    outcomes: OutcomeCounters,
    pub(super) capabilities: Capabilities,
    /// Wakes the task that sends one-token probes.
    probe_requests: Arc<Notify>,
}

struct State {
    /// The API key for this server, stored with it so that it is never sent to another.
    authorization: Option<HeaderValue>,
    outstanding_tokens: u64,
    running: usize,
    breaker: Breaker,
    /// The server reported that it is overloaded.
    busy_until: Option<Instant>,
    failed_health_checks: u32,
    /// Grows with every sign of activity in any reply.
    activity: u64,
    /// The most recent error.
    last_error: Option<String>,
    is_draining: bool,
    /// The context length that it last reported.
    context_tokens: Option<u32>,
    /// Whether it rejected `continuous_usage_stats`.
    lacks_continuous_usage: bool,
}

struct OutcomeCounters {
    succeeded: Counter,
    failed: Counter,
    busy: Counter,
    rejected: Counter,
    cancelled: Counter,
}

impl State {
    fn is_down(&self) -> bool {
        self.failed_health_checks >= MAX_FAILED_HEALTH_CHECKS
    }

    fn is_busy(&self, now: Instant) -> bool {
        self.busy_until.is_some_and(|until| now < until)
    }
}

/// Whether the server can accept a job now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Availability {
    /// The last health checks failed. They may fail where jobs do not, so it is still better than no server.
    Degraded,
    Healthy,
}

impl Endpoint {
    pub(super) fn new(model: &str, url: &str, probe_requests: &Arc<Notify>) -> Self {
        let outcome = |outcome: &'static str| {
            let labels =
                [("model", model.to_owned()), ("endpoint", url.to_owned()), ("outcome", outcome.to_owned())];
            metrics::counter!("chancery_upstream_jobs_total", &labels)
        };
        Self {
            url: url.to_owned(),
            state: Mutex::new(State {
                authorization: None,
                outstanding_tokens: 0,
                running: 0,
                breaker: Breaker::new(),
                busy_until: None,
                failed_health_checks: 0,
                activity: 0,
                last_error: None,
                is_draining: false,
                context_tokens: None,
                lacks_continuous_usage: false,
            }),
            outcomes: OutcomeCounters {
                succeeded: outcome("good"),
                failed: outcome("failed"),
                busy: outcome("busy"),
                rejected: outcome("refused"),
                cancelled: outcome("cancelled"),
            },
            capabilities: Capabilities::default(),
            probe_requests: Arc::clone(probe_requests),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn authorization(&self) -> Option<HeaderValue> {
        self.lock().authorization.clone()
    }

    /// Pairs the URL with this server's own authorization.
    pub(super) fn address<'a>(&'a self, authorization: Option<&'a HeaderValue>) -> EndpointAddress<'a> {
        EndpointAddress { url: &self.url, authorization }
    }

    pub(super) fn outstanding_tokens(&self) -> u64 {
        self.lock().outstanding_tokens
    }

    pub(super) fn is_idle(&self) -> bool {
        self.lock().running == 0
    }

    /// Accepts jobs from now on, with this key.
    pub(super) fn activate(&self, authorization: Option<HeaderValue>) {
        let mut state = self.lock();
        state.is_draining = false;
        state.authorization = authorization;
    }

    /// Stops accepting new jobs.
    pub(super) fn drain(&self) {
        self.lock().is_draining = true;
    }

    pub(super) fn supports_continuous_usage(&self) -> bool {
        !self.lock().lacks_continuous_usage
    }

    pub(super) fn disable_continuous_usage(&self) {
        self.lock().lacks_continuous_usage = true;
    }

    /// Records activity of a reply.
    pub(super) fn record_activity(&self) {
        self.lock().activity += 1;
    }

    /// Two equal values mean that the server has sent nothing to anyone in between.
    pub(super) fn activity(&self) -> u64 {
        self.lock().activity
    }

    /// Returns `None` unless a probe is requested and none is running.
    pub(super) fn start_probe(&self) -> Option<ProbePermit> {
        self.lock().breaker.start_probe()
    }

    pub(super) fn record_probe(
        &self,
        permit: ProbePermit,
        outcome: ProbeOutcome,
        error: Option<String>,
        now: Instant,
    ) {
        let mut state = self.lock();
        state.last_error = error.or(state.last_error.take());
        let effect = state.breaker.record_probe(permit, outcome, now);
        drop(state);
        self.handle(effect);
    }

    fn handle(&self, effect: Effect) {
        match effect {
            Effect::None => {}
            Effect::Opened => {
                let last_error = self.lock().last_error.clone();
                tracing::warn!(endpoint = self.url, last_error, "circuit breaker opened for upstream server");
            }
            Effect::ProbeRequested => self.probe_requests.notify_one(),
        }
    }

    /// Returns `None` if it accepts no jobs now.
    pub(super) fn availability(&self, now: Instant) -> Option<Availability> {
        let state = self.lock();
        if state.is_draining || !state.breaker.allows_call(now) || state.is_busy(now) {
            return None;
        }
        Some(if state.is_down() { Availability::Degraded } else { Availability::Healthy })
    }

    /// Why the server is out of service: it does not respond, or its breaker blocks jobs. Once the breaker's pause is
    /// over, the server no longer counts as out: only a job can close the breaker, and a node reported as unusable
    /// would get none.
    pub(super) fn outage(&self, now: Instant) -> Option<String> {
        let state = self.lock();
        let is_out = state.is_down() || state.breaker.is_open(now);
        is_out.then(|| state.last_error.clone().unwrap_or_default())
    }

    /// How long an overloaded server stays busy by its own account.
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
            last_error: if kind == EndpointState::Up { None } else { state.last_error.clone() },
            running: state.running,
            outstanding_tokens: state.outstanding_tokens,
        }
    }

    /// Returns `None` if another job has just become the breaker's only trial.
    pub(super) fn lease(
        self: &Arc<Self>,
        account: AccountId,
        tokens: u64,
        clock: &Arc<dyn Clock>,
    ) -> Option<Lease> {
        let now = clock.monotonic();
        let mut state = self.lock();
        let permit = state.breaker.acquire(now)?;
        state.running += 1;
        state.outstanding_tokens += tokens;
        let activity_at_start = state.activity;
        drop(state);
        Some(Lease {
            endpoint: Arc::clone(self),
            clock: Arc::clone(clock),
            account,
            started_at: now,
            activity_at_start,
            tokens,
            permit: Some(permit),
            has_text: false,
        })
    }

    /// Records the result of a health check.
    pub(super) fn record_health_check(&self, outcome: Result<(), &UpstreamError>) {
        let mut state = self.lock();
        let was_down = state.is_down();
        match outcome {
            Ok(()) => state.failed_health_checks = 0,
            Err(error) => {
                state.failed_health_checks = state.failed_health_checks.saturating_add(1);
                state.last_error = Some(error.detail.clone());
            }
        }
        let is_down = state.is_down();
        drop(state);
        match (was_down, is_down, outcome) {
            (false, true, Err(error)) => {
                tracing::warn!(endpoint = self.url, last_error = error.detail, "upstream server down");
            }
            (true, false, _) => tracing::info!(endpoint = self.url, "upstream server up"),
            _ => {}
        }
    }

    /// A server replaced by one with a shorter context rejects jobs that the others accept. Warns once.
    pub(super) fn record_context_tokens(&self, context_tokens: u32, assumed_tokens: u32) {
        let last = self.lock().context_tokens.replace(context_tokens);
        if context_tokens < assumed_tokens && last != Some(context_tokens) {
            tracing::warn!(
                endpoint = self.url,
                context_tokens,
                assumed_tokens,
                "upstream server has a shorter context than the model; restart, or set `context_tokens`"
            );
        }
    }
}

/// A job running on a server, ended with a verdict on the server. Dropping it means that the caller is gone, which says
/// nothing about the server, unless it kept the caller waiting in vain.
pub(super) struct Lease {
    endpoint: Arc<Endpoint>,
    clock: Arc<dyn Clock>,
    account: AccountId,
    started_at: Instant,
    activity_at_start: u64,
    tokens: u64,
    permit: Option<CallPermit>,
    has_text: bool,
}

impl Lease {
    pub(super) fn url(&self) -> &str {
        &self.endpoint.url
    }

    pub(super) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// A server that yields text works. If this job was the breaker's trial, other jobs need not wait for its end.
    pub(super) fn record_text(&mut self) {
        self.has_text = true;
        let now = self.clock.monotonic();
        let mut state = self.endpoint.lock();
        state.activity += 1;
        if let Some(permit) = self.permit.filter(|_| !state.breaker.is_closed()) {
            state.breaker.record(permit, CallOutcome::Success, now);
            // A job that started before the breaker opened must not become its trial.
            if state.breaker.is_closed() {
                self.permit = state.breaker.acquire(now);
            }
        }
    }

    /// A successful job clears failed health checks.
    pub(super) fn succeeded(mut self) {
        self.endpoint.outcomes.succeeded.increment(1);
        self.endpoint.lock().failed_health_checks = 0;
        self.record(CallOutcome::Success);
    }

    /// Unless `counts_against_server`, the failure does not count against the server.
    ///
    /// What a caller can cause is only a suspicion: a time-out by a long prompt, and any failure after the first text by a
    /// long reply, which proxies cut off or the server has no memory for.
    pub(super) fn failed(mut self, error: &UpstreamError, counts_against_server: bool) {
        let outcomes = &self.endpoint.outcomes;
        if error.is_server_failure() {
            outcomes.failed.increment(1);
            if !counts_against_server {
                return self.record(CallOutcome::Unknown);
            }
            self.endpoint.lock().last_error = Some(error.detail.clone());
            let is_suspicion = self.has_text || error.kind == UpstreamErrorKind::TimedOut;
            let suspicion = CallOutcome::Suspicion(self.account);
            return self.record(if is_suspicion { suspicion } else { CallOutcome::Failure });
        }
        match error.kind {
            UpstreamErrorKind::DeadlineExceeded => self.record_abandoned(&error.detail),
            UpstreamErrorKind::Busy { retry_after_s } => {
                outcomes.busy.increment(1);
                let backoff =
                    retry_after_s.map_or(DEFAULT_BUSY_BACKOFF, |seconds| Duration::from_secs(seconds.into()));
                let mut state = self.endpoint.lock();
                state.busy_until = Some(self.clock.monotonic() + backoff.min(MAX_BUSY_BACKOFF));
                state.last_error = Some(error.detail.clone());
                drop(state);
                self.record(CallOutcome::Unknown);
            }
            // The server may not even have been asked.
            UpstreamErrorKind::UnsupportedFinish | UpstreamErrorKind::UnsupportedParam => {
                outcomes.rejected.increment(1);
                self.record(CallOutcome::Unknown);
            }
            _ => {
                outcomes.rejected.increment(1);
                // The server responded correctly.
                self.record(CallOutcome::Success);
            }
        }
    }

    fn record(&mut self, call_outcome: CallOutcome) {
        let Some(permit) = self.permit.take() else { return };
        let now = self.clock.monotonic();
        let mut state = self.endpoint.lock();
        let effect = state.breaker.record(permit, call_outcome, now);
        drop(state);
        self.endpoint.handle(effect);
    }

    /// This side gave up. That says nothing about the server, unless it sent nothing to anyone for long.
    fn record_abandoned(&mut self, reason: &str) {
        self.endpoint.outcomes.cancelled.increment(1);
        let waited = self.clock.monotonic().saturating_duration_since(self.started_at);
        let was_active = self.endpoint.activity() != self.activity_at_start;
        if self.has_text || was_active || waited < HANG_THRESHOLD {
            return self.record(CallOutcome::Unknown);
        }
        let last_error = format!("{reason} after {} s without a response", waited.as_secs());
        self.endpoint.lock().last_error = Some(last_error);
        self.record(CallOutcome::Suspicion(self.account));
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.permit.is_some() {
            self.record_abandoned("client disconnected");
        }
        let mut state = self.endpoint.lock();
        state.running = state.running.saturating_sub(1);
        state.outstanding_tokens = state.outstanding_tokens.saturating_sub(self.tokens);
    }
}
