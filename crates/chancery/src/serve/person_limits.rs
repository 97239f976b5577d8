//! Counts the portal's requests of each person in Redis, for several nodes. With rate limits in memory there is one node, and the
//! portal's own counts are enough.

use async_trait::async_trait;
use chancery_domain::{Clock, PersonId, RateLimits, RequestId};
use chancery_metering::{Bucket, Decision, LimitStoreUrl, Limiter, RedisLimiter, Reservation};
use chancery_portal::{RequestDecision, SharedLimitsUnavailable, SharedRequestLimits};
use std::sync::Arc;
use std::time::Duration;

/// A page must not wait long for a Redis that hangs: this node's own count is enough meanwhile.
const MAX_WAIT: Duration = Duration::from_millis(500);

struct SharedPersonLimits(RedisLimiter);

/// `None` if the limit store is memory. Connects on first use: the portal starts and works without Redis.
pub fn shared(store: &LimitStoreUrl, clock: Arc<dyn Clock>) -> Option<Arc<dyn SharedRequestLimits>> {
    match store {
        LimitStoreUrl::Memory => None,
        LimitStoreUrl::Redis(info) => Some(Arc::new(SharedPersonLimits(RedisLimiter::new(info, clock)))),
    }
}

#[async_trait]
impl SharedRequestLimits for SharedPersonLimits {
    /// The reservation is never settled: without tokens it counts as what it is, until it expires.
    async fn count_request(
        &self,
        person: PersonId,
        request_id: &RequestId,
        max_per_min: u32,
    ) -> Result<RequestDecision, SharedLimitsUnavailable> {
        let reservation = Reservation {
            bucket: Bucket::Person(person),
            request_id: request_id.clone(),
            limits: RateLimits { requests_per_min: max_per_min, tokens_per_min: 0 },
            key: None,
            tokens: 0,
        };
        match tokio::time::timeout(MAX_WAIT, self.0.reserve(&reservation)).await {
            Ok(Ok(Decision::Admitted(_))) => Ok(RequestDecision::Allowed),
            Ok(Ok(Decision::Rejected(rejection))) => {
                Ok(RequestDecision::Denied { retry_after_s: rejection.retry_after_s() })
            }
            Ok(Err(error)) => Err(SharedLimitsUnavailable(error.to_string())),
            Err(_) => Err(SharedLimitsUnavailable("limit store did not answer in time".to_owned())),
        }
    }
}
