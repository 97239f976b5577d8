//! Polls a connection again at once if it has woken itself. Its parts wake each other through the task that they share: the handler
//! that takes a body wakes the HTTP library, which is polled by the same task. The runtime would put the task at the end of its queue
//! and wake another thread to look for it there, which costs more than the request's own work.

use futures_util::task::AtomicWaker;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// After so many polls in a row, other tasks run first.
const MAX_POLLS: usize = 4;

const WAITING: u8 = 0;
const POLLING: u8 = 1;
/// Woken since the last poll began.
const WOKEN: u8 = 2;

struct Shared {
    state: AtomicU8,
    task: AtomicWaker,
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // While it is polled, whoever polls it sees the new state. If it was woken before, the task has been.
        if self.state.swap(WOKEN, Ordering::AcqRel) == WAITING {
            self.task.wake();
        }
    }
}

/// Runs the future in the task that waits for this.
pub fn poll_again_when_woken<F: Future>(mut future: Pin<Box<F>>) -> impl Future<Output = F::Output> {
    let shared = Arc::new(Shared { state: AtomicU8::new(WAITING), task: AtomicWaker::new() });
    let waker = Waker::from(Arc::clone(&shared));
    poll_fn(move |context| {
        let Shared { state, task } = &*shared;
        // Before the first poll: from the moment at which the state is `WAITING` again, a wake-up goes to this task.
        task.register(context.waker());
        for _ in 0..MAX_POLLS {
            // A swap, because a wake-up that finds `WOKEN` does not wake the task: this poll must see what it was for. After a mere
            // store, the poll could read older state.
            state.swap(POLLING, Ordering::AcqRel);
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Poll::Ready(output);
            }
            let ended = state.compare_exchange(POLLING, WAITING, Ordering::AcqRel, Ordering::Acquire);
            if ended.is_ok() {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{Clock, SystemClock};
    use std::cell::Cell;
    use std::pin::pin;
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Mutex, OnceLock};
    use std::thread;
    use std::time::Duration;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Polls once, and returns how often the task was woken by it.
    fn poll_once(future: Pin<&mut impl Future<Output = ()>>) -> (Poll<()>, usize) {
        let wakes = Arc::new(Wakes::default());
        let polled = future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(&wakes))));
        (polled, wakes.0.load(Ordering::SeqCst))
    }

    #[test]
    fn future_that_wakes_itself_is_polled_again_without_waking_the_task() {
        let polls = Cell::new(0);
        let future = pin!(poll_again_when_woken(Box::pin(poll_fn(|context| {
            polls.set(polls.get() + 1);
            context.waker().wake_by_ref();
            if polls.get() == 3 { Poll::Ready(()) } else { Poll::Pending }
        }))));
        assert_eq!(poll_once(future), (Poll::Ready(()), 0));
        assert_eq!(polls.get(), 3);
    }

    #[test]
    fn future_that_is_always_ready_lets_other_tasks_run() {
        let polls = Cell::new(0);
        let mut future = pin!(poll_again_when_woken(Box::pin(poll_fn(|context| {
            polls.set(polls.get() + 1);
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        }))));
        assert_eq!(poll_once(future.as_mut()), (Poll::Pending, 1));
        assert_eq!(poll_once(future.as_mut()), (Poll::Pending, 1));
        assert_eq!(polls.get(), 2 * MAX_POLLS);
    }

    #[test]
    fn event_after_the_poll_wakes_the_task_once() {
        let stored: Mutex<Option<Waker>> = Mutex::default();
        let mut future = pin!(poll_again_when_woken(Box::pin(poll_fn(|context| {
            *stored.lock().unwrap() = Some(context.waker().clone());
            Poll::<()>::Pending
        }))));
        let wakes = Arc::new(Wakes::default());
        let task = Waker::from(Arc::clone(&wakes));
        for rounds in 1..=2 {
            assert!(future.as_mut().poll(&mut Context::from_waker(&task)).is_pending());
            let waker = stored.lock().unwrap().take().unwrap();
            waker.wake_by_ref();
            waker.wake();
            assert_eq!(wakes.0.load(Ordering::SeqCst), rounds);
        }
    }

    #[test]
    fn wake_up_from_another_thread_is_never_lost() {
        const EVENTS: usize = 5_000;
        let (sent, seen) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let stored: OnceLock<Waker> = OnceLock::new();
        let mut future = pin!(poll_again_when_woken(Box::pin(poll_fn(|context| {
            stored.get_or_init(|| context.waker().clone());
            // Relaxed, so that only the wake-up itself makes the event visible.
            let number = sent.load(Ordering::Relaxed);
            seen.store(number, Ordering::Relaxed);
            if number == EVENTS { Poll::Ready(()) } else { Poll::Pending }
        }))));
        let wakes = Arc::new(Wakes::default());
        let task = Waker::from(Arc::clone(&wakes));
        let mut polled = future.as_mut().poll(&mut Context::from_waker(&task));
        let waker = stored.get().unwrap();
        let is_lost = thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=EVENTS {
                    // The poll for this wake-up often begins just when the event comes.
                    waker.wake_by_ref();
                    for _ in 0..number % 64 {
                        std::hint::spin_loop();
                    }
                    sent.store(number, Ordering::Relaxed);
                    waker.wake_by_ref();
                    while seen.load(Ordering::Relaxed) < number {
                        thread::yield_now();
                    }
                }
            });
            let mut handled_wakes = 0;
            while polled.is_pending() {
                let waits_since = SystemClock.monotonic();
                while wakes.0.load(Ordering::SeqCst) == handled_wakes {
                    if waits_since.elapsed() > Duration::from_secs(10) {
                        // Ends the other thread.
                        seen.store(usize::MAX, Ordering::Relaxed);
                        return true;
                    }
                    thread::yield_now();
                }
                handled_wakes = wakes.0.load(Ordering::SeqCst);
                polled = future.as_mut().poll(&mut Context::from_waker(&task));
            }
            false
        });
        assert!(!is_lost);
    }
}
