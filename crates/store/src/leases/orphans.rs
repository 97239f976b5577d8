//! Reaps what dead processes reserved, so that it no longer counts.

use crate::DbError;
use crate::accounts::spending::DELETE_ORPHANED;
use crate::db::error_codes::STATEMENT_TIMEOUT;
use crate::db::{Db, query};
use crate::leases::lease::Lease;
use chancery_domain::UnixMillis;
use std::sync::Arc;

/// Expired leases are retained this long for troubleshooting.
const RETAIN_EXPIRED_MS: i64 = 86_400_000;

const DELETE_EXPIRED: &str = "DELETE FROM writer_leases WHERE lease_expires_at_ms < $1";

/// Reaps reservations whose process has not renewed its lease for `LEASE_DURATION`. Reaping deletes the reservation, so a
/// process that was only slow finds it gone and cannot settle.
#[derive(Clone)]
pub struct Leases {
    pub(crate) db: Db,
    pub(crate) lease: Arc<Lease>,
}

impl Leases {
    /// Renews the lease of this process. Call every few seconds while anything is reserved; it writes only when the
    /// lease is due.
    pub async fn renew_lease(&self, now: UnixMillis) -> Result<(), DbError> {
        self.lease.renew(now).await
    }

    /// Deletes up to `limit` reservations whose process is dead, and returns how many. Renews this
    /// process's own lease first, if it has one.
    pub async fn reap_orphaned_reservations(&self, now: UnixMillis, limit: u32) -> Result<u64, DbError> {
        // After a pause of the machine or a clock change, this process would be the first that it finds dead.
        self.lease.renew_if_held(now).await?;
        let orphaned = query(DELETE_ORPHANED).bind(now.0).bind(i64::from(limit));
        let deleted = self.db.execute(orphaned, STATEMENT_TIMEOUT).await?;
        let expired = query(DELETE_EXPIRED).bind(now.0 - RETAIN_EXPIRED_MS);
        self.db.execute(expired, STATEMENT_TIMEOUT).await?;
        Ok(deleted)
    }
}
