//! Periodic maintenance of the protocol, independent of sign-ins.

use super::limits::MAINTENANCE_BATCH_ROWS;
use super::signing_keys::key_ring;
use crate::Provider;
use chancery_store::ProviderError;

/// Creates the next signing key in time and deletes expired keys and grants. Call it every few minutes.
pub async fn run_protocol_maintenance(provider: &Provider) -> Result<(), ProviderError> {
    let now = provider.clock.now();
    if let Err(error) = key_ring(provider.store.as_ref(), provider.randomness.as_ref(), now).await {
        tracing::error!(%error, "signing key rotation failed");
    }
    provider.store.signing_keys.delete_expired_signing_keys(now).await?;
    while provider.store.grants.delete_expired_grants(now, MAINTENANCE_BATCH_ROWS).await?
        >= u64::from(MAINTENANCE_BATCH_ROWS)
    {}
    Ok(())
}
