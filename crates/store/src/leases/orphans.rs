//! Deletes what processes held that are dead, so that it does not count any more.

use crate::DbError;
use crate::accounts::spending::DELETE_ORPHANED;
use crate::db::Db;
use crate::db::error_codes::STATEMENT_TIMEOUT;
use crate::db::query;
use crate::leases::lease::Lease;
use chancery_domain::UnixMillis;
use std::sync::Arc;

/// A dead process's lease is retained for this long, for the sake of those who look into what happened.
const RETAIN_EXPIRED_MS: i64 = 86_400_000;

const DELETE_EXPIRED: &str = "DELETE FROM writer_leases WHERE alive_until_ms < $1";

/// What a process holds for its requests, others may take once it is dead: when it has not said for `LEASE` that it
/// lives. Taking removes what was held, so that a process that was only thought dead finds it gone and cannot settle.
#[derive(Clone)]
pub struct Leases {
    pub(crate) db: Db,
    pub(crate) lease: Arc<Lease>,
}

impl Leases {
    /// Says that this process lives. To be called every few seconds while anything is held; it writes only when it is
    /// time to.
    pub async fn renew_lease(&self, now: UnixMillis) -> Result<(), DbError> {
        self.lease.renew(now).await
    }

    /// Removes up to `limit` things that are held by dead processes or past their time, and says how many there were.
    /// Where this process holds something, it says first that it lives.
    pub async fn forget_dead(&self, now: UnixMillis, limit: u32) -> Result<u64, DbError> {
        // Where the machine was paused or its clock was set, this process would be the first that it finds dead.
        self.lease.renew_if_taken(now).await?;
        let orphaned = query(DELETE_ORPHANED).bind(now.0).bind(i64::from(limit));
        let deleted = self.db.execute(orphaned, STATEMENT_TIMEOUT).await?;
        let expired = query(DELETE_EXPIRED).bind(now.0 - RETAIN_EXPIRED_MS);
        self.db.execute(expired, STATEMENT_TIMEOUT).await?;
        Ok(deleted)
    }
}
