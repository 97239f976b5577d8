//! A small thread pool that runs one parallel loop at a time, many times per millisecond. Every thread has a range of
//! the tasks and takes them one at a time; a thread that has finished its own range takes tasks from the others. So a
//! preempted thread holds up one task at most. Idle threads spin briefly before they sleep.
//!
//! A run:
//! 1. The caller stores the work in `work` and opens a new round in `state`.
//! 2. A worker that sees an open round it has not joined yet enters: it marks its own slot as active, and then checks
//!    that the round is still open.
//! 3. Every thread inside takes tasks until none are left; then workers mark their slots as inactive.
//! 4. The caller closes the round, so that no more workers enter, and waits until no slot is active.
//!
//! Between 4 and the next 1 only the caller accesses `work`. No thread writes what all the others write: with 16
//! threads, counters that all of them share cost more than the work.

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::hint;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Polls of `state` before a worker sleeps: a few hundred microseconds, longer than the pauses within a step.
const SPINS_BEFORE_SLEEP: u32 = 4_000;
/// Polls of `state` before the waiting caller yields its core.
const SPINS_BEFORE_YIELD: u32 = 1_000;

/// Bits of `state`, high to low: the round number, the open bit.
const ROUND: u64 = 2;
const OPEN: u64 = 1;
/// Bits of a slot's `next_task`, high to low: the round number, the number of tasks taken.
const TASK_BITS: u32 = 24;

type Panic = Box<dyn Any + Send>;
type Work = *const (dyn Fn(usize) + Sync);

/// A value on cache lines of its own; CPUs fetch them in pairs.
#[repr(align(128))]
struct Padded<T>(T);

/// What the caller writes and all threads read, on one cache line.
struct Round {
    state: AtomicU64,
    tasks: AtomicUsize,
    /// Set by the first panic: the remaining tasks are skipped.
    panicked: AtomicBool,
    work: UnsafeCell<Option<Work>>,
}

/// What belongs to one thread.
#[derive(Default)]
struct Slot {
    /// Tasks taken from this thread's range in the round that the upper bits name; none in any other round.
    next_task: AtomicU64,
    /// Whether this worker may be inside a round.
    active: AtomicBool,
}

struct Shared {
    round: Padded<Round>,
    /// The caller's slot is the first.
    slots: Box<[Padded<Slot>]>,
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
            round: Padded(Round {
                state: AtomicU64::new(0),
                tasks: AtomicUsize::new(0),
                panicked: AtomicBool::new(false),
                work: UnsafeCell::new(None),
            }),
            slots: (0..threads.max(1)).map(|_| Padded(Slot::default())).collect(),
            panic: Mutex::new(None),
            stopping: AtomicBool::new(false),
            sleeping: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        });
        let mut pool = Self { shared, workers: Vec::new(), running: Mutex::new(()) };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let worker = thread::Builder::new()
                .name(format!("engine-{index}"))
                .spawn(move || shared.run_worker(index))?;
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
        assert!(tasks < 1 << TASK_BITS, "{tasks} tasks in one run");
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The pointer is dereferenced only inside this round, and this function
        // neither returns nor unwinds before the round is closed and every worker has left it.
        let work_pointer: Work = unsafe { std::mem::transmute(std::ptr::from_ref(work)) };
        let Round { state, tasks: round_tasks, panicked, work: round_work } = &shared.round.0;
        // SAFETY: the round is closed and no worker is inside, so no other thread accesses `work`.
        unsafe { *round_work.get() = Some(work_pointer) };
        round_tasks.store(tasks, Ordering::Relaxed);
        panicked.store(false, Ordering::Relaxed);
        let round = (state.load(Ordering::Relaxed) & !OPEN).wrapping_add(ROUND);
        state.store(round | OPEN, Ordering::SeqCst);
        if shared.sleeping.load(Ordering::SeqCst) > 0 {
            drop(shared.sleep.lock().unwrap_or_else(PoisonError::into_inner));
            shared.wake.notify_all();
        }

        let caller_outcome: Result<(), Panic> =
            catch_unwind(AssertUnwindSafe(|| shared.run_tasks(0, round, tasks, work)));
        if caller_outcome.is_err() {
            panicked.store(true, Ordering::Relaxed);
        }
        state.store(round, Ordering::SeqCst);
        let mut spins = 0;
        for slot in &shared.slots[1..] {
            // Either this thread sees a worker as active, or the worker sees that the round is closed.
            while slot.0.active.load(Ordering::SeqCst) {
                spins += 1;
                if spins < SPINS_BEFORE_YIELD { hint::spin_loop() } else { thread::yield_now() }
            }
        }
        if let Err(panic) = caller_outcome {
            resume_unwind(panic);
        }
        if panicked.load(Ordering::Relaxed)
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
    fn run_worker(&self, index: usize) {
        let mut joined_round = 0;
        let Slot { active, .. } = &self.slots[index].0;
        while let Some(round) = self.wait_and_enter(joined_round, active) {
            joined_round = round;
            // SAFETY: this thread is inside an open round, so `work` is set and stays valid until it leaves.
            let work = unsafe { (*self.round.0.work.get()).map(|work| &*work) };
            let tasks = self.round.0.tasks.load(Ordering::Relaxed);
            if let Some(work) = work
                && let Err(panic) =
                    catch_unwind(AssertUnwindSafe(|| self.run_tasks(index, round, tasks, work)))
            {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
                self.round.0.panicked.store(true, Ordering::Relaxed);
            }
            active.store(false, Ordering::Release);
        }
    }

    /// Runs the tasks of a thread's own range, then what is left of the others'.
    fn run_tasks(&self, own: usize, round: u64, tasks: usize, work: &(dyn Fn(usize) + Sync)) {
        let threads = self.slots.len();
        for index in (own..threads).chain(0..own) {
            let range = range_of(index, threads, tasks);
            while let Some(taken) = self.slots[index].0.take(round, range.len()) {
                if self.round.0.panicked.load(Ordering::Relaxed) {
                    return;
                }
                work(range.start + taken);
            }
        }
    }

    /// Enters the next open round; `None` if the pool is stopping.
    fn wait_and_enter(&self, joined_round: u64, active: &AtomicBool) -> Option<u64> {
        let mut spins = 0;
        loop {
            if is_new(self.round.0.state.load(Ordering::Acquire), joined_round) {
                active.store(true, Ordering::SeqCst);
                let state = self.round.0.state.load(Ordering::SeqCst);
                if is_new(state, joined_round) {
                    return Some(state & !OPEN);
                }
                active.store(false, Ordering::Release);
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
            let state = self.round.0.state.load(Ordering::SeqCst);
            if is_new(state, joined_round) || self.stopping.load(Ordering::SeqCst) {
                break;
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Slot {
    /// Takes the next of `len` tasks: how many were taken before it, or `None` if all were.
    fn take(&self, round: u64, len: usize) -> Option<usize> {
        let none_taken = round << (TASK_BITS - 1);
        let mut current = self.next_task.load(Ordering::Relaxed);
        loop {
            let next = if current >> TASK_BITS == none_taken >> TASK_BITS { current } else { none_taken };
            let taken = (next - none_taken) as usize;
            if taken >= len {
                return None;
            }
            let taking =
                self.next_task.compare_exchange_weak(current, next + 1, Ordering::Relaxed, Ordering::Relaxed);
            match taking {
                Ok(_) => return Some(taken),
                Err(changed) => current = changed,
            }
        }
    }
}

/// Whether a state is an open round other than the one joined last.
fn is_new(state: u64, joined_round: u64) -> bool {
    state & OPEN != 0 && state & !OPEN != joined_round
}

/// The tasks of one thread: consecutive, and as many as the others have, or one more.
fn range_of(thread: usize, threads: usize, tasks: usize) -> Range<usize> {
    let (each, rest) = (tasks / threads, tasks % threads);
    let start = thread * each + thread.min(rest);
    start..start + each + usize::from(thread < rest)
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
    fn tasks_are_divided_evenly_and_completely() {
        for (threads, tasks) in [(1, 0), (3, 2), (3, 3), (4, 11), (16, 18), (7, 1_000)] {
            let ranges: Vec<Range<usize>> =
                (0..threads).map(|thread| range_of(thread, threads, tasks)).collect();
            assert_eq!(ranges.iter().cloned().flatten().collect::<Vec<_>>(), (0..tasks).collect::<Vec<_>>());
            let lengths = ranges.iter().map(ExactSizeIterator::len);
            assert!(lengths.clone().max().unwrap() - lengths.min().unwrap() <= 1, "{ranges:?}");
        }
    }

    #[test]
    fn tasks_of_a_thread_that_is_held_up_are_taken_by_the_others() {
        let pool = ThreadPool::start(3).unwrap();
        for _ in 0..20 {
            let done = AtomicUsize::new(0);
            pool.run(30, &|task| {
                // Whichever thread has the first task stays in it until all others are done.
                while task == 0 && done.load(Ordering::Acquire) < 29 {
                    thread::yield_now();
                }
                done.fetch_add(1, Ordering::Release);
            });
            assert_eq!(done.into_inner(), 30);
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
