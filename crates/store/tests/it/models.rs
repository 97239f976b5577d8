//! Model-based tests: a run makes random steps against the store and a small model of it, and compares every answer. All choices
//! come from one seed, which is printed with the steps when a run fails. Environment variables, as for the fault tests:
//!
//! - `CHANCERY_FAULTS_SEED`: the seed of the first run; each further run uses the next number.
//! - `CHANCERY_FAULTS_MINUTES`: how long new runs are started. Without it, there are `RUNS` of them.

use chancery_domain::{Clock, Randomness, SeededRandomness, SystemClock};
use std::any::type_name;
use std::fmt::Debug;
use std::io::Write;
use std::ops::Range;
use std::time::Duration;

const DEFAULT_SEED: u64 = 20_261_115;
const RUNS: u64 = 4;
const STEPS: usize = 60;

/// The store under test, and what is expected of it.
pub trait Model {
    type Step: Debug;

    fn draw(&self, draw: &Draw) -> Self::Step;

    /// Makes the step on both sides. Panics if the answers differ.
    async fn make(&mut self, step: &Self::Step);

    /// What must hold when a run is over.
    async fn finish(self);
}

/// The source of a run's random choices.
pub struct Draw(SeededRandomness);

impl Draw {
    pub fn number(&self, range: Range<i64>) -> i64 {
        range.start + (self.0.next_u64() % (range.end - range.start) as u64) as i64
    }

    pub fn index(&self, count: usize) -> usize {
        (self.0.next_u64() % count as u64) as usize
    }

    pub fn one_of<T: Copy>(&self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    pub fn is_one_in(&self, count: usize) -> bool {
        self.index(count) == 0
    }
}

/// Prints how to repeat the run, and its steps, if it panics.
struct Trace {
    seed: u64,
    steps: Vec<String>,
}

impl Drop for Trace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let steps = self.steps.join("\n    ");
            println!("to repeat this run: CHANCERY_FAULTS_SEED={}\n    {steps}", self.seed);
        }
    }
}

/// `new` creates the model of a run, with a database of its own.
pub async fn compare<M: Model>(mut new: impl AsyncFnMut() -> M) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let first_seed = number("CHANCERY_FAULTS_SEED").unwrap_or(DEFAULT_SEED);
    let minutes = number("CHANCERY_FAULTS_MINUTES");
    let started_at = SystemClock.monotonic();
    for run in 0.. {
        let is_over = match minutes {
            Some(minutes) => {
                run > 0 && SystemClock.monotonic() - started_at >= Duration::from_secs(minutes * 60)
            }
            None => run == RUNS,
        };
        if is_over {
            let line = format!("{}: {run} runs of {STEPS} steps from seed {first_seed}", type_name::<M>());
            println!("{line}");
            if let Some(file) = std::env::var_os("CHANCERY_FAULTS_REPORT") {
                let mut file = std::fs::File::options().create(true).append(true).open(file).unwrap();
                file.write_all(format!("{line}\n").as_bytes()).unwrap();
            }
            return;
        }
        let seed = first_seed + run;
        let (draw, mut trace) = (Draw(SeededRandomness::new(seed)), Trace { seed, steps: Vec::new() });
        let mut model = new().await;
        for _ in 0..STEPS {
            let step = model.draw(&draw);
            trace.steps.push(format!("{step:?}"));
            model.make(&step).await;
        }
        model.finish().await;
    }
}
