//! The queries about what accounts may spend in a month.
//!
//! 1. Whoever is next (`spending_turns`) begins; the others wait without holding a connection.
//! 2. What is dead of what the account's requests have set aside is removed: its process has not said for a while that
//!    it lives, or its time is up.
//! 3. The amount is set aside if the month's sums and everything that is left set aside leave room for it. This is one
//!    atomic step for each account: SQLite has one writer, PostgreSQL locks the account's row.
//! 4. Settling removes what was set aside in the transaction that adds the row. Where somebody removed it by (2), nothing
//!    is written. So a wrong clock can disturb a request, but never lets spending pass the cap.

use crate::db::both::{for_both_stores, stored_row};
use crate::db::error_codes::{STATEMENT_TIMEOUT, answer, explain};
use crate::db::postgres::PostgresStore;
use crate::db::retry::patiently;
use crate::db::sqlite::SqliteStore;
use crate::{Leases, Reserved, Spending, SpendingReservation, StoreError};
use chancery_domain::{Month, Nanos, RequestId};

/// Whether the reservation `r` is dead at the moment that the parameter gives.
macro_rules! is_dead {
    ($now:literal) => {
        concat!(
            "(r.expires_at_ms <= ",
            $now,
            " OR NOT EXISTS (SELECT 1 FROM writer_leases w \
             WHERE w.writer_id = r.writer_id AND w.alive_until_ms > ",
            $now,
            "))"
        )
    };
}

const FORGET_DEAD_OF_ACCOUNT: &str =
    concat!("DELETE FROM spending_reservations AS r WHERE r.account_id = $1 AND ", is_dead!("$2"));

pub(crate) const FORGET_DEAD_RESERVATIONS: &str = concat!(
    "DELETE FROM spending_reservations WHERE request_id IN \
     (SELECT r.request_id FROM spending_reservations r WHERE ",
    is_dead!("$1"),
    " LIMIT $2)"
);

pub(crate) const RELEASE: &str = "DELETE FROM spending_reservations WHERE request_id = $1";

const ROOM: &str = "SELECT a.spend_per_month_nanos AS cap_nanos, \
    CAST(COALESCE((SELECT SUM(u.cost_nanos) FROM usage_days u \
        WHERE u.account_id = $1 AND u.day BETWEEN $2 AND $3), 0) AS BIGINT) AS spent_nanos, \
    CAST(COALESCE((SELECT SUM(r.amount_nanos) FROM spending_reservations r \
        WHERE r.account_id = $1 AND r.month = $2), 0) AS BIGINT) AS set_aside_nanos \
    FROM accounts a WHERE a.id = $1";

stored_row! {
    struct StoredRoom {
        cap_nanos: Option<i64>,
        spent_nanos: i64,
        set_aside_nanos: i64,
    }
}

/// How an amount is set aside; gives a row where it was.
trait Reserve {
    const RESERVE: &'static str;
}

impl Reserve for SqliteStore {
    const RESERVE: &'static str = "INSERT INTO spending_reservations \
        (request_id, account_id, month, amount_nanos, writer_id, expires_at_ms) \
        SELECT $1, a.id, $3, $5, $6, $7 FROM accounts a \
        WHERE a.id = $2 AND a.spend_per_month_nanos - $5 >= \
            COALESCE((SELECT SUM(u.cost_nanos) FROM usage_days u \
                      WHERE u.account_id = $2 AND u.day BETWEEN $3 AND $4), 0) \
            + COALESCE((SELECT SUM(r.amount_nanos) FROM spending_reservations r \
                        WHERE r.account_id = $2 AND r.month = $3), 0) \
        RETURNING 1";
}

/// The function has the same condition, and locks the account first.
impl Reserve for PostgresStore {
    const RESERVE: &'static str =
        "SELECT 1 FROM reserve_spending($1, $2, $3, $4, $5, $6, $7) AS is_reserved WHERE is_reserved";
}

for_both_stores! {
    impl Spending {
        async fn reserve_spending(&self, reservation: SpendingReservation) -> Result<Reserved, StoreError> {
            let SpendingReservation { request_id, account, amount, at, now, expires_at } = reservation;
            self.renew_lease(now).await?;
            let _turn = self.spending_turns.take(account).await?;
            let dead = patiently!(STATEMENT_TIMEOUT, self.writer().await?, |connection| {
                sqlx::query(FORGET_DEAD_OF_ACCOUNT).bind(account.0).bind(now.0).execute(&mut *connection)
            });
            dead.map_err(|error| explain(&error))?;
            let month = Month::of(at);
            let (first_day, last_day) = (i64::from(month.first_day().0), i64::from(month.last_day().0));
            let reserved = patiently!(STATEMENT_TIMEOUT, self.writer().await?, |connection| {
                sqlx::query(Self::RESERVE)
                    .bind(request_id.as_str())
                    .bind(account.0)
                    .bind(first_day)
                    .bind(last_day)
                    .bind(amount.0)
                    .bind(self.lease.writer.0)
                    .bind(expires_at.0)
                    .fetch_all(&mut *connection)
            });
            if !reserved.map_err(|error| explain(&error))?.is_empty() {
                return Ok(Reserved::Yes);
            }
            let room = sqlx::query_as(ROOM).bind(account.0).bind(first_day).bind(last_day);
            let room: Option<StoredRoom> = answer(room.fetch_optional(&self.reader)).await?;
            let room = room.ok_or(StoreError::NoSuchAccountId(account))?;
            Ok(match room.cap_nanos {
                None => Reserved::NotNeeded,
                Some(cap_nanos) => Reserved::Refused {
                    cap: Nanos(cap_nanos),
                    spent: Nanos(room.spent_nanos),
                    set_aside: Nanos(room.set_aside_nanos),
                },
            })
        }

        async fn release_spending(&self, request: &RequestId) -> Result<(), StoreError> {
            let released = patiently!(STATEMENT_TIMEOUT, self.writer().await?, |connection| {
                sqlx::query(RELEASE).bind(request.as_str()).execute(&mut *connection)
            });
            released.map(|_| ()).map_err(|error| explain(&error))
        }
    }
}
