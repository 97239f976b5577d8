//! Deletes expired sessions, proofs, ceremonies, known devices and throttle counts in small batches, and runs the protocol's
//! maintenance.

use crate::limits::{MAINTENANCE_BATCH_ROWS, MAINTENANCE_INTERVAL, SESSION_TIMES};
use crate::{Provider, run_protocol_maintenance};
use chancery_store::ProviderError;
use std::sync::Arc;

/// Runs until dropped. It only frees space: expired rows have no effect even before they are deleted.
pub async fn run_maintenance(provider: Arc<Provider>) {
    loop {
        tokio::time::sleep(MAINTENANCE_INTERVAL).await;
        if let Err(error) = run_maintenance_once(&provider).await {
            tracing::warn!(%error, "deleting expired rows failed, retrying");
        }
        if let Err(error) = provider.mailer.delete_expired_emails().await {
            tracing::warn!(%error, "deleting expired emails failed, retrying");
        }
    }
}

async fn run_maintenance_once(provider: &Provider) -> Result<(), ProviderError> {
    let (store, now) = (&provider.store, provider.clock.now());
    while store
        .provider_sessions
        .delete_expired_provider_sessions(SESSION_TIMES, now, MAINTENANCE_BATCH_ROWS)
        .await?
        >= u64::from(MAINTENANCE_BATCH_ROWS)
    {}
    while store.proofs.delete_expired_proofs(now, MAINTENANCE_BATCH_ROWS).await?
        >= u64::from(MAINTENANCE_BATCH_ROWS)
    {}
    while store.known_devices.delete_expired_devices(now, MAINTENANCE_BATCH_ROWS).await?
        >= u64::from(MAINTENANCE_BATCH_ROWS)
    {}
    while store.ceremonies.delete_expired_ceremonies(now, MAINTENANCE_BATCH_ROWS).await?
        >= u64::from(MAINTENANCE_BATCH_ROWS)
    {}
    while store.ceremonies.delete_expired_second_factors(now, MAINTENANCE_BATCH_ROWS).await?
        >= u64::from(MAINTENANCE_BATCH_ROWS)
    {}
    while store.throttles.delete_expired_throttles(now, MAINTENANCE_BATCH_ROWS).await?
        >= u64::from(MAINTENANCE_BATCH_ROWS)
    {}
    run_protocol_maintenance(provider).await
}
