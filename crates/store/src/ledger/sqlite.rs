//! Writes batches to SQLite, in the transaction of the thread that makes all writes: at the end of each group of steps, so
//! that they share its commit. Each batch has a savepoint. Statements are bound without copies, because the ledger runs more of
//! them than all others together.

use crate::DbError;
use crate::LedgerError;
use crate::accounts::spending::RELEASE;
use crate::db::error_codes::map_db_error;
use crate::db::{Driver, GroupEnd, QueryError, Tx};
use crate::idempotency::records::FINISH;
use crate::ledger::batch::{Batch, ChainedRowRef, DailyUsageDelta, to_db_count};
use crate::ledger::chains::{SET_HEAD, read_head, read_row};
use crate::ledger::writer::{
    AppendOutcome, BatchQueue, BatchWriter, END_PROBE, LedgerDatabase, LedgerWriter, PROBE, WriterWake,
    probe_key, probe_text,
};
use chancery_domain::{ChainHead, Clock, RequestId, UsageRow, WriterId};
use rusqlite::{Connection, ToSql};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;

const ADD_ROW: &str = "INSERT INTO ledger (request_id, account_id, key_id, model, input_tokens, cached_input_tokens, \
    output_tokens, input_price_nanos, cached_price_nanos, output_price_nanos, cost_nanos, at_ms, stop_reason, writer_id, \
    position, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING";

const ADD_SUM: &str = "INSERT INTO daily_usage (account_id, day, key_id, model, input_price_nanos, cached_price_nanos, \
    output_price_nanos, requests, input_tokens, cached_input_tokens, output_tokens, cost_nanos) \
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) \
    ON CONFLICT (account_id, day, key_id, model, input_price_nanos, cached_price_nanos, output_price_nanos) DO UPDATE SET \
    requests = requests + excluded.requests, input_tokens = input_tokens + excluded.input_tokens, \
    cached_input_tokens = cached_input_tokens + excluded.cached_input_tokens, \
    output_tokens = output_tokens + excluded.output_tokens, cost_nanos = cost_nanos + excluded.cost_nanos";

/// Settles at the end of a group. Callers are answered after the group's commit.
struct SqliteLedgerEnd<C> {
    queue: BatchQueue,
    batches: BatchWriter,
    clock: C,
    wake: Arc<WriterWake>,
    /// Says that the queue is closed and everything in it is settled.
    ending: Option<oneshot::Sender<()>>,
    /// When this group's batch began. `None` while nothing was run that is not answered.
    since: Option<Instant>,
    outcomes: Vec<Result<(), LedgerError>>,
    probed: Result<(), DbError>,
}

/// The ledger's writer, which `LedgerWriter::with_db` completes, and what SQLite's writer does for it at the end of each group.
pub(crate) fn ledger_writer(writer_id: WriterId, clock: impl Clock) -> (LedgerWriter, Box<dyn GroupEnd>) {
    let (writer, queue, ending) = LedgerWriter::new();
    let end = SqliteLedgerEnd {
        queue,
        batches: BatchWriter::new(writer_id, Arc::clone(&writer.commits)),
        clock,
        wake: Arc::clone(&writer.wake),
        ending: Some(ending),
        since: None,
        outcomes: Vec::new(),
        probed: Ok(()),
    };
    (writer, Box::new(end))
}

impl<C: Clock> GroupEnd for SqliteLedgerEnd<C> {
    fn take(&mut self) -> bool {
        self.wake.reset();
        self.queue.take_waiting();
        // A queue that was closed has one more answer.
        !self.queue.is_empty() || (self.queue.is_closed() && self.ending.is_some())
    }

    fn run(&mut self, tx: &mut Tx<'_>) {
        if self.since.replace(self.clock.monotonic()).is_some() {
            // The last run was lost.
            self.batches.forget();
        }
        let Some(mut database) = SqliteLedger::new(tx) else { return };
        self.outcomes = self.batches.settle(&mut database, self.queue.settlements());
        if self.queue.has_probes() {
            self.probed = database.probe_write(self.batches.writer).map_err(|error| map_db_error(&error));
        }
    }

    fn answer(&mut self, failure: Option<&QueryError>) {
        let since = self.since.take();
        match failure {
            None => {
                self.batches.committed();
                let outcomes = std::mem::take(&mut self.outcomes);
                self.queue.answer(outcomes, || Ok(self.probed.clone()?));
            }
            Some(error) => {
                // If the group failed before its end, nothing else would tell those that wait.
                if since.is_none() {
                    self.take();
                }
                self.batches.forget();
                let error = map_db_error(error);
                self.queue.answer(std::iter::repeat_with(|| Err(error.clone().into())), || {
                    Err(error.clone().into())
                });
            }
        }
        if let Some(since) = since {
            self.queue.record(self.clock.monotonic() - since);
        }
        if self.queue.has_waiting() {
            self.wake.wake();
        } else if self.queue.is_closed()
            && let Some(ending) = self.ending.take()
        {
            let _ = ending.send(());
        }
    }
}

/// The ledger in the transaction of a group.
struct SqliteLedger<'a, 'tx> {
    tx: &'a mut Tx<'tx>,
    connection: &'tx Connection,
    /// Why SQLite has rolled back the transaction. Later statements would be committed by themselves.
    lost: Option<QueryError>,
}

impl<'a, 'tx> SqliteLedger<'a, 'tx> {
    /// `None` if it is another database.
    fn new(tx: &'a mut Tx<'tx>) -> Option<Self> {
        let connection = match tx.driver() {
            Driver::Sqlite(connection) => *connection,
            Driver::Postgres(_) => return None,
        };
        Some(Self { tx, connection, lost: None })
    }

    /// Runs a step, unless the transaction is lost. A step that loses it makes the whole group fail.
    fn run<T>(
        &mut self,
        step: impl FnOnce(&Connection, &mut Tx<'tx>) -> Result<T, QueryError>,
    ) -> Result<T, QueryError> {
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        match step(self.connection, self.tx) {
            Err(error) if self.connection.is_autocommit() => {
                let error = self.tx.checked::<T>(Err(error));
                self.lost = error.as_ref().err().cloned();
                error
            }
            outcome => outcome,
        }
    }
}

impl LedgerDatabase for SqliteLedger<'_, '_> {
    const COMMITS_BATCHES: bool = false;

    fn head(&mut self, writer: WriterId) -> Result<ChainHead, QueryError> {
        Ok(self.run(|_, tx| read_head(tx, writer))?.unwrap_or_default())
    }

    fn append(&mut self, batch: &Batch<'_>) -> Result<AppendOutcome, QueryError> {
        self.run(|connection, _| Ok(append(connection, batch)?))
    }

    fn find_row(&mut self, request: &RequestId) -> Result<Option<UsageRow>, QueryError> {
        self.run(|_, tx| read_row(tx, request))
    }

    /// What it deletes is written too, with zeros (`secure_delete`), so that it needs as much room as if it were committed.
    fn probe_write(&mut self, writer: WriterId) -> Result<(), QueryError> {
        self.run(|connection, _| {
            let (key, text) = (probe_key(writer), probe_text());
            execute(connection, PROBE, &[&key, &[0_u8; 32], &text, &writer.0])?;
            execute(connection, END_PROBE, &[&key])?;
            Ok(())
        })
    }
}

fn append(connection: &Connection, batch: &Batch<'_>) -> Result<AppendOutcome, rusqlite::Error> {
    execute(connection, "SAVEPOINT batch", &[])?;
    let outcome = write(connection, batch);
    // After some errors, such as a full disk, SQLite has rolled back the transaction.
    if connection.is_autocommit() {
        return outcome;
    }
    let ended = match outcome {
        Ok(AppendOutcome::Appended) => execute(connection, "RELEASE batch", &[]),
        _ => execute(connection, "ROLLBACK TO batch", &[])
            .and_then(|_| execute(connection, "RELEASE batch", &[])),
    };
    if let Err(error) = ended {
        // What the batch has written must not be committed with the group.
        let _ = connection.execute_batch("ROLLBACK");
        return Err(error);
    }
    outcome
}

fn write(connection: &Connection, batch: &Batch<'_>) -> Result<AppendOutcome, rusqlite::Error> {
    let (before, after) = (batch.before, batch.after);
    let set_head: [&dyn ToSql; 5] =
        [&batch.writer.0, &to_db_count(before.rows), &before.hash.0, &to_db_count(after.rows), &after.hash.0];
    if execute(connection, SET_HEAD, &set_head)? != 1 {
        return Ok(AppendOutcome::ChainHeadConflict);
    }
    for row in &batch.rows {
        if add_row(connection, batch.writer, *row)? != 1 {
            return Ok(AppendOutcome::DuplicateRequest);
        }
    }
    for request in &batch.reserved {
        if execute(connection, RELEASE, &[request])? != 1 {
            return Ok(AppendOutcome::ReservationLost);
        }
    }
    for (row, reply) in &batch.stored_replies {
        let finish: [&dyn ToSql; 8] = [
            &row.account.0,
            &reply.key.as_str(),
            &row.request_id.as_str(),
            &reply.reasoning_text.as_bytes(),
            &reply.output_text.as_bytes(),
            &reply.logprobs.as_deref(),
            &reply.reasoning_tokens,
            &reply.expires_at.0,
        ];
        if execute(connection, FINISH, &finish)? != 1 {
            return Ok(AppendOutcome::ClaimLost);
        }
    }
    for sum in &batch.sums {
        add_sum(connection, sum)?;
    }
    Ok(AppendOutcome::Appended)
}

fn add_row(
    connection: &Connection,
    writer: WriterId,
    ChainedRowRef { row, position, hash }: ChainedRowRef<'_>,
) -> Result<usize, rusqlite::Error> {
    let values: [&dyn ToSql; 16] = [
        &row.request_id.as_str(),
        &row.account.0,
        &row.key.0,
        &row.model,
        &row.input_tokens,
        &row.cached_input_tokens,
        &row.output_tokens,
        &row.prices.input.nanos_per_token(),
        &row.prices.cached_input.nanos_per_token(),
        &row.prices.output.nanos_per_token(),
        &row.cost.0,
        &row.at.0,
        &row.stop_reason.as_str(),
        &writer.0,
        &to_db_count(position),
        &hash.0,
    ];
    connection.prepare_cached(ADD_ROW)?.execute(values)
}

fn add_sum(connection: &Connection, sum: &DailyUsageDelta<'_>) -> Result<usize, rusqlite::Error> {
    let values: [&dyn ToSql; 12] = [
        &sum.account.0,
        &sum.day.0,
        &sum.key.0,
        &sum.model,
        &sum.prices.input.nanos_per_token(),
        &sum.prices.cached_input.nanos_per_token(),
        &sum.prices.output.nanos_per_token(),
        &sum.requests,
        &sum.input_tokens,
        &sum.cached_input_tokens,
        &sum.output_tokens,
        &sum.cost.0,
    ];
    connection.prepare_cached(ADD_SUM)?.execute(values)
}

/// Runs a statement whose parameters are named `$1`, `$2` and so on, in any order. Returns how many rows it has changed.
fn execute(connection: &Connection, sql: &str, values: &[&dyn ToSql]) -> Result<usize, rusqlite::Error> {
    let mut statement = connection.prepare_cached(sql)?;
    for (number, value) in (1..).zip(values) {
        statement.raw_bind_parameter(format!("${number}").as_str(), value)?;
    }
    statement.raw_execute()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::error_codes::{is_row_error, is_unique_violation};
    use crate::db::query;
    use crate::{NewAccount, NewKey, Store};
    use chancery_domain::{
        AccountId, ApiKey, KeyId, KeyLimits, Nanos, OsRandomness, Prices, RateLimits, StopReason, TokenPrice,
        UnixMillis,
    };
    use std::time::Duration;

    /// As when the browser that waits for a record hangs up.
    #[tokio::test]
    async fn write_that_is_dropped_midway_does_not_block_the_ledger() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_file(&folder.path().join("chancery.db")).await.unwrap();
        let (account, key) = create_account_and_key(&store).await;
        store.ledger.settle(row(0, account, key).into()).await.unwrap();
        for number in 1..20 {
            tokio::select! {
                biased;
                _ = store.db.execute(query("UPDATE accounts SET name = name"), Duration::from_secs(5)) => {
                    panic!("it has ended at once")
                }
                () = std::future::ready(()) => {}
            }
            let settled = store.ledger.settle(row(number, account, key).into());
            tokio::time::timeout(Duration::from_secs(2), settled).await.unwrap().unwrap();
        }
        store.close().await;
    }

    #[tokio::test]
    async fn more_rows_than_a_batch_are_settled_without_further_writes() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_file(&folder.path().join("chancery.db")).await.unwrap();
        let (account, key) = create_account_and_key(&store).await;
        let mut settling = tokio::task::JoinSet::new();
        for number in 0..1000 {
            let ledger = store.ledger.clone();
            settling.spawn(async move { ledger.settle(row(number, account, key).into()).await });
        }
        assert!(settling.join_all().await.iter().all(Result::is_ok));
        assert_eq!(store.ledger_chains.ledger_rows(None, u32::MAX).await.unwrap().len(), 1000);
        assert!((4..500).contains(&store.ledger_commits()), "{}", store.ledger_commits());
        store.close().await;
    }

    #[tokio::test]
    async fn rejected_row_does_not_undo_the_steps_of_its_group() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_file(&folder.path().join("chancery.db")).await.unwrap();
        let (account, key) = create_account_and_key(&store).await;
        let wrong_cost = UsageRow { cost: Nanos(4), ..row(0, account, key) };
        let rename = query("UPDATE api_keys SET label = 'renamed'");
        let (rejected, settled, renamed) = tokio::join!(
            store.ledger.settle(wrong_cost.into()),
            store.ledger.settle(row(1, account, key).into()),
            store.db.execute(rename, Duration::from_secs(5))
        );
        assert!(matches!(rejected, Err(LedgerError::RowRejected { .. })), "{rejected:?}");
        settled.unwrap();
        assert_eq!(renamed.unwrap(), 1);
        let label: String = store.db.fetch_one(query("SELECT label FROM api_keys")).await.unwrap();
        assert_eq!(label, "renamed");
        assert_eq!(store.ledger_chains.ledger_rows(None, u32::MAX).await.unwrap().len(), 1);
        store.close().await;
    }

    #[test]
    fn errors_have_the_codes_of_sqlite() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE t (n INTEGER UNIQUE); INSERT INTO t VALUES (1)").unwrap();
        let error = QueryError::from(execute(&connection, "INSERT INTO t VALUES ($1)", &[&1]).unwrap_err());
        assert!(is_row_error(&error) && is_unique_violation(&error), "{error:?}");
        assert!(error.to_string().contains("t.n"), "{error:?}");
    }

    async fn create_account_and_key(store: &Store) -> (AccountId, KeyId) {
        let limits = RateLimits { requests_per_min: 1, tokens_per_min: 1 };
        let new = NewAccount { name: "A".parse().unwrap(), limits, created_at: UnixMillis(0) };
        let account = store.create_account(new).await.unwrap().id;
        let api_key = ApiKey::generate(&OsRandomness);
        let (prefix, hash) = (api_key.prefix(), api_key.hash());
        let new = NewKey {
            prefix,
            hash,
            label: String::new(),
            account: None,
            created_at: UnixMillis(0),
            limits: KeyLimits::default(),
        };
        let key = store.create_key(new).await.unwrap().id;
        (account, key)
    }

    fn row(number: usize, account: AccountId, key: KeyId) -> UsageRow {
        UsageRow {
            request_id: RequestId::from_stored(format!("req_{number:06}")),
            account,
            key,
            model: "m".repeat(500),
            input_tokens: 1,
            cached_input_tokens: 0,
            output_tokens: 1,
            prices: Prices {
                input: TokenPrice::from_nanos_per_token(1),
                cached_input: TokenPrice::from_nanos_per_token(1),
                output: TokenPrice::from_nanos_per_token(2),
            },
            cost: Nanos(3),
            at: UnixMillis(0),
            stop_reason: StopReason::Complete,
        }
    }

    async fn set_pragma(store: &Store, name: &'static str, value: u32) {
        let set = move |tx: &mut Tx<'_>| match tx.driver() {
            Driver::Sqlite(connection) => Ok::<_, QueryError>(connection.pragma_update(None, name, value)?),
            Driver::Postgres(_) => panic!("it is a SQLite file"),
        };
        store.db.write(set).await.unwrap();
    }

    #[tokio::test]
    async fn full_or_read_only_disk_is_reported_without_losing_rows() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_file(&folder.path().join("chancery.db")).await.unwrap();
        let (account, key) = create_account_and_key(&store).await;

        set_pragma(&store, "max_page_count", 30).await;
        let mut settled = 0;
        let error = loop {
            match store.ledger.settle(row(settled, account, key).into()).await {
                Ok(()) => settled += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, LedgerError::Database(DbError::DiskFull(_))), "{error:?}");
        assert!(error.to_string().contains("free some space"), "{error}");
        let probed = store.ledger.probe_write().await;
        assert!(matches!(probed, Err(LedgerError::Database(DbError::DiskFull(_)))), "{probed:?}");
        assert_eq!(store.ledger_chains.ledger_rows(None, u32::MAX).await.unwrap().len(), settled);

        set_pragma(&store, "max_page_count", 3000).await;
        store.ledger.probe_write().await.unwrap();
        let keys: u64 = store.db.fetch_one(query("SELECT COUNT(*) FROM idempotency_keys")).await.unwrap();
        assert_eq!(keys, 0, "the probe leaves nothing behind");
        store.ledger.settle(row(settled, account, key).into()).await.unwrap();
        assert_eq!(store.ledger_chains.ledger_rows(None, u32::MAX).await.unwrap().len(), settled + 1);

        // From here on, nothing can be written any more.
        set_pragma(&store, "query_only", 1).await;
        let error = store.ledger.settle(row(settled + 1, account, key).into()).await.unwrap_err();
        assert!(matches!(error, LedgerError::Database(DbError::ReadOnly(_))), "{error:?}");
        store.close().await;
    }
}
