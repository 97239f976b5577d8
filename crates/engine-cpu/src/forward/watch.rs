//! Where a step's time goes, for measurements; an engine that serves has no watch.

use chancery_domain::Clock;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What takes time in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    pub products: Duration,
    pub attention: Duration,
    /// Norms, gates, rounding, rotation, writing keys and values.
    pub rest: Duration,
}

/// A stop watch that is either there or costs nothing.
#[derive(Clone, Default)]
pub struct Watch(Option<Running>);

#[derive(Clone)]
struct Running {
    clock: Arc<dyn Clock>,
    since: Instant,
    times: StepTimes,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Watch").field(&self.times()).finish()
    }
}

impl Watch {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let since = clock.monotonic();
        Self(Some(Running { clock, since, times: StepTimes::default() }))
    }

    /// Forgets all times and starts again.
    pub fn restart(&mut self) {
        if let Some(running) = &mut self.0 {
            (running.since, running.times) = (running.clock.monotonic(), StepTimes::default());
        }
    }

    /// Counts the time since the last lap for `part`.
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
