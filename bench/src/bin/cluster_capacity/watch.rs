//! A stretch of time in which something is measured: what this program took of the processors, what the whole machine did, and what
//! callers waited.

use chancery_bench::cpu;
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
    /// How much of the machine programs took that have nothing to do with what is measured, in per cent. `measured` is the CPU time of
    /// what has, beside this program.
    pub fn others_percent(&self, measured: Duration) -> f64 {
        let others = self.busy.saturating_sub(self.own + measured);
        100.0 * others.as_secs_f64() / self.possible.as_secs_f64().max(f64::EPSILON)
    }
}

/// How long each of many calls took, sorted.
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

/// The callers do the work again and again until the time is over. `work` is given the caller's number.
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
                // What answers at once lets others have their turn all the same.
                tokio::task::yield_now().await;
            }
            latencies
        });
    }
    Latencies::of(running.join_all().await.concat())
}

/// The same call so many times, one after the other.
pub async fn one_by_one<F: Future<Output = ()>>(times: usize, mut work: impl FnMut() -> F) -> Latencies {
    let mut latencies = Vec::with_capacity(times);
    for _ in 0..times {
        let began = SystemClock.monotonic();
        work().await;
        latencies.push(SystemClock.monotonic() - began);
    }
    Latencies::of(latencies)
}

/// CPU time for each of them, in microseconds.
pub fn us_each(time: Duration, count: usize) -> f64 {
    time.as_secs_f64() * 1e6 / count.max(1) as f64
}
