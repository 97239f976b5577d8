//! Idempotent retries. A request with an idempotency key runs once and is billed once, however often and to whichever node it
//! is sent, for a day. The reply is stored in the transaction that adds the ledger row, and only while this request holds the
//! key, so a key has at most one row. The partial reply of a caller who disconnected is billed, so it is stored too. The
//! protocol (`admitted_request`) claims and frees keys.

use crate::lease::expiry;
use crate::limits::{KEY_CLAIM_TTL, STORED_REPLY_TTL};
use crate::logprobs;
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

    /// What is stored under the request's key, if there is anything. `replay` makes the outcome of it.
    pub(crate) async fn find_record(
        &self,
        call: &Call,
    ) -> Result<Option<(IdempotencyRecord, Fingerprint)>, MeterError> {
        let Some(Idempotency { key, fingerprint }) = &call.idempotency else { return Ok(None) };
        let record =
            self.store.idempotency.idempotency_record(call.caller.account, key, self.clock.now()).await?;
        Ok(record.map(|record| (record, *fingerprint)))
    }

    /// Claims the key again after other processes took this one for dead, if it is still free. Otherwise this request's work is
    /// not billed.
    pub(crate) async fn reclaim(&self, claim: &KeyClaim) -> Result<(), MeterError> {
        let now = self.clock.now();
        let claim = KeyClaim { now, expires_at: expiry(now, KEY_CLAIM_TTL), ..claim.clone() };
        match self.store.idempotency.claim_key(&claim).await? {
            ClaimOutcome::Claimed => Ok(()),
            ClaimOutcome::AlreadyClaimed(_) => Err(MeterError::IdempotencyInFlight),
        }
    }

    /// The part of a reply that is stored, for a day from now.
    pub(crate) fn stored_reply(&self, claim: &KeyClaim, reply: &Reply) -> StoredReply {
        StoredReply {
            key: claim.key.clone(),
            reasoning_text: reply.reasoning_text.clone(),
            output_text: reply.output_text.clone(),
            logprobs: reply.logprobs.as_deref().map(logprobs::encode),
            reasoning_tokens: reply.reasoning_tokens,
            expires_at: expiry(self.clock.now(), STORED_REPLY_TTL),
        }
    }
}

/// The outcome of a request whose key is already claimed.
pub(crate) fn replay(holder: IdempotencyRecord, fingerprint: Fingerprint) -> Result<Reply, MeterError> {
    if holder.fingerprint != fingerprint {
        return Err(MeterError::IdempotencyMismatch);
    }
    let FinishedReply { row, reasoning_text, output_text, logprobs, reasoning_tokens } =
        holder.reply.ok_or(MeterError::IdempotencyInFlight)?;
    // Tokens and stop reason come from the row, so a replay cannot differ from what was billed.
    let UsageRow {
        request_id,
        account,
        key,
        at,
        stop_reason,
        input_tokens,
        cached_input_tokens,
        output_tokens,
        prices,
        model,
        cost: _,
    } = row;
    metrics::counter!("chancery_replayed_replies_total", "model" => model).increment(1);
    Ok(Reply {
        id: request_id,
        at,
        reasoning_text,
        output_text,
        logprobs: logprobs.as_deref().map(logprobs::decode).transpose()?,
        stop_reason,
        input_tokens,
        output_tokens,
        reasoning_tokens,
        cached_tokens: cached_input_tokens,
        account,
        key,
        prices,
        is_replay: true,
        rate_limit_status: None,
    })
}
