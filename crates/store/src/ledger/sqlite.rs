//! Writes a batch to SQLite: one transaction of a few statements. Lists of rows are multi-row statements with a
//! parameter for every value.
//!
//! A batch of rows and sums alone, which most are, is one command (`db::whole_transaction`). Its rules must then fail by
//! themselves: a missing row or another chain head makes a column NULL that may not be. Batches that also end
//! reservations or store replies are a command for each statement.

use crate::accounts::spending::RELEASE;
use crate::db::Conn;
use crate::db::error_codes::{STATEMENT_TIMEOUT, violated_not_null, with_timeout};
use crate::db::retry::RetryPolicy;
use crate::db::sqlite::SqliteConnector;
use crate::db::whole_transaction::execute_whole;
use crate::db::write_slot::WriteSlot;
use crate::idempotency::records::FINISH;
use crate::ledger::batch::{Batch, ChainedRowRef, DailyUsageDelta, to_db_count};
use crate::ledger::chains::{SET_HEAD, read_head, read_row};
use crate::ledger::writer::{AppendOutcome, LedgerDatabase, MAX_BATCH};
use async_trait::async_trait;
use chancery_domain::{ChainHead, RequestId, UsageRow, WriterId};
use futures_util::future::BoxFuture;
use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, Sqlite, SqliteConnection};
use std::sync::Arc;

pub(crate) struct SqliteLedger {
    slot: Arc<WriteSlot<SqliteConnector>>,
    add_rows: SizedInserts,
    add_sums: SizedInserts,
    /// Whole transactions, by the class of their rows and of their sums.
    whole: Vec<Vec<Arc<str>>>,
}

const ROW_COLUMNS: usize = 16;
const SUM_COLUMNS: usize = 12;

/// SQLite's limit on the parameters of a statement.
const MAX_PARAMETERS: usize = 32_766;

/// The lengths of multi-row statements. There are few, so that all of them stay prepared; a list is padded to the next one.
const SIZES: [usize; 16] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];

const _: () = assert!(SIZES[SIZES.len() - 1] == MAX_BATCH && MAX_BATCH * ROW_COLUMNS <= MAX_PARAMETERS);

/// The largest batch that is one command. Each pair of sizes is a prepared statement of its own, and for more rows the commands
/// cost little beside them.
const MAX_WHOLE_ROWS: usize = 64;
const MAX_WHOLE_SUMS: usize = 4;

/// `BEGIN`, the rows, the head, the sums and `COMMIT`. Each has a result.
const WHOLE_STATEMENTS: usize = 5;

/// Fails if the rows before it were not all new (`row_count` is NULL then), or if the stored head is not the expected one (`head`
/// is). The parameters are bare, because those of a command with several statements are numbered through.
const CHECK_ROWS_AND_SET_HEAD: &str = "INSERT INTO ledger_writers (id, row_count, head) \
    VALUES (?, CASE WHEN changes() = ? THEN ? END, ?) \
    ON CONFLICT (id) DO UPDATE SET row_count = excluded.row_count, \
    head = CASE WHEN ledger_writers.row_count = ? AND ledger_writers.head = ? THEN excluded.head END";

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
        let text = |rows: &Arc<str>, sums: &Arc<str>| -> Arc<str> {
            format!("BEGIN IMMEDIATE; {rows}; {CHECK_ROWS_AND_SET_HEAD}; {sums}; COMMIT").into()
        };
        let (rows, sums) =
            (&add_rows.0[..=class_of(MAX_WHOLE_ROWS)], &add_sums.0[..=class_of(MAX_WHOLE_SUMS)]);
        let whole = rows.iter().map(|rows| sums.iter().map(|sums| text(rows, sums)).collect::<Vec<_>>());
        let whole = whole.collect();
        Self { slot, add_rows, add_sums, whole }
    }

    async fn append_in_one_command(
        &self,
        connection: &mut SqliteConnection,
        batch: &Batch<'_>,
    ) -> Result<AppendOutcome, sqlx::Error> {
        let statements = &self.whole[class_of(batch.rows.len())][class_of(batch.sums.len())];
        let rows = bind_rows(sqlx::query(AssertSqlSafe(Arc::clone(statements))), batch);
        let head = rows
            .bind(batch.writer.0)
            .bind(batch.rows.len() as i64)
            .bind(to_db_count(batch.after.rows))
            .bind(batch.after.hash.0.as_slice())
            .bind(to_db_count(batch.before.rows))
            .bind(batch.before.hash.0.as_slice());
        match execute_whole(connection, bind_sums(head, batch), WHOLE_STATEMENTS).await {
            Ok(_) => Ok(AppendOutcome::Appended),
            Err(error) => match violated_not_null(&error) {
                Some("ledger_writers.row_count") => Ok(AppendOutcome::DuplicateRequest),
                Some("ledger_writers.head") => Ok(AppendOutcome::ChainHeadConflict),
                _ => Err(error),
            },
        }
    }

    async fn append_in_one_transaction(
        &self,
        connection: &mut SqliteConnection,
        batch: &Batch<'_>,
    ) -> Result<AppendOutcome, sqlx::Error> {
        let is_one_command = batch.reserved.is_empty()
            && batch.stored_replies.is_empty()
            && batch.rows.len() <= MAX_WHOLE_ROWS
            && batch.sums.len() <= MAX_WHOLE_SUMS;
        if is_one_command {
            return self.append_in_one_command(connection, batch).await;
        }
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
        let add_rows = bind_rows(sqlx::query(self.add_rows.for_rows(batch.rows.len())), batch);
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
        let add_sums = bind_sums(sqlx::query(self.add_sums.for_rows(batch.sums.len())), batch);
        add_sums.execute(&mut *connection).await?;
        Ok(AppendOutcome::Appended)
    }
}

type SqliteQuery<'q> = Query<'q, Sqlite, SqliteArguments>;

/// The padding repeats the last row, and the conflict clause skips it.
fn bind_rows<'q>(mut query: SqliteQuery<'q>, batch: &Batch<'q>) -> SqliteQuery<'q> {
    let (mut model, mut stop_reason) = (None, None);
    for ChainedRowRef { row, position, hash } in padded(&batch.rows, |last| *last) {
        query = query
            .bind(row.request_id.to_shared())
            .bind(row.account.0)
            .bind(row.key.0)
            .bind(shared_text(&mut model, &row.model))
            .bind(i64::from(row.input_tokens))
            .bind(i64::from(row.cached_input_tokens))
            .bind(i64::from(row.output_tokens))
            .bind(row.prices.input.nanos_per_token())
            .bind(row.prices.cached_input.nanos_per_token())
            .bind(row.prices.output.nanos_per_token())
            .bind(row.cost.0)
            .bind(row.at.0)
            .bind(shared_text(&mut stop_reason, row.stop_reason.as_str()))
            .bind(batch.writer.0)
            .bind(to_db_count(position))
            .bind(hash.0.to_vec());
    }
    query
}

/// Most rows of a batch have the text of the row before, and a bound text would be copied for each.
fn shared_text(last: &mut Option<Arc<str>>, text: &str) -> Arc<str> {
    if let Some(known) = last
        && **known == *text
    {
        return Arc::clone(known);
    }
    Arc::clone(last.insert(text.into()))
}

/// The padding adds nothing to the last sum.
fn bind_sums<'q>(mut query: SqliteQuery<'q>, batch: &Batch<'q>) -> SqliteQuery<'q> {
    for sum in padded(&batch.sums, DailyUsageDelta::zeroed) {
        query = query
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
    query
}

/// The index of the smallest size that has room for these items.
fn class_of(items: usize) -> usize {
    SIZES.partition_point(|size| *size < items)
}

/// One statement for each of `SIZES`.
struct SizedInserts(Vec<Arc<str>>);

impl SizedInserts {
    /// The parameters are bare (`?`). SQLite also accepts `$1`, but as a name that it looks up in a list for every
    /// parameter of every run. With hundreds of parameters that costs more than the rows.
    fn new(insert: &str, columns: usize, on_conflict: &str) -> Self {
        let row = format!("({})", vec!["?"; columns].join(", "));
        let statement =
            |rows: usize| format!("{insert} VALUES {} {on_conflict}", vec![row.as_str(); rows].join(", "));
        Self(SIZES.into_iter().map(|rows| statement(rows).into()).collect())
    }

    fn for_rows(&self, rows: usize) -> AssertSqlSafe<Arc<str>> {
        AssertSqlSafe(Arc::clone(&self.0[class_of(rows)]))
    }
}

/// The items, padded with `fill` of the last one to the length of the statement.
fn padded<T: Copy>(items: &[T], fill: impl Fn(&T) -> T) -> impl Iterator<Item = T> {
    let missing = SIZES[class_of(items.len())] - items.len();
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
            let outcome = {
                let mut open = self.slot.acquire_open().await?;
                let outcome = with_timeout(step(&mut open.connection, args)).await;
                open.checked(outcome)
            };
            match outcome {
                Err(error) if retry_policy.should_retry(&error).await => {}
                outcome => return outcome,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::sqlite::write_options;
    use std::path::Path;

    #[test]
    fn insert_has_one_parameter_per_value() {
        let ledger = SizedInserts::new("INSERT INTO t", ROW_COLUMNS, "");
        let statement = ledger.for_rows(MAX_BATCH).0;
        assert_eq!(statement.matches('?').count(), MAX_BATCH * ROW_COLUMNS);
        assert_eq!(statement.matches("(?").count(), MAX_BATCH);
    }

    #[test]
    fn command_has_a_parameter_for_each_bound_value() {
        let slot = WriteSlot::empty(SqliteConnector { options: write_options(Path::new("chancery.db")) });
        let ledger = SqliteLedger::new(Arc::new(slot));
        for (rows, by_sums) in SIZES.iter().zip(&ledger.whole) {
            for (sums, text) in SIZES.iter().zip(by_sums) {
                assert_eq!(text.matches('?').count(), rows * ROW_COLUMNS + 6 + sums * SUM_COLUMNS);
                assert_eq!(text.split(';').count(), WHOLE_STATEMENTS);
            }
        }
        assert_eq!(ledger.whole.len(), class_of(MAX_WHOLE_ROWS) + 1);
    }

    #[test]
    fn rows_are_padded_to_the_next_size() {
        for length in 1..=MAX_BATCH {
            let items: Vec<usize> = (1..=length).collect();
            let padded: Vec<usize> = padded(&items, |_| 0).collect();
            assert!(SIZES.contains(&padded.len()) && padded.len() <= (length * 3).div_ceil(2));
            assert_eq!(padded[..length], items);
            assert!(padded[length..].iter().all(|item| *item == 0));
        }
    }
}
