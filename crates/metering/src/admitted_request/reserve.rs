//! Step 3 of the protocol. What is asked for is noted before it is asked, so that a request that is dropped while it
//! waits for the answer leaves nothing reserved.

use super::open_request::{OpenRequest, Unbilled};
use crate::lease::expiry;
use crate::limits::{MIN_UNCAPPED_TOKENS, RESERVATION_MEMORY};
use crate::rate_limits::{Decision, Reservation};
use crate::replays::replay;
use crate::spending::Expense;
use crate::{Idempotency, MeterError};
use chancery_domain::{RateLimitStatus, Refusal};
use chancery_store::{Claim, Claimed};
use tokio_util::sync::CancellationToken;

impl OpenRequest {
    /// After an error the caller releases what was reserved before it.
    pub(super) async fn reserve(&mut self, hung_up: &CancellationToken) -> Result<(), Unbilled> {
        let status = tokio::select! {
            reserved = self.reserve_rate_limit() => reserved?,
            () = hung_up.cancelled() => return Err(MeterError::HungUp.into()),
        };
        self.reserve_spending().await?;
        self.claim_key().await?;
        self.meter.activity.admitted(self.call.caller, status.used);
        self.rate_limit_status = Some(status);
        Ok(())
    }

    async fn reserve_rate_limit(&mut self) -> Result<RateLimitStatus, MeterError> {
        loop {
            let reservation = self.rate_limit_reservation()?;
            self.rate_limit = Some(reservation.clone());
            self.is_answer_lost = true;
            let decision = self.meter.limiter.reserve(&reservation).await?;
            self.is_answer_lost = false;
            match decision {
                Decision::Admitted(status) => return Ok(status),
                Decision::Refused(refusal) => {
                    self.rate_limit = None;
                    let tokens = reservation.tokens;
                    // The cap falls each time.
                    self.prepared.max_output_tokens = self
                        .room_for_uncapped(&refusal)
                        .ok_or(MeterError::RateLimited { refusal, tokens })?;
                }
            }
        }
    }

    fn rate_limit_reservation(&self) -> Result<Reservation, MeterError> {
        let limits = self.call.caller.limits;
        let (input_tokens, max_output_tokens) =
            (self.prepared.prompt.input_tokens, self.prepared.max_output_tokens);
        let tokens = u64::from(input_tokens) + u64::from(max_output_tokens);
        if tokens > u64::from(limits.tokens_per_min) {
            return Err(MeterError::NeverFits { input_tokens, max_output_tokens, limits });
        }
        let (account, request_id) = (self.call.caller.account, self.call.request_id.clone());
        Ok(Reservation { account, request_id, limits, tokens })
    }

    /// A caller who sets no cap takes what is left of its minute, where that is enough to be worth it: it did not ask
    /// for more.
    fn room_for_uncapped(&self, refusal: &Refusal) -> Option<u32> {
        if self.call.request.max_output_tokens.is_some() || !refusal.requests_wait.is_zero() {
            return None;
        }
        let remaining = refusal.status.remaining().tokens;
        let room = remaining.checked_sub(self.prepared.prompt.input_tokens.into())?;
        let room = u32::try_from(room).ok()?;
        (MIN_UNCAPPED_TOKENS..self.prepared.max_output_tokens).contains(&room).then_some(room)
    }

    async fn reserve_spending(&mut self) -> Result<(), MeterError> {
        if !self.call.caller.is_capped {
            return Ok(());
        }
        let amount = self.prepared.max_cost()?;
        self.in_store.is_spending_reserved = true;
        self.is_answer_lost = true;
        let account = self.call.caller.account;
        let expense = Expense { request_id: &self.call.request_id, account, amount, at: self.prepared.at };
        let reserved = self.meter.spending.reserve(expense).await;
        self.is_answer_lost = reserved.as_ref().is_err_and(|error| error.is_of_store());
        self.in_store.is_spending_reserved = *reserved.as_ref().unwrap_or(&self.is_answer_lost);
        reserved.map(drop)
    }

    async fn claim_key(&mut self) -> Result<(), Unbilled> {
        let Some(Idempotency { key, fingerprint }) = &self.call.idempotency else { return Ok(()) };
        let now = self.meter.clock.now();
        let claim = Claim {
            account: self.call.caller.account,
            key: key.clone(),
            fingerprint: *fingerprint,
            request_id: self.call.request_id.clone(),
            now,
            expires_at: expiry(now, RESERVATION_MEMORY),
        };
        self.in_store.claim = Some(claim.clone());
        self.is_answer_lost = true;
        let claimed = self.meter.store.idempotency.claim_key(&claim).await.map_err(MeterError::from)?;
        self.is_answer_lost = false;
        match claimed {
            Claimed::Yes => Ok(()),
            Claimed::HeldBy(holder) => {
                self.in_store.claim = None;
                Err(Unbilled::Replay(Box::new(replay(holder, *fingerprint)?)))
            }
        }
    }
}
