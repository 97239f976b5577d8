//! The PostgreSQL database that everything is written to, in one transaction.

use super::copy_format::{BEGINNING, END, NotRows, Reader, RowsDigest, Writer};
use super::rules::Rules;
use super::source::{MoveSource, write_row};
use super::tables::{Table, read_tables};
use super::{MoveStep, MovedTable, Steps, refused_by_target};
use crate::DbError;
use crate::OpenError;
use crate::db::postgres::{PostgresConnector, check_server, connect_first, connect_options};
use crate::db::tables::TABLES;
use crate::db::url::Place;
use crate::db::write_slot::Connector;
use crate::db::{Conn, migrate};
use crate::ledger::months;
use crate::transfer::TransferError;
use crate::{DatabaseUrl, LimitsKept, ServingLock};
use futures_util::TryStreamExt;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

/// How many bytes of rows are gathered before they are sent. A row that has more is sent alone, so that the largest
/// document and this are all that is held of the rows.
const BYTES_AT_ONCE: usize = 1 << 20;

/// So many rows are one COPY: PostgreSQL tells what it thinks of them at its end, not in between.
const ROWS_PER_COPY: u64 = 100_000;

/// How often progress is told, in rows.
const ROWS_PER_STEP: u64 = 1000;

/// The transaction may take hours, and waits for the source in between; but not for another's lock. A commit must be on
/// disk when it returns, whatever the server is set to.
const SESSION: &str = "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0; \
    SET LOCAL lock_timeout = '10s'; \
    SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'";

/// A PostgreSQL database that nobody serves while this is held.
pub struct MoveTarget {
    options: PgConnectOptions,
    lock: ServingLock,
}

impl MoveTarget {
    /// Refused while somebody serves it, and where it holds anything of Chancery's. Writes nothing.
    pub async fn open(url: &DatabaseUrl) -> Result<Self, TransferError> {
        let Place::Postgres(options) = &url.0 else {
            return Err(OpenError::BadUrl(format!("{url} is not a PostgreSQL database")).into());
        };
        let lock = ServingLock::take(url, LimitsKept::InMemory).await?;
        let options = connect_options(options);
        let mut connection = connect_first(&options).await?;
        check_server(&mut connection).await?;
        // Looked at again when nobody can write any more; here so that nobody waits for a refusal.
        refuse_rows(&mut connection).await?;
        PostgresConnector::disconnect(connection).await;
        Ok(Self { options, lock })
    }

    /// Moves everything, or nothing: where this fails or the process dies, the target is as it was. What it holds
    /// afterwards was read back and is, row by row, what was read from the source. The lock is kept.
    pub async fn fill(
        &mut self,
        source: &mut MoveSource,
        steps: &mut Steps<'_>,
    ) -> Result<Vec<MovedTable>, TransferError> {
        // A new one: the source may have taken an hour to verify, and idle connections do not live for ever.
        let mut connection = connect_first(&self.options).await?;
        let mut transaction = connection.begin().await?;
        let target: &mut PgConnection = &mut transaction;
        sqlx::raw_sql(SESSION).execute(&mut *target).await?;
        migrate::apply_in_transaction(&mut Conn::from(&mut *target)).await?;
        let lock = format!("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", TABLES.join(", "));
        sqlx::query(AssertSqlSafe(lock)).execute(&mut *target).await?;
        refuse_rows(target).await?;
        let tables = read_tables(source.connection(), target).await?;
        for month in source.ledger_months().await? {
            months::add(month, target).await?;
        }

        let mut counts = Vec::with_capacity(tables.len());
        for table in &tables {
            counts.push(source.count(table).await?);
        }
        steps(MoveStep::Begins { rows: counts.iter().sum() });
        let rules = Rules::take_down(target).await?;
        let mut sent = Vec::with_capacity(tables.len());
        let mut progress = Progress { steps, rows: 0 };
        for (table, rows) in tables.iter().zip(counts) {
            (progress.steps)(MoveStep::Table { name: table.name, rows });
            sent.push(copy(table, source, target, &mut progress).await?);
        }
        (progress.steps)(MoveStep::Rules);
        rules.put_back(target).await?;
        go_on_counting(source, target).await?;
        // Otherwise the first queries would be planned for empty tables.
        let analyze = format!("ANALYZE {}", TABLES.join(", "));
        sqlx::query(AssertSqlSafe(analyze)).execute(&mut *target).await?;

        (progress.steps)(MoveStep::Compares);
        progress.rows = 0;
        for (table, sent) in tables.iter().zip(&sent) {
            let found = read_back(table, target, &mut progress).await?;
            if found != *sent {
                return Err(TransferError::NotMoved {
                    table: table.name,
                    why: format!(
                        "{} rows were sent, and {} other ones were read back",
                        sent.rows, found.rows
                    ),
                });
            }
        }
        if let Some(why) = self.lock.watch().why_not() {
            return Err(
                DbError::Unavailable(format!("somebody else may have begun to serve it ({why})")).into()
            );
        }
        transaction.commit().await?;
        PostgresConnector::disconnect(connection).await;
        let moved =
            tables.iter().zip(sent).map(|(table, sent)| MovedTable { name: table.name, rows: sent.rows });
        Ok(moved.collect())
    }

    /// Lets go of the database.
    pub async fn close(self) {
        self.lock.release().await;
    }
}

struct Progress<'a, 'b> {
    steps: &'a mut Steps<'b>,
    rows: u64,
}

impl Progress<'_, '_> {
    fn another_row(&mut self) {
        self.rows += 1;
        if self.rows.is_multiple_of(ROWS_PER_STEP) {
            (self.steps)(MoveStep::Rows(self.rows));
        }
    }
}

/// Which of our tables are there and hold a row.
async fn refuse_rows(target: &mut PgConnection) -> Result<(), TransferError> {
    let there: Vec<String> = sqlx::query_scalar(
        "SELECT tablename::text FROM pg_catalog.pg_tables WHERE schemaname = current_schema() AND tablename = ANY($1)",
    )
    .bind(TABLES)
    .fetch_all(&mut *target)
    .await?;
    if !there.is_empty() && !migrate::has_schema(&mut Conn::from(&mut *target)).await? {
        return Err(OpenError::ForeignDatabase.into());
    }
    for table in TABLES.iter().filter(|table| there.iter().any(|name| name == *table)) {
        let query = format!("SELECT EXISTS (SELECT 1 FROM \"{table}\")");
        let has_rows: bool = sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(&mut *target).await?;
        if has_rows {
            return Err(TransferError::TargetHoldsRows { table });
        }
    }
    Ok(())
}

async fn copy(
    table: &Table,
    source: &mut MoveSource,
    target: &mut PgConnection,
    progress: &mut Progress<'_, '_>,
) -> Result<RowsDigest, TransferError> {
    let refused = |error: sqlx::Error| refused_by_target(table.name, &error);
    let columns = table.column_names();
    let select = format!("SELECT {columns} FROM \"{}\"", table.name);
    let statement = format!("COPY \"{}\" ({columns}) FROM STDIN (FORMAT binary)", table.name);
    let mut rows = sqlx::query(AssertSqlSafe(select)).fetch(source.connection());
    let (mut digest, mut writer) = (RowsDigest::default(), Writer::default());
    let mut next = rows.try_next().await?;
    while next.is_some() {
        let mut sink = target.copy_in_raw(&statement).await.map_err(refused)?;
        sink.send(BEGINNING.as_slice()).await.map_err(refused)?;
        let last = digest.rows + ROWS_PER_COPY;
        while let Some(row) = &next
            && digest.rows < last
        {
            write_row(table, row, &mut writer, &mut digest)?;
            if writer.written().len() >= BYTES_AT_ONCE {
                sink.send(writer.written()).await.map_err(refused)?;
                writer.clear();
            }
            progress.another_row();
            next = rows.try_next().await?;
        }
        sink.send(writer.written()).await.map_err(refused)?;
        writer.clear();
        sink.send(END.as_slice()).await.map_err(refused)?;
        sink.finish().await.map_err(refused)?;
    }
    Ok(digest)
}

async fn read_back(
    table: &Table,
    target: &mut PgConnection,
    progress: &mut Progress<'_, '_>,
) -> Result<RowsDigest, TransferError> {
    let columns = table.column_names();
    let statement = format!("COPY (SELECT {columns} FROM \"{}\") TO STDOUT (FORMAT binary)", table.name);
    let mut pieces = target.copy_out_raw(&statement).await?;
    let (mut reader, mut digest) = (Reader::default(), RowsDigest::default());
    let unreadable = |_: NotRows| TransferError::NotMoved {
        table: table.name,
        why: "what was read back is not in PostgreSQL's binary format".to_owned(),
    };
    while let Some(piece) = pieces.try_next().await? {
        let row = |row: &[u8]| {
            digest.add(row);
            progress.another_row();
        };
        reader.take(&piece, row).map_err(unreadable)?;
    }
    if !reader.is_complete() {
        return Err(unreadable(NotRows));
    }
    Ok(digest)
}

const COUNTING_COLUMNS: &str = "SELECT t.relname::text, c.attname::text \
    FROM pg_catalog.pg_class t JOIN pg_catalog.pg_attribute c ON c.attrelid = t.oid \
    WHERE t.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = current_schema()) AND t.relname = ANY($1) AND c.attidentity <> ''";

/// Numbers go on where the source has stopped. `RESTART` and not `setval`, which a rollback would not take back.
async fn go_on_counting(source: &mut MoveSource, target: &mut PgConnection) -> Result<(), TransferError> {
    let counting: Vec<(String, String)> =
        sqlx::query_as(COUNTING_COLUMNS).bind(TABLES).fetch_all(&mut *target).await?;
    for (table_name, column_name) in counting {
        let Some(table) = TABLES.iter().find(|name| **name == table_name) else { continue };
        let Some(last) = source.last_number(table, &column_name).await? else { continue };
        let next = last.checked_add(1).ok_or_else(|| TransferError::NotMoved {
            table,
            why: format!("after {column_name} {last} there is no further number"),
        })?;
        let restart = format!("ALTER TABLE \"{table}\" ALTER COLUMN \"{column_name}\" RESTART WITH {next}");
        sqlx::query(AssertSqlSafe(restart)).execute(&mut *target).await?;
    }
    Ok(())
}
