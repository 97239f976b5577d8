//! The target PostgreSQL database, filled in one transaction.

use super::constraints::Constraints;
use super::copy_format::{MalformedCopyStream, Reader, RowsDigest, Writer};
use super::source::{TransferSource, write_row};
use super::tables::{Table, read_tables};
use super::{ProgressCallback, TransferProgress, TransferredTable, fetch_all, map_target_error};
use crate::DbError;
use crate::OpenError;
use crate::db::postgres::{PostgresOptions, connect_first};
use crate::db::postgres_session::open_session;
use crate::db::tables::TABLES;
use crate::db::url::DatabaseLocation;
use crate::db::{Dialect, Driver, QueryError, Row, Tx, migrate};
use crate::ledger::partitions;
use crate::open_postgres::check_server;
use crate::transfer::TransferError;
use crate::{DatabaseUrl, LimitStorage, ServingLock};
use futures_util::{SinkExt, TryStreamExt};
use std::io::Cursor;
use std::pin::pin;
use tokio_postgres::Client;

/// Buffer size per send. A larger row is sent alone, so memory use is bounded by this and the largest document.
const CHUNK_BYTES: usize = 1 << 20;

/// Rows per COPY. PostgreSQL reports errors only at the end of each.
const ROWS_PER_COPY: u64 = 100_000;

/// Rows between progress reports.
const ROWS_PER_PROGRESS: u64 = 1000;

/// The transaction may take hours and waits for the source in between, but it does not wait long for locks. A commit
/// must be on disk when it returns, whatever the server's configuration.
const BEGIN: &str = "BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0; \
    SET LOCAL lock_timeout = '10s'; \
    SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'";

/// A PostgreSQL database, locked against servers.
pub struct TransferTarget {
    options: PostgresOptions,
    lock: ServingLock,
}

impl TransferTarget {
    /// Fails while a server runs on it, or if it has any Chancery rows. Writes nothing.
    pub async fn open(url: &DatabaseUrl) -> Result<Self, TransferError> {
        let DatabaseLocation::Postgres(options) = &url.0 else {
            return Err(OpenError::BadUrl(format!("{url} is not a PostgreSQL database")).into());
        };
        let lock = ServingLock::take(url, LimitStorage::InMemory).await?;
        let options = PostgresOptions::clone(options);
        check(options.clone()).await?;
        // Checked again once the tables are locked. This early check avoids a long wait before the rejection.
        ensure_empty(&connect_first(&options).await?).await?;
        Ok(Self { options, lock })
    }

    /// Transfers everything or nothing: after a failure or a kill, the target is unchanged. Every row was read back and
    /// equals the one in the source. The lock is still held afterwards.
    pub async fn fill(
        &mut self,
        source: &mut TransferSource,
        on_progress: &mut ProgressCallback<'_>,
    ) -> Result<Vec<TransferredTable>, TransferError> {
        // A new connection: verifying the source may have taken an hour, and idle connections get closed. An error ends it, and
        // with it the transaction.
        let target = connect_first(&self.options).await?;
        target.batch_execute(BEGIN).await?;
        create_schema(&target).await?;
        let lock = format!("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", TABLES.join(", "));
        target.batch_execute(&lock).await?;
        ensure_empty(&target).await?;
        let tables = read_tables(source.connection(), &target).await?;
        for month in source.ledger_months()? {
            partitions::create_partition_on(&target, month).await?;
        }

        let mut counts = Vec::with_capacity(tables.len());
        for table in &tables {
            counts.push(source.count(table)?);
        }
        on_progress(TransferProgress::Started { rows: counts.iter().sum() });
        let constraints = Constraints::disable(&target).await?;
        let mut sent = Vec::with_capacity(tables.len());
        let mut progress = Progress { on_progress, rows: 0 };
        for (table, rows) in tables.iter().zip(counts) {
            (progress.on_progress)(TransferProgress::Table { name: table.name, rows });
            sent.push(copy(table, source, &target, &mut progress).await?);
        }
        (progress.on_progress)(TransferProgress::RestoringConstraints);
        constraints.restore(&target).await?;
        restart_sequences(source, &target).await?;
        // Without statistics, the first queries would be planned for empty tables.
        let analyze = format!("ANALYZE {}", TABLES.join(", "));
        target.batch_execute(&analyze).await?;

        (progress.on_progress)(TransferProgress::Verifying);
        progress.rows = 0;
        for (table, sent) in tables.iter().zip(&sent) {
            let found = read_back(table, &target, &mut progress).await?;
            if found != *sent {
                return Err(TransferError::TableNotTransferred {
                    table: table.name,
                    why: format!(
                        "{} rows were sent, but {} different rows were read back",
                        sent.rows, found.rows
                    ),
                });
            }
        }
        if let Some(why) = self.lock.watch().unavailable_reason() {
            return Err(DbError::Unavailable(format!("another server may be using it now ({why})")).into());
        }
        target.batch_execute("COMMIT").await?;
        let transferred = tables
            .iter()
            .zip(sent)
            .map(|(table, sent)| TransferredTable { name: table.name, rows: sent.rows });
        Ok(transferred.collect())
    }

    /// Releases the lock.
    pub async fn close(self) {
        self.lock.release().await;
    }
}

struct Progress<'a, 'b> {
    on_progress: &'a mut ProgressCallback<'b>,
    rows: u64,
}

impl Progress<'_, '_> {
    fn count_row(&mut self) {
        self.rows += 1;
        if self.rows.is_multiple_of(ROWS_PER_PROGRESS) {
            (self.on_progress)(TransferProgress::Rows(self.rows));
        }
    }
}

/// Checks the server, on a thread that may wait for it.
async fn check(options: PostgresOptions) -> Result<(), OpenError> {
    let checking = tokio::task::spawn_blocking(move || {
        let mut session = open_session(&options)?;
        check_server(&mut Tx::outside(Driver::Postgres(&mut session)))
    });
    checking.await.unwrap_or_else(|_| Err(QueryError::Panicked.into()))
}

/// Those of our tables that the target has, `schema_migrations` among them. Fails if they are another program's.
async fn existing_tables(target: &Client) -> Result<Vec<String>, TransferError> {
    let sql = "SELECT tablename::text FROM pg_catalog.pg_tables WHERE schemaname = current_schema() \
        AND (tablename = ANY($1) OR tablename = 'schema_migrations')";
    let existing: Vec<String> = fetch_all(target, sql, &[&TABLES]).await?;
    if !existing.is_empty() && !existing.iter().any(|name| name == "schema_migrations") {
        return Err(OpenError::NotChanceryDatabase.into());
    }
    Ok(existing)
}

/// Rejects a target whose tables have rows.
async fn ensure_empty(target: &Client) -> Result<(), TransferError> {
    let existing = existing_tables(target).await?;
    for table in TABLES.iter().filter(|table| existing.iter().any(|name| name == *table)) {
        let first_row = target.query_opt(&format!("SELECT 1 FROM \"{table}\" LIMIT 1"), &[]).await?;
        if first_row.is_some() {
            return Err(TransferError::TargetNotEmpty { table });
        }
    }
    Ok(())
}

/// Creates or migrates the schema, in the target's transaction.
async fn create_schema(target: &Client) -> Result<(), TransferError> {
    target.batch_execute(migrate::LOCK_POSTGRES).await?;
    let applied = if existing_tables(target).await?.is_empty() {
        None
    } else {
        Some(fetch_all(target, migrate::APPLIED, &[]).await?)
    };
    Ok(target.batch_execute(&migrate::script(Dialect::Postgres, applied.as_deref())?).await?)
}

async fn copy(
    table: &Table,
    source: &TransferSource,
    target: &Client,
    progress: &mut Progress<'_, '_>,
) -> Result<RowsDigest, TransferError> {
    let map_error = |error| map_target_error(table.name, error);
    let columns = table.column_names();
    let statement = format!("COPY \"{}\" ({columns}) FROM STDIN (FORMAT binary)", table.name);
    let mut select = source.connection().prepare(&format!("SELECT {columns} FROM \"{}\"", table.name))?;
    let mut rows = select.query([])?;
    let (mut digest, mut writer) = (RowsDigest::default(), Writer::default());
    let mut next = rows.next()?;
    while next.is_some() {
        let mut sink = pin!(target.copy_in::<_, Cursor<Vec<u8>>>(&statement).await.map_err(map_error)?);
        writer.begin();
        let last = digest.rows + ROWS_PER_COPY;
        while let Some(row) = next
            && digest.rows < last
        {
            write_row(table, row, &mut writer, &mut digest)?;
            if writer.written().len() >= CHUNK_BYTES {
                sink.send(Cursor::new(writer.take())).await.map_err(map_error)?;
            }
            progress.count_row();
            next = rows.next()?;
        }
        writer.end();
        sink.send(Cursor::new(writer.take())).await.map_err(map_error)?;
        sink.finish().await.map_err(map_error)?;
    }
    Ok(digest)
}

async fn read_back(
    table: &Table,
    target: &Client,
    progress: &mut Progress<'_, '_>,
) -> Result<RowsDigest, TransferError> {
    let columns = table.column_names();
    let statement = format!("COPY (SELECT {columns} FROM \"{}\") TO STDOUT (FORMAT binary)", table.name);
    let mut pieces = pin!(target.copy_out(&statement).await?);
    let (mut reader, mut digest) = (Reader::default(), RowsDigest::default());
    let unreadable = |_: MalformedCopyStream| TransferError::TableNotTransferred {
        table: table.name,
        why: "what was read back is not in PostgreSQL's binary format".to_owned(),
    };
    while let Some(piece) = pieces.try_next().await? {
        let row = |row: &[u8]| {
            digest.add(row);
            progress.count_row();
        };
        reader.take(&piece, row).map_err(unreadable)?;
    }
    if !reader.is_complete() {
        return Err(unreadable(MalformedCopyStream));
    }
    Ok(digest)
}

const IDENTITY_COLUMNS: &str = "SELECT t.relname::text AS table_name, c.attname::text AS column_name \
    FROM pg_catalog.pg_class t JOIN pg_catalog.pg_attribute c ON c.attrelid = t.oid \
    WHERE t.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = current_schema()) AND t.relname = ANY($1) AND c.attidentity <> ''";

/// Identity columns continue where the source stopped. `RESTART` and not `setval`, because a rollback does not undo
/// `setval`.
async fn restart_sequences(source: &TransferSource, target: &Client) -> Result<(), TransferError> {
    for row in target.query(IDENTITY_COLUMNS, &[&TABLES]).await? {
        let row = Row::Postgres(&row);
        let (table_name, column_name): (String, String) = (row.get("table_name")?, row.get("column_name")?);
        let Some(table) = TABLES.iter().find(|name| **name == table_name) else { continue };
        let Some(last) = source.last_identity(table, &column_name)? else { continue };
        let next = last.checked_add(1).ok_or_else(|| TransferError::TableNotTransferred {
            table,
            why: format!("{column_name} {last} is the largest possible number"),
        })?;
        let restart = format!("ALTER TABLE \"{table}\" ALTER COLUMN \"{column_name}\" RESTART WITH {next}");
        target.batch_execute(&restart).await?;
    }
    Ok(())
}
