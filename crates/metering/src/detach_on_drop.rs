//! Work that runs in its caller's task, and becomes a task of its own if the caller stops waiting.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::runtime::Handle;

/// Dropping it before it has completed detaches the work, unless the work has panicked. Outside a runtime, the work is dropped.
pub(crate) struct DetachOnDrop<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    /// `None` while it is polled, and once it has completed.
    work: Option<Pin<Box<F>>>,
}

impl<F> DetachOnDrop<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    pub(crate) fn new(work: Pin<Box<F>>) -> Self {
        Self { work: Some(work) }
    }
}

impl<F> Future for DetachOnDrop<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // Taken out, so that a panic drops it instead of leaving it to be polled again.
        let Some(mut work) = self.work.take() else { return Poll::Pending };
        let polled = work.as_mut().poll(context);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<F> Drop for DetachOnDrop<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    fn drop(&mut self) {
        if let Some(work) = self.work.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn work_continues_when_its_caller_stops_waiting() {
        let (go, may_go) = oneshot::channel();
        let (done, is_done) = oneshot::channel();
        let mut work = DetachOnDrop::new(Box::pin(async move {
            let number: u32 = may_go.await.unwrap();
            done.send(number + 1).unwrap();
        }));
        assert!((&mut work).now_or_never().is_none());
        drop(work);
        go.send(1).unwrap();
        assert_eq!(is_done.await.unwrap(), 2);
    }

    #[tokio::test]
    async fn work_that_was_never_polled_runs_too() {
        let (done, is_done) = oneshot::channel();
        drop(DetachOnDrop::new(Box::pin(async move { done.send(()).unwrap() })));
        is_done.await.unwrap();
    }

    #[test]
    fn work_is_dropped_with_its_caller_outside_a_runtime() {
        let (done, is_done) = oneshot::channel();
        drop(DetachOnDrop::new(Box::pin(async move { done.send(()).unwrap() })));
        is_done.blocking_recv().unwrap_err();
    }

    #[tokio::test]
    async fn caller_who_waits_gets_the_output() {
        assert_eq!(DetachOnDrop::new(Box::pin(async { 7 })).await, 7);
    }
}
