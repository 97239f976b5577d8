//! Writes a batch to SQLite: one transaction, on a connection of its own. It blocks its thread, which the ledger's writer has
//! for itself. sqlx's connections are threads too, but each statement there is a command, and each result wakes the caller,
//! which costs more than the statements. While a batch is written, the connection for all other writes of this process waits,
//! because SQLite does not queue writers.

use crate::accounts::spending::RELEASE;
use crate::db::Conn;
use crate::db::error_codes::{STATEMENT_TIMEOUT, SqliteError, with_timeout};
use crate::db::retry::RetryPolicy;
use crate::db::sqlite::SqliteConnector;
use crate::db::write_slot::WriteSlot;
use crate::idempotency::records::FINISH;
use crate::ledger::batch::{Batch, ChainedRowRef, DailyUsageDelta, to_db_count};
use crate::ledger::chains::{SET_HEAD, read_head, read_row};
use crate::ledger::writer::{AppendOutcome, END_PROBE, LedgerDatabase, PROBE, probe_key, probe_text};
use async_trait::async_trait;
use chancery_domain::{ChainHead, RequestId, UsageRow, WriterId};
use rusqlite::{Connection, OpenFlags, ToSql};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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

/// Prepared statements that stay in memory: all of this file.
const MAX_PREPARED: usize = 8;

pub(crate) struct SqliteLedger {
    file: PathBuf,
    /// `None` until it is needed.
    connection: Mutex<Option<Connection>>,
    /// The connection for all other writes of this process.
    other_writes: Arc<WriteSlot<SqliteConnector>>,
}

impl SqliteLedger {
    /// The file must exist and have our schema.
    pub(crate) fn new(file: &Path, other_writes: Arc<WriteSlot<SqliteConnector>>) -> Self {
        Self { file: file.to_owned(), connection: Mutex::new(None), other_writes }
    }

    /// Blocks the thread.
    fn run<T>(&self, step: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>) -> Result<T, sqlx::Error> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = match connection.as_ref() {
            Some(connection) => step(connection),
            None => open(&self.file).and_then(|new| step(connection.insert(new))),
        };
        if connection.as_ref().is_some_and(|connection| !connection.is_autocommit()) {
            // It could not roll back. Closing it does.
            *connection = None;
        }
        outcome.map_err(|error| SqliteError::from(error).into())
    }

    /// Retries while another process has the write lock. The lock of this process is released between attempts, so that the
    /// ledger and other writes do not block each other.
    async fn write<T>(
        &self,
        step: impl Fn(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, sqlx::Error> {
        let mut retry_policy = RetryPolicy::of(STATEMENT_TIMEOUT);
        loop {
            let outcome = {
                let _others_wait = self.other_writes.block_writes().await?;
                self.run(&step)
            };
            match outcome {
                Err(error) if retry_policy.should_retry(&error).await => {}
                outcome => return outcome,
            }
        }
    }
}

#[async_trait]
impl LedgerDatabase for SqliteLedger {
    const YIELDS_WRITE_LOCK: bool = true;

    async fn head(&self, writer: WriterId) -> Result<ChainHead, sqlx::Error> {
        let mut open = self.other_writes.acquire().await?;
        let outcome = with_timeout(read_head(&mut Conn::from(&mut open.connection), writer)).await;
        Ok(open.checked(outcome)?.unwrap_or_default())
    }

    async fn append(&self, batch: &Batch<'_>) -> Result<AppendOutcome, sqlx::Error> {
        self.write(|connection| append(connection, batch)).await
    }

    async fn find_row(&self, request: &RequestId) -> Result<Option<UsageRow>, sqlx::Error> {
        let mut open = self.other_writes.acquire().await?;
        let outcome = with_timeout(read_row(&mut Conn::from(&mut open.connection), request)).await;
        open.checked(outcome)
    }

    async fn probe_write(&self, writer: WriterId) -> Result<(), sqlx::Error> {
        let (key, text) = (probe_key(writer), probe_text());
        self.write(|connection| execute(connection, PROBE, &[&key, &[0_u8; 32], &text, &writer.0])).await?;
        self.write(|connection| execute(connection, END_PROBE, &[&key])).await?;
        Ok(())
    }
}

/// With the settings of `db::sqlite::write_options`.
fn open(file: &Path) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(Duration::ZERO)?;
    connection.execute_batch(
        "PRAGMA foreign_keys = ON; PRAGMA synchronous = FULL; PRAGMA fullfsync = ON; PRAGMA secure_delete = ON",
    )?;
    connection.set_prepared_statement_cache_capacity(MAX_PREPARED);
    Ok(connection)
}

fn append(connection: &Connection, batch: &Batch<'_>) -> Result<AppendOutcome, rusqlite::Error> {
    execute(connection, "BEGIN IMMEDIATE", &[])?;
    let outcome = write_and_commit(connection, batch);
    // When the disk is full, SQLite has already rolled back.
    if !connection.is_autocommit() {
        let _ = connection.execute_batch("ROLLBACK");
    }
    outcome
}

fn write_and_commit(connection: &Connection, batch: &Batch<'_>) -> Result<AppendOutcome, rusqlite::Error> {
    let outcome = write(connection, batch)?;
    if outcome == AppendOutcome::Appended {
        execute(connection, "COMMIT", &[])?;
    }
    Ok(outcome)
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
    use crate::db::error_codes::is_row_error;
    use crate::db::query;
    use crate::db::sqlite::write_options;
    use crate::ledger::writer::LedgerWriter;
    use crate::{DbError, LedgerError, NewAccount, NewKey, Store};
    use chancery_domain::{
        AccountId, ApiKey, KeyId, KeyLimits, Nanos, OsRandomness, Prices, RateLimits, StopReason,
        SystemClock, TokenPrice, UnixMillis,
    };

    fn ledger(file: &Path) -> SqliteLedger {
        let other_writes = SqliteConnector { options: write_options(file) };
        SqliteLedger::new(file, Arc::new(WriteSlot::empty(other_writes)))
    }

    #[tokio::test]
    async fn connection_has_the_settings_of_other_writers() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("chancery.db");
        let store = Store::open_file(&file).await.unwrap();
        let ledger = ledger(&file);
        let setting = |name| {
            ledger.run(|connection| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)))
        };
        for (name, value) in
            [("synchronous", 2), ("foreign_keys", 1), ("secure_delete", 1), ("busy_timeout", 0)]
        {
            assert_eq!(setting(name).unwrap(), value, "{name}");
        }
        let journal_mode: String = ledger
            .run(|connection| connection.pragma_query_value(None, "journal_mode", |row| row.get(0)))
            .unwrap();
        assert_eq!(journal_mode, "wal");
        store.close().await;
    }

    #[tokio::test]
    async fn other_writes_of_the_process_wait_for_a_batch() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("chancery.db");
        let store = Store::open_file(&file).await.unwrap();
        let ledger = ledger(&file);
        let batch = ledger.other_writes.block_writes().await.unwrap();
        let other = tokio::time::timeout(Duration::from_millis(20), ledger.other_writes.acquire()).await;
        assert!(other.is_err(), "it got the connection during a batch");
        drop(batch);
        drop(ledger.other_writes.acquire().await.unwrap());
        ledger.other_writes.close().await;
        assert!(matches!(ledger.other_writes.block_writes().await.err(), Some(sqlx::Error::PoolClosed)));
        store.close().await;
    }

    /// As when the browser that waits for a record hangs up.
    #[tokio::test]
    async fn write_that_is_dropped_midway_does_not_block_the_ledger() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("chancery.db");
        let store = Store::open_file(&file).await.unwrap();
        let (account, key) = create_account_and_key(&store).await;
        store.ledger.settle(row(0, account, key).into()).await.unwrap();
        for number in 1..20 {
            let write = query("BEGIN IMMEDIATE; UPDATE accounts SET name = name; COMMIT");
            tokio::select! {
                biased;
                _ = store.db.execute_whole(&write, 3) => panic!("it has ended at once"),
                () = std::future::ready(()) => {}
            }
            let settled = store.ledger.settle(row(number, account, key).into());
            tokio::time::timeout(Duration::from_secs(2), settled).await.unwrap().unwrap();
        }
        store.close().await;
    }

    #[test]
    fn errors_have_the_codes_of_sqlite() {
        let ledger = ledger(Path::new(":memory:"));
        let twice = ledger.run(|connection| {
            connection.execute_batch("CREATE TABLE t (n INTEGER UNIQUE); INSERT INTO t VALUES (1)")?;
            connection.execute("INSERT INTO t VALUES (1)", [])
        });
        let error = twice.unwrap_err();
        assert!(is_row_error(&error), "{error:?}");
        let error = error.as_database_error().unwrap();
        assert!(error.is_unique_violation() && error.message().contains("t.n"), "{error:?}");
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

    #[tokio::test]
    async fn full_or_read_only_disk_is_reported_without_losing_rows() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("chancery.db");
        let store = Store::open_file(&file).await.unwrap();
        let (account, key) = create_account_and_key(&store).await;

        let ledger = Arc::new(ledger(&file));
        let set_pragma = |name, value: u32| {
            ledger.run(|connection| connection.pragma_update(None, name, value)).unwrap();
        };
        let writer = LedgerWriter::start_on_thread(WriterId(7), Arc::clone(&ledger), SystemClock).unwrap();
        set_pragma("max_page_count", 30);
        let mut settled = 0;
        let error = loop {
            match writer.settle(row(settled, account, key).into()).await {
                Ok(()) => settled += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, LedgerError::Database(DbError::DiskFull(_))), "{error:?}");
        assert!(error.to_string().contains("free some space"), "{error}");
        let probed = writer.probe_write().await;
        assert!(matches!(probed, Err(LedgerError::Database(DbError::DiskFull(_)))), "{probed:?}");
        assert_eq!(store.ledger_chains.ledger_rows(None, u32::MAX).await.unwrap().len(), settled);

        set_pragma("query_only", 1);
        let error = writer.settle(row(settled, account, key).into()).await.unwrap_err();
        assert!(matches!(error, LedgerError::Database(DbError::ReadOnly(_))), "{error:?}");
        set_pragma("query_only", 0);
        set_pragma("max_page_count", 3000);
        writer.probe_write().await.unwrap();
        let keys = ledger.run(|connection| {
            connection.query_row("SELECT COUNT(*) FROM idempotency_keys", [], |row| row.get::<_, i64>(0))
        });
        assert_eq!(keys.unwrap(), 0, "the probe leaves nothing behind");
        writer.settle(row(settled, account, key).into()).await.unwrap();
        assert_eq!(store.ledger_chains.ledger_rows(None, u32::MAX).await.unwrap().len(), settled + 1);
        writer.close().await;
        store.close().await;
    }
}
