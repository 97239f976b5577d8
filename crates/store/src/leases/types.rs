//! Leases as the rest of Chancery sees them.

use crate::StoreError;
use async_trait::async_trait;
use chancery_domain::UnixMillis;

/// What a process holds for its requests, others may take once it is dead: when it has not said for `LEASE` that it
/// lives. Taking removes what was held, so that a process that was only thought dead finds it gone and cannot settle.
#[async_trait]
pub trait Leases: Send + Sync + 'static {
    /// Says that this process lives. To be called every few seconds while anything is held; it writes only when it is
    /// time to.
    async fn renew_lease(&self, now: UnixMillis) -> Result<(), StoreError>;

    /// Removes up to `limit` things that are held by dead processes or past their time, and says how many there were.
    /// Where this process holds something, it says first that it lives.
    async fn forget_dead(&self, now: UnixMillis, limit: u32) -> Result<u64, StoreError>;
}
