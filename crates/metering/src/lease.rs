//! While a request has something reserved in the store, others must be able to tell that its process lives: what a dead
//! process had reserved is free for them. A process that was only thought dead finds it gone when it settles, and takes
//! it again if it is still there to be taken.

use crate::Meter;
use crate::panics::panic_as_error;
use chancery_domain::UnixMillis;
use chancery_store::LEASE;
use std::future::Future;
use std::time::Duration;

/// Pause between two renewals. Whoever reserves something has renewed the lease as late as this before.
pub(crate) const RENEWAL_PAUSE: Duration = Duration::from_secs(LEASE.as_secs() / 3);

/// Does the work and renews this process's lease meanwhile, for the first time after the given pause; never where there
/// is none.
pub(crate) async fn with_lease_renewal<T>(
    meter: &Meter,
    first_pause: Option<Duration>,
    work: impl Future<Output = T>,
) -> T {
    let renewal = async {
        tokio::time::sleep(first_pause.unwrap_or_default()).await;
        loop {
            let renewed =
                panic_as_error(async { Ok(meter.store.leases.renew_lease(meter.clock.now()).await?) });
            if let Err(error) = renewed.await {
                tracing::warn!(%error, "others may take this process for dead");
            }
            tokio::time::sleep(RENEWAL_PAUSE).await;
        }
    };
    tokio::select! {
        outcome = work => outcome,
        never = renewal, if first_pause.is_some() => never,
    }
}

/// When something ends that lasts this long from now.
pub(crate) fn expiry(now: UnixMillis, after: Duration) -> UnixMillis {
    UnixMillis(now.0 + after.as_millis() as i64)
}
