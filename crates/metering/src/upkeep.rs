//! Makes room, now and then, for the ledger's rows to come, and removes, a little at a time, what nobody needs any more:
//! what dead processes had set aside, and replies that were kept for as long as was promised. Notes now and then what was
//! counted of accounts' days (`activity`).

use crate::Meter;
use crate::limits::{NOTE_PAUSE, UPKEEP_BATCH, UPKEEP_PAUSE};
use chancery_store::DbError;

impl Meter {
    /// Goes on until the process stops taking work.
    pub async fn keep_tidy(&self) {
        loop {
            if let Err(error) = self.tidy_up().await {
                tracing::warn!(%error, "the database's upkeep could not be done; it is tried again");
            }
            tokio::select! {
                () = tokio::time::sleep(UPKEEP_PAUSE) => {}
                () = self.until_draining() => return,
            }
        }
    }

    /// Makes what room is missing and removes all there is to remove, in steps short enough to keep nobody waiting.
    pub async fn tidy_up(&self) -> Result<(), DbError> {
        let (store, now, full) = (self.store.as_ref(), self.clock().now(), u64::from(UPKEEP_BATCH));
        let months = store.partitions.make_months_ready(now).await;
        while store.leases.forget_dead(now, UPKEEP_BATCH).await? == full {}
        while store.idempotency.forget_expired_keys(now, UPKEEP_BATCH).await? == full {}
        months
    }

    /// Goes on until the process stops taking work. What comes after that, `note_activity` notes at the end.
    pub async fn keep_noting_activity(&self) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(NOTE_PAUSE) => {}
                () = self.until_draining() => return,
            }
            if let Err(error) = self.note_activity().await {
                tracing::warn!(%error, "refusals and peaks could not be noted; it is tried again");
            }
        }
    }

    /// Gives the store what was counted since the last time.
    pub async fn note_activity(&self) -> Result<(), DbError> {
        self.activity.note(self.store.as_ref()).await
    }
}
