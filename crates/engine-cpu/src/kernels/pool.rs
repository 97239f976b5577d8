//! A few threads that do one piece of work together, many times a millisecond. Tasks are handed out one at a time, so
//! that a thread the system has set aside holds nothing up; idle threads spin a little before they sleep.
//!
//! How a run goes:
//! 1. The caller puts the work into `work` and opens a new round in `state`.
//! 2. A helper that sees an open round it has not joined yet enters: it counts itself in `state`.
//! 3. Everyone inside takes task numbers from `next_task` until there are none left; then helpers leave.
//! 4. The caller closes the round, so that no more helpers enter, and waits until all have left.
//!
//! Between 4 and the next 1 nobody but the caller touches `work`.

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::hint;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Looks at `state` before a helper sleeps: some hundred microseconds, longer than the pauses inside a step.
const SPINS_BEFORE_SLEEP: u32 = 4_000;
/// Looks at `state` before the waiting caller offers its core to others.
const SPINS_BEFORE_YIELD: u32 = 1_000;

/// `state`: the round's number above, then the open bit, then how many helpers are inside.
const ROUND: u64 = 1 << 32;
const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;

type Panic = Box<dyn Any + Send>;
type Work = *const (dyn Fn(usize) + Sync);

struct Shared {
    state: AtomicU64,
    work: UnsafeCell<Option<Work>>,
    tasks: AtomicUsize,
    next_task: AtomicUsize,
    panicked: AtomicBool,
    /// What the last helper that panicked left.
    panic: Mutex<Option<Panic>>,
    stopping: AtomicBool,
    sleeping: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `work` is the only part that is not shareable by itself. The caller writes it while the round is closed and
// nobody is inside; helpers read it only while they are inside, and what it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is never followed outside a round.
unsafe impl Send for Shared {}

pub(super) struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// One run at a time: a second caller would find the round open.
    running: Mutex<()>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("helpers", &self.helpers.len()).finish_non_exhaustive()
    }
}

impl Pool {
    /// `threads` counts the caller.
    pub(super) fn start(threads: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            work: UnsafeCell::new(None),
            tasks: AtomicUsize::new(0),
            next_task: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
            stopping: AtomicBool::new(false),
            sleeping: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        });
        let mut pool = Self { shared, helpers: Vec::new(), running: Mutex::new(()) };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let helper =
                thread::Builder::new().name(format!("engine-{index}")).spawn(move || shared.help())?;
            pool.helpers.push(helper);
        }
        Ok(pool)
    }

    /// How many threads work, the caller included.
    pub(super) fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `work` once with every number below `tasks`, on all threads, and returns when all calls have. A panic in
    /// any of them is a panic here.
    pub(super) fn run(&self, tasks: usize, work: &(dyn Fn(usize) + Sync)) {
        if self.helpers.is_empty() || tasks <= 1 {
            (0..tasks).for_each(work);
            return;
        }
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The pointer is followed inside this round only, and this function neither
        // returns nor unwinds before the round is closed and everyone has left it.
        let work_pointer: Work = unsafe { std::mem::transmute(std::ptr::from_ref(work)) };
        // SAFETY: the round is closed and nobody is inside, so nobody else touches `work`.
        unsafe { *shared.work.get() = Some(work_pointer) };
        shared.tasks.store(tasks, Ordering::Relaxed);
        shared.next_task.store(0, Ordering::Relaxed);
        shared.panicked.store(false, Ordering::Relaxed);
        let round = (shared.state.load(Ordering::Relaxed) & !(ROUND - 1)).wrapping_add(ROUND);
        shared.state.store(round | OPEN, Ordering::SeqCst);
        if shared.sleeping.load(Ordering::SeqCst) > 0 {
            drop(shared.sleep.lock().unwrap_or_else(PoisonError::into_inner));
            shared.wake.notify_all();
        }

        let own: Result<(), Panic> = catch_unwind(AssertUnwindSafe(|| shared.take_tasks(tasks, work)));
        if own.is_err() {
            shared.next_task.store(tasks, Ordering::Relaxed);
        }
        shared.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while shared.state.load(Ordering::Acquire) & INSIDE != 0 {
            spins += 1;
            if spins < SPINS_BEFORE_YIELD { hint::spin_loop() } else { thread::yield_now() }
        }
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        if shared.panicked.load(Ordering::Relaxed)
            && let Some(panic) = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            resume_unwind(panic);
        }
    }

    /// Cuts `data` into pieces of `len` and calls `work` with each piece and its number, on all threads.
    pub(super) fn run_pieces<T: Send>(
        &self,
        data: &mut [T],
        len: usize,
        work: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let total = data.len();
        let pieces = total.div_ceil(len.max(1));
        let base = SharedPointer(data.as_mut_ptr());
        self.run(pieces, &|piece| {
            let start = piece * len;
            // SAFETY: pieces of different numbers do not overlap, each number is handed out once, `start` is below
            // `total`, and the buffer outlives the run.
            let part =
                unsafe { std::slice::from_raw_parts_mut(base.get().add(start), len.min(total - start)) };
            work(piece, part);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        drop(self.shared.sleep.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.wake.notify_all();
        for helper in self.helpers.drain(..) {
            // A helper catches every panic of its work, so there is nothing to learn from how it ended.
            let _ = helper.join();
        }
    }
}

impl Shared {
    fn help(&self) {
        let mut joined_round = 0;
        loop {
            let Some(round) = self.wait_and_enter(joined_round) else {
                return;
            };
            joined_round = round;
            // SAFETY: this thread is inside an open round, so `work` is set and stays valid until it leaves.
            let work = unsafe { (*self.work.get()).map(|work| &*work) };
            let tasks = self.tasks.load(Ordering::Relaxed);
            if let Some(work) = work
                && let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.take_tasks(tasks, work)))
            {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
                self.panicked.store(true, Ordering::Relaxed);
                self.next_task.store(tasks, Ordering::Relaxed);
            }
            self.state.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn take_tasks(&self, tasks: usize, work: &(dyn Fn(usize) + Sync)) {
        loop {
            let task = self.next_task.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                return;
            }
            work(task);
        }
    }

    /// Enters the next open round; `None` when the pool stops.
    fn wait_and_enter(&self, joined_round: u64) -> Option<u64> {
        let mut spins = 0;
        loop {
            let state = self.state.load(Ordering::Acquire);
            let round = state & !(ROUND - 1);
            if state & OPEN != 0 && round != joined_round {
                let entered =
                    self.state.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed);
                if entered.is_ok() {
                    return Some(round);
                }
                continue;
            }
            if self.stopping.load(Ordering::Acquire) {
                return None;
            }
            spins += 1;
            if spins < SPINS_BEFORE_SLEEP {
                hint::spin_loop();
            } else {
                self.sleep_until_work(joined_round);
                spins = 0;
            }
        }
    }

    fn sleep_until_work(&self, joined_round: u64) {
        let mut guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        loop {
            // Either the caller sees `sleeping` and wakes us, or we see its open round here.
            let state = self.state.load(Ordering::SeqCst);
            let has_work = state & OPEN != 0 && state & !(ROUND - 1) != joined_round;
            if has_work || self.stopping.load(Ordering::SeqCst) {
                break;
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A pointer that several threads write through, each to places of its own.
pub(super) struct SharedPointer<T>(pub(super) *mut T);

impl<T> SharedPointer<T> {
    pub(super) fn get(&self) -> *mut T {
        self.0
    }
}

// SAFETY: it is only an address; whoever writes through it must show that no two threads write to one place.
unsafe impl<T: Send> Sync for SharedPointer<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_exactly_once_in_every_round() {
        let pool = Pool::start(3).unwrap();
        for round in 0..2_000 {
            let mut counts = vec![0_u32; round % 40];
            pool.run_pieces(&mut counts, 1, |_, count| count[0] += 1);
            assert!(counts.iter().all(|count| *count == 1), "round {round}");
        }
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::start(2).unwrap();
        for _ in 0..50 {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(8, &|task| assert!(task != 5, "task five"));
            }));
            let message = outcome.unwrap_err().downcast::<&str>().unwrap();
            assert_eq!(*message, "task five", "whichever thread had it");
            let mut counts = [0_u32; 8];
            pool.run_pieces(&mut counts, 1, |_, count| count[0] += 1);
            assert_eq!(counts, [1; 8]);
        }
    }
}
