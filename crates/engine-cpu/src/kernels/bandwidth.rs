//! How fast the threads read memory: the bound for a step of few rows.

use super::lanes::Lanes;
use super::tiles::Line;
use super::{Kernels, dispatch};
use chancery_domain::Clock;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

/// Larger than the CPU caches.
const BYTES: usize = 1 << 29;
/// Read by one task: long enough that handing out tasks takes no time.
const TASK_BYTES: usize = 1 << 20;
/// The machine is never quite idle, so the best of this many counts.
const REPEATS: usize = 12;

impl Kernels {
    /// Bytes per second that all threads together read from memory laid out like weights.
    pub fn read_bandwidth(&self, clock: &dyn Clock) -> f64 {
        let lines = self.weights.allocate(BYTES / size_of::<Line>());
        let tasks: Vec<&[Line]> = lines.chunks(TASK_BYTES / size_of::<Line>()).collect();
        let mut best = 0.0_f64;
        for _ in 0..REPEATS {
            let started = clock.monotonic();
            let total = AtomicU64::new(0);
            self.pool.run(tasks.len(), &|task| {
                let mut sum = 0;
                dispatch!(self.set, add_up, (tasks[task], &mut sum), (&[Line], &mut u64));
                total.fetch_add(sum, Ordering::Relaxed);
            });
            black_box(total.into_inner());
            let seconds = clock.monotonic().saturating_duration_since(started).as_secs_f64();
            best = best.max(BYTES as f64 / seconds);
        }
        best
    }
}

/// Adds up all bytes, eight at a time, so that each is read.
#[inline(always)]
fn add_up<L: Lanes>(_lanes: L, (lines, sum): (&[Line], &mut u64)) {
    // Several sums, so that no addition waits for the one before.
    let mut sums = [[0_u64; 8]; 4];
    for lines in lines.as_chunks::<4>().0 {
        for (sums, line) in sums.iter_mut().zip(lines) {
            for (sum, bytes) in sums.iter_mut().zip(line.0.as_chunks().0) {
                *sum = sum.wrapping_add(u64::from_ne_bytes(*bytes));
            }
        }
    }
    *sum = sums.as_flattened().iter().fold(0, |total, sum| total.wrapping_add(*sum));
}
