//! The rounds of a case, their seeds and their counts. Environment variables:
//!
//! - `CHANCERY_FAULTS_SEED`: the seed of the first round; each further round uses the next number. To repeat a failed
//!   round, pass the seed that it printed.
//! - `CHANCERY_FAULTS_MINUTES`: how long each case keeps starting rounds, at least one. Without it, a case runs one round.
//! - `CHANCERY_FAULTS_REPORT`: a file to which each case appends one line with its counts.

use chancery_domain::{Clock, Randomness, SeededRandomness, SystemClock};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::ops::RangeInclusive;
use std::time::Duration;

const DEFAULT_SEED: u64 = 20_261_115;

/// Upper bound on rounds, however long a case may run.
const MAX_ROUNDS: u64 = 10_000;

/// The source of a round's random choices.
pub struct Draw(SeededRandomness);

impl Draw {
    pub fn number(&self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.0.next_u64() % (range.end() - range.start() + 1)
    }

    pub fn pause(&self, range_ms: RangeInclusive<u64>) -> Duration {
        let range_us = range_ms.start() * 1_000..=range_ms.end() * 1_000;
        Duration::from_micros(self.number(range_us))
    }

    pub fn one_of<'a, T>(&self, choices: &'a [T]) -> &'a T {
        &choices[self.number(0..=choices.len() as u64 - 1) as usize]
    }

    /// A separate source for a part that runs concurrently, so that scheduling does not affect its choices.
    pub fn apart(&self) -> Self {
        Self(SeededRandomness::new(self.0.next_u64()))
    }
}

/// A case's counts over all of its rounds.
#[derive(Default)]
pub struct Counts {
    sums: BTreeMap<&'static str, u64>,
    peaks: BTreeMap<&'static str, u64>,
    /// What callers saw.
    statuses: Statuses,
}

/// Replies by `Outcome::status`.
pub type Statuses = BTreeMap<String, usize>;

impl Counts {
    pub fn add(&mut self, what: &'static str, count: usize) {
        *self.sums.entry(what).or_default() += count as u64;
    }

    /// Records the maximum seen.
    pub fn peak(&mut self, what: &'static str, seen: usize) {
        let peak = self.peaks.entry(what).or_default();
        *peak = (*peak).max(seen as u64);
    }

    pub fn callers_saw(&mut self, statuses: &Statuses) {
        for (status, count) in statuses {
            *self.statuses.entry(status.clone()).or_default() += count;
        }
    }

    fn line(&self, case: &str, first_seed: u64, rounds: u64) -> String {
        let mut line = format!("{case}: seeds {first_seed} to {}, rounds {rounds}", first_seed + rounds - 1);
        for (what, count) in self.sums.iter().chain(&self.peaks) {
            write!(line, ", {what} {count}").unwrap();
        }
        for (status, count) in &self.statuses {
            write!(line, "\n    {case}: callers saw {status:<20} {count:>7}").unwrap();
        }
        line
    }
}

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a whole number, and not {text:?}")))
}

/// Runs one round of a case, or new rounds until the time is up. A test whose name begins with `torture_` runs only in
/// `make torture` and `make nodes`: in `make test`, another one protects its rule.
pub async fn rounds(case: &str, mut round: impl AsyncFnMut(Draw, &mut Counts)) {
    let first_seed = from_environment("CHANCERY_FAULTS_SEED").unwrap_or(DEFAULT_SEED);
    let minutes = from_environment("CHANCERY_FAULTS_MINUTES");
    let started_at = SystemClock.monotonic();
    let mut counts = Counts::default();
    let mut done = 0;
    while done < MAX_ROUNDS {
        let is_over = match minutes {
            Some(minutes) => SystemClock.monotonic() - started_at >= Duration::from_secs(minutes * 60),
            None => true,
        };
        if is_over && done > 0 {
            break;
        }
        let seed = first_seed + done;
        println!("{case}: a round from CHANCERY_FAULTS_SEED={seed}");
        round(Draw(SeededRandomness::new(seed)), &mut counts).await;
        done += 1;
    }
    let line = counts.line(case, first_seed, done);
    println!("{line}");
    if let Some(file) = std::env::var_os("CHANCERY_FAULTS_REPORT") {
        let mut file = std::fs::File::options().create(true).append(true).open(file).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}
