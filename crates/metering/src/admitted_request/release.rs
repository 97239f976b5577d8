//! Step 6 of the protocol: gives back what was reserved. Each release is safe to repeat, and leaves alone what has been
//! settled.

use super::open_request::{OpenRequest, StoreReservations, Work};
use crate::Meter;
use crate::lease::expiry;
use crate::limits::{FIRST_SETTLE_PAUSE, LAST_SETTLE_PAUSE, LOST_ANSWER_MEMORY, RESERVATION_MEMORY};
use chancery_store::DbError;
use std::sync::Arc;
use std::time::Duration;

impl StoreReservations {
    /// Whether all of it is free now as far as this request goes.
    async fn release(&self, meter: &Meter) -> bool {
        let released = async {
            if self.is_spending_reserved {
                meter.store.spending.release_spending(&self.request_id).await?;
            }
            match &self.claim {
                Some(claim) => meter.store.idempotency.free_key(claim).await,
                None => Ok(()),
            }
        };
        let released: Result<(), DbError> = released.await;
        if let Err(error) = &released {
            let request_id = &self.request_id;
            tracing::warn!(%request_id, %error, "releasing what a request had reserved failed, retrying");
        }
        released.is_ok()
    }

    /// Tries again beside the request, for as long as the reservations would last, and at least for so long.
    async fn keep_releasing(self, meter: Arc<Meter>, for_at_least: Duration) {
        let (started_at, expires_at) =
            (meter.clock.monotonic(), expiry(meter.clock.now(), RESERVATION_MEMORY));
        let mut pause = FIRST_SETTLE_PAUSE;
        while meter.clock.now() < expires_at {
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LAST_SETTLE_PAUSE),
                // A process that ends frees everything at once, with its lease.
                () = meter.until_draining() => return,
            }
            let tried_at = meter.clock.monotonic();
            if self.release(&meter).await && tried_at.saturating_duration_since(started_at) >= for_at_least {
                return;
            }
        }
    }
}

impl OpenRequest {
    /// Waits for one attempt; what that does not release is released beside the request. A statement whose answer was
    /// lost may take effect after it was released, so that is released again until it no longer can.
    pub(super) async fn release(&mut self) {
        // Ends the work, where it still runs.
        self.work = Work::None;
        let ((), _) = tokio::join!(self.release_in_store(), self.close_rate_limit());
    }

    async fn release_in_store(&self) {
        if self.in_store.is_empty() {
            return;
        }
        let is_released = self.in_store.release(&self.meter).await;
        if !is_released || self.is_answer_lost {
            let for_at_least = if self.is_answer_lost { LOST_ANSWER_MEMORY } else { Duration::ZERO };
            let (reservations, meter) = (self.in_store.clone(), Arc::clone(&self.meter));
            tokio::spawn(reservations.keep_releasing(meter, for_at_least));
        }
    }
}
