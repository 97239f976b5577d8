//! The queries that count attempts. Counting is one statement, so that however many come at once, each gets a number of
//! its own and no two get the last one that is allowed.

use crate::both::{for_both_stores, stored_row};
use crate::failure::{answer, explain};
use crate::patience::{COMMAND_PATIENCE, patiently};
use crate::{Attempts, Counted, StoreError};
use chancery_domain::{TokenHash, UnixMillis};

stored_row! {
    struct StoredAttempts {
        attempts: i64,
        forgotten_at_ms: i64,
    }
}

impl StoredAttempts {
    fn into_counted(self) -> Counted {
        Counted {
            attempts: u32::try_from(self.attempts).unwrap_or(u32::MAX),
            forgotten_at: UnixMillis(self.forgotten_at_ms),
        }
    }
}

const COUNT: &str = "INSERT INTO attempts AS a (key_hash, attempts, forgotten_at_ms) VALUES ($1, 1, $3) \
    ON CONFLICT (key_hash) DO UPDATE SET \
    attempts = CASE WHEN a.forgotten_at_ms <= $2 THEN 1 ELSE a.attempts + 1 END, \
    forgotten_at_ms = CASE WHEN a.forgotten_at_ms <= $2 THEN $3 ELSE a.forgotten_at_ms END \
    RETURNING attempts, forgotten_at_ms";
const FIND: &str =
    "SELECT attempts, forgotten_at_ms FROM attempts WHERE key_hash = $1 AND forgotten_at_ms > $2";
const TAKE_BACK: &str = "UPDATE attempts SET attempts = attempts - 1 WHERE key_hash = $1 AND attempts > 0";
const FORGET_KEY: &str = "DELETE FROM attempts WHERE key_hash = $1";
const FORGET_OLD: &str = "DELETE FROM attempts WHERE key_hash IN \
    (SELECT key_hash FROM attempts WHERE forgotten_at_ms <= $1 LIMIT $2) AND forgotten_at_ms <= $1";

for_both_stores! {
    impl Attempts {
        async fn count_attempt(
            &self,
            key: TokenHash,
            now: UnixMillis,
            forgotten_at: UnixMillis,
        ) -> Result<Counted, StoreError> {
            let counted = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query_as(COUNT)
                    .bind(key.0.as_slice())
                    .bind(now.0)
                    .bind(forgotten_at.0)
                    .fetch_all(&mut *connection)
            });
            let rows: Vec<StoredAttempts> = counted.map_err(|error| explain(&error))?;
            match rows.into_iter().next() {
                Some(row) => Ok(row.into_counted()),
                None => Err(StoreError::Unavailable("the count was not given back".to_owned())),
            }
        }

        async fn attempts(&self, key: TokenHash, now: UnixMillis) -> Result<Option<Counted>, StoreError> {
            let found = sqlx::query_as(FIND).bind(key.0.as_slice()).bind(now.0).fetch_optional(&self.reader);
            Ok(answer(found).await?.map(StoredAttempts::into_counted))
        }

        async fn take_back_attempt(&self, key: TokenHash) -> Result<(), StoreError> {
            let taken = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(TAKE_BACK).bind(key.0.as_slice()).execute(&mut *connection)
            });
            taken.map(|_| ()).map_err(|error| explain(&error))
        }

        async fn forget_attempts(&self, key: TokenHash) -> Result<(), StoreError> {
            let forgotten = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(FORGET_KEY).bind(key.0.as_slice()).execute(&mut *connection)
            });
            forgotten.map(|_| ()).map_err(|error| explain(&error))
        }

        async fn forget_old_attempts(&self, now: UnixMillis, limit: u32) -> Result<u64, StoreError> {
            let forgotten = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(FORGET_OLD).bind(now.0).bind(i64::from(limit)).execute(&mut *connection)
            });
            forgotten.map(|done| done.rows_affected()).map_err(|error| explain(&error))
        }
    }
}
