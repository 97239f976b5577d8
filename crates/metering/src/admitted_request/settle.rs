//! Step 5 of the protocol: bills what was generated, once.

use super::open_request::{Delivery, OpenRequest, Work};
use super::settle_errors::{is_month_invoiced, is_permanent};
use crate::limits::{FIRST_SETTLE_PAUSE, LAST_SETTLE_PAUSE, REPLY_SETTLE_PATIENCE, STREAM_SETTLE_PATIENCE};
use crate::panics::panic_as_error;
use crate::running::Reporter;
use crate::spending::Expense;
use crate::{MeterError, Reply};
use chancery_domain::{RateLimitStatus, UsageRow};
use chancery_store::{LedgerError, Settlement};
use std::time::Duration;

impl OpenRequest {
    /// Without a caller who waits for it, it goes on until the row is written or never can be.
    pub(super) async fn settle(&mut self, caller: Option<&Reporter>) -> Result<Reply, MeterError> {
        self.ended()?;
        let (recorded, status) = tokio::join!(self.record(caller), self.close_rate_limit());
        self.rate_limit = None;
        recorded?;
        match std::mem::take(&mut self.work) {
            Work::Ended(reply) => Ok(Reply { rate_limit_status: status, ..reply }),
            _ => Err(nothing_to_settle()),
        }
    }

    /// A row that cannot be written is tried again for a while before the caller is told, longer where text has left
    /// already: whoever is told will send the request again, and the row may be there though its answer was lost. A
    /// caller who has hung up cannot be told and did use the tokens.
    async fn record(&self, caller: Option<&Reporter>) -> Result<(), MeterError> {
        let patience = tokio::time::sleep(match caller {
            None => Duration::MAX,
            Some(caller) if caller.streams() => STREAM_SETTLE_PATIENCE,
            Some(_) => REPLY_SETTLE_PATIENCE,
        });
        tokio::pin!(patience);
        let (mut pause, mut unrecorded) = (FIRST_SETTLE_PAUSE, None);
        loop {
            let Err(error) = panic_as_error(self.record_once()).await else {
                self.count_tokens();
                return Ok(());
            };
            let has_hung_up = caller.is_some_and(|caller| caller.hung_up.is_cancelled());
            let is_over = is_permanent(&error) || self.meter.abandoned.is_cancelled();
            if is_over && (has_hung_up || self.delivery == Delivery::TextLeft || is_month_invoiced(&error)) {
                self.log_loss(&error);
            }
            if is_over || (patience.is_elapsed() && !has_hung_up) {
                return Err(error);
            }
            let request_id = &self.call.request_id;
            tracing::warn!(%request_id, %error, "recording what a request has used is tried again");
            unrecorded.get_or_insert_with(|| self.meter.unrecorded.one_more());
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LAST_SETTLE_PAUSE),
                () = &mut patience, if !patience.is_elapsed() => {}
                () = self.meter.abandoned.cancelled() => {}
            }
        }
    }

    /// What others took because they thought this process dead is taken again, if it is still there to be taken.
    async fn record_once(&self) -> Result<(), MeterError> {
        let (meter, mut settlement) = (&self.meter, self.settlement()?);
        let mut outcome = meter.store.ledger.settle(settlement.clone()).await;
        if let Err(LedgerError::ReservationGone(request_id)) = &outcome {
            tracing::warn!(%request_id, "others took this process for dead; the true cost is set aside anew");
            let UsageRow { account, cost, at, .. } = settlement.row;
            let expense = Expense { request_id, account, amount: cost, at };
            settlement.is_reserved = meter.spending.reserve(expense).await?;
            outcome = meter.store.ledger.settle(settlement.clone()).await;
        }
        if let (Err(LedgerError::ClaimGone(request_id)), Some(claim)) = (&outcome, &self.in_store.claim) {
            tracing::warn!(%request_id, "others took this process for dead; its idempotency key is claimed anew");
            meter.replays.claim_again(claim).await?;
            outcome = meter.store.ledger.settle(settlement).await;
        }
        Ok(outcome?)
    }

    fn settlement(&self) -> Result<Settlement, MeterError> {
        let (call, prices, reply) = (&self.call, self.prepared.model.prices, self.ended()?);
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
            ended: reply.ended,
        };
        let kept = self.in_store.claim.as_ref().map(|claim| self.meter.replays.kept(claim, reply));
        Ok(Settlement { row, is_reserved: self.in_store.is_spending_reserved, kept })
    }

    fn ended(&self) -> Result<&Reply, MeterError> {
        match &self.work {
            Work::Ended(reply) => Ok(reply),
            _ => Err(nothing_to_settle()),
        }
    }

    fn count_tokens(&self) {
        let Work::Ended(reply) = &self.work else { return };
        let model = &self.prepared.model.name;
        metrics::counter!("chancery_input_tokens_total", "model" => model.clone())
            .increment(u64::from(reply.input_tokens));
        metrics::counter!("chancery_output_tokens_total", "model" => model.clone())
            .increment(u64::from(reply.output_tokens));
    }

    fn log_loss(&self, error: &MeterError) {
        let Work::Ended(Reply { input_tokens, output_tokens, .. }) = &self.work else { return };
        let (request_id, account) = (&self.call.request_id, self.call.caller.account);
        let what = if is_month_invoiced(error) {
            "what a request has used came after its month was invoiced, and is not billed; \
             to have later ones billed, credit that invoice as a whole and issue the month anew"
        } else {
            "what a request has used could not be recorded"
        };
        tracing::error!(%request_id, %account, input_tokens, output_tokens, %error, "{what}");
    }

    /// The request counts with what it used, or does not count. None where the limits' store cannot be asked: then it
    /// counts with all that it reserved until it leaves the window, and the reply is given all the same. Doing it again
    /// changes nothing.
    pub(super) async fn close_rate_limit(&self) -> Option<RateLimitStatus> {
        let (limiter, reservation) = (&self.meter.limiter, self.rate_limit.as_ref()?);
        let closed = panic_as_error(async {
            Ok(match self.counted_tokens {
                Some(tokens) => limiter.settle(reservation, tokens).await?,
                None => limiter.release(reservation).await?,
            })
        });
        let failed = |error: &MeterError| {
            let request_id = &reservation.request_id;
            tracing::warn!(%request_id, %error, "a reservation could not be closed; it counts in full for a minute");
        };
        closed.await.inspect_err(failed).ok()
    }
}

fn nothing_to_settle() -> MeterError {
    MeterError::Internal("nothing was generated that could be settled".to_owned())
}
