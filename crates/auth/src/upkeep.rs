//! Removes what is over, a little at a time: sessions, proofs and counts of attempts; and looks after what clients hold.

use crate::limits::{SESSION_TIMES, TIDYING_BATCH, TIDYING_PAUSE};
use crate::{Provider, protocol_upkeep};
use chancery_store::ProviderError;
use std::sync::Arc;

/// Runs until it is dropped. Nothing depends on it but room: whatever is over counts no more, removed or not.
pub async fn keep_tidy(provider: Arc<Provider>) {
    loop {
        tokio::time::sleep(TIDYING_PAUSE).await;
        if let Err(error) = tidy(&provider).await {
            tracing::warn!(%error, "what is over could not be removed; the next round tries again");
        }
        if let Err(error) = provider.mailer.forget_old_letters().await {
            tracing::warn!(%error, "the next round tries again");
        }
    }
}

async fn tidy(provider: &Provider) -> Result<(), ProviderError> {
    let (store, now) = (&provider.store, provider.clock.now());
    while store.provider_sessions.forget_ended_provider_sessions(SESSION_TIMES, now, TIDYING_BATCH).await?
        >= u64::from(TIDYING_BATCH)
    {}
    while store.proofs.forget_old_proofs(now, TIDYING_BATCH).await? >= u64::from(TIDYING_BATCH) {}
    while store.throttles.delete_expired_throttles(now, TIDYING_BATCH).await? >= u64::from(TIDYING_BATCH) {}
    protocol_upkeep(provider).await
}
