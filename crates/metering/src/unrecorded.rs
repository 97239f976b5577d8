//! Counts finished requests whose usage row cannot be written for now. Each is retried until it succeeds, and keeps its text in
//! memory meanwhile. Beyond a bound (`MAX_UNRECORDED_REQUESTS`) no request is admitted, because new usage could not be billed
//! either.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Default)]
pub(crate) struct UnrecordedCounter(Arc<AtomicUsize>);

impl UnrecordedCounter {
    /// Counts until it is dropped.
    pub(crate) fn count_one(&self) -> CountGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        CountGuard(self.clone())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

pub(crate) struct CountGuard(UnrecordedCounter);

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
