//! Throttles as the portal and the identity provider see them.

use crate::StoreError;
use async_trait::async_trait;
use chancery_domain::{ThrottleCount, ThrottleDecision, ThrottleKey, UnixMillis};

/// Decides as `chancery_domain::Throttle` does, however many come at once.
#[async_trait]
pub trait Throttles: Send + Sync + 'static {
    /// Counts one more, unless the limit is reached.
    async fn count_throttle(
        &self,
        key: ThrottleKey<'_>,
        now: UnixMillis,
    ) -> Result<ThrottleDecision, StoreError>;

    /// What counts now.
    async fn throttle_count(
        &self,
        key: ThrottleKey<'_>,
        now: UnixMillis,
    ) -> Result<Option<ThrottleCount>, StoreError>;

    /// Takes one back that did no harm after all.
    async fn refund_throttle(&self, key: ThrottleKey<'_>) -> Result<(), StoreError>;

    async fn reset_throttle(&self, key: ThrottleKey<'_>) -> Result<(), StoreError>;

    /// Deletes up to `limit` counts that are over; says how many.
    async fn delete_expired_throttles(&self, now: UnixMillis, limit: u32) -> Result<u64, StoreError>;
}
