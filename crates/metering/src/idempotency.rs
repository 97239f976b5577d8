//! Sending a request again without running it again. A caller who gives a request a key of its own choice gets one run
//! and one bill for it, however often and wherever it is sent, for a day.
//!
//! 1. **Look.** Before anything else: where the key's request has ended, its stored reply is the answer. Such a replay
//!    takes nothing of any limit, runs nothing and bills nothing. Where the request is still under way, or was another
//!    one, the answer says so.
//! 2. **Claim.** Once everything else is reserved, the key is claimed in the store, where of many who race one wins. Who
//!    loses gives back what it reserved and gets the same answers as in (1).
//! 3. **Settle or free.** The reply is kept in the transaction that adds the ledger's row, and only if the key is still
//!    this request's own. So there is one row for a key at most. A request that bills nothing frees its key, and the
//!    next one under it runs. What a caller who hung up has paid for is kept, as far as it came.
//!
//! What a dead process had claimed is free to be claimed again, as with spending caps (`spending`). A process that was
//! only cut off claims its key anew when it settles; if somebody else has it by then, its own work is not billed.

use crate::limits::{
    FIRST_SETTLE_PAUSE, LAST_SETTLE_PAUSE, LOST_CLAIM_MEMORY, REPLY_MEMORY, RESERVATION_MEMORY,
};
use crate::{Call, Meter, MeterError, Reply};
use chancery_domain::{Clock, Fingerprint, IdempotencyKey, UnixMillis, UsageRow};
use chancery_store::{Claim, Claimed, FinishedReply, KeptReply, KeyHolder, Store, StoreError};
use std::sync::Arc;
use std::time::Duration;

/// The caller's own name for a request, and what the request was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    pub key: IdempotencyKey,
    pub fingerprint: Fingerprint,
}

pub(crate) struct Replies {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
}

/// What became of a claim.
pub(crate) enum Outcome {
    Ours(Claim),
    Replay(Reply),
    /// It may be there though its answer is not, or come to be there yet.
    Unsure(Claim, StoreError),
}

impl Replies {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock }
    }

    /// The stored reply, where the request was run before.
    pub(crate) async fn reply_to(&self, call: &Call) -> Result<Option<Reply>, MeterError> {
        let Some(Idempotency { key, fingerprint }) = &call.idempotency else { return Ok(None) };
        let holder = self.store.key_holder(call.caller.account, key, self.clock.now()).await?;
        holder.map(|holder| replay(holder, *fingerprint)).transpose()
    }

    /// None where the caller gave no key.
    pub(crate) async fn claim(&self, call: &Call) -> Result<Option<Outcome>, MeterError> {
        let Some(Idempotency { key, fingerprint }) = &call.idempotency else { return Ok(None) };
        let now = self.clock.now();
        let claim = Claim {
            account: call.caller.account,
            key: key.clone(),
            fingerprint: *fingerprint,
            request_id: call.request_id.clone(),
            now,
            expires_at: later(now, RESERVATION_MEMORY),
        };
        match self.store.claim_key(&claim).await {
            Ok(Claimed::Yes) => Ok(Some(Outcome::Ours(claim))),
            Ok(Claimed::HeldBy(holder)) => Ok(Some(Outcome::Replay(replay(holder, *fingerprint)?))),
            Err(error) => Ok(Some(Outcome::Unsure(claim, error))),
        }
    }

    /// Claims again what others took from a process that they thought dead, if it is still free.
    pub(crate) async fn claim_anew(&self, claim: &Claim) -> Result<(), MeterError> {
        let now = self.clock.now();
        let claim = Claim { now, expires_at: later(now, RESERVATION_MEMORY), ..claim.clone() };
        match self.store.claim_key(&claim).await? {
            Claimed::Yes => Ok(()),
            Claimed::HeldBy(_) => Err(MeterError::IdempotencyInFlight),
        }
    }

    /// What is to be kept of a reply, for a day from now.
    pub(crate) fn kept(&self, claim: &Claim, reply: &Reply) -> KeptReply {
        KeptReply {
            key: claim.key.clone(),
            output_text: reply.output_text.clone(),
            cached_tokens: reply.cached_tokens,
            expires_at: later(self.clock.now(), REPLY_MEMORY),
        }
    }

    /// Whether the key is free now as far as this request goes.
    async fn try_to_free(&self, claim: &Claim) -> bool {
        match self.store.free_key(claim).await {
            Ok(()) => true,
            Err(error) => {
                let request_id = &claim.request_id;
                tracing::warn!(%request_id, %error, "an idempotency key is not free yet; it is tried again");
                false
            }
        }
    }
}

impl Meter {
    /// For a request that came to nothing. Where the store cannot be reached, it is tried for as long as the key would
    /// be taken, beside the request, whose caller does not wait for it.
    pub(crate) async fn free(self: &Arc<Self>, claim: Claim) {
        if !self.replies.try_to_free(&claim).await {
            self.keep_freeing(claim, Duration::ZERO);
        }
    }

    /// For a claim whose answer was lost. The statement may still take effect, also after the key was freed, so it is
    /// freed again until that can no longer be.
    pub(crate) async fn free_unsure(self: &Arc<Self>, claim: Claim) {
        self.replies.try_to_free(&claim).await;
        self.keep_freeing(claim, LOST_CLAIM_MEMORY);
    }

    /// Until it has been done at least so long from now.
    fn keep_freeing(self: &Arc<Self>, claim: Claim, for_at_least: Duration) {
        let meter = Arc::clone(self);
        let started_at = self.clock.monotonic();
        tokio::spawn(async move {
            let mut pause = FIRST_SETTLE_PAUSE;
            while meter.clock.now() < claim.expires_at {
                tokio::select! {
                    () = tokio::time::sleep(pause) => pause = (pause * 2).min(LAST_SETTLE_PAUSE),
                    // A process that ends frees everything at once.
                    () = meter.until_draining() => return,
                }
                let tried_at = meter.clock.monotonic();
                if meter.replies.try_to_free(&claim).await
                    && tried_at.saturating_duration_since(started_at) >= for_at_least
                {
                    return;
                }
            }
        });
    }
}

fn later(now: UnixMillis, by: Duration) -> UnixMillis {
    UnixMillis(now.0 + by.as_millis() as i64)
}

/// The answer where a key is taken.
fn replay(holder: KeyHolder, fingerprint: Fingerprint) -> Result<Reply, MeterError> {
    if holder.fingerprint != fingerprint {
        return Err(MeterError::IdempotencyMismatch);
    }
    let FinishedReply { row, output_text, cached_tokens } =
        holder.reply.ok_or(MeterError::IdempotencyInFlight)?;
    let UsageRow { request_id, at, ended, input_tokens, output_tokens, model, .. } = row;
    metrics::counter!("chancery_replayed_replies_total", "model" => model).increment(1);
    Ok(Reply {
        id: request_id,
        at,
        output_text,
        ended,
        input_tokens,
        output_tokens,
        cached_tokens,
        is_replay: true,
        standing: None,
    })
}
