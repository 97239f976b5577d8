//! How many pages of records are read at once.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bounds how many pages are read at once. Reading a page keeps a core busy, and half of the cores stay free for other
/// work: settling must not wait for exports.
#[derive(Clone)]
pub(crate) struct PageSlots(Arc<Semaphore>);

impl Default for PageSlots {
    fn default() -> Self {
        let slots = std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1));
        Self(Arc::new(Semaphore::new(slots)))
    }
}

impl PageSlots {
    /// Waits in the order of the calls. `None` never happens, because the semaphore is not closed.
    pub(crate) async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).acquire_owned().await.ok()
    }
}
