//! The monthly spending caps of an account and of a key.
//!
//! 1. Reservations queue in the process (`SpendingQueue`); waiting requests occupy no connection.
//! 2. Orphaned reservations of the account and the key are deleted: their process has not renewed its lease. A live
//!    process ends its own, so a clock that jumps takes nothing from its requests.
//! 3. The amount is reserved if the month's spending and the remaining reservations leave room for it under both caps.
//!    This is atomic: SQLite has one writer, PostgreSQL locks the rows of the key and the account.
//! 4. Settling deletes the reservation in the transaction that adds the ledger row. If it was deleted by (2), nothing
//!    is written. So a wrong clock can fail a request, but never lets spending exceed the cap.

use crate::DbError;
use crate::accounts::spending_queue::SpendingQueue;
use crate::db::error_codes::STATEMENT_TIMEOUT;
use crate::db::{Db, Dialect, FromRow, Query, QueryError, Row, query};
use crate::leases::lease::Lease;
use crate::{AccountError, CapStatus, CapStatuses, ReserveOutcome, SpendingReservation};
use chancery_domain::{AccountId, KeyId, LimitScope, Month, Nanos, RequestId};
use std::sync::Arc;

const DELETE_ORPHANED_OF_CALLER: &str = "DELETE FROM spending_reservations AS r \
    WHERE (r.account_id = $1 OR r.key_id = $3) AND \
    NOT EXISTS (SELECT 1 FROM writer_leases w \
    WHERE w.writer_id = r.writer_id AND w.lease_expires_at_ms > $2)";
pub(crate) const DELETE_ORPHANED: &str = "DELETE FROM spending_reservations WHERE request_id IN \
    (SELECT r.request_id FROM spending_reservations r WHERE \
    NOT EXISTS (SELECT 1 FROM writer_leases w \
    WHERE w.writer_id = r.writer_id AND w.lease_expires_at_ms > $1) LIMIT $2)";

pub(crate) const RELEASE: &str = "DELETE FROM spending_reservations WHERE request_id = $1";

const CAP_STATUS: &str = "SELECT a.spend_per_month_nanos AS account_cap_nanos, \
    CAST(COALESCE((SELECT SUM(u.cost_nanos) FROM daily_usage u \
        WHERE u.account_id = $1 AND u.day BETWEEN $2 AND $3), 0) AS BIGINT) AS account_spent_nanos, \
    CAST(COALESCE((SELECT SUM(r.amount_nanos) FROM spending_reservations r \
        WHERE r.account_id = $1 AND r.month = $2), 0) AS BIGINT) AS account_reserved_nanos, \
    k.max_spend_per_month_nanos AS key_cap_nanos, \
    CAST(COALESCE((SELECT SUM(u.cost_nanos) FROM daily_usage u \
        WHERE u.key_id = $4 AND u.day BETWEEN $2 AND $3), 0) AS BIGINT) AS key_spent_nanos, \
    CAST(COALESCE((SELECT SUM(r.amount_nanos) FROM spending_reservations r \
        WHERE r.key_id = $4 AND r.month = $2), 0) AS BIGINT) AS key_reserved_nanos \
    FROM accounts a LEFT JOIN api_keys k ON k.id = $4 WHERE a.id = $1";

/// Returns a row if the amount was reserved.
const RESERVE_SQLITE: &str = "INSERT INTO spending_reservations \
    (request_id, account_id, key_id, month, amount_nanos, writer_id) \
    SELECT $1, a.id, k.id, $3, $5, $6 FROM accounts a, api_keys k \
    WHERE a.id = $2 AND k.id = $7 \
    AND (a.spend_per_month_nanos IS NOT NULL OR k.max_spend_per_month_nanos IS NOT NULL) \
    AND (a.spend_per_month_nanos IS NULL OR a.spend_per_month_nanos - $5 >= \
        COALESCE((SELECT SUM(u.cost_nanos) FROM daily_usage u \
                  WHERE u.account_id = $2 AND u.day BETWEEN $3 AND $4), 0) \
        + COALESCE((SELECT SUM(r.amount_nanos) FROM spending_reservations r \
                    WHERE r.account_id = $2 AND r.month = $3), 0)) \
    AND (k.max_spend_per_month_nanos IS NULL OR k.max_spend_per_month_nanos - $5 >= \
        COALESCE((SELECT SUM(u.cost_nanos) FROM daily_usage u \
                  WHERE u.key_id = $7 AND u.day BETWEEN $3 AND $4), 0) \
        + COALESCE((SELECT SUM(r.amount_nanos) FROM spending_reservations r \
                    WHERE r.key_id = $7 AND r.month = $3), 0)) \
    RETURNING 1";

/// The function has the same condition, and locks the rows of the key and the account first.
const RESERVE_POSTGRES: &str =
    "SELECT 1::bigint FROM reserve_spending($1, $2, $3, $4, $5, $6, $7) AS is_reserved WHERE is_reserved";

impl FromRow for CapStatuses {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let status = |scope, [cap, spent, reserved]: [&str; 3]| -> Result<Option<CapStatus>, QueryError> {
            let (spent, reserved) = (row.get(spent)?, row.get(reserved)?);
            Ok(row.get::<Option<Nanos>>(cap)?.map(|cap| CapStatus { scope, cap, spent, reserved }))
        };
        Ok(Self {
            account: status(
                LimitScope::Account,
                ["account_cap_nanos", "account_spent_nanos", "account_reserved_nanos"],
            )?,
            key: status(LimitScope::Key, ["key_cap_nanos", "key_spent_nanos", "key_reserved_nanos"])?,
        })
    }
}

fn read_caps(account: AccountId, key: KeyId, month: Month) -> Query {
    let (first_day, last_day) = (i64::from(month.first_day().0), i64::from(month.last_day().0));
    query(CAP_STATUS).bind(account.0).bind(first_day).bind(last_day).bind(key.0)
}

impl CapStatuses {
    /// Why nothing was reserved: the cap that leaves less.
    fn rejection(self) -> ReserveOutcome {
        let tightest = self.account.into_iter().chain(self.key).min_by_key(|status| status.remaining().0);
        tightest.map_or(ReserveOutcome::NoCap, ReserveOutcome::Rejected)
    }
}

/// The monthly spending caps of accounts and keys. Billed usage and reservations together never exceed them, also with
/// concurrent reservations. Reservations of a dead process no longer count.
#[derive(Clone)]
pub struct Spending {
    pub(crate) db: Db,
    pub(crate) lease: Arc<Lease>,
    pub(crate) queue: Arc<SpendingQueue>,
}

impl Spending {
    pub async fn reserve_spending(
        &self,
        reservation: SpendingReservation,
    ) -> Result<ReserveOutcome, AccountError> {
        let SpendingReservation { request_id, account, key, amount, at, now } = reservation;
        self.lease.renew(now).await?;
        let _slot = self.queue.enter(account).await?;
        let writer = self.lease.writer;
        let reserved = self.db.write_soon(move |tx| {
            query(DELETE_ORPHANED_OF_CALLER).bind(account.0).bind(now.0).bind(key.0).execute(tx)?;
            let month = Month::containing(at);
            let (first_day, last_day) = (i64::from(month.first_day().0), i64::from(month.last_day().0));
            let reserve = query(match tx.dialect() {
                Dialect::Sqlite => RESERVE_SQLITE,
                Dialect::Postgres => RESERVE_POSTGRES,
            });
            let reserve = reserve
                .bind(request_id.as_str())
                .bind(account.0)
                .bind(first_day)
                .bind(last_day)
                .bind(amount.0)
                .bind(writer.0)
                .bind(key.0);
            if reserve.fetch_optional::<i64>(tx)?.is_some() {
                return Ok(ReserveOutcome::Reserved);
            }
            let statuses: Option<CapStatuses> = read_caps(account, key, month).fetch_optional(tx)?;
            Ok(statuses.ok_or(AccountError::NoSuchAccountId(account))?.rejection())
        });
        reserved.await
    }

    /// Changes nothing. Reservations of dead processes count until they are deleted.
    pub async fn cap_statuses(
        &self,
        account: AccountId,
        key: KeyId,
        month: Month,
    ) -> Result<CapStatuses, AccountError> {
        let statuses: Option<CapStatuses> = self.db.fetch_optional(read_caps(account, key, month)).await?;
        statuses.ok_or(AccountError::NoSuchAccountId(account))
    }

    /// Releases the reservation of a failed request. If it is already gone, nothing changes.
    pub async fn release_spending(&self, request: &RequestId) -> Result<(), DbError> {
        self.db.execute(query(RELEASE).bind(request.as_str()), STATEMENT_TIMEOUT).await?;
        Ok(())
    }
}
