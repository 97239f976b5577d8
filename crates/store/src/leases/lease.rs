//! How a process says that it lives, so that what it holds for its requests can be taken by others once it does not.

use crate::DbError;
use crate::db::error_codes::STATEMENT_TIMEOUT;
use crate::db::{Db, query};
use chancery_domain::{UnixMillis, WriterId};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

/// How long a process counts as alive after it last said so.
pub const LEASE: Duration = Duration::from_secs(15);

const LEASE_MS: i64 = LEASE.as_millis() as i64;

const FRESH_MS: i64 = LEASE_MS * 2 / 3;

const _: () = assert!(STATEMENT_TIMEOUT.as_millis() as i64 <= LEASE_MS / 3);

pub(crate) struct Lease {
    db: Db,
    pub(crate) writer: WriterId,
    /// Until when others take this process for alive; `None` where it never said so.
    alive_until: Mutex<Option<UnixMillis>>,
}

const RENEW: &str = "INSERT INTO writer_leases (writer_id, alive_until_ms) VALUES ($1, $2) \
    ON CONFLICT (writer_id) DO UPDATE SET alive_until_ms = excluded.alive_until_ms";
const GIVE_UP: &str = "DELETE FROM writer_leases WHERE writer_id = $1";

impl Lease {
    pub(crate) fn new(db: Db, writer: WriterId) -> Self {
        Self { db, writer, alive_until: Mutex::new(None) }
    }

    /// Writes only when it is time to.
    pub(crate) async fn renew(&self, now: UnixMillis) -> Result<(), DbError> {
        let mut alive_until = self.alive_until().await?;
        if is_fresh(*alive_until, now) {
            return Ok(());
        }
        let until = UnixMillis(now.0 + LEASE_MS);
        self.db.execute(query(RENEW).bind(self.writer.0).bind(until.0), STATEMENT_TIMEOUT).await?;
        *alive_until = Some(until);
        Ok(())
    }

    /// Where this process has a lease.
    pub(crate) async fn renew_if_taken(&self, now: UnixMillis) -> Result<(), DbError> {
        let is_taken = self.alive_until().await?.is_some();
        if is_taken { self.renew(now).await } else { Ok(()) }
    }

    /// The end of a process's life that it knows of itself; whatever it still holds is free at once.
    pub(crate) async fn give_up(&self) {
        let given_up = async {
            if self.alive_until().await?.take().is_some() {
                self.db.execute(query(GIVE_UP).bind(self.writer.0), STATEMENT_TIMEOUT).await?;
            }
            Ok::<(), DbError>(())
        };
        if let Err(error) = given_up.await {
            tracing::warn!(%error, "what this process held is free only in a few seconds");
        }
    }

    /// Whoever waits longer than one try may take learns nothing from making the next: the database does not answer.
    async fn alive_until(&self) -> Result<MutexGuard<'_, Option<UnixMillis>>, DbError> {
        let turn = tokio::time::timeout(STATEMENT_TIMEOUT, self.alive_until.lock()).await;
        turn.map_err(|_| DbError::Unavailable("saying that this process lives takes too long".to_owned()))
    }
}

/// Long enough that it need not be said again yet: whoever holds something from now on says so again after a third of a
/// lease, and may have waited as long before. A lease that reaches further than it can is from before the clock
/// was set back.
fn is_fresh(alive_until: Option<UnixMillis>, now: UnixMillis) -> bool {
    alive_until.is_some_and(|until| (FRESH_MS..=LEASE_MS).contains(&(until.0 - now.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_renewed_after_a_third_of_it_and_when_the_clock_was_set() {
        let now = UnixMillis(1_000_000);
        let fresh = |until_ms: i64| is_fresh(Some(UnixMillis(now.0 + until_ms)), now);
        assert!(!is_fresh(None, now));
        assert!(fresh(LEASE_MS) && fresh(FRESH_MS));
        assert!(!fresh(FRESH_MS - 1) && !fresh(0) && !fresh(-1));
        assert!(!fresh(LEASE_MS + 1), "the clock was set back");
    }

    /// A database that has gone silent would hold up each of those who wait for as long as it holds up the first.
    #[tokio::test]
    async fn who_waits_behind_a_renewal_that_hangs_is_told_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let store = crate::Store::open_file(&folder.path().join("chancery.db")).await.unwrap();
        let hanging = store.lease.alive_until.lock().await;
        tokio::time::pause();
        let (renewing, giving_up) = tokio::join!(
            tokio::time::timeout(STATEMENT_TIMEOUT * 2, store.lease.renew(UnixMillis(0))),
            tokio::time::timeout(STATEMENT_TIMEOUT * 2, store.lease.give_up()),
        );
        assert!(matches!(renewing, Ok(Err(DbError::Unavailable(_)))), "{renewing:?}");
        giving_up.unwrap();
        tokio::time::resume();
        drop(hanging);
        store.close().await;
    }
}
