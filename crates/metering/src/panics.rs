//! Panics in work that must not be cut short by them.

use crate::MeterError;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

/// So that a panic in one part of a settlement keeps no other part from being done, and can be retried like any error.
pub(crate) async fn panic_as_error<T>(
    work: impl Future<Output = Result<T, MeterError>>,
) -> Result<T, MeterError> {
    let mut work = std::pin::pin!(work);
    poll_fn(|context| {
        catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)))
            .unwrap_or_else(|_| Poll::Ready(Err(MeterError::Internal("a panic".to_owned()))))
    })
    .await
}
