//! The one statement that counts, for the portal and the identity provider alike: however many come at once, each gets a number
//! of its own and no two get the last one that is allowed. Past the limit nothing is written: denying must cost less than
//! asking. It decides as `chancery_domain::Throttle::count` does.

use crate::DbError;
use crate::db::{COMMAND_WAIT, Conn, Db, FromRow, Query, Row, query};
use chancery_domain::{ThrottleCount, ThrottleDecision, ThrottleExpiry, ThrottleKey, UnixMillis};

impl FromRow for ThrottleCount {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let count: i64 = row.get("count")?;
        Ok(Self {
            count: u32::try_from(count).unwrap_or(u32::MAX),
            expires_at: UnixMillis(row.get("expires_at_ms")?),
        })
    }
}

/// Adds `$2` unless that is more than `$6`. What ended by `$3`, or ends after `$5`, is over. `$7`: with this one all get a new
/// end. In PostgreSQL the row is locked until the transaction ends, even where nothing is added.
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
/// The time is compared once more at the end, for somebody may count meanwhile.
const DELETE_EXPIRED: &str = "DELETE FROM throttles WHERE key_hash IN \
    (SELECT key_hash FROM throttles WHERE expires_at_ms <= $1 LIMIT $2) AND expires_at_ms <= $1";

fn find(key: ThrottleKey<'_>, now: UnixMillis) -> Query<'static> {
    let latest = key.throttle().latest_expiry(now);
    query(FIND).bind(key.hash().0.to_vec()).bind(now.0).bind(latest.0)
}

fn add_one(key: ThrottleKey<'_>, now: UnixMillis) -> Query<'static> {
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

/// The limit is reached. Should what counted be gone already, the next one may try.
fn denied(key: ThrottleKey<'_>, found: Option<ThrottleCount>, now: UnixMillis) -> ThrottleDecision {
    let limit = key.throttle().limit;
    ThrottleDecision::Denied(found.unwrap_or(ThrottleCount { count: limit, expires_at: now }))
}

/// What counts now, locked until the transaction ends. Adds nothing, and what it writes for that is over at once.
pub(crate) async fn lock(
    conn: &mut Conn<'_>,
    key: ThrottleKey<'_>,
    now: UnixMillis,
) -> Result<ThrottleCount, sqlx::Error> {
    let add_none = query(ADD)
        .bind(key.hash().0.to_vec())
        .bind(0_i64)
        .bind(now.0)
        .bind(now.0)
        .bind(key.throttle().latest_expiry(now).0)
        .bind(i64::MAX)
        .bind(false);
    add_none.fetch_one(conn).await
}

/// Counts one more, unless the limit is reached, and gives what counts then.
pub(crate) async fn count(
    conn: &mut Conn<'_>,
    key: ThrottleKey<'_>,
    now: UnixMillis,
) -> Result<ThrottleDecision, sqlx::Error> {
    match add_one(key, now).fetch_optional(conn).await? {
        Some(counted) => Ok(ThrottleDecision::Allowed(counted)),
        None => Ok(denied(key, find(key, now).fetch_optional(conn).await?, now)),
    }
}

pub(crate) fn refund(key: ThrottleKey<'_>, amount: i64) -> Query<'static> {
    query(REFUND).bind(key.hash().0.to_vec()).bind(amount)
}

/// Decides as `chancery_domain::Throttle` does, however many come at once.
#[derive(Clone)]
pub struct Throttles {
    pub(crate) db: Db,
}

impl Throttles {
    /// Counts one more, unless the limit is reached.
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
        let counted: Vec<ThrottleCount> = self.db.write_returning(add_one(key, now), COMMAND_WAIT).await?;
        match counted.into_iter().next() {
            Some(counted) => Ok(ThrottleDecision::Allowed(counted)),
            // Others took the last ones meanwhile.
            None => Ok(denied(key, self.throttle_count(key, now).await?, now)),
        }
    }

    /// What counts now.
    pub async fn throttle_count(
        &self,
        key: ThrottleKey<'_>,
        now: UnixMillis,
    ) -> Result<Option<ThrottleCount>, DbError> {
        Ok(self.db.fetch_optional(find(key, now)).await?)
    }

    /// Takes one back that did no harm after all.
    pub async fn refund_throttle(&self, key: ThrottleKey<'_>) -> Result<(), DbError> {
        self.db.execute(refund(key, 1), COMMAND_WAIT).await?;
        Ok(())
    }

    pub async fn reset_throttle(&self, key: ThrottleKey<'_>) -> Result<(), DbError> {
        self.db.execute(query(RESET).bind(key.hash().0.to_vec()), COMMAND_WAIT).await?;
        Ok(())
    }

    /// Deletes up to `limit` counts that are over; says how many.
    pub async fn delete_expired_throttles(&self, now: UnixMillis, limit: u32) -> Result<u64, DbError> {
        let delete = query(DELETE_EXPIRED).bind(now.0).bind(i64::from(limit));
        Ok(self.db.execute(delete, COMMAND_WAIT).await?)
    }
}
