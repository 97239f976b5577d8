//! The lease of this process. Other processes may reap its reservations once it expires.

use crate::DbError;
use crate::db::error_codes::STATEMENT_TIMEOUT;
use crate::db::{Db, query};
use chancery_domain::{UnixMillis, WriterId};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

/// How long a process counts as alive after its last renewal.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);

const LEASE_MS: i64 = LEASE_DURATION.as_millis() as i64;

const MIN_REMAINING_MS: i64 = LEASE_MS * 2 / 3;

const _: () = assert!(STATEMENT_TIMEOUT.as_millis() as i64 <= LEASE_MS / 3);

pub(crate) struct Lease {
    db: Db,
    pub(crate) writer: WriterId,
    /// When the lease expires, as other processes see it; `None` if this process never took one.
    expires_at: Mutex<Option<UnixMillis>>,
}

const RENEW: &str = "INSERT INTO writer_leases (writer_id, lease_expires_at_ms) VALUES ($1, $2) \
    ON CONFLICT (writer_id) DO UPDATE SET lease_expires_at_ms = excluded.lease_expires_at_ms";
const RELEASE: &str = "DELETE FROM writer_leases WHERE writer_id = $1";

impl Lease {
    pub(crate) fn new(db: Db, writer: WriterId) -> Self {
        Self { db, writer, expires_at: Mutex::new(None) }
    }

    /// Writes only when the lease is due for renewal.
    pub(crate) async fn renew(&self, now: UnixMillis) -> Result<(), DbError> {
        let mut expires_at = self.expires_at().await?;
        if is_fresh(*expires_at, now) {
            return Ok(());
        }
        let until = UnixMillis(now.0 + LEASE_MS);
        self.db.execute(query(RENEW).bind(self.writer.0).bind(until.0), STATEMENT_TIMEOUT).await?;
        *expires_at = Some(until);
        Ok(())
    }

    /// Renews the lease if this process has one.
    pub(crate) async fn renew_if_held(&self, now: UnixMillis) -> Result<(), DbError> {
        let is_held = self.expires_at().await?.is_some();
        if is_held { self.renew(now).await } else { Ok(()) }
    }

    /// Releases the lease at shutdown, which frees the reservations of this process at once.
    pub(crate) async fn release(&self) {
        let released = async {
            if self.expires_at().await?.take().is_some() {
                self.db.execute(query(RELEASE).bind(self.writer.0), STATEMENT_TIMEOUT).await?;
            }
            Ok::<(), DbError>(())
        };
        if let Err(error) = released.await {
            tracing::warn!(%error, "lease release failed, reservations stay until it expires");
        }
    }

    /// A caller that waits longer than one attempt may take does not try itself, because the database does not respond.
    async fn expires_at(&self) -> Result<MutexGuard<'_, Option<UnixMillis>>, DbError> {
        let guard = tokio::time::timeout(STATEMENT_TIMEOUT, self.expires_at.lock()).await;
        guard.map_err(|_| DbError::Unavailable("lease renewal timed out".to_owned()))
    }
}

/// Whether the lease needs no renewal yet. The process renews every third of a lease while it has reservations, and may
/// have waited that long already. A lease that ends more than `LEASE_DURATION` from now dates from before the clock was
/// set back.
fn is_fresh(expires_at: Option<UnixMillis>, now: UnixMillis) -> bool {
    expires_at.is_some_and(|until| (MIN_REMAINING_MS..=LEASE_MS).contains(&(until.0 - now.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_renews_after_one_third_and_after_clock_reset() {
        let now = UnixMillis(1_000_000);
        let fresh = |until_ms: i64| is_fresh(Some(UnixMillis(now.0 + until_ms)), now);
        assert!(!is_fresh(None, now));
        assert!(fresh(LEASE_MS) && fresh(MIN_REMAINING_MS));
        assert!(!fresh(MIN_REMAINING_MS - 1) && !fresh(0) && !fresh(-1));
        assert!(!fresh(LEASE_MS + 1), "the clock was set back");
    }

    /// Otherwise an unresponsive database would delay each waiting caller as long as the first.
    #[tokio::test]
    async fn hanging_renewal_times_out_waiters() {
        let folder = tempfile::tempdir().unwrap();
        let store = crate::Store::open_file(&folder.path().join("chancery.db")).await.unwrap();
        let hanging = store.lease.expires_at.lock().await;
        tokio::time::pause();
        let (renewing, giving_up) = tokio::join!(
            tokio::time::timeout(STATEMENT_TIMEOUT * 2, store.lease.renew(UnixMillis(0))),
            tokio::time::timeout(STATEMENT_TIMEOUT * 2, store.lease.release()),
        );
        assert!(matches!(renewing, Ok(Err(DbError::Unavailable(_)))), "{renewing:?}");
        giving_up.unwrap();
        tokio::time::resume();
        drop(hanging);
        store.close().await;
    }
}
