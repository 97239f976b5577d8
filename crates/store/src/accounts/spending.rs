//! The cap on what an account spends in a month.
//!
//! 1. Whoever is next (`SpendingQueue`) begins; the others wait without holding a connection.
//! 2. Orphaned reservations of the account are deleted: their process has not renewed its lease, or their time is up.
//! 3. The amount is reserved if the month's sums and everything that is left reserved leave room for it. This is one atomic step
//!    for each account: SQLite has one writer, PostgreSQL locks the account's row.
//! 4. Settling deletes the reservation in the transaction that adds the row. Where somebody deleted it by (2), nothing is
//!    written. So a wrong clock can disturb a request, but never lets spending pass the cap.

use crate::DbError;
use crate::accounts::spending_queue::SpendingQueue;
use crate::db::Db;
use crate::db::error_codes::STATEMENT_TIMEOUT;
use crate::db::{Dialect, FromRow, Row, query};
use crate::leases::lease::Lease;
use crate::{AccountError, Reserved, SpendingReservation};
use chancery_domain::{Month, Nanos, RequestId};
use std::sync::Arc;

const DELETE_ORPHANED_OF_ACCOUNT: &str = "DELETE FROM spending_reservations AS r WHERE r.account_id = $1 AND \
    (r.expires_at_ms <= $2 OR NOT EXISTS (SELECT 1 FROM writer_leases w \
    WHERE w.writer_id = r.writer_id AND w.alive_until_ms > $2))";
pub(crate) const DELETE_ORPHANED: &str = "DELETE FROM spending_reservations WHERE request_id IN \
    (SELECT r.request_id FROM spending_reservations r WHERE \
    (r.expires_at_ms <= $1 OR NOT EXISTS (SELECT 1 FROM writer_leases w \
    WHERE w.writer_id = r.writer_id AND w.alive_until_ms > $1)) LIMIT $2)";

pub(crate) const RELEASE: &str = "DELETE FROM spending_reservations WHERE request_id = $1";

const ROOM: &str = "SELECT a.spend_per_month_nanos AS cap_nanos, \
    CAST(COALESCE((SELECT SUM(u.cost_nanos) FROM usage_days u \
        WHERE u.account_id = $1 AND u.day BETWEEN $2 AND $3), 0) AS BIGINT) AS spent_nanos, \
    CAST(COALESCE((SELECT SUM(r.amount_nanos) FROM spending_reservations r \
        WHERE r.account_id = $1 AND r.month = $2), 0) AS BIGINT) AS set_aside_nanos \
    FROM accounts a WHERE a.id = $1";

/// Gives a row where the amount was reserved.
const RESERVE_SQLITE: &str = "INSERT INTO spending_reservations \
    (request_id, account_id, month, amount_nanos, writer_id, expires_at_ms) \
    SELECT $1, a.id, $3, $5, $6, $7 FROM accounts a \
    WHERE a.id = $2 AND a.spend_per_month_nanos - $5 >= \
        COALESCE((SELECT SUM(u.cost_nanos) FROM usage_days u \
                  WHERE u.account_id = $2 AND u.day BETWEEN $3 AND $4), 0) \
        + COALESCE((SELECT SUM(r.amount_nanos) FROM spending_reservations r \
                    WHERE r.account_id = $2 AND r.month = $3), 0) \
    RETURNING 1";

/// The function has the same condition, and locks the account first.
const RESERVE_POSTGRES: &str =
    "SELECT 1::bigint FROM reserve_spending($1, $2, $3, $4, $5, $6, $7) AS is_reserved WHERE is_reserved";

/// Why nothing was reserved.
impl FromRow for Reserved {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let cap: Option<i64> = row.get("cap_nanos")?;
        let (spent, set_aside) = (Nanos(row.get("spent_nanos")?), Nanos(row.get("set_aside_nanos")?));
        Ok(cap.map_or(Self::NotNeeded, |cap| Self::Refused { cap: Nanos(cap), spent, set_aside }))
    }
}

/// The cap on what an account spends in a month: what is in the ledger and what is set aside never pass it together,
/// however many set aside at once. What a dead process had set aside no longer counts.
#[derive(Clone)]
pub struct Spending {
    pub(crate) db: Db,
    pub(crate) lease: Arc<Lease>,
    pub(crate) queue: Arc<SpendingQueue>,
}

impl Spending {
    pub async fn reserve_spending(&self, reservation: SpendingReservation) -> Result<Reserved, AccountError> {
        let SpendingReservation { request_id, account, amount, at, now, expires_at } = reservation;
        self.lease.renew(now).await?;
        let _slot = self.queue.enter(account).await?;
        let delete = query(DELETE_ORPHANED_OF_ACCOUNT).bind(account.0).bind(now.0);
        self.db.execute(delete, STATEMENT_TIMEOUT).await?;
        let month = Month::of(at);
        let (first_day, last_day) = (i64::from(month.first_day().0), i64::from(month.last_day().0));
        let reserve = query(match self.db.dialect() {
            Dialect::Sqlite => RESERVE_SQLITE,
            Dialect::Postgres => RESERVE_POSTGRES,
        });
        let reserve = reserve
            .bind(request_id.as_str())
            .bind(account.0)
            .bind(first_day)
            .bind(last_day)
            .bind(amount.0)
            .bind(self.lease.writer.0)
            .bind(expires_at.0);
        if !self.db.write_returning::<i64>(reserve, STATEMENT_TIMEOUT).await?.is_empty() {
            return Ok(Reserved::Yes);
        }
        let room = query(ROOM).bind(account.0).bind(first_day).bind(last_day);
        self.db.fetch_optional(room).await?.ok_or(AccountError::NoSuchAccountId(account))
    }

    /// For a request that comes to nothing. Giving back what is gone changes nothing.
    pub async fn release_spending(&self, request: &RequestId) -> Result<(), DbError> {
        self.db.execute(query(RELEASE).bind(request.as_str()), STATEMENT_TIMEOUT).await?;
        Ok(())
    }
}
