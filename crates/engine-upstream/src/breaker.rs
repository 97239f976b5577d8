//! The circuit breaker of one server. Pure: the current time is a parameter.
//!
//! 1. **Closed.** Jobs are sent. Consecutive failures are counted; enough of them open it.
//! 2. **Open.** No jobs are sent during a pause, which doubles with every consecutive opening.
//! 3. **Half open.** One job is sent as a trial, and no other until it yields text or ends. If it succeeds, the breaker
//!    closes; if it fails, it opens again. A job that ends without a verdict (its caller disconnected) leaves the trial to
//!    the next job.
//!
//! Verdicts of jobs that started before the breaker last opened are ignored.
//!
//! **Suspicion.** A caller can make a server look broken: by a prompt that takes longer than the timeout, or a stream
//! longer than a proxy allows. Such failures are only a suspicion. However many one account causes, they open the breaker
//! only together with another account's, or if the server also fails a one-token probe. The probe is sent by the owner of
//! the breaker when `Effect::ProbeRequested` says so, one at a time. A server that passes it is cleared of all suspicion by
//! jobs that started before: they had their chance to see the same. This also bounds the number of probes.

use super::limits::{FAILURE_THRESHOLD, INITIAL_OPEN_DURATION, MAX_OPEN_DURATION};
use chancery_domain::AccountId;
use std::time::Instant;

#[derive(Debug)]
pub(super) struct Breaker {
    state: State,
    /// Openings since it was last closed.
    consecutive_opens: u32,
    /// Counts transitions between closed and not closed, to detect late verdicts.
    generation: u64,
    passed_probes: u64,
    is_probe_requested: bool,
    is_probe_running: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed {
        failures: u32,
        /// The account whose job last raised a suspicion. A second account opens the breaker, so one is enough.
        suspected_by: Option<AccountId>,
    },
    /// `None` means that the next job is the trial.
    Open {
        until: Option<Instant>,
    },
    HalfOpen,
}

const CLOSED: State = State::Closed { failures: 0, suspected_by: None };

/// Permission to send a job, returned with its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallPermit {
    generation: u64,
    passed_probes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallOutcome {
    Success,
    Failure,
    /// A failure that this account may have caused.
    Suspicion(AccountId),
    /// Says nothing about the server.
    Unknown,
}

/// Permission to send the one-token probe, returned with its outcome.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ProbePermit {
    generation: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeOutcome {
    Passed,
    Failed,
    /// Says nothing about the server.
    Unknown,
}

/// What the owner of the breaker should know after a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Opened,
    /// `start_probe` grants a permit now.
    ProbeRequested,
}

impl Breaker {
    pub(super) fn new() -> Self {
        Self {
            state: CLOSED,
            consecutive_opens: 0,
            generation: 0,
            passed_probes: 0,
            is_probe_requested: false,
            is_probe_running: false,
        }
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
        Some(CallPermit { generation: self.generation, passed_probes: self.passed_probes })
    }

    pub(super) fn record(&mut self, permit: CallPermit, call_outcome: CallOutcome, now: Instant) -> Effect {
        if permit.generation != self.generation {
            return Effect::None;
        }
        let is_cleared = permit.passed_probes != self.passed_probes;
        match (self.state, call_outcome) {
            (State::Closed { .. }, CallOutcome::Success) => self.state = CLOSED,
            (State::Closed { .. }, CallOutcome::Failure) => return self.count_failure(now),
            (State::Closed { failures, suspected_by }, CallOutcome::Suspicion(account)) if !is_cleared => {
                if suspected_by.is_some_and(|other| other != account) {
                    return self.open(now);
                }
                self.state = State::Closed { failures, suspected_by: Some(account) };
                return self.request_probe();
            }
            (State::HalfOpen, CallOutcome::Success) => self.close(),
            (State::HalfOpen, CallOutcome::Failure) => return self.open(now),
            (State::HalfOpen, CallOutcome::Suspicion(_)) => {
                self.state = State::Open { until: None };
                return self.request_probe();
            }
            (State::HalfOpen, CallOutcome::Unknown) => self.state = State::Open { until: None },
            (State::Closed { .. } | State::Open { .. }, _) => {}
        }
        Effect::None
    }

    /// Returns `None` unless a probe is requested and none is running.
    pub(super) fn start_probe(&mut self) -> Option<ProbePermit> {
        if !self.is_probe_requested || self.is_probe_running {
            return None;
        }
        (self.is_probe_requested, self.is_probe_running) = (false, true);
        Some(ProbePermit { generation: self.generation })
    }

    #[expect(clippy::needless_pass_by_value, reason = "a permit is for one probe")]
    pub(super) fn record_probe(
        &mut self,
        permit: ProbePermit,
        outcome: ProbeOutcome,
        now: Instant,
    ) -> Effect {
        self.is_probe_running = false;
        if permit.generation != self.generation {
            // Whatever was requested since then is about another state of the server.
            return if self.is_probe_requested { Effect::ProbeRequested } else { Effect::None };
        }
        self.is_probe_requested = false;
        match (self.state, outcome) {
            (_, ProbeOutcome::Unknown) => Effect::None,
            (State::Closed { .. }, ProbeOutcome::Passed) => {
                self.state = CLOSED;
                self.passed_probes += 1;
                Effect::None
            }
            // A job has succeeded meanwhile, so this is one failure like any other.
            (State::Closed { suspected_by: None, .. }, ProbeOutcome::Failed) => self.count_failure(now),
            (State::Open { .. } | State::HalfOpen, ProbeOutcome::Passed) => {
                self.close();
                Effect::None
            }
            (_, ProbeOutcome::Failed) => self.open(now),
        }
    }

    fn count_failure(&mut self, now: Instant) -> Effect {
        if let State::Closed { failures, .. } = &mut self.state {
            *failures += 1;
            if *failures >= FAILURE_THRESHOLD {
                return self.open(now);
            }
        }
        Effect::None
    }

    /// While a probe is running, its verdict covers this request too.
    fn request_probe(&mut self) -> Effect {
        self.is_probe_requested = true;
        if self.is_probe_running { Effect::None } else { Effect::ProbeRequested }
    }

    fn close(&mut self) {
        self.state = CLOSED;
        self.consecutive_opens = 0;
        self.generation += 1;
        self.is_probe_requested = false;
    }

    fn open(&mut self, now: Instant) -> Effect {
        let doubled = INITIAL_OPEN_DURATION.saturating_mul(1 << self.consecutive_opens.min(16));
        self.state = State::Open { until: Some(now + doubled.min(MAX_OPEN_DURATION)) };
        self.consecutive_opens += 1;
        self.generation += 1;
        self.is_probe_requested = false;
        Effect::Opened
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{Clock, SystemClock};
    use proptest::prelude::*;
    use std::time::Duration;

    const ALICE: CallOutcome = CallOutcome::Suspicion(AccountId(1));
    const BOB: CallOutcome = CallOutcome::Suspicion(AccountId(2));
    const FAILURE: CallOutcome = CallOutcome::Failure;
    const SUCCESS: CallOutcome = CallOutcome::Success;

    /// One job, start to end.
    fn call(breaker: &mut Breaker, call_outcome: CallOutcome, now: Instant) -> Effect {
        let permit = breaker.acquire(now).unwrap();
        breaker.record(permit, call_outcome, now)
    }

    fn opened(now: Instant) -> Breaker {
        let mut breaker = Breaker::new();
        for _ in 0..FAILURE_THRESHOLD {
            call(&mut breaker, FAILURE, now);
        }
        breaker
    }

    #[test]
    fn only_consecutive_failures_open_the_breaker() {
        let now = SystemClock.monotonic();
        let mut breaker = Breaker::new();
        for _ in 0..10 {
            for call_outcome in [FAILURE, FAILURE, SUCCESS] {
                assert_eq!(call(&mut breaker, call_outcome, now), Effect::None);
            }
        }
        assert!(breaker.is_closed());
        assert!(!opened(now).allows_call(now));
    }

    #[test]
    fn half_open_breaker_admits_one_job_and_closes_on_success() {
        let now = SystemClock.monotonic();
        let mut breaker = opened(now);
        let later = now + INITIAL_OPEN_DURATION;
        assert!(!breaker.allows_call(later - Duration::from_millis(1)));
        let trial = breaker.acquire(later).unwrap();
        assert_eq!(breaker.acquire(later), None);
        assert!(!breaker.is_open(later), "a trial is under way");
        breaker.record(trial, CallOutcome::Unknown, later);
        call(&mut breaker, SUCCESS, later);
        assert!(breaker.is_closed());
    }

    #[test]
    fn failed_trial_doubles_the_pause_up_to_the_maximum() {
        let now = SystemClock.monotonic();
        let mut breaker = opened(now);
        let mut at = now;
        let mut pause = INITIAL_OPEN_DURATION;
        for _ in 0..12 {
            assert!(!breaker.allows_call(at + pause - Duration::from_millis(1)));
            at += pause;
            assert_eq!(call(&mut breaker, FAILURE, at), Effect::Opened);
            pause = (pause * 2).min(MAX_OPEN_DURATION);
        }
    }

    #[test]
    fn outcome_of_an_earlier_request_does_not_close_the_breaker() {
        let now = SystemClock.monotonic();
        let mut breaker = Breaker::new();
        let early = breaker.acquire(now).unwrap();
        for _ in 0..FAILURE_THRESHOLD {
            call(&mut breaker, FAILURE, now);
        }
        breaker.record(early, SUCCESS, now);
        assert!(!breaker.allows_call(now));
    }

    #[test]
    fn suspicion_opens_the_breaker_only_with_a_second_account() {
        let now = SystemClock.monotonic();
        for (call_outcomes, opens) in [
            (vec![ALICE, ALICE, ALICE, ALICE], false),
            (vec![ALICE, ALICE, BOB], true),
            (vec![ALICE, BOB], true),
            (vec![ALICE, SUCCESS, BOB], false),
            (vec![ALICE, CallOutcome::Unknown, BOB], true),
            (vec![FAILURE, FAILURE, ALICE, ALICE], false),
            (vec![FAILURE, FAILURE, ALICE, FAILURE], true),
            (vec![ALICE, FAILURE, FAILURE, FAILURE], true),
        ] {
            let mut breaker = Breaker::new();
            for call_outcome in &call_outcomes {
                call(&mut breaker, *call_outcome, now);
            }
            assert_eq!(!breaker.is_closed(), opens, "{call_outcomes:?}");
        }
    }

    #[test]
    fn suspicion_requests_one_probe_at_a_time() {
        let now = SystemClock.monotonic();
        let mut breaker = Breaker::new();
        assert_eq!(breaker.start_probe(), None);
        assert_eq!(call(&mut breaker, ALICE, now), Effect::ProbeRequested);
        let probe = breaker.start_probe().unwrap();
        assert_eq!(call(&mut breaker, ALICE, now), Effect::None);
        assert_eq!(breaker.start_probe(), None);
        assert_eq!(breaker.record_probe(probe, ProbeOutcome::Unknown, now), Effect::None);
        assert_eq!(
            call(&mut breaker, ALICE, now),
            Effect::ProbeRequested,
            "an unknown outcome clears nothing"
        );
        assert!(breaker.start_probe().is_some());
    }

    #[test]
    fn failed_probe_opens_the_breaker_for_one_account() {
        let now = SystemClock.monotonic();
        let mut breaker = Breaker::new();
        call(&mut breaker, ALICE, now);
        let probe = breaker.start_probe().unwrap();
        assert_eq!(breaker.record_probe(probe, ProbeOutcome::Failed, now), Effect::Opened);
        assert!(breaker.is_open(now));
    }

    #[test]
    fn failed_probe_after_a_success_is_only_one_failure() {
        let now = SystemClock.monotonic();
        let mut breaker = Breaker::new();
        call(&mut breaker, ALICE, now);
        let probe = breaker.start_probe().unwrap();
        call(&mut breaker, SUCCESS, now);
        assert_eq!(breaker.record_probe(probe, ProbeOutcome::Failed, now), Effect::None);
        assert_eq!(call(&mut breaker, FAILURE, now), Effect::None);
        assert_eq!(call(&mut breaker, FAILURE, now), Effect::Opened);
    }

    #[test]
    fn passed_probe_clears_the_suspicion_of_jobs_that_started_before() {
        let now = SystemClock.monotonic();
        let mut breaker = Breaker::new();
        let earlier = breaker.acquire(now).unwrap();
        call(&mut breaker, ALICE, now);
        let probe = breaker.start_probe().unwrap();
        breaker.record_probe(probe, ProbeOutcome::Passed, now);
        assert_eq!(breaker.record(earlier, ALICE, now), Effect::None, "no second probe");
        assert_eq!(breaker.record(earlier, BOB, now), Effect::None);
        assert_eq!(call(&mut breaker, BOB, now), Effect::ProbeRequested, "a later job counts again");
        let late_failure = breaker.record(earlier, FAILURE, now);
        assert_eq!((late_failure, breaker.is_closed()), (Effect::None, true));
    }

    #[test]
    fn suspicion_while_half_open_leaves_the_verdict_to_a_probe() {
        let now = SystemClock.monotonic();
        let later = now + INITIAL_OPEN_DURATION;
        for (outcome, is_closed, is_open) in [
            (ProbeOutcome::Passed, true, false),
            (ProbeOutcome::Failed, false, true),
            (ProbeOutcome::Unknown, false, false),
        ] {
            let mut breaker = opened(now);
            assert_eq!(call(&mut breaker, ALICE, later), Effect::ProbeRequested);
            assert!(breaker.allows_call(later), "the next job need not wait for the probe");
            let probe = breaker.start_probe().unwrap();
            breaker.record_probe(probe, outcome, later);
            assert_eq!((breaker.is_closed(), breaker.is_open(later)), (is_closed, is_open), "{outcome:?}");
        }
    }

    #[test]
    fn late_probe_decides_nothing_and_makes_room_for_the_next() {
        let now = SystemClock.monotonic();
        let mut breaker = Breaker::new();
        call(&mut breaker, ALICE, now);
        let late = breaker.start_probe().unwrap();
        call(&mut breaker, BOB, now);
        let later = now + INITIAL_OPEN_DURATION;
        assert_eq!(call(&mut breaker, ALICE, later), Effect::None, "one is still running");
        assert_eq!(breaker.record_probe(late, ProbeOutcome::Passed, later), Effect::ProbeRequested);
        assert!(!breaker.is_closed());
        assert!(breaker.start_probe().is_some());
    }

    proptest! {
        /// Whatever one account does, and however its jobs interleave: it cannot open the breaker of a server that
        /// passes probes.
        #[test]
        fn one_account_never_opens_the_breaker_of_a_working_server(steps in proptest::collection::vec(0_u8..8, 0..200)) {
            let now = SystemClock.monotonic();
            let mut breaker = Breaker::new();
            let mut running = Vec::new();
            let mut probe = None;
            for step in steps {
                match (step, running.pop()) {
                    (0..=2, last) => {
                        running.extend(last);
                        running.insert(0, breaker.acquire(now).unwrap());
                    }
                    (3..=4, Some(permit)) => { breaker.record(permit, ALICE, now); }
                    (5, Some(permit)) => { breaker.record(permit, CallOutcome::Unknown, now); }
                    (6, Some(permit)) => { breaker.record(permit, SUCCESS, now); }
                    (_, last) => {
                        running.extend(last);
                        match probe.take() {
                            Some(permit) => { breaker.record_probe(permit, ProbeOutcome::Passed, now); }
                            None => probe = breaker.start_probe(),
                        }
                    }
                }
                prop_assert!(breaker.is_closed());
            }
        }
    }
}
