//! PostgreSQL's ledger has a partition for each month, made before the month begins:
//!
//! 1. A server makes the partitions of this month and the next beside its other work (`Months`), so that nobody who
//!    settles waits for it. What failed is tried again after a while.
//! 2. A row whose month nobody has seen to makes it on its way, once. Where that fails, the row goes into the partition that
//!    takes what no other does; nothing is refused for it.
//! 3. Where rows of a month lie there when its partition is made, (1) moves them into it.

use crate::DbError;
use crate::db::error_codes::{
    explain, is_check_violation, is_connection_lost, is_there_already, with_timeout,
};
use crate::ledger::batch::Batch;
use chancery_domain::{Month, RequestId, UnixMillis};
use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// After a failure to make a partition, how long it is not tried again.
const RETRY_PAUSE_MS: i64 = 600_000;

const ADD_MONTH: &str = "SELECT add_ledger_month($1, $2, $3)";

#[derive(Default)]
pub(crate) struct LedgerMonths {
    /// Those that this process has looked at.
    seen: Mutex<BTreeMap<Month, Seen>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Made,
    /// It could not be made on the way of a row, and is to be made soon.
    Missing,
    FailedAt(UnixMillis),
}

/// The ledger's table for each month, where the database has one.
#[derive(Clone)]
pub struct LedgerPartitions {
    /// None in SQLite, where one table has all months.
    pub(crate) monthly: Option<(Arc<LedgerMonths>, PgPool)>,
}

impl LedgerPartitions {
    /// Makes this month's and the next one's partition where they are missing. To be called now and then.
    pub async fn make_months_ready(&self, now: UnixMillis) -> Result<(), DbError> {
        match &self.monthly {
            Some((months, pool)) => months.prepare(pool, now).await,
            None => Ok(()),
        }
    }
}

impl LedgerMonths {
    /// Sees to the months of these rows that nobody has seen to. Fails only when the connection breaks.
    pub(crate) async fn cover(
        &self,
        connection: &mut PgConnection,
        batch: &Batch<'_>,
    ) -> Result<(), sqlx::Error> {
        for month in self.unseen(batch) {
            let seen = match with_timeout(add(month, connection)).await {
                Err(error) if is_connection_lost(&error) => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, %month, "the ledger's partition for this month could not be made; its rows go with the others for now");
                    Seen::Missing
                }
                Ok(()) => Seen::Made,
            };
            self.seen().insert(month, seen);
        }
        Ok(())
    }

    fn unseen(&self, batch: &Batch<'_>) -> BTreeSet<Month> {
        let seen = self.seen();
        let months = batch.rows.iter().map(|linked| Month::of(linked.row.at));
        months.filter(|month| !seen.contains_key(month)).collect()
    }

    /// This month, the next, and those that are still missing; without those that were tried a short while ago.
    fn due(&self, now: UnixMillis) -> BTreeSet<Month> {
        let seen = self.seen();
        let missing = seen.iter().filter(|(_, seen)| **seen != Seen::Made).map(|(month, _)| *month);
        let month = Month::of(now);
        let is_due = |month: &Month| match seen.get(month) {
            Some(Seen::Made) => false,
            Some(Seen::FailedAt(at)) => !(0..RETRY_PAUSE_MS).contains(&(now.0 - at.0)),
            Some(Seen::Missing) | None => true,
        };
        missing.chain([month, month.next()]).filter(is_due).collect()
    }

    /// Creates the partitions that are due, and moves rows there that came before. What failed is named and tried again later.
    pub(crate) async fn prepare(&self, pool: &PgPool, now: UnixMillis) -> Result<(), DbError> {
        let mut outcome = Ok(());
        for month in self.due(now) {
            let mut connection = pool.acquire().await?;
            let made = match with_timeout(add(month, &mut connection)).await {
                Err(error) if is_check_violation(&error) => {
                    with_timeout(add_and_move(month, &mut connection)).await
                }
                made => made,
            };
            let seen = match made {
                Ok(()) => Seen::Made,
                Err(error) => {
                    let why = explain(&error);
                    let what = format!("the ledger's partition for {month} could not be made: {why}");
                    outcome = Err(DbError::Unavailable(what));
                    Seen::FailedAt(now)
                }
            };
            self.seen().insert(month, seen);
        }
        outcome
    }

    fn seen(&self) -> MutexGuard<'_, BTreeMap<Month, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) async fn add(month: Month, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    match add_once(month, connection).await {
        // Another process made it while this one waited for its turn. A statement that began before does not see it; the
        // next one does.
        Err(error) if is_there_already(&error) => add_once(month, connection).await,
        outcome => outcome,
    }
}

async fn add_once(month: Month, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let (name, first_id, end_id) = partition(month);
    sqlx::query(ADD_MONTH).bind(name).bind(first_id).bind(end_id).execute(connection).await.map(|_| ())
}

/// Its name, its first id, and the first that is no longer in it.
fn partition(month: Month) -> (String, String, String) {
    let (first_id, end_id) = ids_of(month);
    (format!("ledger_{}", month.to_string().replace('-', "_")), first_id, end_id)
}

/// The first id of a month, and the first that is no longer in it.
pub(crate) fn ids_of(month: Month) -> (String, String) {
    let first_id = |month: Month| RequestId::beginning_at(month.first_day().start());
    (first_id(month), first_id(month.next()))
}

/// Makes the partition and moves the rows into it that were put with the others meanwhile. The statements are one
/// transaction. Nobody sees the ledger without these rows, for nobody else reads or writes them until it ends; and the rule
/// that no row is removed holds again when it does.
async fn add_and_move(month: Month, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let (name, first_id, end_id) = partition(month);
    let of_the_month = format!("request_id >= '{first_id}' AND request_id < '{end_id}'");
    // The first line is the lock that `add_ledger_month` takes too; in another order the two could block each other.
    let statements = format!(
        "SELECT pg_advisory_xact_lock(7163082334074663545); \
         LOCK TABLE ledger_of_no_month IN ACCESS EXCLUSIVE MODE; \
         CREATE TEMPORARY TABLE moving_rows ON COMMIT DROP AS \
             SELECT * FROM ledger_of_no_month WHERE {of_the_month}; \
         ALTER TABLE ledger_of_no_month DISABLE TRIGGER ledger_is_never_changed; \
         DELETE FROM ledger_of_no_month WHERE {of_the_month}; \
         ALTER TABLE ledger_of_no_month ENABLE TRIGGER ledger_is_never_changed; \
         SELECT add_ledger_month('{name}', '{first_id}', '{end_id}'); \
         INSERT INTO ledger SELECT * FROM moving_rows"
    );
    sqlx::raw_sql(AssertSqlSafe(statements)).execute(connection).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_that_could_not_be_made_is_tried_again_after_a_pause_and_a_made_one_never() {
        let now = UnixMillis(1_794_744_000_000);
        let (this, next) = (Month::of(now), Month::of(now).next());
        let months = LedgerMonths::default();
        assert_eq!(months.due(now), BTreeSet::from([this, next]));
        months.seen().insert(this, Seen::FailedAt(now));
        months.seen().insert(next, Seen::Made);
        assert!(months.due(UnixMillis(now.0 + RETRY_PAUSE_MS - 1)).is_empty());
        assert_eq!(months.due(UnixMillis(now.0 + RETRY_PAUSE_MS)), BTreeSet::from([this]));
        assert_eq!(months.due(UnixMillis(now.0 - 1)), BTreeSet::from([this]), "the clock was set back");
        months.seen().insert(this, Seen::Missing);
        assert_eq!(months.due(now), BTreeSet::from([this]), "at once, for it was not tried here");
        let in_a_year = UnixMillis(now.0 + 365 * 86_400_000);
        let (then, after) = (Month::of(in_a_year), Month::of(in_a_year).next());
        assert_eq!(months.due(in_a_year), BTreeSet::from([this, then, after]), "not forgotten");
    }
}
