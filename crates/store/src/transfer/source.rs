//! The source SQLite file: locked against other writers, and never written to.

use super::copy_format::{RowsDigest, Writer};
use super::tables::{Column, ColumnType, Table};
use crate::OpenError;
use crate::db::error_codes::map_open_error;
use crate::db::sqlite::{is_chancery_database, open_reader};
use crate::db::url::DatabaseLocation;
use crate::db::values;
use crate::ledger::partitions::request_id_range;
use crate::transfer::TransferError;
use crate::{DatabaseUrl, LimitStorage, ServingLock, Store};
use chancery_domain::Month;
use rusqlite::types::{FromSql, FromSqlError, ValueRef};
use rusqlite::{Connection, Row};
use std::collections::BTreeSet;

/// Takes the write lock, which a connection that only reads may not, and then makes the connection read-only again.
const LOCK_AND_FREEZE: &str = "PRAGMA query_only = OFF; BEGIN IMMEDIATE; PRAGMA query_only = ON";

/// A SQLite file, locked against servers and other writers.
pub struct TransferSource {
    store: Store,
    /// Has SQLite's write lock but is read-only: what is verified is what is copied.
    lock_connection: Connection,
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
        if !is_chancery_database(file)? {
            return Err(OpenError::NoDatabase { location: url.to_string() }.into());
        }
        let lock = ServingLock::take(url, LimitStorage::InMemory).await?;
        let store = Store::open_existing(url).await?;
        let lock_connection = open_reader(file).map_err(|error| map_open_error(&error, file))?;
        lock_connection.execute_batch(LOCK_AND_FREEZE)?;
        Ok(Self { store, lock_connection, lock })
    }

    /// For verifying the source.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Releases the file. Without this call, the end of the process releases it.
    pub async fn close(self) {
        // Ends its transaction, which has written nothing.
        drop(self.lock_connection);
        self.store.close().await;
        self.lock.release().await;
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.lock_connection
    }

    pub(super) fn count(&self, table: &Table) -> Result<u64, TransferError> {
        let rows: i64 = self.fetch(&format!("SELECT COUNT(*) FROM \"{}\"", table.name))?;
        Ok(u64::try_from(rows).unwrap_or_default())
    }

    /// The last assigned id of a table with an identity column, even if its row is gone.
    pub(super) fn last_identity(&self, table: &str, column: &str) -> Result<Option<i64>, TransferError> {
        self.fetch(&format!(
            "SELECT MAX(last) FROM (SELECT MAX(\"{column}\") AS last FROM \"{table}\" \
             UNION ALL SELECT seq FROM sqlite_sequence WHERE name = '{table}')"
        ))
    }

    /// The months of the ledger's request ids. An id is created before its row, so its month is the row's month or the
    /// one before.
    pub(super) fn ledger_months(&self) -> Result<Vec<Month>, TransferError> {
        let mut days = self.lock_connection.prepare("SELECT DISTINCT day FROM daily_usage")?;
        let mut possible = BTreeSet::new();
        for day in days.query_map([], |row| row.get(0))? {
            let month = Month::containing(values::day(day?)?.start());
            possible.extend([month.previous(), month]);
        }
        let mut months = Vec::new();
        for month in possible {
            let (first_id, end_id) = request_id_range(month);
            let has_ids = format!(
                "SELECT EXISTS (SELECT 1 FROM ledger WHERE request_id >= '{first_id}' AND request_id < '{end_id}')"
            );
            if self.fetch(&has_ids)? {
                months.push(month);
            }
        }
        Ok(months)
    }

    /// The value of a statement with one.
    fn fetch<T: FromSql>(&self, sql: &str) -> Result<T, TransferError> {
        Ok(self.lock_connection.query_row(sql, [], |row| row.get(0))?)
    }
}

/// Encodes one row for COPY, and adds it to the digest.
pub(super) fn write_row(
    table: &Table,
    row: &Row<'_>,
    writer: &mut Writer,
    digest: &mut RowsDigest,
) -> Result<(), TransferError> {
    let begin = writer.written().len();
    writer.begin_row(i16::try_from(table.columns.len()).unwrap_or_default());
    for (index, column) in table.columns.iter().enumerate() {
        let value = row.get_ref(index)?;
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

fn write_column(kind: ColumnType, value: ValueRef<'_>, writer: &mut Writer) -> Result<(), Untransferable> {
    let invalid = |error: FromSqlError| Untransferable::Other(error.to_string());
    let too_long =
        |bytes: usize| Untransferable::Other(format!("it has {bytes} bytes, which PostgreSQL cannot store"));
    if value == ValueRef::Null {
        writer.null();
        return Ok(());
    }
    match kind {
        ColumnType::Number => writer.number(value.as_i64().map_err(invalid)?),
        ColumnType::Boolean => match value.as_i64().map_err(invalid)? {
            0 => writer.boolean(false),
            1 => writer.boolean(true),
            other => return Err(Untransferable::Other(format!("{other} is neither 0 nor 1"))),
        },
        ColumnType::Bytes => writer.bytes(value.as_blob().map_err(invalid)?).map_err(too_long)?,
        ColumnType::Text => {
            let text = value.as_str().map_err(invalid)?;
            if text.contains('\0') {
                return Err(Untransferable::Nul);
            }
            writer.bytes(text.as_bytes()).map_err(too_long)?;
        }
    }
    Ok(())
}

fn map_row_error(table: &Table, column: &Column, row: &Row<'_>, why: Untransferable) -> TransferError {
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
fn row_label(table: &Table, row: &Row<'_>) -> String {
    let named = table.columns.iter().enumerate().find_map(|(index, column)| {
        let value = match column.kind {
            ColumnType::Number | ColumnType::Boolean => row.get::<_, i64>(index).ok()?.to_string(),
            ColumnType::Text => format!("{:?}", row.get_ref(index).ok()?.as_str().ok()?),
            ColumnType::Bytes => return None,
        };
        Some(format!("with {} {value}", column.name))
    });
    named.unwrap_or_default()
}
