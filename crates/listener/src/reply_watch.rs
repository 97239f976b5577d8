//! Ends the replies on HTTP/2 that a peer does not read. Its connection may be busy with others, so the socket does not show it: the
//! peer simply grants a stream no more bytes. Each stream runs in a task of its own, which ends when its reply is read too slowly;
//! that resets the stream, and drops the request that ran on it.

use hyper::rt::Executor;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::AbortHandle;

tokio::task_local! {
    static CURRENT: ReplyWatch;
}

/// How a stream's reply is being read.
#[derive(Clone, Default)]
pub struct ReplyWatch(Arc<Mutex<Progress>>);

#[derive(Default)]
struct Progress {
    work: Option<AbortHandle>,
    bytes: usize,
    /// A piece was handed over, and the next one was not asked for yet.
    is_waiting: bool,
    /// All text had been taken at some time in this window.
    has_caught_up: bool,
}

impl ReplyWatch {
    /// The watch of the stream whose task this is.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Clone::clone).ok()
    }

    pub fn begin_body(&self, work: Option<AbortHandle>) {
        *self.lock() = Progress { work, is_waiting: true, ..Progress::default() };
    }

    pub fn handed_over(&self, bytes: usize) {
        let mut progress = self.lock();
        progress.bytes += bytes;
        progress.is_waiting = true;
    }

    pub fn waits_for_text(&self) {
        let mut progress = self.lock();
        progress.is_waiting = false;
        progress.has_caught_up = true;
    }

    /// Completes when a peer has read too little during a whole window.
    async fn is_read_too_slowly(&self, window: Duration, min_bytes: usize) {
        loop {
            let (before, was_waiting, was_generating) = {
                let mut progress = self.lock();
                progress.has_caught_up = false;
                let is_generating = progress.work.as_ref().is_some_and(|work| !work.is_finished());
                (progress.bytes, progress.is_waiting, is_generating)
            };
            tokio::time::sleep(window).await;
            let progress = self.lock();
            let bytes = progress.bytes.saturating_sub(before);
            let is_slow = bytes == 0 || (!was_generating && bytes < min_bytes);
            if was_waiting && progress.is_waiting && !progress.has_caught_up && is_slow {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the streams of one connection.
#[derive(Clone, Copy, Debug)]
pub struct StreamExecutor {
    pub window: Duration,
    pub min_bytes: usize,
}

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let (watch, Self { window, min_bytes }) = (ReplyWatch::default(), *self);
        tokio::spawn(CURRENT.scope(watch.clone(), async move {
            tokio::select! {
                () = stream => {}
                () = watch.is_read_too_slowly(window, min_bytes) => {}
            }
        }));
    }
}
