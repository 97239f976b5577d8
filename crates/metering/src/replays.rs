//! Idempotent retries. A request with an idempotency key runs once and is billed once, however often and to whichever node it
//! is sent, for a day. The reply is stored in the transaction that adds the ledger row, and only while this request holds the
//! key, so a key has at most one row. The partial reply of a caller who disconnected is billed, so it is stored too. The
//! protocol (`admitted_request`) claims and frees keys.

use crate::lease::expiry;
use crate::limits::{RESERVATION_TTL, STORED_REPLY_TTL};
use crate::{Call, Idempotency, MeterError, Reply};
use chancery_domain::{Clock, Fingerprint, UsageRow};
use chancery_store::{ClaimOutcome, FinishedReply, IdempotencyRecord, KeyClaim, MeteringStore, StoredReply};
use std::sync::Arc;

pub(crate) struct Replays {
    store: Arc<MeteringStore>,
    clock: Arc<dyn Clock>,
}

impl Replays {
    pub(crate) fn new(store: Arc<MeteringStore>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock }
    }

    /// The stored reply, if the request ran before. A replay counts against no limit and bills nothing.
    pub(crate) async fn find_replay(&self, call: &Call) -> Result<Option<Reply>, MeterError> {
        let Some(Idempotency { key, fingerprint }) = &call.idempotency else { return Ok(None) };
        let holder =
            self.store.idempotency.idempotency_record(call.caller.account, key, self.clock.now()).await?;
        holder.map(|holder| replay(holder, *fingerprint)).transpose()
    }

    /// Claims the key again after other processes took this one for dead, if it is still free. Otherwise this request's work is
    /// not billed.
    pub(crate) async fn reclaim(&self, claim: &KeyClaim) -> Result<(), MeterError> {
        let now = self.clock.now();
        let claim = KeyClaim { now, expires_at: expiry(now, RESERVATION_TTL), ..claim.clone() };
        match self.store.idempotency.claim_key(&claim).await? {
            ClaimOutcome::Claimed => Ok(()),
            ClaimOutcome::AlreadyClaimed(_) => Err(MeterError::IdempotencyInFlight),
        }
    }

    /// The part of a reply that is stored, for a day from now.
    pub(crate) fn stored_reply(&self, claim: &KeyClaim, reply: &Reply) -> StoredReply {
        StoredReply {
            key: claim.key.clone(),
            output_text: reply.output_text.clone(),
            cached_tokens: reply.cached_tokens,
            expires_at: expiry(self.clock.now(), STORED_REPLY_TTL),
        }
    }
}

/// The outcome of a request whose key is already claimed.
pub(crate) fn replay(holder: IdempotencyRecord, fingerprint: Fingerprint) -> Result<Reply, MeterError> {
    if holder.fingerprint != fingerprint {
        return Err(MeterError::IdempotencyMismatch);
    }
    let FinishedReply { row, output_text, cached_tokens } =
        holder.reply.ok_or(MeterError::IdempotencyInFlight)?;
    let UsageRow { request_id, at, stop_reason, input_tokens, output_tokens, model, .. } = row;
    metrics::counter!("chancery_replayed_replies_total", "model" => model).increment(1);
    Ok(Reply {
        id: request_id,
        at,
        output_text,
        stop_reason,
        input_tokens,
        output_tokens,
        cached_tokens,
        is_replay: true,
        rate_limit_status: None,
    })
}
