//! How a process says that it lives, so that what it holds for its requests can be taken by others once it does not.

use crate::accounts::spending::FORGET_DEAD_RESERVATIONS;
use crate::db::both::for_both_stores;
use crate::db::error_codes::{STATEMENT_TIMEOUT, explain};
use crate::db::retry::patiently;
use crate::{Leases, StoreError};
use chancery_domain::{UnixMillis, WriterId};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

/// How long a process counts as alive after it last said so.
pub const LEASE: Duration = Duration::from_secs(15);

const LEASE_MS: i64 = LEASE.as_millis() as i64;

const FRESH_MS: i64 = LEASE_MS * 2 / 3;

const _: () = assert!(STATEMENT_TIMEOUT.as_millis() as i64 <= LEASE_MS / 3);

/// A dead process's lease is kept for this long, for the sake of those who look into what happened.
const KEEP_DEAD_MS: i64 = 86_400_000;

pub(crate) struct Lease {
    pub(crate) writer: WriterId,
    /// Until when others take this process for alive; `None` where it never said so.
    alive_until: Mutex<Option<UnixMillis>>,
}

impl Lease {
    pub(crate) fn of(writer: WriterId) -> Self {
        Self { writer, alive_until: Mutex::new(None) }
    }

    /// Whoever waits longer than one try may take learns nothing from making the next: the database does not answer.
    async fn alive_until(&self) -> Result<MutexGuard<'_, Option<UnixMillis>>, StoreError> {
        let turn = tokio::time::timeout(STATEMENT_TIMEOUT, self.alive_until.lock()).await;
        turn.map_err(|_| StoreError::Unavailable("saying that this process lives takes too long".to_owned()))
    }
}

/// Long enough that it need not be said again yet: whoever holds something from now on says so again after a third of a
/// lease, and may have waited as long before. A lease that reaches further than it can is from before the clock
/// was set back.
fn is_fresh(alive_until: Option<UnixMillis>, now: UnixMillis) -> bool {
    alive_until.is_some_and(|until| (FRESH_MS..=LEASE_MS).contains(&(until.0 - now.0)))
}

const RENEW: &str = "INSERT INTO writer_leases (writer_id, alive_until_ms) VALUES ($1, $2) \
    ON CONFLICT (writer_id) DO UPDATE SET alive_until_ms = excluded.alive_until_ms";
const GIVE_UP: &str = "DELETE FROM writer_leases WHERE writer_id = $1";
const FORGET_OLD: &str = "DELETE FROM writer_leases WHERE alive_until_ms < $1";

for_both_stores! {
    impl Leases {
        async fn renew_lease(&self, now: UnixMillis) -> Result<(), StoreError> {
            let mut alive_until = self.lease.alive_until().await?;
            if is_fresh(*alive_until, now) {
                return Ok(());
            }
            let until = UnixMillis(now.0 + LEASE_MS);
            let renewed = patiently!(STATEMENT_TIMEOUT, self.writer().await?, |connection| {
                sqlx::query(RENEW).bind(self.lease.writer.0).bind(until.0).execute(&mut *connection)
            });
            renewed.map_err(|error| explain(&error))?;
            *alive_until = Some(until);
            Ok(())
        }

        async fn forget_dead(&self, now: UnixMillis, limit: u32) -> Result<u64, StoreError> {
            // Where the machine was paused or its clock was set, this process would be the first that it finds dead.
            let holds_something = self.lease.alive_until().await?.is_some();
            if holds_something {
                self.renew_lease(now).await?;
            }
            let forgotten = patiently!(STATEMENT_TIMEOUT, self.writer().await?, |connection| {
                sqlx::query(FORGET_DEAD_RESERVATIONS).bind(now.0).bind(i64::from(limit)).execute(&mut *connection)
            });
            let forgotten = forgotten.map_err(|error| explain(&error))?.rows_affected();
            let old = patiently!(STATEMENT_TIMEOUT, self.writer().await?, |connection| {
                sqlx::query(FORGET_OLD).bind(now.0 - KEEP_DEAD_MS).execute(&mut *connection)
            });
            old.map_err(|error| explain(&error))?;
            Ok(forgotten)
        }
    }
}

/// The end of a process's life that it knows of itself; whatever it still holds is free at once.
macro_rules! give_up_lease {
    ($store:ty) => {
        impl $store {
            pub(crate) async fn give_up_lease(&self) {
                let given_up = async {
                    if self.lease.alive_until().await?.take().is_none() {
                        return Ok(());
                    }
                    let outcome = patiently!(STATEMENT_TIMEOUT, self.writer().await?, |connection| {
                        sqlx::query(GIVE_UP).bind(self.lease.writer.0).execute(&mut *connection)
                    });
                    outcome.map(|_| ()).map_err(|error| explain(&error))
                };
                if let Err(error) = given_up.await {
                    tracing::warn!(%error, "what this process held is free only in a few seconds");
                }
            }
        }
    };
}

give_up_lease!(crate::db::sqlite::SqliteStore);
give_up_lease!(crate::db::postgres::PostgresStore);

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
        let store = crate::SqliteStore::open(&folder.path().join("chancery.db")).await.unwrap();
        let hanging = store.lease.alive_until.lock().await;
        tokio::time::pause();
        let (renewing, giving_up) = tokio::join!(
            tokio::time::timeout(STATEMENT_TIMEOUT * 2, store.renew_lease(UnixMillis(0))),
            tokio::time::timeout(STATEMENT_TIMEOUT * 2, store.give_up_lease()),
        );
        assert!(matches!(renewing, Ok(Err(StoreError::Unavailable(_)))), "{renewing:?}");
        giving_up.unwrap();
        tokio::time::resume();
        drop(hanging);
        crate::Health::close(&store).await;
    }
}
