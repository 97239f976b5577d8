//! Step 5 of the protocol: bills what was generated, once.

use super::open_request::{Delivery, GenerationState, OpenRequest};
use super::settle_errors::{is_month_invoiced, is_permanent};
use crate::catch_panic::catch_panic;
use crate::limits::{
    INITIAL_SETTLE_BACKOFF, MAX_SETTLE_BACKOFF, REPLY_SETTLE_TIMEOUT, STREAM_SETTLE_TIMEOUT,
};
use crate::running::ResponseSender;
use crate::spending::Charge;
use crate::{MeterError, Reply};
use chancery_domain::{RateLimitStatus, UsageRow};
use chancery_store::{LedgerError, Settlement};
use std::time::Duration;

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
    async fn record_with_retries(&self, caller: Option<&ResponseSender>) -> Result<(), MeterError> {
        let timeout = tokio::time::sleep(match caller {
            None => Duration::MAX,
            Some(caller) if caller.is_streaming() => STREAM_SETTLE_TIMEOUT,
            Some(_) => REPLY_SETTLE_TIMEOUT,
        });
        tokio::pin!(timeout);
        let (mut backoff, mut unrecorded) = (INITIAL_SETTLE_BACKOFF, None);
        loop {
            let Err(error) = catch_panic(self.try_record()).await else {
                self.record_token_metrics();
                return Ok(());
            };
            let has_disconnected = caller.is_some_and(|caller| caller.disconnected.is_cancelled());
            let is_over = is_permanent(&error) || self.meter.abandoned.is_cancelled();
            if is_over
                && (has_disconnected || self.delivery == Delivery::TextDelivered || is_month_invoiced(&error))
            {
                self.log_unbilled_usage(&error);
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

    /// Reserves again what other processes reclaimed because they took this one for dead, if it is still free.
    async fn try_record(&self) -> Result<(), MeterError> {
        let (meter, mut settlement) = (&self.meter, self.settlement()?);
        let mut outcome = meter.store.ledger.settle(settlement.clone()).await;
        if let Err(LedgerError::ReservationLost(request_id)) = &outcome {
            tracing::warn!(%request_id, "spending reservation lost to lease expiry, reserving the actual cost again");
            let UsageRow { account, cost, at, .. } = settlement.row;
            let charge = Charge { request_id, account, amount: cost, at };
            settlement.is_reserved = meter.spending.reserve(charge).await?;
            outcome = meter.store.ledger.settle(settlement.clone()).await;
        }
        if let (Err(LedgerError::ClaimLost(request_id)), Some(claim)) =
            (&outcome, &self.store_reservations.claim)
        {
            tracing::warn!(%request_id, "idempotency claim lost to lease expiry, claiming again");
            meter.replays.reclaim(claim).await?;
            outcome = meter.store.ledger.settle(settlement).await;
        }
        Ok(outcome?)
    }

    fn settlement(&self) -> Result<Settlement, MeterError> {
        let (call, prices, reply) = (&self.call, self.prepared.model.prices, self.finished_reply()?);
        let row = UsageRow {
            cost: prices.cost(reply.input_tokens, reply.output_tokens)?,
            request_id: call.request_id.clone(),
            account: call.caller.account,
            key: call.caller.key,
            model: self.prepared.model.name.clone(),
            input_tokens: reply.input_tokens,
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
        let model = &self.prepared.model.name;
        metrics::counter!("chancery_input_tokens_total", "model" => model.clone())
            .increment(u64::from(reply.input_tokens));
        metrics::counter!("chancery_output_tokens_total", "model" => model.clone())
            .increment(u64::from(reply.output_tokens));
    }

    fn log_unbilled_usage(&self, error: &MeterError) {
        let GenerationState::Finished(Reply { input_tokens, output_tokens, .. }) = &self.work else { return };
        let (request_id, account) = (&self.call.request_id, self.call.caller.account);
        let what = if is_month_invoiced(error) {
            "usage settled after its month was invoiced, not billed; \
             credit that invoice in full and reissue it to bill later usage"
        } else {
            "usage lost, could not be recorded"
        };
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

fn nothing_to_settle() -> MeterError {
    MeterError::Internal("nothing to settle".to_owned())
}
