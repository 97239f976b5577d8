//! Turns panics into errors in work that must continue after them.

use crate::MeterError;
use futures_util::FutureExt;
use std::future::Future;
use std::panic::AssertUnwindSafe;

/// Returns a panic as an error. A panic in one part of a settlement then stops no other part, and is retried like any error.
pub(crate) fn catch_panic<T>(
    work: impl Future<Output = Result<T, MeterError>>,
) -> impl Future<Output = Result<T, MeterError>> {
    // A future that panicked is never polled again, so its inconsistent state is never observed.
    let outcome = AssertUnwindSafe(work).catch_unwind();
    outcome.map(|outcome| outcome.unwrap_or_else(|_| Err(MeterError::Internal("task panicked".to_owned()))))
}
