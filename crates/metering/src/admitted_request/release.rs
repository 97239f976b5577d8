//! Step 6 of the protocol: releases the reservations. Each release is idempotent, and has no effect on what was settled.

use super::open_request::{GenerationState, OpenRequest, StoreReservations};
use crate::Meter;
use crate::limits::{INITIAL_SETTLE_BACKOFF, MAX_SETTLE_BACKOFF, UNKNOWN_OUTCOME_WINDOW};
use chancery_store::DbError;
use std::sync::Arc;
use std::time::Duration;

impl StoreReservations {
    /// Returns whether all reservations of this request are released.
    async fn release(&self, meter: &Meter) -> bool {
        let released = async {
            if self.is_spending_reserved {
                meter.store.spending.release_spending(&self.request_id).await?;
            }
            match &self.claim {
                Some(claim) => meter.store.idempotency.release_key(claim).await,
                None => Ok(()),
            }
        };
        let released: Result<(), DbError> = released.await;
        if let Err(error) = &released {
            let request_id = &self.request_id;
            tracing::warn!(%request_id, %error, "releasing reservations failed, retrying");
        }
        released.is_ok()
    }

    /// Retries in the background until it succeeds or the process drains. Releases repeatedly for at least `min_duration`.
    async fn release_with_retries(self, meter: Arc<Meter>, min_duration: Duration) {
        let (started_at, mut backoff) = (meter.clock.monotonic(), INITIAL_SETTLE_BACKOFF);
        loop {
            tokio::select! {
                () = tokio::time::sleep(backoff) => backoff = (backoff * 2).min(MAX_SETTLE_BACKOFF),
                // A process that ends frees everything at once, with its lease.
                () = meter.until_draining() => return,
            }
            let attempted_at = meter.clock.monotonic();
            if self.release(&meter).await
                && attempted_at.saturating_duration_since(started_at) >= min_duration
            {
                return;
            }
        }
    }
}

impl OpenRequest {
    /// Waits for one attempt and retries in the background. A statement whose response was lost may take effect after the release,
    /// so the release is repeated until that is no longer possible.
    pub(super) async fn release(&mut self) {
        // Cancels the generation if it still runs.
        self.work = GenerationState::None;
        let ((), _) = tokio::join!(self.release_store_reservations(), self.settle_rate_limit());
    }

    async fn release_store_reservations(&self) {
        if self.store_reservations.is_empty() {
            return;
        }
        let is_released = self.store_reservations.release(&self.meter).await;
        if !is_released || self.is_outcome_unknown {
            let min_duration = if self.is_outcome_unknown { UNKNOWN_OUTCOME_WINDOW } else { Duration::ZERO };
            let (reservations, meter) = (self.store_reservations.clone(), Arc::clone(&self.meter));
            tokio::spawn(reservations.release_with_retries(meter, min_duration));
        }
    }
}
