//! Renews the process's lease while a request has reservations in the store. Other processes may take over the reservations of
//! a process whose lease expired. A process that was only slow finds them gone when it settles, and reserves again if it can.

use crate::Meter;
use crate::catch_panic::catch_panic;
use chancery_domain::UnixMillis;
use chancery_store::LEASE_DURATION;
use std::future::Future;
use std::time::Duration;

/// Pause between two renewals. When something is reserved, the last renewal is at most this long ago.
pub(crate) const LEASE_RENEWAL_INTERVAL: Duration = Duration::from_secs(LEASE_DURATION.as_secs() / 3);

/// Runs the work while renewing this process's lease, first after `first_renewal`. `None` never renews it.
pub(crate) async fn with_lease_renewal<T>(
    meter: &Meter,
    first_renewal: Option<Duration>,
    work: impl Future<Output = T>,
) -> T {
    let Some(first_renewal) = first_renewal else { return work.await };
    // Most requests never need it, and all of them would carry its size.
    let renewal = Box::pin(async {
        tokio::time::sleep(first_renewal).await;
        loop {
            let renewed = catch_panic(async { Ok(meter.store.leases.renew_lease(meter.clock.now()).await?) });
            if let Err(error) = renewed.await {
                tracing::warn!(%error, "lease renewal failed, other nodes may reclaim this process's reservations");
            }
            tokio::time::sleep(LEASE_RENEWAL_INTERVAL).await;
        }
    });
    tokio::select! {
        outcome = work => outcome,
        never = renewal => never,
    }
}

pub(crate) fn expiry(now: UnixMillis, after: Duration) -> UnixMillis {
    UnixMillis(now.0 + after.as_millis() as i64)
}
