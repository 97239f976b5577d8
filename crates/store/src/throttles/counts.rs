//! The queries that count attempts. Counting is one statement, so that however many come at once, each gets a number of
//! its own and no two get the last one that is allowed. Past the bound nothing is written: denying must cost less than
//! asking. A count that lies farther ahead than it could, created while a clock was wrong, is over.

use crate::db::{COMMAND_WAIT, FromRow, HasDb, Row, query};
use crate::{Attempt, Attempts, Counted, StoreError};
use chancery_domain::{TokenHash, UnixMillis};

impl FromRow for Counted {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let attempts: i64 = row.get("attempts")?;
        Ok(Self {
            attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
            forgotten_at: UnixMillis(row.get("forgotten_at_ms")?),
        })
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
const DELETE_KEY: &str = "DELETE FROM attempts WHERE key_hash = $1";
const DELETE_EXPIRED: &str = "DELETE FROM attempts WHERE key_hash IN \
    (SELECT key_hash FROM attempts WHERE forgotten_at_ms <= $1 LIMIT $2) AND forgotten_at_ms <= $1";

#[async_trait::async_trait]
impl<S: HasDb> Attempts for S {
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
        let count = query(COUNT)
            .bind(key.0.as_slice())
            .bind(now.0)
            .bind(forgotten_at.0)
            .bind(i64::from(most))
            .bind(forgotten_at.0.saturating_add(CLOCK_SKEW_MS));
        let counted: Vec<Counted> = self.db().write_returning(count, COMMAND_WAIT).await?;
        match counted.into_iter().next() {
            Some(counted) => Ok(Attempt::Within(counted)),
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
        let find =
            query(FIND).bind(key.0.as_slice()).bind(now.0).bind(forgotten_at.0.saturating_add(CLOCK_SKEW_MS));
        Ok(self.db().fetch_optional(find).await?)
    }

    async fn take_back_attempt(&self, key: TokenHash) -> Result<(), StoreError> {
        self.db().execute(query(TAKE_BACK).bind(key.0.as_slice()), COMMAND_WAIT).await?;
        Ok(())
    }

    async fn forget_attempts(&self, key: TokenHash) -> Result<(), StoreError> {
        self.db().execute(query(DELETE_KEY).bind(key.0.as_slice()), COMMAND_WAIT).await?;
        Ok(())
    }

    async fn forget_old_attempts(&self, now: UnixMillis, limit: u32) -> Result<u64, StoreError> {
        let delete = query(DELETE_EXPIRED).bind(now.0).bind(i64::from(limit));
        Ok(self.db().execute(delete, COMMAND_WAIT).await?)
    }
}
