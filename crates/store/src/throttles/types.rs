//! Counted attempts as the provider sees them.

use crate::StoreError;
use async_trait::async_trait;
use chancery_domain::{TokenHash, UnixMillis};

/// How often something was tried, and until when that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    pub attempts: u32,
    pub forgotten_at: UnixMillis,
}

/// What came of counting one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// With this one.
    Within(Counted),
    /// There were as many as there may be; this one was not counted.
    Over(Counted),
}

/// Counts what may be tried only so often in a while. The key is a hash, so that nothing tells what was typed.
#[async_trait]
pub trait Attempts: Send + Sync + 'static {
    /// Counts one more, unless there are `most` already, and says how many there are. The first one decides when all of
    /// them are forgotten.
    async fn count_attempt(
        &self,
        key: TokenHash,
        most: u32,
        now: UnixMillis,
        forgotten_at: UnixMillis,
    ) -> Result<Attempt, StoreError>;

    /// `forgotten_at` is when one that is counted now would be forgotten: what lies far behind that was counted by a clock
    /// that was wrong, and counts no more.
    async fn attempts(
        &self,
        key: TokenHash,
        now: UnixMillis,
        forgotten_at: UnixMillis,
    ) -> Result<Option<Counted>, StoreError>;

    /// For one that did no harm after all.
    async fn take_back_attempt(&self, key: TokenHash) -> Result<(), StoreError>;

    async fn forget_attempts(&self, key: TokenHash) -> Result<(), StoreError>;

    /// Removes up to `limit` counts whose time is over; says how many.
    async fn forget_old_attempts(&self, now: UnixMillis, limit: u32) -> Result<u64, StoreError>;
}
