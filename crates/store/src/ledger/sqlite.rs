//! How SQLite takes a batch: one transaction of a few statements. Lists of rows are single statements with a parameter
//! for every value.

use crate::accounts::spending::RELEASE;
use crate::db::Conn;
use crate::db::error_codes::{STATEMENT_TIMEOUT, with_timeout};
use crate::db::retry::Patience;
use crate::db::sqlite::SqliteConnector;
use crate::db::write_slot::WriteSlot;
use crate::idempotency::keys::FINISH;
use crate::ledger::batch::{Batch, DaySum, LinkedRow, stored_count};
use crate::ledger::chains::{SET_HEAD, read_head, read_row};
use crate::ledger::writer::{Appended, LedgerDatabase, MAX_BATCH};
use async_trait::async_trait;
use chancery_domain::{ChainHead, RequestId, UsageRow, WriterId};
use futures_util::future::BoxFuture;
use sqlx::{AssertSqlSafe, SqliteConnection};
use std::sync::Arc;

pub(crate) struct SqliteLedger {
    slot: Arc<WriteSlot<SqliteConnector>>,
    add_rows: Statements,
    add_sums: Statements,
}

const ROW_COLUMNS: usize = 14;
const SUM_COLUMNS: usize = 10;

/// SQLite's own bound on the parameters of a statement.
const MAX_PARAMETERS: usize = 32_766;

const _: () = assert!(MAX_BATCH.is_power_of_two() && MAX_BATCH * ROW_COLUMNS <= MAX_PARAMETERS);

impl SqliteLedger {
    pub(crate) fn new(slot: Arc<WriteSlot<SqliteConnector>>) -> Self {
        let add_rows = Statements::new(
            "INSERT INTO ledger (request_id, account_id, key_id, model, input_tokens, output_tokens, \
             input_price_nanos, output_price_nanos, cost_nanos, at_ms, ended, writer_id, place, hash)",
            ROW_COLUMNS,
            "ON CONFLICT DO NOTHING",
        );
        let add_sums = Statements::new(
            "INSERT INTO usage_days \
             (account_id, day, key_id, model, input_price_nanos, output_price_nanos, \
             requests, input_tokens, output_tokens, cost_nanos)",
            SUM_COLUMNS,
            "ON CONFLICT (account_id, day, key_id, model, input_price_nanos, output_price_nanos) DO UPDATE SET \
             requests = requests + excluded.requests, input_tokens = input_tokens + excluded.input_tokens, \
             output_tokens = output_tokens + excluded.output_tokens, cost_nanos = cost_nanos + excluded.cost_nanos",
        );
        Self { slot, add_rows, add_sums }
    }

    async fn append_in_one_transaction(
        &self,
        connection: &mut SqliteConnection,
        batch: &Batch<'_>,
    ) -> Result<Appended, sqlx::Error> {
        sqlx::query("BEGIN IMMEDIATE").execute(&mut *connection).await?;
        let mut outcome = self.write(connection, batch).await;
        if let Ok(Appended::All) = outcome {
            match sqlx::query("COMMIT").execute(&mut *connection).await {
                Ok(_) => return outcome,
                Err(error) => outcome = Err(error),
            }
        }
        // Where the disk is full SQLite has done so by itself, and has nothing to roll back any more.
        let _ = sqlx::query("ROLLBACK").execute(&mut *connection).await;
        outcome
    }

    async fn write(
        &self,
        connection: &mut SqliteConnection,
        batch: &Batch<'_>,
    ) -> Result<Appended, sqlx::Error> {
        let set_head = sqlx::query(SET_HEAD)
            .bind(batch.writer.0)
            .bind(stored_count(batch.before.rows))
            .bind(batch.before.hash.0.as_slice())
            .bind(stored_count(batch.after.rows))
            .bind(batch.after.hash.0.as_slice());
        if set_head.execute(&mut *connection).await?.rows_affected() != 1 {
            return Ok(Appended::NoneSinceTheEndMoved);
        }
        let mut add_rows = sqlx::query(self.add_rows.for_rows(batch.rows.len()));
        // Copies of the last row are skipped, like any row that is there.
        for LinkedRow { row, place, hash } in filled(&batch.rows, |last| *last) {
            add_rows = add_rows
                .bind(row.request_id.as_str())
                .bind(row.account.0)
                .bind(row.key.0)
                .bind(row.model.as_str())
                .bind(i64::from(row.input_tokens))
                .bind(i64::from(row.output_tokens))
                .bind(row.prices.input.nanos_per_token())
                .bind(row.prices.output.nanos_per_token())
                .bind(row.cost.0)
                .bind(row.at.0)
                .bind(row.ended.as_str())
                .bind(batch.writer.0)
                .bind(stored_count(place))
                .bind(hash.0.to_vec());
        }
        if add_rows.execute(&mut *connection).await?.rows_affected() != batch.rows.len() as u64 {
            return Ok(Appended::NoneSinceOneIsThere);
        }
        for request in &batch.reserved {
            let released = sqlx::query(RELEASE).bind(*request).execute(&mut *connection).await?;
            if released.rows_affected() != 1 {
                return Ok(Appended::NoneSinceItsReservationIsGone);
            }
        }
        for (row, kept) in &batch.kept {
            let finish = sqlx::query(FINISH)
                .bind(row.account.0)
                .bind(kept.key.as_str())
                .bind(row.request_id.as_str())
                .bind(kept.output_text.as_bytes())
                .bind(i64::from(kept.cached_tokens))
                .bind(kept.expires_at.0);
            if finish.execute(&mut *connection).await?.rows_affected() != 1 {
                return Ok(Appended::NoneSinceItsClaimIsGone);
            }
        }
        let mut add_sums = sqlx::query(self.add_sums.for_rows(batch.sums.len()));
        for sum in filled(&batch.sums, DaySum::adding_nothing) {
            add_sums = add_sums
                .bind(sum.account.0)
                .bind(i64::from(sum.day.0))
                .bind(sum.key.0)
                .bind(sum.model)
                .bind(sum.prices.input.nanos_per_token())
                .bind(sum.prices.output.nanos_per_token())
                .bind(sum.requests)
                .bind(sum.input_tokens)
                .bind(sum.output_tokens)
                .bind(sum.cost.0);
        }
        add_sums.execute(&mut *connection).await?;
        Ok(Appended::All)
    }
}

/// One statement for each of 1, 2, 4, … `MAX_BATCH` rows, so that nine stay prepared instead of one for every length.
struct Statements(Vec<Arc<str>>);

impl Statements {
    /// The parameters are bare (`?`). SQLite knows `$1` too, but as a name that it looks up in a list for every
    /// parameter of every run, which costs more than the rows themselves once there are hundreds.
    fn new(insert: &str, columns: usize, on_conflict: &str) -> Self {
        let row = format!("({})", vec!["?"; columns].join(", "));
        let statement =
            |rows: usize| format!("{insert} VALUES {} {on_conflict}", vec![row.as_str(); rows].join(", "));
        Self((0..=MAX_BATCH.ilog2()).map(|class| statement(1 << class).into()).collect())
    }

    fn for_rows(&self, rows: usize) -> AssertSqlSafe<Arc<str>> {
        AssertSqlSafe(Arc::clone(&self.0[rows.next_power_of_two().ilog2() as usize]))
    }
}

/// The items, and then what stands for the last one until there are as many as the statement takes.
fn filled<T: Copy>(items: &[T], fill: impl Fn(&T) -> T) -> impl Iterator<Item = T> {
    let missing = items.len().next_power_of_two() - items.len();
    let last = items.last().map(fill);
    items.iter().copied().chain(last.into_iter().cycle().take(missing))
}

#[async_trait]
impl LedgerDatabase for SqliteLedger {
    const LEAVES_GAPS: bool = true;

    async fn head(&self, writer: WriterId) -> Result<ChainHead, sqlx::Error> {
        let head = self.with_retry(&writer, |connection, writer| {
            Box::pin(async move { read_head(&mut Conn::from(connection), *writer).await })
        });
        Ok(head.await?.unwrap_or_default())
    }

    async fn append(&self, batch: &Batch<'_>) -> Result<Appended, sqlx::Error> {
        let args = (self, batch);
        let appended = self.with_retry(&args, |connection, (ledger, batch)| {
            Box::pin(ledger.append_in_one_transaction(connection, batch))
        });
        appended.await
    }

    async fn stored(&self, request: &RequestId) -> Result<Option<UsageRow>, sqlx::Error> {
        let stored = self.with_retry(request, |connection, request| {
            Box::pin(async move { read_row(&mut Conn::from(connection), request).await })
        });
        stored.await
    }
}

impl SqliteLedger {
    /// Takes the connection, runs the step and lets the connection go; and again while the lock is another process's. It is let go
    /// in between, so that the ledger and the commands of one process do not wait for each other.
    async fn with_retry<A: Sync + ?Sized, T>(
        &self,
        args: &A,
        step: impl for<'t> Fn(&'t mut SqliteConnection, &'t A) -> BoxFuture<'t, Result<T, sqlx::Error>>
        + Send
        + Sync,
    ) -> Result<T, sqlx::Error> {
        let mut patience = Patience::of(STATEMENT_TIMEOUT);
        loop {
            let outcome = with_timeout(step(&mut *self.slot.hold().await?, args)).await;
            match outcome {
                Err(error) if patience.allows_another_try(&error).await => {}
                outcome => return self.slot.unless_broken(outcome).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_has_a_parameter_for_every_column_of_every_row() {
        let ledger = Statements::new("INSERT INTO t", ROW_COLUMNS, "");
        let statement = ledger.for_rows(MAX_BATCH).0;
        assert_eq!(statement.matches('?').count(), MAX_BATCH * ROW_COLUMNS);
        assert_eq!(statement.matches("(?").count(), MAX_BATCH);
    }

    #[test]
    fn a_list_is_filled_up_to_the_next_power_of_two() {
        for length in 1..=MAX_BATCH {
            let items: Vec<usize> = (1..=length).collect();
            let filled: Vec<usize> = filled(&items, |_| 0).collect();
            assert_eq!(filled.len(), length.next_power_of_two());
            assert_eq!(filled[..length], items);
            assert!(filled[length..].iter().all(|item| *item == 0));
        }
    }
}
