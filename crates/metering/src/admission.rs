//! A request's part in its account's limits, from the moment it may start until it has ended. `Admission` takes the
//! reservation, or says why not; the `Hold` it gives sees to it that the reservation is closed, whatever happens to the
//! request: settled to what was used, or released.

use crate::limits::STANDING_TIMEOUT;
use crate::rate_limits::{Decision, Limiter, LimiterUnavailable, Reservation};
use crate::{Caller, MeterError};
use chancery_domain::{RequestId, Standing};
use std::sync::Arc;

pub(crate) struct Admission {
    limiter: Arc<dyn Limiter>,
}

/// What is asked for: the exact count of the prompt, and the caller's own cap on the reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub input_tokens: u32,
    pub max_output_tokens: u32,
}

impl Asked {
    fn tokens(self) -> u64 {
        u64::from(self.input_tokens) + u64::from(self.max_output_tokens)
    }
}

impl Admission {
    pub(crate) fn new(limiter: Arc<dyn Limiter>) -> Self {
        Self { limiter }
    }

    /// One request and all the tokens it may use, or nothing.
    pub(crate) async fn reserve(
        &self,
        caller: Caller,
        request_id: RequestId,
        asked: Asked,
    ) -> Result<Hold, MeterError> {
        let limits = caller.limits;
        if asked.tokens() > u64::from(limits.tokens_per_min) {
            let Asked { input_tokens, max_output_tokens } = asked;
            return Err(MeterError::NeverFits { input_tokens, max_output_tokens, limits });
        }
        let reservation = Reservation { account: caller.account, request_id, limits, tokens: asked.tokens() };
        // There before the answer is: a caller who hangs up while it is awaited leaves nothing reserved.
        let mut open = Open { limiter: Arc::clone(&self.limiter), reservation: Some(reservation.clone()) };
        match self.limiter.reserve(&reservation).await? {
            Decision::Admitted(standing) => Ok(Hold { standing, open }),
            Decision::Refused(refusal) => {
                open.reservation = None;
                Err(MeterError::RateLimited { refusal, tokens: reservation.tokens })
            }
        }
    }

    /// None where the limits' store does not say soon enough; a reply is not held up for it.
    pub(crate) async fn standing(&self, caller: Caller) -> Option<Standing> {
        let asking = self.limiter.standing(caller.account, caller.limits);
        tokio::time::timeout(STANDING_TIMEOUT, asking).await.ok()?.ok()
    }

    pub(crate) async fn ping(&self) -> Result<(), LimiterUnavailable> {
        self.limiter.ping().await
    }
}

/// A reservation that was admitted.
pub(crate) struct Hold {
    standing: Standing,
    open: Open,
}

/// A reservation that is closed in the end. Dropping it releases it, soon after.
struct Open {
    limiter: Arc<dyn Limiter>,
    /// None once it is closed.
    reservation: Option<Reservation>,
}

impl Hold {
    /// Where the account stood when everything was reserved.
    pub(crate) fn standing(&self) -> Standing {
        self.standing
    }

    /// The request counts with the tokens that it used. None where the limits' store cannot be asked: then it counts
    /// with all that it reserved until it leaves the window, and the reply is given all the same.
    pub(crate) async fn settle(mut self, tokens: u64) -> Option<Standing> {
        let reservation = self.open.reservation.take()?;
        noted(&reservation, self.open.limiter.settle(&reservation, tokens).await)
    }

    /// The request does not count.
    pub(crate) async fn release(mut self) {
        if let Some(reservation) = self.open.reservation.take() {
            noted(&reservation, self.open.limiter.release(&reservation).await);
        }
    }
}

fn noted(reservation: &Reservation, outcome: Result<Standing, LimiterUnavailable>) -> Option<Standing> {
    outcome
        .inspect_err(|error| {
            let request_id = &reservation.request_id;
            tracing::warn!(%request_id, %error, "a reservation could not be closed; it counts in full for a minute");
        })
        .ok()
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let limiter = Arc::clone(&self.limiter);
            runtime.spawn(async move { noted(&reservation, limiter.release(&reservation).await) });
        }
    }
}
