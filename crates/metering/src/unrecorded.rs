//! How many requests have ended whose row cannot be written for now. Each is tried again until it is, and holds its text
//! meanwhile; so past a bound nothing more is admitted, because what would be generated could not be billed either.

use crate::limits::MAX_UNRECORDED;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Default)]
pub(crate) struct Unrecorded(Arc<AtomicUsize>);

impl Unrecorded {
    /// Counts until it is dropped.
    pub(crate) fn one_more(&self) -> Counted {
        self.0.fetch_add(1, Ordering::Relaxed);
        Counted(self.clone())
    }

    pub(crate) fn are_too_many(&self) -> bool {
        self.count() >= MAX_UNRECORDED
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

pub(crate) struct Counted(Unrecorded);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
