//! Sending a request again without running it again: a caller who gives a request a key of its own choice gets one run
//! and one bill for it, however often and wherever it is sent, for a day. The reply is stored in the transaction that
//! adds the ledger's row, and only while the key is this request's own, so a key has one row at most. What a caller who
//! hung up has paid for is stored too, as far as it came. Claiming and freeing a key is the protocol's (`admitted_request`).

use crate::lease::expiry;
use crate::limits::{REPLY_MEMORY, RESERVATION_MEMORY};
use crate::{Call, Idempotency, MeterError, Reply};
use chancery_domain::{Clock, Fingerprint, UsageRow};
use chancery_store::{Claim, Claimed, FinishedReply, KeptReply, KeyHolder, MeteringStore};
use std::sync::Arc;

pub(crate) struct Replays {
    store: Arc<MeteringStore>,
    clock: Arc<dyn Clock>,
}

impl Replays {
    pub(crate) fn new(store: Arc<MeteringStore>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock }
    }

    /// The stored reply, where the request was run before. It takes nothing of any limit and bills nothing.
    pub(crate) async fn reply_to(&self, call: &Call) -> Result<Option<Reply>, MeterError> {
        let Some(Idempotency { key, fingerprint }) = &call.idempotency else { return Ok(None) };
        let holder = self.store.idempotency.key_holder(call.caller.account, key, self.clock.now()).await?;
        holder.map(|holder| replay(holder, *fingerprint)).transpose()
    }

    /// Claims again what others took from a process that they thought dead, if it is still free. Otherwise this
    /// request's work is not billed.
    pub(crate) async fn claim_again(&self, claim: &Claim) -> Result<(), MeterError> {
        let now = self.clock.now();
        let claim = Claim { now, expires_at: expiry(now, RESERVATION_MEMORY), ..claim.clone() };
        match self.store.idempotency.claim_key(&claim).await? {
            Claimed::Yes => Ok(()),
            Claimed::HeldBy(_) => Err(MeterError::IdempotencyInFlight),
        }
    }

    /// What is to be stored of a reply, for a day from now.
    pub(crate) fn kept(&self, claim: &Claim, reply: &Reply) -> KeptReply {
        KeptReply {
            key: claim.key.clone(),
            output_text: reply.output_text.clone(),
            cached_tokens: reply.cached_tokens,
            expires_at: expiry(self.clock.now(), REPLY_MEMORY),
        }
    }
}

/// The answer where a key is taken.
pub(crate) fn replay(holder: KeyHolder, fingerprint: Fingerprint) -> Result<Reply, MeterError> {
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
        rate_limit_status: None,
    })
}
