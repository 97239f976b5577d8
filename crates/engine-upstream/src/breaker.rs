//! The circuit breaker of one server. Pure: time comes in.
//!
//! 1. **Closed.** Jobs go there. Failures in a row are counted; enough of them open it.
//! 2. **Open.** Nothing goes there until a pause is over, which doubles with every opening in a row.
//! 3. **Half open.** One job goes there as a probe, and no other until it brings text or has ended. If it does, the breaker closes, if not
//!    it opens again; a job that ends without a verdict (its caller hung up) leaves the place to the next.
//!
//! What jobs tell that began before the breaker last opened changes nothing.

use super::limits::{FAILURES_TO_OPEN, FIRST_OPEN_PAUSE, LAST_OPEN_PAUSE};
use std::time::Instant;

#[derive(Debug)]
pub(super) struct Breaker {
    state: State,
    /// Openings since it last was closed.
    openings: u32,
    /// Counts the changes between closed and not, so that late verdicts can be told.
    era: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed {
        failures: u32,
    },
    /// None: the next job is the probe.
    Open {
        until: Option<Instant>,
    },
    Probing,
}

/// A job's leave to go there, to be given back with its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    era: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Good,
    Bad,
    /// Nothing was learnt.
    None,
}

impl Breaker {
    pub(super) fn new() -> Self {
        Self { state: State::Closed { failures: 0 }, openings: 0, era: 0 }
    }

    pub(super) fn would_pass(&self, now: Instant) -> bool {
        match self.state {
            State::Closed { .. } => true,
            State::Open { until } => until.is_none_or(|until| now >= until),
            State::Probing => false,
        }
    }

    /// Whether it keeps every job away for now.
    pub(super) fn is_pausing(&self, now: Instant) -> bool {
        matches!(self.state, State::Open { .. }) && !self.would_pass(now)
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    pub(super) fn pass(&mut self, now: Instant) -> Option<Pass> {
        if !self.would_pass(now) {
            return None;
        }
        if !self.is_closed() {
            self.state = State::Probing;
        }
        Some(Pass { era: self.era })
    }

    /// Whether this verdict opened it.
    pub(super) fn judge(&mut self, pass: Pass, verdict: Verdict, now: Instant) -> bool {
        if pass.era != self.era {
            return false;
        }
        match (self.state, verdict) {
            (State::Closed { .. }, Verdict::Good) => self.state = State::Closed { failures: 0 },
            (State::Closed { failures }, Verdict::Bad) => {
                let failures = failures + 1;
                self.state = State::Closed { failures };
                if failures >= FAILURES_TO_OPEN {
                    self.open(now);
                    return true;
                }
            }
            (State::Probing, Verdict::Good) => *self = Self { era: self.era + 1, ..Self::new() },
            (State::Probing, Verdict::Bad) => {
                self.open(now);
                return true;
            }
            (State::Probing, Verdict::None) => self.state = State::Open { until: None },
            (State::Closed { .. } | State::Open { .. }, _) => {}
        }
        false
    }

    fn open(&mut self, now: Instant) {
        let doubled = FIRST_OPEN_PAUSE.saturating_mul(1 << self.openings.min(16));
        self.state = State::Open { until: Some(now + doubled.min(LAST_OPEN_PAUSE)) };
        self.openings += 1;
        self.era += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{Clock, SystemClock};
    use std::time::Duration;

    fn opened(now: Instant) -> Breaker {
        let mut breaker = Breaker::new();
        for _ in 0..FAILURES_TO_OPEN {
            let pass = breaker.pass(now).unwrap();
            breaker.judge(pass, Verdict::Bad, now);
        }
        breaker
    }

    #[test]
    fn failures_in_a_row_open_it_and_a_success_in_between_does_not_let_them_add_up() {
        let now = SystemClock.monotonic();
        let mut breaker = Breaker::new();
        for _ in 0..10 {
            for verdict in [Verdict::Bad, Verdict::Bad, Verdict::Good] {
                let pass = breaker.pass(now).unwrap();
                assert!(!breaker.judge(pass, verdict, now));
            }
        }
        assert!(breaker.is_closed());
        assert!(!opened(now).would_pass(now));
    }

    #[test]
    fn after_the_pause_one_probe_at_a_time_goes_through_and_closes_it() {
        let now = SystemClock.monotonic();
        let mut breaker = opened(now);
        let later = now + FIRST_OPEN_PAUSE;
        assert!(!breaker.would_pass(later - Duration::from_millis(1)));
        let probe = breaker.pass(later).unwrap();
        assert_eq!(breaker.pass(later), None);
        assert!(!breaker.is_pausing(later), "somebody is finding out");
        breaker.judge(probe, Verdict::None, later);
        let probe = breaker.pass(later).unwrap();
        breaker.judge(probe, Verdict::Good, later);
        assert!(breaker.is_closed());
    }

    #[test]
    fn a_failed_probe_doubles_the_pause_up_to_the_longest() {
        let now = SystemClock.monotonic();
        let mut breaker = opened(now);
        let mut at = now;
        let mut pause = FIRST_OPEN_PAUSE;
        for _ in 0..12 {
            assert!(!breaker.would_pass(at + pause - Duration::from_millis(1)));
            at += pause;
            let probe = breaker.pass(at).unwrap();
            assert!(breaker.judge(probe, Verdict::Bad, at));
            pause = (pause * 2).min(LAST_OPEN_PAUSE);
        }
    }

    #[test]
    fn what_began_before_it_opened_changes_nothing() {
        let now = SystemClock.monotonic();
        let mut breaker = Breaker::new();
        let early = breaker.pass(now).unwrap();
        for _ in 0..FAILURES_TO_OPEN {
            let pass = breaker.pass(now).unwrap();
            breaker.judge(pass, Verdict::Bad, now);
        }
        breaker.judge(early, Verdict::Good, now);
        assert!(!breaker.would_pass(now));
    }
}
