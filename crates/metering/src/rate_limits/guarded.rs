//! Admits nothing while this server has lost the serving lock of its database. Another server may be counting the same
//! accounts in its own memory, and the two together would admit twice the limit.

use super::{Bucket, Decision, Limiter, LimiterUnavailable, Reservation};
use async_trait::async_trait;
use chancery_domain::{RateLimitStatus, RateLimits};
use chancery_store::ServingLockStatus;
use std::sync::Arc;

pub struct GuardedLimiter {
    limiter: Arc<dyn Limiter>,
    serving: ServingLockStatus,
}

impl GuardedLimiter {
    pub fn new(limiter: Arc<dyn Limiter>, serving: ServingLockStatus) -> Self {
        Self { limiter, serving }
    }

    fn ensure_serving(&self) -> Result<(), LimiterUnavailable> {
        self.serving.unavailable_reason().map_or(Ok(()), |why| Err(LimiterUnavailable(why)))
    }
}

/// Requests admitted before the loss are still settled.
#[async_trait]
impl Limiter for GuardedLimiter {
    async fn reserve(&self, reservation: &Reservation) -> Result<Decision, LimiterUnavailable> {
        self.ensure_serving()?;
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
        bucket: Bucket,
        limits: RateLimits,
    ) -> Result<RateLimitStatus, LimiterUnavailable> {
        self.limiter.status(bucket, limits).await
    }

    async fn ping(&self) -> Result<(), LimiterUnavailable> {
        self.ensure_serving()?;
        self.limiter.ping().await
    }
}
