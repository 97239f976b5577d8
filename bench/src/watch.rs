//! Measures an interval: this program's CPU time, the load of the whole machine, and the callers' latency.

use crate::cpu;
use chancery_domain::{Clock, SystemClock};
use std::future::Future;
use std::time::{Duration, Instant};

pub struct Watch {
    began: Instant,
    own: Duration,
    machine: (Duration, Duration),
}

pub struct Watched {
    pub elapsed: Duration,
    /// CPU time of this program.
    pub own: Duration,
    busy: Duration,
    possible: Duration,
}

impl Watch {
    pub fn start() -> Self {
        let (own, machine) = (cpu::of_this_process(), cpu::of_the_machine());
        Self { began: SystemClock.monotonic(), own, machine }
    }

    pub fn stop(&self) -> Watched {
        let (busy, possible) = cpu::of_the_machine();
        Watched {
            elapsed: SystemClock.monotonic() - self.began,
            own: cpu::of_this_process() - self.own,
            busy: busy.saturating_sub(self.machine.0),
            possible: possible.saturating_sub(self.machine.1),
        }
    }
}

impl Watched {
    /// Returns the share of the machine, in percent, that unrelated programs used. `measured` is the CPU time of the measured
    /// processes, apart from this program.
    pub fn others_percent(&self, measured: Duration) -> f64 {
        let others = self.busy.saturating_sub(self.own + measured);
        100.0 * others.as_secs_f64() / self.possible.as_secs_f64().max(f64::EPSILON)
    }
}

/// Sorted durations of many calls.
pub struct Latencies(Vec<Duration>);

impl Latencies {
    pub fn of(mut all: Vec<Duration>) -> Self {
        all.sort_unstable();
        Self(all)
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn us(&self, percent: usize) -> u128 {
        self.0[(self.count() - 1) * percent / 100].as_micros()
    }

    pub fn per_second(&self, elapsed: Duration) -> f64 {
        self.count() as f64 / elapsed.as_secs_f64()
    }
}

/// The callers repeat the work until the time is up. `work` gets the caller's number.
pub async fn crowd<F: Future<Output = ()> + Send>(
    callers: usize,
    measured: Duration,
    work: impl Fn(usize) -> F + Clone + Send + 'static,
) -> Latencies {
    let end = SystemClock.monotonic() + measured;
    let mut running = tokio::task::JoinSet::new();
    for caller in 0..callers {
        let work = work.clone();
        running.spawn(async move {
            let mut latencies = Vec::new();
            let mut began = SystemClock.monotonic();
            while began < end {
                work(caller).await;
                let ended = SystemClock.monotonic();
                latencies.push(ended - began);
                began = ended;
                // Work that never waits must still yield to other tasks.
                tokio::task::yield_now().await;
            }
            latencies
        });
    }
    Latencies::of(running.join_all().await.concat())
}

/// Runs the same call this many times in sequence.
pub async fn one_by_one<F: Future<Output = ()>>(times: usize, mut work: impl FnMut() -> F) -> Latencies {
    let mut latencies = Vec::with_capacity(times);
    for _ in 0..times {
        let began = SystemClock.monotonic();
        work().await;
        latencies.push(SystemClock.monotonic() - began);
    }
    Latencies::of(latencies)
}

/// CPU time per item, in microseconds.
pub fn us_each(time: Duration, count: usize) -> f64 {
    time.as_secs_f64() * 1e6 / count.max(1) as f64
}
