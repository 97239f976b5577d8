//! Step 3 of the protocol. Each reservation is recorded before it is requested, so that a request dropped while waiting for
//! the response leaves nothing reserved.

use super::open_request::{OpenRequest, Unbilled};
use crate::lease::expiry;
use crate::limits::{KEY_CLAIM_TTL, MIN_UNCAPPED_TOKENS};
use crate::rate_limits::{Decision, Rejection, Reservation};
use crate::replays::replay;
use crate::spending::Charge;
use crate::{Caller, Idempotency, MeterError};
use chancery_domain::{RateLimitExceeded, RateLimitStatus};
use chancery_store::{ClaimOutcome, KeyClaim};
use tokio_util::sync::CancellationToken;

impl OpenRequest {
    /// After an error the caller releases what was reserved before it.
    pub(super) async fn reserve(&mut self, disconnected: &CancellationToken) -> Result<(), Unbilled> {
        let status = tokio::select! {
            reserved = self.reserve_rate_limit() => reserved?,
            () = disconnected.cancelled() => return Err(MeterError::ClientDisconnected.into()),
        };
        self.reserve_spending().await?;
        self.claim_key().await?;
        self.meter.activity.record_admission(&self.call.caller, status.used);
        self.rate_limit_status = Some(status);
        Ok(())
    }

    async fn reserve_rate_limit(&mut self) -> Result<RateLimitStatus, MeterError> {
        loop {
            let reservation = self.rate_limit_reservation()?;
            self.rate_limit = Some(reservation.clone());
            self.is_outcome_unknown = true;
            let decision = self.meter.limiter.reserve(&reservation).await?;
            self.is_outcome_unknown = false;
            match decision {
                Decision::Admitted(status) => return Ok(status),
                Decision::Rejected(rejection) => {
                    self.rate_limit = None;
                    let tokens = reservation.tokens;
                    // The cap decreases in every iteration, so the loop ends.
                    self.prepared.max_output_tokens = self
                        .fallback_max_output_tokens(&rejection)
                        .ok_or_else(|| MeterError::RateLimited {
                            rejection: Box::new(self.rejection_of_a_retry(rejection)),
                            tokens,
                        })?;
                }
            }
        }
    }

    fn rate_limit_reservation(&self) -> Result<Reservation, MeterError> {
        let (scope, limit) = self.call.caller.tokens_per_min();
        let (input_tokens, max_output_tokens) =
            (self.prepared.prompt.input_tokens, self.prepared.max_output_tokens);
        let tokens = u64::from(input_tokens) + u64::from(max_output_tokens);
        if tokens > u64::from(limit) {
            return Err(MeterError::ExceedsTokenLimit { input_tokens, max_output_tokens, scope, limit });
        }
        Ok(self.call.caller.generation(self.call.request_id.clone(), tokens))
    }

    /// A long prompt counts as a request although it is rejected, so a retry needs another one.
    fn rejection_of_a_retry(&self, rejection: Rejection) -> Rejection {
        if !self.prepared.has_request_reserved {
            return rejection;
        }
        rejection.map(|exceeded| match exceeded.status.remaining().requests {
            0 => RateLimitExceeded {
                requests_retry_after: exceeded.requests_retry_after.max(exceeded.status.next_expiry),
                ..exceeded
            },
            _ => exceeded,
        })
    }

    /// A request without a cap takes what is left of its minute, if that is at least `MIN_UNCAPPED_TOKENS`: it did not ask for
    /// more.
    fn fallback_max_output_tokens(&self, rejection: &Rejection) -> Option<u32> {
        if self.call.request.max_output_tokens.is_some() || !rejection.is_only_about_tokens() {
            return None;
        }
        let remaining = rejection.remaining().tokens;
        let room = remaining.checked_sub(self.prepared.prompt.input_tokens.into())?;
        let room = u32::try_from(room).ok()?;
        (MIN_UNCAPPED_TOKENS..self.prepared.max_output_tokens).contains(&room).then_some(room)
    }

    async fn reserve_spending(&mut self) -> Result<(), MeterError> {
        if !self.call.caller.is_capped {
            return Ok(());
        }
        let amount = self.prepared.max_cost()?;
        self.store_reservations.is_spending_reserved = true;
        self.is_outcome_unknown = true;
        let Caller { account, key, .. } = self.call.caller;
        let charge = Charge { request_id: &self.call.request_id, account, key, amount, at: self.prepared.at };
        let reserved = self.meter.spending.reserve(charge).await;
        self.is_outcome_unknown = reserved.as_ref().is_err_and(|error| error.is_store_error());
        self.store_reservations.is_spending_reserved = *reserved.as_ref().unwrap_or(&self.is_outcome_unknown);
        reserved.map(drop)
    }

    async fn claim_key(&mut self) -> Result<(), Unbilled> {
        let Some(Idempotency { key, fingerprint }) = &self.call.idempotency else { return Ok(()) };
        let now = self.meter.clock.now();
        let claim = KeyClaim {
            account: self.call.caller.account,
            key: key.clone(),
            fingerprint: *fingerprint,
            request_id: self.call.request_id.clone(),
            now,
            expires_at: expiry(now, KEY_CLAIM_TTL),
        };
        self.store_reservations.claim = Some(claim.clone());
        self.is_outcome_unknown = true;
        let claimed = self.meter.store.idempotency.claim_key(&claim).await.map_err(MeterError::from)?;
        self.is_outcome_unknown = false;
        match claimed {
            ClaimOutcome::Claimed => Ok(()),
            ClaimOutcome::AlreadyClaimed(holder) => {
                self.store_reservations.claim = None;
                Err(Unbilled::Replay(Box::new(replay(*holder, *fingerprint)?)))
            }
        }
    }
}
