//! The source SQLite file: locked against other writers, and never written to.

use super::copy_format::{RowsDigest, Writer};
use super::tables::{Column, ColumnType, Table};
use crate::OpenError;
use crate::db::error_codes::{STATEMENT_TIMEOUT, map_open_error};
use crate::db::sqlite::{SqliteConnector, is_chancery_database, options};
use crate::db::url::DatabaseLocation;
use crate::db::write_slot::Connector;
use crate::ledger::partitions::request_id_range;
use crate::transfer::TransferError;
use crate::{DatabaseUrl, LimitStorage, ServingLock, Store};
use chancery_domain::Month;
use sqlx::sqlite::{SqliteRow, SqliteValueRef};
use sqlx::{AssertSqlSafe, ConnectOptions, Decode, Row, Sqlite, SqliteConnection, ValueRef};
use std::collections::BTreeSet;

/// Takes the write lock, and then makes the connection read-only.
const LOCK_AND_FREEZE: &str = "BEGIN IMMEDIATE; PRAGMA query_only = ON";

/// A SQLite file, locked against servers and other writers.
pub struct TransferSource {
    store: Store,
    /// Has SQLite's write lock but is read-only: what is verified is what is copied.
    lock_connection: SqliteConnection,
    lock: ServingLock,
}

impl TransferSource {
    /// Fails if there is no Chancery database (`NoDatabase`), or if a server or a long-running writer uses the file. An older
    /// schema is migrated.
    pub async fn open(url: &DatabaseUrl) -> Result<Self, TransferError> {
        let DatabaseLocation::Sqlite(file) = &url.0 else {
            return Err(OpenError::BadUrl(format!("{url} is not a SQLite file")).into());
        };
        // This check comes first, because taking the lock would create a lock file beside a database that does not
        // exist.
        if !is_chancery_database(file).await? {
            return Err(OpenError::NoDatabase { location: url.to_string() }.into());
        }
        let lock = ServingLock::take(url, LimitStorage::InMemory).await?;
        let store = Store::open_existing(url).await?;
        let options = options(file).busy_timeout(STATEMENT_TIMEOUT);
        let mut lock_connection = options.connect().await.map_err(|error| map_open_error(&error, file))?;
        let locked = sqlx::raw_sql(LOCK_AND_FREEZE).execute(&mut lock_connection).await;
        locked?;
        Ok(Self { store, lock_connection, lock })
    }

    /// For verifying the source.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Releases the file. Without this call, the end of the process releases it.
    pub async fn close(mut self) {
        // It has written nothing, so the result of the rollback does not matter.
        let _ = sqlx::query("ROLLBACK").execute(&mut self.lock_connection).await;
        SqliteConnector::disconnect(self.lock_connection).await;
        self.store.close().await;
        self.lock.release().await;
    }

    pub(super) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.lock_connection
    }

    pub(super) async fn count(&mut self, table: &Table) -> Result<u64, TransferError> {
        let count = format!("SELECT COUNT(*) FROM \"{}\"", table.name);
        let rows: i64 = self.fetch_number(count).await?.unwrap_or_default();
        Ok(u64::try_from(rows).unwrap_or_default())
    }

    /// The last assigned id of a table with an identity column, even if its row is gone.
    pub(super) async fn last_identity(
        &mut self,
        table: &'static str,
        column: &str,
    ) -> Result<Option<i64>, TransferError> {
        let counter = format!(
            "SELECT MAX(last) FROM (SELECT MAX(\"{column}\") AS last FROM \"{table}\" \
             UNION ALL SELECT seq FROM sqlite_sequence WHERE name = '{table}')"
        );
        self.fetch_number(counter).await
    }

    /// The months of the ledger's request ids. An id is created before its row, so its month is the row's month or the
    /// one before.
    pub(super) async fn ledger_months(&mut self) -> Result<Vec<Month>, TransferError> {
        let days: Vec<i64> = sqlx::query_scalar("SELECT DISTINCT day FROM daily_usage")
            .fetch_all(&mut self.lock_connection)
            .await?;
        let mut possible = BTreeSet::new();
        for day in days {
            let month = Month::containing(crate::db::values::day(day)?.start());
            possible.extend([month.previous(), month]);
        }
        let mut months = Vec::new();
        for month in possible {
            let (first_id, end_id) = request_id_range(month);
            let ids = format!(
                "SELECT EXISTS (SELECT 1 FROM ledger WHERE request_id >= '{first_id}' AND request_id < '{end_id}')"
            );
            if self.fetch_number(ids).await? == Some(1) {
                months.push(month);
            }
        }
        Ok(months)
    }

    async fn fetch_number(&mut self, sql: String) -> Result<Option<i64>, TransferError> {
        let number = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut self.lock_connection).await;
        Ok(number?)
    }
}

/// Encodes one row for COPY, and adds it to the digest.
pub(super) fn write_row(
    table: &Table,
    row: &SqliteRow,
    writer: &mut Writer,
    digest: &mut RowsDigest,
) -> Result<(), TransferError> {
    let begin = writer.written().len();
    writer.begin_row(i16::try_from(table.columns.len()).unwrap_or_default());
    for (index, column) in table.columns.iter().enumerate() {
        let value = row.try_get_raw(index)?;
        let written = write_column(column.kind, value, writer);
        written.map_err(|why| map_row_error(table, column, row, why))?;
    }
    digest.add(&writer.written()[begin..]);
    Ok(())
}

/// Why a value cannot be transferred.
enum Untransferable {
    Nul,
    Other(String),
}

fn write_column(
    kind: ColumnType,
    value: SqliteValueRef<'_>,
    writer: &mut Writer,
) -> Result<(), Untransferable> {
    if value.is_null() {
        writer.null();
        return Ok(());
    }
    fn decoded<'r, T: Decode<'r, Sqlite>>(value: SqliteValueRef<'r>) -> Result<T, Untransferable> {
        T::decode(value).map_err(|error| Untransferable::Other(error.to_string()))
    }
    let too_long =
        |bytes: usize| Untransferable::Other(format!("it has {bytes} bytes, which PostgreSQL cannot store"));
    match kind {
        ColumnType::Number => writer.number(decoded(value)?),
        ColumnType::Boolean => match decoded::<i64>(value)? {
            0 => writer.boolean(false),
            1 => writer.boolean(true),
            other => return Err(Untransferable::Other(format!("{other} is neither 0 nor 1"))),
        },
        ColumnType::Bytes => writer.bytes(decoded::<&[u8]>(value)?).map_err(too_long)?,
        ColumnType::Text => {
            let text = decoded::<&str>(value)?;
            if text.contains('\0') {
                return Err(Untransferable::Nul);
            }
            writer.bytes(text.as_bytes()).map_err(too_long)?;
        }
    }
    Ok(())
}

fn map_row_error(table: &Table, column: &Column, row: &SqliteRow, why: Untransferable) -> TransferError {
    let (table_name, column_name) = (table.name, column.name.clone());
    match why {
        Untransferable::Nul => {
            TransferError::NulInTable { table: table_name, column: column_name, row: row_label(table, row) }
        }
        Untransferable::Other(why) => TransferError::TableNotTransferred {
            table: table_name,
            why: format!("{column_name} of the row {}: {why}", row_label(table, row)),
        },
    }
}

/// Identifies the row by its first column that is not bytes, because those are hashes.
fn row_label(table: &Table, row: &SqliteRow) -> String {
    let named = table.columns.iter().enumerate().find_map(|(index, column)| {
        let value = match column.kind {
            ColumnType::Number | ColumnType::Boolean => row.try_get::<i64, _>(index).ok()?.to_string(),
            ColumnType::Text => format!("{:?}", row.try_get::<&str, _>(index).ok()?),
            ColumnType::Bytes => return None,
        };
        Some(format!("with {} {value}", column.name))
    });
    named.unwrap_or_default()
}
