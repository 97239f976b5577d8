//! The queries that count attempts. Counting is one statement, so that however many come at once, each gets a number of
//! its own and no two get the last one that is allowed. Past the bound nothing is written: refusing must cost less than
//! asking. A count that lies farther ahead than it could, made while a clock was wrong, is over.

use crate::db::both::{for_both_stores, stored_row};
use crate::db::error_codes::{answer, explain};
use crate::db::retry::{COMMAND_PATIENCE, patiently};
use crate::{Attempt, Attempts, Counted, StoreError};
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

/// By how much the clocks of nodes may differ before a count of one is over for another.
const CLOCK_SKEW_MS: i64 = 60_000;

/// `$5` is the latest end that a count can have.
const COUNT: &str = "INSERT INTO attempts AS a (key_hash, attempts, forgotten_at_ms) VALUES ($1, 1, $3) \
    ON CONFLICT (key_hash) DO UPDATE SET \
    attempts = CASE WHEN a.forgotten_at_ms <= $2 OR a.forgotten_at_ms > $5 THEN 1 ELSE a.attempts + 1 END, \
    forgotten_at_ms = CASE WHEN a.forgotten_at_ms <= $2 OR a.forgotten_at_ms > $5 THEN $3 ELSE a.forgotten_at_ms END \
    WHERE a.attempts < $4 OR a.forgotten_at_ms <= $2 OR a.forgotten_at_ms > $5 \
    RETURNING attempts, forgotten_at_ms";
const FIND: &str = "SELECT attempts, forgotten_at_ms FROM attempts \
    WHERE key_hash = $1 AND forgotten_at_ms > $2 AND forgotten_at_ms <= $3";
const TAKE_BACK: &str = "UPDATE attempts SET attempts = attempts - 1 WHERE key_hash = $1 AND attempts > 0";
const FORGET_KEY: &str = "DELETE FROM attempts WHERE key_hash = $1";
const FORGET_OLD: &str = "DELETE FROM attempts WHERE key_hash IN \
    (SELECT key_hash FROM attempts WHERE forgotten_at_ms <= $1 LIMIT $2) AND forgotten_at_ms <= $1";

for_both_stores! {
    impl Attempts {
        async fn count_attempt(
            &self,
            key: TokenHash,
            most: u32,
            now: UnixMillis,
            forgotten_at: UnixMillis,
        ) -> Result<Attempt, StoreError> {
            if let Some(counted) = self.attempts(key, now, forgotten_at).await?
                && counted.attempts >= most
            {
                return Ok(Attempt::Over(counted));
            }
            let counted = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query_as(COUNT)
                    .bind(key.0.as_slice())
                    .bind(now.0)
                    .bind(forgotten_at.0)
                    .bind(i64::from(most))
                    .bind(forgotten_at.0.saturating_add(CLOCK_SKEW_MS))
                    .fetch_all(&mut *connection)
            });
            let rows: Vec<StoredAttempts> = counted.map_err(|error| explain(&error))?;
            match rows.into_iter().next() {
                Some(row) => Ok(Attempt::Within(row.into_counted())),
                // Others took the last ones meanwhile. Should their count be gone already, the next one may try.
                None => {
                    let counted = self.attempts(key, now, forgotten_at).await?;
                    Ok(Attempt::Over(counted.unwrap_or(Counted { attempts: most, forgotten_at: now })))
                }
            }
        }

        async fn attempts(
            &self,
            key: TokenHash,
            now: UnixMillis,
            forgotten_at: UnixMillis,
        ) -> Result<Option<Counted>, StoreError> {
            let found = sqlx::query_as(FIND)
                .bind(key.0.as_slice())
                .bind(now.0)
                .bind(forgotten_at.0.saturating_add(CLOCK_SKEW_MS));
            Ok(answer(found.fetch_optional(&self.reader)).await?.map(StoredAttempts::into_counted))
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
