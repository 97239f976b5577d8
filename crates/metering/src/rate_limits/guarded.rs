//! Admits nothing while this server has lost its place at the database: another one may count the same accounts' requests
//! in a memory of its own, and the two would let through twice the limit.

use super::{Decision, Limiter, LimiterUnavailable, Reservation};
use async_trait::async_trait;
use chancery_domain::{AccountId, RateLimitStatus, RateLimits};
use chancery_store::ServingWatch;
use std::sync::Arc;

pub struct GuardedLimiter {
    limiter: Arc<dyn Limiter>,
    serving: ServingWatch,
}

impl GuardedLimiter {
    pub fn new(limiter: Arc<dyn Limiter>, serving: ServingWatch) -> Self {
        Self { limiter, serving }
    }

    fn may_admit(&self) -> Result<(), LimiterUnavailable> {
        self.serving.why_not().map_or(Ok(()), |why| Err(LimiterUnavailable(why)))
    }
}

/// What was admitted before is settled all the same.
#[async_trait]
impl Limiter for GuardedLimiter {
    async fn reserve(&self, reservation: &Reservation) -> Result<Decision, LimiterUnavailable> {
        self.may_admit()?;
        self.limiter.reserve(reservation).await
    }

    async fn settle(
        &self,
        reservation: &Reservation,
        tokens: u64,
    ) -> Result<RateLimitStatus, LimiterUnavailable> {
        self.limiter.settle(reservation, tokens).await
    }

    async fn release(&self, reservation: &Reservation) -> Result<RateLimitStatus, LimiterUnavailable> {
        self.limiter.release(reservation).await
    }

    async fn status(
        &self,
        account: AccountId,
        limits: RateLimits,
    ) -> Result<RateLimitStatus, LimiterUnavailable> {
        self.limiter.status(account, limits).await
    }

    async fn ping(&self) -> Result<(), LimiterUnavailable> {
        self.may_admit()?;
        self.limiter.ping().await
    }
}
