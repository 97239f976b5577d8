//! Periodic maintenance: creates ledger partitions for coming months, and deletes in small batches the reservations of dead
//! processes and expired replies. It also flushes the daily statistics (`activity`).

use crate::Meter;
use crate::limits::{ACTIVITY_FLUSH_INTERVAL, MAINTENANCE_BATCH, MAINTENANCE_INTERVAL};
use chancery_store::DbError;

impl Meter {
    /// Runs until the process drains.
    pub async fn run_maintenance(&self) {
        loop {
            if let Err(error) = self.maintain_once().await {
                tracing::warn!(%error, "database maintenance failed, retrying");
            }
            tokio::select! {
                () = tokio::time::sleep(MAINTENANCE_INTERVAL) => {}
                () = self.until_draining() => return,
            }
        }
    }

    /// Creates missing partitions and deletes everything that has expired, in steps short enough not to delay other writers.
    pub async fn maintain_once(&self) -> Result<(), DbError> {
        let (store, now, full) = (self.store.as_ref(), self.clock().now(), u64::from(MAINTENANCE_BATCH));
        let months = store.partitions.create_month_partitions(now).await;
        while store.leases.reap_orphaned_reservations(now, MAINTENANCE_BATCH).await? == full {}
        while store.idempotency.delete_expired_keys(now, MAINTENANCE_BATCH).await? == full {}
        months
    }

    /// Runs until the process drains. The last flush, at shutdown, is a call to `record_activity`.
    pub async fn run_activity_flush(&self) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(ACTIVITY_FLUSH_INTERVAL) => {}
                () = self.activity.until_urgent() => {}
                () = self.until_draining() => return,
            }
            if let Err(error) = self.record_activity().await {
                tracing::warn!(%error, "activity flush failed, retrying");
            }
        }
    }

    /// Writes what was counted since the last flush to the store.
    pub async fn record_activity(&self) -> Result<(), DbError> {
        self.activity.flush(self.store.as_ref()).await
    }
}
