//! A small thread pool that runs one parallel loop at a time, many times per millisecond. Tasks are handed out one at a
//! time, so that a preempted thread holds nothing up; idle threads spin briefly before they sleep.
//!
//! A run:
//! 1. The caller stores the work in `work` and opens a new round in `state`.
//! 2. A worker that sees an open round it has not joined yet enters: it counts itself in `state`.
//! 3. Every thread inside takes task numbers from `next_task` until none are left; then workers leave.
//! 4. The caller closes the round, so that no more workers enter, and waits until all have left.
//!
//! Between 4 and the next 1 only the caller accesses `work`.

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::hint;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Polls of `state` before a worker sleeps: a few hundred microseconds, longer than the pauses within a step.
const SPINS_BEFORE_SLEEP: u32 = 4_000;
/// Polls of `state` before the waiting caller yields its core.
const SPINS_BEFORE_YIELD: u32 = 1_000;

/// Bits of `state`, high to low: the round number, the open bit, the number of workers inside.
const ROUND: u64 = 1 << 32;
const OPEN: u64 = 1 << 31;
const ACTIVE_WORKERS: u64 = OPEN - 1;

type Panic = Box<dyn Any + Send>;
type Work = *const (dyn Fn(usize) + Sync);

struct Shared {
    state: AtomicU64,
    work: UnsafeCell<Option<Work>>,
    tasks: AtomicUsize,
    next_task: AtomicUsize,
    panicked: AtomicBool,
    /// Payload of the last worker panic.
    panic: Mutex<Option<Panic>>,
    stopping: AtomicBool,
    sleeping: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `work` is the only field that is not `Sync`. The caller writes it while the round is closed and no worker is
// inside; workers read it only while inside, and what it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is never dereferenced outside a round.
unsafe impl Send for Shared {}

pub(super) struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One run at a time: a second caller would find the round open.
    running: Mutex<()>,
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadPool").field("workers", &self.workers.len()).finish_non_exhaustive()
    }
}

impl ThreadPool {
    /// `threads` includes the caller.
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
        let mut pool = Self { shared, workers: Vec::new(), running: Mutex::new(()) };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let worker =
                thread::Builder::new().name(format!("engine-{index}")).spawn(move || shared.run_worker())?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Number of threads, including the caller.
    pub(super) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work` once with every number below `tasks`, on all threads, and returns when all calls have returned. A
    /// panic in any of them propagates to the caller.
    pub(super) fn run(&self, tasks: usize, work: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() || tasks <= 1 {
            (0..tasks).for_each(work);
            return;
        }
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The pointer is dereferenced only inside this round, and this function
        // neither returns nor unwinds before the round is closed and every worker has left it.
        let work_pointer: Work = unsafe { std::mem::transmute(std::ptr::from_ref(work)) };
        // SAFETY: the round is closed and no worker is inside, so no other thread accesses `work`.
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

        let caller_outcome: Result<(), Panic> =
            catch_unwind(AssertUnwindSafe(|| shared.take_tasks(tasks, work)));
        if caller_outcome.is_err() {
            shared.next_task.store(tasks, Ordering::Relaxed);
        }
        shared.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while shared.state.load(Ordering::Acquire) & ACTIVE_WORKERS != 0 {
            spins += 1;
            if spins < SPINS_BEFORE_YIELD { hint::spin_loop() } else { thread::yield_now() }
        }
        if let Err(panic) = caller_outcome {
            resume_unwind(panic);
        }
        if shared.panicked.load(Ordering::Relaxed)
            && let Some(panic) = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            resume_unwind(panic);
        }
    }

    /// Splits `data` into pieces of `len` and calls `work` with each piece and its index, on all threads.
    pub(super) fn run_chunks<T: Send>(
        &self,
        data: &mut [T],
        len: usize,
        work: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let total = data.len();
        let chunks = total.div_ceil(len.max(1));
        let base = SharedPointer(data.as_mut_ptr());
        self.run(chunks, &|chunk| {
            let start = chunk * len;
            // SAFETY: pieces do not overlap, each index is handed out once, `start` is below `total`, and the buffer
            // outlives the run.
            let part =
                unsafe { std::slice::from_raw_parts_mut(base.get().add(start), len.min(total - start)) };
            work(chunk, part);
        });
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        drop(self.shared.sleep.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches every panic of its work, so the join result carries no information.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn run_worker(&self) {
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

    /// Enters the next open round; `None` if the pool is stopping.
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
            // Either the caller sees `sleeping` and wakes this thread, or this thread sees the open round here.
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

/// A pointer through which several threads write, each to its own elements.
pub(super) struct SharedPointer<T>(pub(super) *mut T);

impl<T> SharedPointer<T> {
    pub(super) fn get(&self) -> *mut T {
        self.0
    }
}

// SAFETY: it is only an address; code that writes through it must ensure that no two threads write the same element.
unsafe impl<T: Send> Sync for SharedPointer<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_exactly_once_in_every_round() {
        let pool = ThreadPool::start(3).unwrap();
        for round in 0..2_000 {
            let mut counts = vec![0_u32; round % 40];
            pool.run_chunks(&mut counts, 1, |_, count| count[0] += 1);
            assert!(counts.iter().all(|count| *count == 1), "round {round}");
        }
    }

    #[test]
    fn task_panic_reaches_the_caller_and_the_pool_survives() {
        let pool = ThreadPool::start(2).unwrap();
        for _ in 0..50 {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(8, &|task| assert!(task != 5, "task five"));
            }));
            let message = outcome.unwrap_err().downcast::<&str>().unwrap();
            assert_eq!(*message, "task five", "whichever thread had it");
            let mut counts = [0_u32; 8];
            pool.run_chunks(&mut counts, 1, |_, count| count[0] += 1);
            assert_eq!(counts, [1; 8]);
        }
    }
}
