//! While a request holds something in the store, others must be able to tell that its process lives.

use chancery_domain::Clock;
use chancery_store::{LEASE, Store};
use std::future::Future;

/// Does the work and says meanwhile, every few seconds, that this process lives.
pub(crate) async fn staying_alive<T>(
    store: &dyn Store,
    clock: &dyn Clock,
    work: impl Future<Output = T>,
) -> T {
    let saying_so = async {
        loop {
            tokio::time::sleep(LEASE / 3).await;
            if let Err(error) = store.renew_lease(clock.now()).await {
                tracing::warn!(%error, "others may take this process for dead");
            }
        }
    };
    tokio::select! {
        outcome = work => outcome,
        never = saying_so => never,
    }
}
