//! Panics in work that must not be cut short by them.

use crate::MeterError;
use futures_util::FutureExt;
use std::future::Future;
use std::panic::AssertUnwindSafe;

/// So that a panic in one part of a settlement keeps no other part from being done, and can be retried like any error.
pub(crate) async fn panic_as_error<T>(
    work: impl Future<Output = Result<T, MeterError>>,
) -> Result<T, MeterError> {
    // A future that panicked is never polled again, so a state that it left half-changed is never seen.
    let outcome = AssertUnwindSafe(work).catch_unwind().await;
    outcome.unwrap_or_else(|_| Err(MeterError::Internal("a panic".to_owned())))
}
