//! Step 5 of the protocol: bills what was generated, once.

use super::open_request::{Delivery, GenerationState, OpenRequest};
use super::settle_errors::{is_month_invoiced, is_permanent, unbilled_reason};
use crate::catch_panic::catch_panic;
use crate::journal::JournalEntry;
use crate::limits::{
    ABANDONED_JOURNAL_DELAY, INITIAL_SETTLE_BACKOFF, JOURNAL_DELAY, MAX_SETTLE_BACKOFF, REPLY_SETTLE_TIMEOUT,
    STREAM_SETTLE_TIMEOUT,
};
use crate::running::ResponseSender;
use crate::spending::Charge;
use crate::{Meter, MeterError, Reply};
use chancery_domain::{BilledTokens, RateLimitStatus, UsageRow};
use chancery_store::{DbError, KeyClaim, LedgerError, Settlement};
use std::pin::Pin;
use std::time::Duration;
use tokio::time::Sleep;

impl OpenRequest {
    /// Without a waiting caller, retries until the row is written or never can be.
    pub(super) async fn settle(&mut self, caller: Option<&ResponseSender>) -> Result<Reply, MeterError> {
        self.finished_reply()?;
        let (recorded, status) = tokio::join!(self.record_with_retries(caller), self.settle_rate_limit());
        self.rate_limit = None;
        recorded?;
        match std::mem::take(&mut self.work) {
            GenerationState::Finished(reply) => Ok(Reply { rate_limit_status: status, ..reply }),
            _ => Err(nothing_to_settle()),
        }
    }

    /// Retries a failed write for a while before the caller gets the error, longer if text was already streamed. A caller who
    /// gets an error sends the request again, and the row may exist although its response was lost. A caller who has
    /// disconnected cannot be told and did use the tokens, so those retries have no time limit.
    ///
    /// What may be journaled goes to the journal soon, and is then recorded. The retries above are for a journal that cannot be
    /// written either.
    async fn record_with_retries(&self, caller: Option<&ResponseSender>) -> Result<(), MeterError> {
        let timeout = tokio::time::sleep(match caller {
            None => Duration::MAX,
            Some(caller) if caller.is_streaming() => STREAM_SETTLE_TIMEOUT,
            Some(_) => REPLY_SETTLE_TIMEOUT,
        });
        let journal_delay = tokio::time::sleep(JOURNAL_DELAY);
        tokio::pin!(timeout, journal_delay);
        let (mut backoff, mut unrecorded) = (INITIAL_SETTLE_BACKOFF, None);
        loop {
            let (outcome, is_journal_due) = tokio::select! {
                biased;
                outcome = catch_panic(self.try_record()) => (outcome, journal_delay.is_elapsed()),
                // The row may still be written, which does no harm: replaying it then changes nothing.
                () = self.until_journal_is_due(caller, journal_delay.as_mut()) => (Err(too_slow()), true),
            };
            let Err(error) = outcome else {
                self.record_token_metrics();
                return Ok(());
            };
            self.meter.record_failed_settlement(&error);
            let has_disconnected = caller.is_some_and(|caller| caller.disconnected.is_cancelled());
            let (is_permanent, is_abandoned) = (is_permanent(&error), self.meter.abandoned.is_cancelled());
            if !is_permanent && (is_journal_due || is_abandoned) && self.may_journal(caller) {
                if Box::pin(self.write_to_journal(&error)).await {
                    self.record_token_metrics();
                    return Ok(());
                }
                journal_delay.set(tokio::time::sleep(JOURNAL_DELAY));
            }
            let is_over = is_permanent || is_abandoned;
            if is_over
                && (has_disconnected || self.delivery == Delivery::TextDelivered || is_month_invoiced(&error))
            {
                self.log_unbilled_usage(&error);
                if is_permanent {
                    Box::pin(self.move_aside()).await;
                }
            }
            if is_over || (timeout.is_elapsed() && !has_disconnected) {
                return Err(error);
            }
            let request_id = &self.call.request_id;
            tracing::warn!(%request_id, %error, "recording usage failed, retrying");
            unrecorded.get_or_insert_with(|| self.meter.unrecorded.count_one());
            tokio::select! {
                () = tokio::time::sleep(backoff) => backoff = (backoff * 2).min(MAX_SETTLE_BACKOFF),
                () = &mut timeout, if !timeout.is_elapsed() => {}
                () = self.meter.abandoned.cancelled() => {}
            }
        }
    }

    /// Whether the usage has to be billed although the database does not answer: the caller may have read text, or has
    /// disconnected. A whole reply is held back instead, and the caller gets an error.
    fn may_journal(&self, caller: Option<&ResponseSender>) -> bool {
        self.meter.journal.is_some()
            && (self.delivery == Delivery::TextDelivered
                || caller.is_none_or(|caller| caller.is_streaming() || caller.disconnected.is_cancelled()))
    }

    /// Never, if the usage may not be journaled.
    async fn until_journal_is_due(&self, caller: Option<&ResponseSender>, delay: Pin<&mut Sleep>) {
        if let Some(caller) = caller
            && !self.may_journal(Some(caller))
        {
            caller.disconnected.cancelled().await;
        }
        if !self.may_journal(caller) {
            return std::future::pending().await;
        }
        let abandoned = async {
            self.meter.abandoned.cancelled().await;
            tokio::time::sleep(ABANDONED_JOURNAL_DELAY).await;
        };
        tokio::select! {
            () = delay => {}
            () = abandoned => {}
        }
    }

    /// Returns whether the settlement is durable in the journal.
    async fn write_to_journal(&self, reason: &MeterError) -> bool {
        let Some(journal) = &self.meter.journal else { return false };
        let appended = catch_panic(async {
            let appended = journal.append(self.journal_entry()?).await;
            appended.map_err(|error| MeterError::Internal(error.to_string()))
        });
        let request_id = &self.call.request_id;
        match appended.await {
            Ok(()) => {
                tracing::warn!(%request_id, error = %reason, "recording usage failed, written to the usage journal");
                true
            }
            Err(error) => {
                tracing::error!(%request_id, %error, "writing to the usage journal failed");
                false
            }
        }
    }

    /// Keeps usage that the ledger can never take in the file of rejected entries, for people to decide.
    async fn move_aside(&self) {
        let Some(journal) = &self.meter.journal else { return };
        let rejected = catch_panic(async {
            let rejected = journal.reject(self.journal_entry()?).await;
            rejected.map_err(|error| MeterError::Internal(error.to_string()))
        });
        if let Err(error) = rejected.await {
            let request_id = &self.call.request_id;
            tracing::error!(%request_id, %error, "writing to the file of rejected usage failed");
        }
    }

    fn journal_entry(&self) -> Result<JournalEntry, MeterError> {
        let fingerprint = self.store_reservations.claim.as_ref().map(|claim| claim.fingerprint);
        Ok(JournalEntry { settlement: self.settlement()?, fingerprint })
    }

    async fn try_record(&self) -> Result<(), MeterError> {
        let if_over_cap = match self.delivery {
            Delivery::NothingDelivered => IfOverCap::Reject,
            Delivery::TextDelivered => IfOverCap::Bill,
        };
        self.meter.record(self.settlement()?, self.store_reservations.claim.as_ref(), if_over_cap).await
    }

    fn settlement(&self) -> Result<Settlement, MeterError> {
        let (call, prices, reply) = (&self.call, self.prepared.model.prices, self.finished_reply()?);
        let billed = BilledTokens::new(reply.input_tokens, reply.cached_tokens, reply.output_tokens)
            .map_err(|error| MeterError::Internal(error.to_string()))?;
        let row = UsageRow {
            cost: prices.cost(billed)?,
            request_id: call.request_id.clone(),
            account: call.caller.account,
            key: call.caller.key,
            model: self.prepared.model.name.clone(),
            input_tokens: reply.input_tokens,
            cached_input_tokens: reply.cached_tokens,
            output_tokens: reply.output_tokens,
            prices,
            at: self.prepared.at,
            stop_reason: reply.stop_reason,
        };
        let stored_reply =
            self.store_reservations.claim.as_ref().map(|claim| self.meter.replays.stored_reply(claim, reply));
        Ok(Settlement { row, is_reserved: self.store_reservations.is_spending_reserved, stored_reply })
    }

    fn finished_reply(&self) -> Result<&Reply, MeterError> {
        match &self.work {
            GenerationState::Finished(reply) => Ok(reply),
            _ => Err(nothing_to_settle()),
        }
    }

    fn record_token_metrics(&self) {
        let GenerationState::Finished(reply) = &self.work else { return };
        self.prepared.model.record_tokens(reply.input_tokens, reply.output_tokens);
    }

    fn log_unbilled_usage(&self, error: &MeterError) {
        let GenerationState::Finished(Reply { input_tokens, output_tokens, .. }) = &self.work else { return };
        let (request_id, account) = (&self.call.request_id, self.call.caller.account);
        let what = unbilled_reason(error);
        tracing::error!(%request_id, %account, input_tokens, output_tokens, %error, "{what}");
    }

    /// Corrects the rate limit to the actual usage, or releases the request. Idempotent. Returns `None` if the limit store is
    /// unavailable: the full reservation then counts until it leaves the window, and the reply is sent anyway.
    pub(super) async fn settle_rate_limit(&self) -> Option<RateLimitStatus> {
        let (limiter, reservation) = (&self.meter.limiter, self.rate_limit.as_ref()?);
        let closed = catch_panic(async {
            Ok(match self.counted_tokens {
                Some(tokens) => limiter.settle(reservation, tokens).await?,
                None => limiter.release(reservation).await?,
            })
        });
        let failed = |error: &MeterError| {
            let request_id = &reservation.request_id;
            tracing::warn!(%request_id, %error, "rate-limit settlement failed, the full reservation counts for one minute");
        };
        closed.await.inspect_err(failed).ok()
    }
}

/// What to do if other processes reclaimed a spending reservation, and the account's cap has no room for the cost any more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfOverCap {
    Reject,
    /// For text that was delivered.
    Bill,
}

impl Meter {
    /// Settles a request. Reserves again what other processes reclaimed because they took this one for dead, if it is still
    /// free.
    pub(crate) async fn record(
        &self,
        mut settlement: Settlement,
        claim: Option<&KeyClaim>,
        if_over_cap: IfOverCap,
    ) -> Result<(), MeterError> {
        // Without either there is nothing to reserve again, and no copy to keep for it.
        if !settlement.is_reserved && settlement.stored_reply.is_none() {
            return Ok(self.store.ledger.settle(settlement).await?);
        }
        let mut outcome = self.store.ledger.settle(settlement.clone()).await;
        if let Err(LedgerError::ReservationLost(request_id)) = &outcome {
            tracing::warn!(%request_id, "spending reservation lost to lease expiry, reserving the actual cost again");
            let UsageRow { account, key, cost, at, .. } = settlement.row;
            let charge = Charge { request_id, account, key, amount: cost, at };
            settlement.is_reserved = match self.spending.reserve(charge).await {
                Err(MeterError::SpendingCapReached(_)) if if_over_cap == IfOverCap::Bill => {
                    tracing::warn!(%request_id, %account, "spending cap used up meanwhile, billing delivered text past it");
                    false
                }
                reserved => reserved?,
            };
            outcome = self.store.ledger.settle(settlement.clone()).await;
        }
        if let (Err(LedgerError::ClaimLost(request_id)), Some(claim)) = (&outcome, claim) {
            tracing::warn!(%request_id, "idempotency claim lost to lease expiry, claiming again");
            self.replays.reclaim(claim).await?;
            outcome = self.store.ledger.settle(settlement).await;
        }
        Ok(outcome?)
    }
}

fn too_slow() -> MeterError {
    DbError::Unavailable("the row was not written in time".to_owned()).into()
}

fn nothing_to_settle() -> MeterError {
    MeterError::Internal("nothing to settle".to_owned())
}
