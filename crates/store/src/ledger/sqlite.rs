//! Writes a batch to SQLite: one transaction of a few statements. Lists of rows are multi-row statements with a
//! parameter for every value.

use crate::accounts::spending::RELEASE;
use crate::db::Conn;
use crate::db::error_codes::{STATEMENT_TIMEOUT, with_timeout};
use crate::db::retry::RetryPolicy;
use crate::db::sqlite::SqliteConnector;
use crate::db::write_slot::WriteSlot;
use crate::idempotency::records::FINISH;
use crate::ledger::batch::{Batch, ChainedRowRef, DailyUsageDelta, to_db_count};
use crate::ledger::chains::{SET_HEAD, read_head, read_row};
use crate::ledger::writer::{AppendOutcome, LedgerDatabase, MAX_BATCH};
use async_trait::async_trait;
use chancery_domain::{ChainHead, RequestId, UsageRow, WriterId};
use futures_util::future::BoxFuture;
use sqlx::{AssertSqlSafe, SqliteConnection};
use std::sync::Arc;

pub(crate) struct SqliteLedger {
    slot: Arc<WriteSlot<SqliteConnector>>,
    add_rows: SizedInserts,
    add_sums: SizedInserts,
}

const ROW_COLUMNS: usize = 16;
const SUM_COLUMNS: usize = 12;

/// SQLite's limit on the parameters of a statement.
const MAX_PARAMETERS: usize = 32_766;

const _: () = assert!(MAX_BATCH.is_power_of_two() && MAX_BATCH * ROW_COLUMNS <= MAX_PARAMETERS);

impl SqliteLedger {
    pub(crate) fn new(slot: Arc<WriteSlot<SqliteConnector>>) -> Self {
        let add_rows = SizedInserts::new(
            "INSERT INTO ledger (request_id, account_id, key_id, model, input_tokens, cached_input_tokens, \
             output_tokens, input_price_nanos, cached_price_nanos, output_price_nanos, cost_nanos, at_ms, \
             stop_reason, writer_id, position, hash)",
            ROW_COLUMNS,
            "ON CONFLICT DO NOTHING",
        );
        let add_sums = SizedInserts::new(
            "INSERT INTO daily_usage \
             (account_id, day, key_id, model, input_price_nanos, cached_price_nanos, output_price_nanos, \
             requests, input_tokens, cached_input_tokens, output_tokens, cost_nanos)",
            SUM_COLUMNS,
            "ON CONFLICT (account_id, day, key_id, model, input_price_nanos, cached_price_nanos, output_price_nanos) \
             DO UPDATE SET \
             requests = requests + excluded.requests, input_tokens = input_tokens + excluded.input_tokens, \
             cached_input_tokens = cached_input_tokens + excluded.cached_input_tokens, \
             output_tokens = output_tokens + excluded.output_tokens, cost_nanos = cost_nanos + excluded.cost_nanos",
        );
        Self { slot, add_rows, add_sums }
    }

    async fn append_in_one_transaction(
        &self,
        connection: &mut SqliteConnection,
        batch: &Batch<'_>,
    ) -> Result<AppendOutcome, sqlx::Error> {
        sqlx::query("BEGIN IMMEDIATE").execute(&mut *connection).await?;
        let mut outcome = self.write(connection, batch).await;
        if let Ok(AppendOutcome::Appended) = outcome {
            match sqlx::query("COMMIT").execute(&mut *connection).await {
                Ok(_) => return outcome,
                Err(error) => outcome = Err(error),
            }
        }
        // When the disk is full, SQLite has already rolled back.
        let _ = sqlx::query("ROLLBACK").execute(&mut *connection).await;
        outcome
    }

    async fn write(
        &self,
        connection: &mut SqliteConnection,
        batch: &Batch<'_>,
    ) -> Result<AppendOutcome, sqlx::Error> {
        let set_head = sqlx::query(SET_HEAD)
            .bind(batch.writer.0)
            .bind(to_db_count(batch.before.rows))
            .bind(batch.before.hash.0.as_slice())
            .bind(to_db_count(batch.after.rows))
            .bind(batch.after.hash.0.as_slice());
        if set_head.execute(&mut *connection).await?.rows_affected() != 1 {
            return Ok(AppendOutcome::ChainHeadConflict);
        }
        let mut add_rows = sqlx::query(self.add_rows.for_rows(batch.rows.len()));
        // The padding repeats the last row, and the conflict clause skips it.
        for ChainedRowRef { row, position, hash } in pad_to_power_of_two(&batch.rows, |last| *last) {
            add_rows = add_rows
                .bind(row.request_id.as_str())
                .bind(row.account.0)
                .bind(row.key.0)
                .bind(row.model.as_str())
                .bind(i64::from(row.input_tokens))
                .bind(i64::from(row.cached_input_tokens))
                .bind(i64::from(row.output_tokens))
                .bind(row.prices.input.nanos_per_token())
                .bind(row.prices.cached_input.nanos_per_token())
                .bind(row.prices.output.nanos_per_token())
                .bind(row.cost.0)
                .bind(row.at.0)
                .bind(row.stop_reason.as_str())
                .bind(batch.writer.0)
                .bind(to_db_count(position))
                .bind(hash.0.to_vec());
        }
        if add_rows.execute(&mut *connection).await?.rows_affected() != batch.rows.len() as u64 {
            return Ok(AppendOutcome::DuplicateRequest);
        }
        for request in &batch.reserved {
            let released = sqlx::query(RELEASE).bind(*request).execute(&mut *connection).await?;
            if released.rows_affected() != 1 {
                return Ok(AppendOutcome::ReservationLost);
            }
        }
        for (row, stored_reply) in &batch.stored_replies {
            let finish = sqlx::query(FINISH)
                .bind(row.account.0)
                .bind(stored_reply.key.as_str())
                .bind(row.request_id.as_str())
                .bind(stored_reply.reasoning_text.as_bytes())
                .bind(stored_reply.output_text.as_bytes())
                .bind(stored_reply.logprobs.as_deref())
                .bind(i64::from(stored_reply.reasoning_tokens))
                .bind(stored_reply.expires_at.0);
            if finish.execute(&mut *connection).await?.rows_affected() != 1 {
                return Ok(AppendOutcome::ClaimLost);
            }
        }
        let mut add_sums = sqlx::query(self.add_sums.for_rows(batch.sums.len()));
        for sum in pad_to_power_of_two(&batch.sums, DailyUsageDelta::zeroed) {
            add_sums = add_sums
                .bind(sum.account.0)
                .bind(i64::from(sum.day.0))
                .bind(sum.key.0)
                .bind(sum.model)
                .bind(sum.prices.input.nanos_per_token())
                .bind(sum.prices.cached_input.nanos_per_token())
                .bind(sum.prices.output.nanos_per_token())
                .bind(sum.requests)
                .bind(sum.input_tokens)
                .bind(sum.cached_input_tokens)
                .bind(sum.output_tokens)
                .bind(sum.cost.0);
        }
        add_sums.execute(&mut *connection).await?;
        Ok(AppendOutcome::Appended)
    }
}

/// One statement for each of 1, 2, 4, … `MAX_BATCH` rows, so that nine statements stay prepared instead of one per
/// length.
struct SizedInserts(Vec<Arc<str>>);

impl SizedInserts {
    /// The parameters are bare (`?`). SQLite also accepts `$1`, but as a name that it looks up in a list for every
    /// parameter of every run. With hundreds of parameters that costs more than the rows.
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

/// The items, padded with `fill` of the last one to the length of the statement.
fn pad_to_power_of_two<T: Copy>(items: &[T], fill: impl Fn(&T) -> T) -> impl Iterator<Item = T> {
    let missing = items.len().next_power_of_two() - items.len();
    let last = items.last().map(fill);
    items.iter().copied().chain(last.into_iter().cycle().take(missing))
}

#[async_trait]
impl LedgerDatabase for SqliteLedger {
    const YIELDS_WRITE_LOCK: bool = true;

    async fn head(&self, writer: WriterId) -> Result<ChainHead, sqlx::Error> {
        let head = self.with_retry(&writer, |connection, writer| {
            Box::pin(async move { read_head(&mut Conn::from(connection), *writer).await })
        });
        Ok(head.await?.unwrap_or_default())
    }

    async fn append(&self, batch: &Batch<'_>) -> Result<AppendOutcome, sqlx::Error> {
        let args = (self, batch);
        let appended = self.with_retry(&args, |connection, (ledger, batch)| {
            Box::pin(ledger.append_in_one_transaction(connection, batch))
        });
        appended.await
    }

    async fn find_row(&self, request: &RequestId) -> Result<Option<UsageRow>, sqlx::Error> {
        let found = self.with_retry(request, |connection, request| {
            Box::pin(async move { read_row(&mut Conn::from(connection), request).await })
        });
        found.await
    }
}

impl SqliteLedger {
    /// Locks the connection and runs the step, and retries while another process has the write lock. The connection is
    /// released between attempts, so that the ledger and other writes of this process do not block each other.
    async fn with_retry<A: Sync + ?Sized, T>(
        &self,
        args: &A,
        step: impl for<'t> Fn(&'t mut SqliteConnection, &'t A) -> BoxFuture<'t, Result<T, sqlx::Error>>
        + Send
        + Sync,
    ) -> Result<T, sqlx::Error> {
        let mut retry_policy = RetryPolicy::of(STATEMENT_TIMEOUT);
        loop {
            let outcome = with_timeout(step(&mut *self.slot.acquire().await?, args)).await;
            match outcome {
                Err(error) if retry_policy.should_retry(&error).await => {}
                outcome => return self.slot.reset_if_broken(outcome).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insert_has_one_parameter_per_value() {
        let ledger = SizedInserts::new("INSERT INTO t", ROW_COLUMNS, "");
        let statement = ledger.for_rows(MAX_BATCH).0;
        assert_eq!(statement.matches('?').count(), MAX_BATCH * ROW_COLUMNS);
        assert_eq!(statement.matches("(?").count(), MAX_BATCH);
    }

    #[test]
    fn rows_are_padded_to_power_of_two() {
        for length in 1..=MAX_BATCH {
            let items: Vec<usize> = (1..=length).collect();
            let pad_to_power_of_two: Vec<usize> = pad_to_power_of_two(&items, |_| 0).collect();
            assert_eq!(pad_to_power_of_two.len(), length.next_power_of_two());
            assert_eq!(pad_to_power_of_two[..length], items);
            assert!(pad_to_power_of_two[length..].iter().all(|item| *item == 0));
        }
    }
}
