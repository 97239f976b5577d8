//! The statement that counts attempts, for the portal and the identity provider. Each of several concurrent attempts
//! gets its own number, so only one gets the last that is allowed. Past the limit nothing is written: a denial must
//! cost less than an attempt. It decides as `chancery_domain::Throttle::count` does.

use crate::DbError;
use crate::db::{COMMAND_RETRY_LIMIT, Db, Query, QueryError, Tx, from_row, query};
use chancery_domain::{ThrottleCount, ThrottleDecision, ThrottleExpiry, ThrottleKey, UnixMillis};

from_row!(ThrottleCount { count: capped_count("count"), expires_at: "expires_at_ms" });

/// Adds `$2` unless the sum exceeds `$6`. A count no longer applies if it expires by `$3`, or after `$5` because the
/// clock was set back. With `$7`, this attempt moves the expiry of the whole count. PostgreSQL locks the row until the
/// transaction ends, even if nothing is added.
const ADD: &str = "INSERT INTO throttles AS t (key_hash, count, expires_at_ms) VALUES ($1, $2, $4) \
    ON CONFLICT (key_hash) DO UPDATE SET \
    count = CASE WHEN t.expires_at_ms <= $3 OR t.expires_at_ms > $5 THEN $2 ELSE t.count + $2 END, \
    expires_at_ms = CASE WHEN t.expires_at_ms <= $3 OR t.expires_at_ms > $5 OR $7 THEN $4 ELSE t.expires_at_ms END \
    WHERE t.count + $2 <= $6 OR t.expires_at_ms <= $3 OR t.expires_at_ms > $5 \
    RETURNING count, expires_at_ms";
const FIND: &str = "SELECT count, expires_at_ms FROM throttles \
    WHERE key_hash = $1 AND expires_at_ms > $2 AND expires_at_ms <= $3";
const REFUND: &str = "UPDATE throttles SET count = CASE WHEN count > $2 THEN count - $2 ELSE 0 END \
    WHERE key_hash = $1 AND count > 0";
const RESET: &str = "DELETE FROM throttles WHERE key_hash = $1";
/// Compares the time again at the end, because another attempt may have been counted meanwhile.
const DELETE_EXPIRED: &str = "DELETE FROM throttles WHERE key_hash IN \
    (SELECT key_hash FROM throttles WHERE expires_at_ms <= $1 LIMIT $2) AND expires_at_ms <= $1";

fn find(key: ThrottleKey<'_>, now: UnixMillis) -> Query {
    let latest = key.throttle().latest_expiry(now);
    query(FIND).bind(key.hash().0.to_vec()).bind(now.0).bind(latest.0)
}

fn add_one(key: ThrottleKey<'_>, now: UnixMillis) -> Query {
    let throttle = key.throttle();
    query(ADD)
        .bind(key.hash().0.to_vec())
        .bind(1_i64)
        .bind(now.0)
        .bind(throttle.expires_at(now).0)
        .bind(throttle.latest_expiry(now).0)
        .bind(i64::from(throttle.limit))
        .bind(throttle.expiry == ThrottleExpiry::AfterLast)
}

/// For an attempt over the limit. If the count has expired meanwhile, the next attempt is allowed at once.
fn denied(key: ThrottleKey<'_>, found: Option<ThrottleCount>, now: UnixMillis) -> ThrottleDecision {
    let limit = key.throttle().limit;
    ThrottleDecision::Denied(found.unwrap_or(ThrottleCount { count: limit, expires_at: now }))
}

/// Returns the current count and locks it until the transaction ends. It adds nothing; a row that it has to write has
/// already expired.
pub(crate) fn lock(
    tx: &mut Tx<'_>,
    key: ThrottleKey<'_>,
    now: UnixMillis,
) -> Result<ThrottleCount, QueryError> {
    let add_none = query(ADD)
        .bind(key.hash().0.to_vec())
        .bind(0_i64)
        .bind(now.0)
        .bind(now.0)
        .bind(key.throttle().latest_expiry(now).0)
        .bind(i64::MAX)
        .bind(false);
    add_none.fetch_one(tx)
}

/// Counts one attempt unless the limit is reached. Returns the new count.
pub(crate) fn count(
    tx: &mut Tx<'_>,
    key: ThrottleKey<'_>,
    now: UnixMillis,
) -> Result<ThrottleDecision, QueryError> {
    match add_one(key, now).fetch_optional(tx)? {
        Some(counted) => Ok(ThrottleDecision::Allowed(counted)),
        None => Ok(denied(key, find(key, now).fetch_optional(tx)?, now)),
    }
}

pub(crate) fn refund(key: ThrottleKey<'_>, amount: i64) -> Query {
    query(REFUND).bind(key.hash().0.to_vec()).bind(amount)
}

/// Attempt counts. Decides as `chancery_domain::Throttle` does, also for concurrent attempts.
#[derive(Clone)]
pub struct Throttles {
    pub(crate) db: Db,
}

impl Throttles {
    /// Counts one attempt unless the limit is reached.
    pub async fn count_throttle(
        &self,
        key: ThrottleKey<'_>,
        now: UnixMillis,
    ) -> Result<ThrottleDecision, DbError> {
        if let Some(current) = self.throttle_count(key, now).await?
            && key.throttle().left(current) == 0
        {
            return Ok(ThrottleDecision::Denied(current));
        }
        let counted: Vec<ThrottleCount> =
            self.db.write_returning(add_one(key, now), COMMAND_RETRY_LIMIT).await?;
        match counted.into_iter().next() {
            Some(counted) => Ok(ThrottleDecision::Allowed(counted)),
            // Concurrent attempts reached the limit first.
            None => Ok(denied(key, self.throttle_count(key, now).await?, now)),
        }
    }

    /// The current count.
    pub async fn throttle_count(
        &self,
        key: ThrottleKey<'_>,
        now: UnixMillis,
    ) -> Result<Option<ThrottleCount>, DbError> {
        Ok(self.db.fetch_optional(find(key, now)).await?)
    }

    /// Subtracts one attempt that turned out not to count.
    pub async fn refund_throttle(&self, key: ThrottleKey<'_>) -> Result<(), DbError> {
        self.db.execute(refund(key, 1), COMMAND_RETRY_LIMIT).await?;
        Ok(())
    }

    pub async fn reset_throttle(&self, key: ThrottleKey<'_>) -> Result<(), DbError> {
        self.db.execute(query(RESET).bind(key.hash().0.to_vec()), COMMAND_RETRY_LIMIT).await?;
        Ok(())
    }

    /// Deletes up to `limit` expired counts and returns how many.
    pub async fn delete_expired_throttles(&self, now: UnixMillis, limit: u32) -> Result<u64, DbError> {
        let delete = query(DELETE_EXPIRED).bind(now.0).bind(i64::from(limit));
        Ok(self.db.execute(delete, COMMAND_RETRY_LIMIT).await?)
    }
}
