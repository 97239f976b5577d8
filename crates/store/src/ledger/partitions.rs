//! Monthly partitions of the PostgreSQL ledger, created before the month begins:
//!
//! 1. A server creates the partitions of this month and the next in the background (`LedgerPartitions`), so that no
//!    settlement waits for it. Failures are retried after a pause.
//! 2. A row of a month without a known partition creates it first, once. If that fails, the row goes into the default
//!    partition; it is never rejected for this.
//! 3. If the default partition has rows of a month whose partition is created later, (1) moves them.

use crate::DbError;
use crate::db::error_codes::{is_check_violation, is_connection_lost, is_duplicate_table, map_db_error};
use crate::db::{Db, Driver, PostgresSession, QueryError, Tx, query};
use crate::ledger::batch::Batch;
use chancery_domain::{Month, RequestId, UnixMillis};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio_postgres::Client;

/// How long to wait after a failure to create a partition.
const RETRY_INTERVAL_MS: i64 = 600_000;

const CREATE_PARTITION: &str = "SELECT create_ledger_partition($1, $2, $3)";

#[derive(Default)]
pub(crate) struct PartitionTracker {
    /// The months that this process has checked.
    states: Mutex<BTreeMap<Month, PartitionState>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartitionState {
    Created,
    /// Creation failed during a settlement, and is retried soon.
    Missing,
    FailedAt(UnixMillis),
}

/// The monthly partitions of the ledger, if the database has them.
#[derive(Clone)]
pub struct LedgerPartitions {
    /// `None` in SQLite, which has one table.
    pub(crate) monthly: Option<(Arc<PartitionTracker>, Db)>,
}

impl LedgerPartitions {
    /// Creates the partitions of this month and the next if they are missing. Call it now and then.
    pub async fn create_month_partitions(&self, now: UnixMillis) -> Result<(), DbError> {
        match &self.monthly {
            Some((months, db)) => months.prepare(db, now).await,
            None => Ok(()),
        }
    }
}

impl PartitionTracker {
    /// Creates missing partitions for these rows. Fails only if the connection is lost.
    pub(crate) fn ensure_partitions(
        &self,
        session: &mut PostgresSession,
        batch: &Batch<'_>,
    ) -> Result<(), QueryError> {
        for month in self.unknown_months(batch) {
            let mut tx = Tx::outside(Driver::Postgres(session));
            let created = match create_partition(&mut tx, month) {
                Err(error) if is_duplicate_table(&error) => create_partition(&mut tx, month),
                created => created,
            };
            let state = match created {
                Err(error) if is_connection_lost(&error) => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, %month, "ledger partition creation failed, using default partition");
                    PartitionState::Missing
                }
                Ok(()) => PartitionState::Created,
            };
            self.states().insert(month, state);
        }
        Ok(())
    }

    fn unknown_months(&self, batch: &Batch<'_>) -> BTreeSet<Month> {
        let states = self.states();
        let months = batch.rows.iter().map(|linked| Month::containing(linked.row.at));
        months.filter(|month| !states.contains_key(month)).collect()
    }

    /// This month, the next, and those still missing, except those that failed a short while ago.
    fn months_to_create(&self, now: UnixMillis) -> BTreeSet<Month> {
        let states = self.states();
        let missing =
            states.iter().filter(|(_, state)| **state != PartitionState::Created).map(|(month, _)| *month);
        let month = Month::containing(now);
        let is_due = |month: &Month| match states.get(month) {
            Some(PartitionState::Created) => false,
            Some(PartitionState::FailedAt(at)) => !(0..RETRY_INTERVAL_MS).contains(&(now.0 - at.0)),
            Some(PartitionState::Missing) | None => true,
        };
        missing.chain([month, month.next()]).filter(is_due).collect()
    }

    /// Creates the partitions that are due, and moves earlier rows into them. Failures are returned and retried later.
    async fn prepare(&self, db: &Db, now: UnixMillis) -> Result<(), DbError> {
        let mut outcome = Ok(());
        for month in self.months_to_create(now) {
            let mut created = db.write(move |tx| create_partition(tx, month)).await;
            if created.as_ref().is_err_and(is_duplicate_table) {
                created = db.write(move |tx| create_partition(tx, month)).await;
            }
            if created.as_ref().is_err_and(is_check_violation) {
                created = db.write(move |tx| create_partition_and_move_rows(tx, month)).await;
            }
            let state = match created {
                Ok(()) => PartitionState::Created,
                Err(error @ (QueryError::CannotConnect { .. } | QueryError::Overloaded)) => {
                    return Err(error.into());
                }
                Err(error) => {
                    let why = map_db_error(&error);
                    let what = format!("the ledger's partition for {month} could not be created: {why}");
                    outcome = Err(DbError::Unavailable(what));
                    PartitionState::FailedAt(now)
                }
            };
            self.states().insert(month, state);
        }
        outcome
    }

    fn states(&self) -> MutexGuard<'_, BTreeMap<Month, PartitionState>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fails with a duplicate table if another process created it while this one waited for the lock: a statement that
/// began before does not see it. The next one does.
fn create_partition(tx: &mut Tx<'_>, month: Month) -> Result<(), QueryError> {
    let (name, first_id, end_id) = partition(month);
    query(CREATE_PARTITION).bind(name).bind(first_id).bind(end_id).execute(tx)?;
    Ok(())
}

/// For a copy of a whole database, which has it to itself.
pub(crate) async fn create_partition_on(client: &Client, month: Month) -> Result<(), QueryError> {
    let (name, first_id, end_id) = partition(month);
    client.execute(CREATE_PARTITION, &[&name, &first_id, &end_id]).await?;
    Ok(())
}

/// The partition's name, first id, and exclusive end id.
fn partition(month: Month) -> (String, String, String) {
    let (first_id, end_id) = request_id_range(month);
    (format!("ledger_{}", month.to_string().replace('-', "_")), first_id, end_id)
}

/// The first id of a month and its exclusive end id.
pub(crate) fn request_id_range(month: Month) -> (String, String) {
    let first_id = |month: Month| RequestId::prefix_at(month.first_day().start());
    (first_id(month), first_id(month.next()))
}

/// Creates the partition and moves rows into it from the default partition. The table lock keeps other sessions out until the
/// transaction ends, so none of them sees the ledger without these rows or without the rule against deletion.
fn create_partition_and_move_rows(tx: &mut Tx<'_>, month: Month) -> Result<(), QueryError> {
    let (name, first_id, end_id) = partition(month);
    let of_the_month = format!("request_id >= '{first_id}' AND request_id < '{end_id}'");
    // The first statement takes the same lock as `add_ledger_month`, and takes it first to avoid a deadlock.
    let statements = format!(
        "SELECT pg_advisory_xact_lock(7163082334074663545); \
         LOCK TABLE ledger_default IN ACCESS EXCLUSIVE MODE; \
         CREATE TEMPORARY TABLE rows_to_move ON COMMIT DROP AS \
             SELECT * FROM ledger_default WHERE {of_the_month}; \
         ALTER TABLE ledger_default DISABLE TRIGGER ledger_append_only; \
         DELETE FROM ledger_default WHERE {of_the_month}; \
         ALTER TABLE ledger_default ENABLE TRIGGER ledger_append_only; \
         SELECT create_ledger_partition('{name}', '{first_id}', '{end_id}'); \
         INSERT INTO ledger SELECT * FROM rows_to_move"
    );
    let outcome = match tx.driver() {
        Driver::Postgres(session) => session.batch(&statements),
        // It has one table.
        Driver::Sqlite(_) => Ok(()),
    };
    tx.checked(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_partition_is_retried_after_interval() {
        let now = UnixMillis(1_794_744_000_000);
        let (this, next) = (Month::containing(now), Month::containing(now).next());
        let months = PartitionTracker::default();
        assert_eq!(months.months_to_create(now), BTreeSet::from([this, next]));
        months.states().insert(this, PartitionState::FailedAt(now));
        months.states().insert(next, PartitionState::Created);
        assert!(months.months_to_create(UnixMillis(now.0 + RETRY_INTERVAL_MS - 1)).is_empty());
        assert_eq!(months.months_to_create(UnixMillis(now.0 + RETRY_INTERVAL_MS)), BTreeSet::from([this]));
        assert_eq!(
            months.months_to_create(UnixMillis(now.0 - 1)),
            BTreeSet::from([this]),
            "the clock was set back"
        );
        months.states().insert(this, PartitionState::Missing);
        assert_eq!(
            months.months_to_create(now),
            BTreeSet::from([this]),
            "at once, for it was not tried here"
        );
        let in_a_year = UnixMillis(now.0 + 365 * 86_400_000);
        let (then, after) = (Month::containing(in_a_year), Month::containing(in_a_year).next());
        assert_eq!(months.months_to_create(in_a_year), BTreeSet::from([this, then, after]), "not forgotten");
    }
}
