//! What has to be done now and then, whether or not anybody signs in.

use super::limits::FORGET_AT_ONCE;
use super::signing_keys::key_ring;
use crate::Provider;
use chancery_store::ProviderError;

/// Makes the next signing key in time and removes what is of no use any more. To be called every few minutes.
pub async fn protocol_upkeep(provider: &Provider) -> Result<(), ProviderError> {
    let now = provider.clock.now();
    if let Err(error) = key_ring(provider.store.as_ref(), provider.randomness.as_ref(), now).await {
        tracing::error!(%error, "looking after the signing keys");
    }
    provider.store.signing_keys.forget_old_signing_keys(now).await?;
    while provider.store.grants.forget_old_grants(now, FORGET_AT_ONCE).await? >= u64::from(FORGET_AT_ONCE) {}
    Ok(())
}
