//! Removes, now and then and a little at a time, what nobody needs any more: what dead processes had set aside,
//! and replies that were kept for as long as was promised.

use crate::Meter;
use crate::limits::{UPKEEP_BATCH, UPKEEP_PAUSE};
use chancery_store::StoreError;

impl Meter {
    /// Goes on until the process stops taking work.
    pub async fn keep_tidy(&self) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(UPKEEP_PAUSE) => {}
                () = self.until_draining() => return,
            }
            if let Err(error) = self.tidy_up().await {
                tracing::warn!(%error, "what nobody needs any more could not be removed; it is tried again");
            }
        }
    }

    /// Removes all there is to remove, in steps short enough to keep nobody waiting.
    pub async fn tidy_up(&self) -> Result<(), StoreError> {
        let (store, now, full) = (self.store(), self.clock().now(), u64::from(UPKEEP_BATCH));
        while store.forget_dead(now, UPKEEP_BATCH).await? == full {}
        while store.forget_expired_keys(now, UPKEEP_BATCH).await? == full {}
        Ok(())
    }
}
