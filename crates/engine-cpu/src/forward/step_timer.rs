//! Measures how a step's time is spent, for benchmarks; a serving engine has no timer.

use chancery_domain::Clock;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time per part of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    pub matmul: Duration,
    pub attention: Duration,
    /// Norms, gating, rounding, RoPE, and writing keys and values.
    pub other: Duration,
}

/// An optional timer; without one, laps cost nothing.
#[derive(Clone, Default)]
pub struct StepTimer(Option<ActiveTimer>);

#[derive(Clone)]
struct ActiveTimer {
    clock: Arc<dyn Clock>,
    since: Instant,
    times: StepTimes,
}

impl std::fmt::Debug for StepTimer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StepTimer").field(&self.times()).finish()
    }
}

impl StepTimer {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let since = clock.monotonic();
        Self(Some(ActiveTimer { clock, since, times: StepTimes::default() }))
    }

    /// Resets all times and starts again.
    pub fn restart(&mut self) {
        if let Some(running) = &mut self.0 {
            (running.since, running.times) = (running.clock.monotonic(), StepTimes::default());
        }
    }

    /// Adds the time since the last lap to `part`.
    pub fn lap(&mut self, part: impl FnOnce(&mut StepTimes) -> &mut Duration) {
        if let Some(running) = &mut self.0 {
            let now = running.clock.monotonic();
            *part(&mut running.times) += now.saturating_duration_since(running.since);
            running.since = now;
        }
    }

    pub fn times(&self) -> StepTimes {
        self.0.as_ref().map(|running| running.times).unwrap_or_default()
    }
}
