//! Turns panics into errors in work that must continue after them.

use crate::MeterError;
use chancery_domain::panic_message;
use futures_util::FutureExt;
use std::future::Future;
use std::panic::AssertUnwindSafe;

/// Returns a panic as an error. A panic in one part of a settlement then stops no other part, and is retried like any error.
pub(crate) fn catch_panic<T>(
    work: impl Future<Output = Result<T, MeterError>>,
) -> impl Future<Output = Result<T, MeterError>> {
    // A future that panicked is never polled again, so its inconsistent state is never observed.
    let outcome = AssertUnwindSafe(work).catch_unwind();
    outcome.map(|outcome| {
        outcome.unwrap_or_else(|panic| {
            Err(MeterError::Internal(format!("task panicked: {}", panic_message(panic.as_ref()))))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn error_has_the_message_of_the_panic() {
        async fn panics() -> Result<(), MeterError> {
            panic!("a bug, as the test wants");
        }
        let outcome = catch_panic(panics()).await;
        assert!(
            matches!(&outcome, Err(MeterError::Internal(detail)) if detail == "task panicked: a bug, as the test wants"),
            "{outcome:?}"
        );
    }
}
