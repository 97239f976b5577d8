//! The circuit breaker of one server. Pure: the current time is a parameter.
//!
//! 1. **Closed.** Jobs are sent. Consecutive failures are counted; enough of them open it.
//! 2. **Open.** No jobs are sent during a pause, which doubles with every consecutive opening.
//! 3. **Half open.** One job is sent as a probe, and no other until it yields text or ends. If it succeeds, the breaker
//!    closes; otherwise it opens again. A job that ends without a verdict (its caller disconnected) leaves the probe to the
//!    next job.
//!
//! Verdicts of jobs that started before the breaker last opened are ignored.

use super::limits::{FAILURE_THRESHOLD, INITIAL_OPEN_DURATION, MAX_OPEN_DURATION};
use std::time::Instant;

#[derive(Debug)]
pub(super) struct Breaker {
    state: State,
    /// Openings since it was last closed.
    consecutive_opens: u32,
    /// Counts transitions between closed and not closed, to detect late verdicts.
    generation: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed {
        failures: u32,
    },
    /// `None` means that the next job is the probe.
    Open {
        until: Option<Instant>,
    },
    HalfOpen,
}

/// Permission to send a job, returned with its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallPermit {
    generation: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallOutcome {
    Success,
    Failure,
    /// Says nothing about the server.
    Unknown,
}

impl Breaker {
    pub(super) fn new() -> Self {
        Self { state: State::Closed { failures: 0 }, consecutive_opens: 0, generation: 0 }
    }

    pub(super) fn allows_call(&self, now: Instant) -> bool {
        match self.state {
            State::Closed { .. } => true,
            State::Open { until } => until.is_none_or(|until| now >= until),
            State::HalfOpen => false,
        }
    }

    /// Whether it currently blocks all jobs.
    pub(super) fn is_open(&self, now: Instant) -> bool {
        matches!(self.state, State::Open { .. }) && !self.allows_call(now)
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    pub(super) fn acquire(&mut self, now: Instant) -> Option<CallPermit> {
        if !self.allows_call(now) {
            return None;
        }
        if !self.is_closed() {
            self.state = State::HalfOpen;
        }
        Some(CallPermit { generation: self.generation })
    }

    /// Returns whether this verdict opened the breaker.
    pub(super) fn record(&mut self, permit: CallPermit, call_outcome: CallOutcome, now: Instant) -> bool {
        if permit.generation != self.generation {
            return false;
        }
        match (self.state, call_outcome) {
            (State::Closed { .. }, CallOutcome::Success) => self.state = State::Closed { failures: 0 },
            (State::Closed { failures }, CallOutcome::Failure) => {
                let failures = failures + 1;
                self.state = State::Closed { failures };
                if failures >= FAILURE_THRESHOLD {
                    self.open(now);
                    return true;
                }
            }
            (State::HalfOpen, CallOutcome::Success) => {
                *self = Self { generation: self.generation + 1, ..Self::new() }
            }
            (State::HalfOpen, CallOutcome::Failure) => {
                self.open(now);
                return true;
            }
            (State::HalfOpen, CallOutcome::Unknown) => self.state = State::Open { until: None },
            (State::Closed { .. } | State::Open { .. }, _) => {}
        }
        false
    }

    fn open(&mut self, now: Instant) {
        let doubled = INITIAL_OPEN_DURATION.saturating_mul(1 << self.consecutive_opens.min(16));
        self.state = State::Open { until: Some(now + doubled.min(MAX_OPEN_DURATION)) };
        self.consecutive_opens += 1;
        self.generation += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{Clock, SystemClock};
    use std::time::Duration;

    fn opened(now: Instant) -> Breaker {
        let mut breaker = Breaker::new();
        for _ in 0..FAILURE_THRESHOLD {
            let permit = breaker.acquire(now).unwrap();
            breaker.record(permit, CallOutcome::Failure, now);
        }
        breaker
    }

    #[test]
    fn only_consecutive_failures_open_the_breaker() {
        let now = SystemClock.monotonic();
        let mut breaker = Breaker::new();
        for _ in 0..10 {
            for call_outcome in [CallOutcome::Failure, CallOutcome::Failure, CallOutcome::Success] {
                let permit = breaker.acquire(now).unwrap();
                assert!(!breaker.record(permit, call_outcome, now));
            }
        }
        assert!(breaker.is_closed());
        assert!(!opened(now).allows_call(now));
    }

    #[test]
    fn half_open_breaker_admits_one_probe_and_closes_on_success() {
        let now = SystemClock.monotonic();
        let mut breaker = opened(now);
        let later = now + INITIAL_OPEN_DURATION;
        assert!(!breaker.allows_call(later - Duration::from_millis(1)));
        let probe = breaker.acquire(later).unwrap();
        assert_eq!(breaker.acquire(later), None);
        assert!(!breaker.is_open(later), "a probe is under way");
        breaker.record(probe, CallOutcome::Unknown, later);
        let probe = breaker.acquire(later).unwrap();
        breaker.record(probe, CallOutcome::Success, later);
        assert!(breaker.is_closed());
    }

    #[test]
    fn failed_probe_doubles_the_pause_up_to_the_maximum() {
        let now = SystemClock.monotonic();
        let mut breaker = opened(now);
        let mut at = now;
        let mut pause = INITIAL_OPEN_DURATION;
        for _ in 0..12 {
            assert!(!breaker.allows_call(at + pause - Duration::from_millis(1)));
            at += pause;
            let probe = breaker.acquire(at).unwrap();
            assert!(breaker.record(probe, CallOutcome::Failure, at));
            pause = (pause * 2).min(MAX_OPEN_DURATION);
        }
    }

    #[test]
    fn outcome_of_an_earlier_request_does_not_close_the_breaker() {
        let now = SystemClock.monotonic();
        let mut breaker = Breaker::new();
        let early = breaker.acquire(now).unwrap();
        for _ in 0..FAILURE_THRESHOLD {
            let permit = breaker.acquire(now).unwrap();
            breaker.record(permit, CallOutcome::Failure, now);
        }
        breaker.record(early, CallOutcome::Success, now);
        assert!(!breaker.allows_call(now));
    }
}
