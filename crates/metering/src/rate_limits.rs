//! The per-minute limits of every account, stored where all requests share them: in memory for one node, in Redis for many.
//! `chancery_domain::SlidingWindow` defines what counts, and for how long. Here it becomes steps that are each atomic, however
//! many requests and nodes race:
//!
//! 1. **Reserve**, before any work, one request and its maximum tokens. It is admitted or rejected as a whole.
//! 2. **Settle** it to what was used, or **release** it if the work failed. Both are idempotent, and have no effect on a
//!    request that was never admitted.
//!
//! A process that crashes does neither. Its reservation expires with its entry, 60 seconds after admission, so a crash costs
//! its account the reserved amount for at most one window. Work that runs longer settles after its entry has expired, which has
//! no effect either. The same holds if the store accepted a reservation but its response came too late: the request is
//! rejected, and if the release does not reach the store either, the reservation expires by itself.
//!
//! Both stores pass one test suite, `conformance`.

#[cfg(test)]
mod conformance;
mod guarded;
mod memory;
mod redis;
mod url;

#[cfg(test)]
pub(crate) use conformance::redis;
pub use guarded::GuardedLimiter;
pub use memory::MemoryLimiter;
pub use redis::RedisLimiter;
pub use url::{LimitStoreUrl, LimitStoreUrlError};

use async_trait::async_trait;
use chancery_domain::{AccountId, Clock, RateLimitExceeded, RateLimitStatus, RateLimits, RequestId};
use std::sync::Arc;

/// What one request counts against its account's limits until it is settled.
#[derive(Clone, Debug)]
pub struct Reservation {
    pub account: AccountId,
    pub request_id: RequestId,
    /// The account's limits when the request arrived.
    pub limits: RateLimits,
    /// The maximum it may use, input and output together.
    pub tokens: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Admitted(RateLimitStatus),
    Rejected(RateLimitExceeded),
}

/// The usage of accounts is unknown, so nothing can be admitted. The text is for the log.
#[derive(Clone, Debug, thiserror::Error)]
#[error("limit store unavailable: {0}")]
pub struct LimiterUnavailable(pub String);

#[async_trait]
pub trait Limiter: Send + Sync + 'static {
    /// Idempotent: a request that was admitted and is not settled stays admitted. After an error it is unknown whether the request
    /// was admitted; releasing it is safe.
    async fn reserve(&self, reservation: &Reservation) -> Result<Decision, LimiterUnavailable>;

    /// From now on the request counts with these tokens instead of its reservation.
    async fn settle(
        &self,
        reservation: &Reservation,
        tokens: u64,
    ) -> Result<RateLimitStatus, LimiterUnavailable>;

    /// From now on the request does not count.
    async fn release(&self, reservation: &Reservation) -> Result<RateLimitStatus, LimiterUnavailable>;

    /// The account's current status; changes nothing.
    async fn status(
        &self,
        account: AccountId,
        limits: RateLimits,
    ) -> Result<RateLimitStatus, LimiterUnavailable>;

    /// Whether the store answers now.
    async fn ping(&self) -> Result<(), LimiterUnavailable>;
}

/// Opens the configured store; fails if it is unreachable.
pub async fn open_limiter(
    url: &LimitStoreUrl,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Limiter>, LimiterUnavailable> {
    match url {
        LimitStoreUrl::Memory => Ok(Arc::new(MemoryLimiter::new(clock))),
        LimitStoreUrl::Redis(info) => {
            let limiter = RedisLimiter::new(info, clock);
            limiter.ping().await?;
            if limiter.may_evict().await {
                tracing::warn!(
                    "the Redis at {url} may evict rate-limit counters when memory is full; set maxmemory-policy to noeviction"
                );
            }
            Ok(Arc::new(limiter))
        }
    }
}
