//! The per-minute limits of accounts and keys, stored where all requests share them: in memory for one node, in Redis for many.
//! An account has two buckets, each a window of its own: what it generates, and what it reads. So has each key with limits of
//! its own. A request counts in the account's bucket and in the key's, or in neither. A person of the portal has one bucket, for
//! requests alone.
//! `chancery_domain::SlidingWindow` defines what counts, and for how long. Here it becomes steps that are each atomic, however
//! many requests and nodes race:
//!
//! 1. **Reserve**, before any work, one request and its maximum tokens. It is admitted or rejected as a whole. A long prompt
//!    reserves its request first, without tokens, and raises that reservation once it is tokenized.
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
mod probe;
mod redis;
mod url;

#[cfg(test)]
pub(crate) use conformance::redis;
pub use guarded::GuardedLimiter;
pub use memory::MemoryLimiter;
pub use probe::{LimitStoreProbeError, probe_limit_store};
pub use redis::RedisLimiter;
pub use url::{LimitStoreUrl, LimitStoreUrlError};

use async_trait::async_trait;
use chancery_domain::{
    AccountId, Clock, KeyId, LimitScope, LimitUsage, PersonId, RateLimitExceeded, RateLimitStatus,
    RateLimits, RequestId,
};
use std::sync::Arc;
use std::time::Duration;

/// One window of the limit store. A store keeps the buckets of one account together (behind one lock, in one Redis Cluster
/// slot), so that one atomic step can cover several of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bucket {
    /// Requests that generate, and their tokens.
    Generation(AccountId),
    /// Requests that generate nothing but still take work: token counts, replays, usage, models and keys.
    Reads(AccountId),
    /// What one key of the account generates, if the key has limits of its own.
    Key(AccountId, KeyId),
    /// What one key of the account reads, if the key has limits of its own.
    KeyReads(AccountId, KeyId),
    /// Requests of one person to the portal, which have no tokens.
    Person(PersonId),
}

impl Bucket {
    /// The same number for all buckets of an account.
    fn shard_number(self) -> u64 {
        match self {
            Self::Generation(account)
            | Self::Reads(account)
            | Self::Key(account, _)
            | Self::KeyReads(account, _) => account.0.unsigned_abs(),
            Self::Person(person) => person.0.unsigned_abs(),
        }
    }
}

/// What one request counts against the limits of its account and its key until it is settled.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// The account's bucket, or the person's.
    pub bucket: Bucket,
    pub request_id: RequestId,
    /// The bucket's limits when the request arrived.
    pub limits: RateLimits,
    /// The key's bucket, of the same account; `None` if the key has no limits of its own.
    pub key: Option<KeyBucket>,
    /// The maximum it may use, input and output together.
    pub tokens: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyBucket {
    pub bucket: Bucket,
    pub limits: RateLimits,
}

impl Reservation {
    /// The account's bucket first.
    fn buckets(&self) -> impl Iterator<Item = (Bucket, RateLimits)> {
        let key = self.key.map(|key| (key.bucket, key.limits));
        std::iter::once((self.bucket, self.limits)).chain(key)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// With the status of the account's bucket.
    Admitted(RateLimitStatus),
    Rejected(Rejection),
}

/// Why a request was not admitted: the waits of the account's bucket, and of the key's if it has one. The waits of a bucket
/// that it fits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub account: RateLimitExceeded,
    pub key: Option<RateLimitExceeded>,
}

impl Rejection {
    /// Whose limit takes longest to wait for. After that wait, the request fits both.
    pub fn scope(&self) -> LimitScope {
        match self.key {
            Some(key) if key.retry_after() > self.account.retry_after() => LimitScope::Key,
            _ => LimitScope::Account,
        }
    }

    /// The limits of that scope.
    pub fn exceeded(&self) -> RateLimitExceeded {
        match (self.scope(), self.key) {
            (LimitScope::Key, Some(key)) => key,
            _ => self.account,
        }
    }

    pub fn retry_after_s(&self) -> u32 {
        self.exceeded().retry_after_s()
    }

    /// What both buckets have left.
    pub fn remaining(&self) -> LimitUsage {
        let account = self.account.status.remaining();
        self.key.map(|key| key.status.remaining()).map_or(account, |key| LimitUsage {
            requests: account.requests.min(key.requests),
            tokens: account.tokens.min(key.tokens),
        })
    }

    /// Whether a request with fewer tokens might fit.
    pub fn is_only_about_tokens(&self) -> bool {
        let has_request = |exceeded: &RateLimitExceeded| exceeded.requests_retry_after == Duration::ZERO;
        has_request(&self.account) && self.key.as_ref().is_none_or(has_request)
    }

    pub(crate) fn map(self, change: impl Fn(RateLimitExceeded) -> RateLimitExceeded) -> Self {
        Self { account: change(self.account), key: self.key.map(change) }
    }
}

/// The usage of accounts is unknown, so nothing can be admitted. The text is for the log.
#[derive(Clone, Debug, thiserror::Error)]
#[error("limit store unavailable: {0}")]
pub struct LimiterUnavailable(pub String);

#[async_trait]
pub trait Limiter: Send + Sync + 'static {
    /// Admits the request in the buckets of its account and its key, or in neither. Idempotent: a request that was admitted and
    /// is not settled stays admitted. With more tokens than before, its reservation is raised and counts from now on; if they do
    /// not fit, it is rejected and keeps what it had. After an error it is unknown whether the request was admitted; releasing
    /// it is safe.
    async fn reserve(&self, reservation: &Reservation) -> Result<Decision, LimiterUnavailable>;

    /// From now on the request counts with these tokens instead of its reservation. Returns the status of the account's bucket.
    async fn settle(
        &self,
        reservation: &Reservation,
        tokens: u64,
    ) -> Result<RateLimitStatus, LimiterUnavailable>;

    /// From now on the request does not count. Returns the status of the account's bucket.
    async fn release(&self, reservation: &Reservation) -> Result<RateLimitStatus, LimiterUnavailable>;

    /// The bucket's current status; changes nothing.
    async fn status(&self, bucket: Bucket, limits: RateLimits)
    -> Result<RateLimitStatus, LimiterUnavailable>;

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
