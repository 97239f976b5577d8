//! The limits per minute of every account, kept where all requests meet: in memory for one node, in Redis for many. What
//! counts, and for how long, is `chancery_domain::Window`'s rule; here it becomes steps that are each atomic, however
//! many requests and nodes race:
//!
//! 1. **Reserve**: before any work, one request and all the tokens it may use. It is admitted or refused as a whole.
//! 2. **Settle** it to what was used, or **release** it where the work failed. Either is done once: doing it again, or
//!    for a request that was never admitted, changes nothing.
//!
//! A holder that dies does neither. Its reservation then leaves with its entry, 60 seconds after its admission, so a
//! death costs its account the reserved amount for one window at most. Work that takes longer than that settles after
//! its entry has left, which changes nothing either. The same holds for a store that took a reservation and could not
//! say so in time: whoever asked is refused, and where the release does not reach the store either, the reservation
//! leaves by itself.
//!
//! Both stores are held to one suite, `conformance`.

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
use chancery_domain::{AccountId, Clock, RateLimitStatus, RateLimits, Refusal, RequestId};
use std::sync::Arc;

/// What one request takes of its account's limits until it is settled.
#[derive(Clone, Debug)]
pub struct Reservation {
    pub account: AccountId,
    pub request_id: RequestId,
    /// The account's limits as the request found them.
    pub limits: RateLimits,
    /// Everything it may use, both directions together.
    pub tokens: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Admitted(RateLimitStatus),
    Refused(Refusal),
}

/// Nobody knows what an account has used, so nothing more can be admitted. The text is for the log.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the limits' store cannot be used: {0}")]
pub struct LimiterUnavailable(pub String);

#[async_trait]
pub trait Limiter: Send + Sync + 'static {
    /// A request that was admitted and is not settled stays admitted; asking again changes nothing. After an error
    /// nobody knows whether it was admitted; releasing it is safe.
    async fn reserve(&self, reservation: &Reservation) -> Result<Decision, LimiterUnavailable>;

    /// From now on the request counts with these tokens.
    async fn settle(
        &self,
        reservation: &Reservation,
        tokens: u64,
    ) -> Result<RateLimitStatus, LimiterUnavailable>;

    /// From now on the request does not count.
    async fn release(&self, reservation: &Reservation) -> Result<RateLimitStatus, LimiterUnavailable>;

    /// Where the account stands; changes nothing.
    async fn status(
        &self,
        account: AccountId,
        limits: RateLimits,
    ) -> Result<RateLimitStatus, LimiterUnavailable>;

    /// Whether it answers now.
    async fn ping(&self) -> Result<(), LimiterUnavailable>;
}

/// Opens what the configuration names; fails where it cannot be reached.
pub async fn open_limiter(
    url: &LimitStoreUrl,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Limiter>, LimiterUnavailable> {
    match url {
        LimitStoreUrl::Memory => Ok(Arc::new(MemoryLimiter::new(clock))),
        LimitStoreUrl::Redis(place) => {
            let limiter = RedisLimiter::new(place, clock);
            limiter.ping().await?;
            if limiter.may_evict().await {
                tracing::warn!(
                    "the Redis at {url} forgets keys when its memory is full, and with them what accounts have used; set its maxmemory-policy to noeviction"
                );
            }
            Ok(Arc::new(limiter))
        }
    }
}
