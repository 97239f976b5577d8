//! The SQLite file that everything is read from: held so that nobody else writes to it, and never written to.

use super::copy_format::{RowsDigest, Writer};
use super::tables::{Column, Kind, Table};
use crate::OpenError;
use crate::db::error_codes::{STATEMENT_TIMEOUT, explain_opening};
use crate::db::sqlite::{SqliteConnector, is_ours, options};
use crate::db::url::Place;
use crate::db::write_slot::Connector;
use crate::ledger::months::ids_of;
use crate::transfer::TransferError;
use crate::{DatabaseUrl, LimitsKept, ServingLock, Store};
use chancery_domain::Month;
use sqlx::sqlite::{SqliteRow, SqliteValueRef};
use sqlx::{AssertSqlSafe, ConnectOptions, Decode, Row, Sqlite, SqliteConnection, ValueRef};
use std::collections::BTreeSet;

/// Takes the write lock, and then gives up the right to use it.
const HOLD: &str = "BEGIN IMMEDIATE; PRAGMA query_only = ON";

/// A SQLite file that nobody serves and nobody writes to while this is held.
pub struct MoveSource {
    store: Store,
    /// Has SQLite's write lock, and is not allowed to write: what is verified is what moves.
    held: SqliteConnection,
    lock: ServingLock,
}

impl MoveSource {
    /// Where there is no database of Chancery's, that is `NoDatabase`; an older schema is brought up to date. Refused while
    /// somebody serves the file, or writes to it for long.
    pub async fn open(url: &DatabaseUrl) -> Result<Self, TransferError> {
        let Place::Sqlite(file) = &url.0 else {
            return Err(OpenError::BadUrl(format!("{url} is not a SQLite file")).into());
        };
        // First of all, for the lock would leave a file of its own beside a database that is not there.
        if !is_ours(file).await? {
            return Err(OpenError::NoDatabase { place: url.to_string() }.into());
        }
        let lock = ServingLock::take(url, LimitsKept::InMemory).await?;
        let store = Store::open_existing(url).await?;
        let options = options(file).busy_timeout(STATEMENT_TIMEOUT);
        let mut held = options.connect().await.map_err(|error| explain_opening(&error, file))?;
        let hold = sqlx::raw_sql(HOLD).execute(&mut held).await;
        hold?;
        Ok(Self { store, held, lock })
    }

    /// For reading and verifying it.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Lets go of the file. Who does not come to this lets go of it with the end of the process.
    pub async fn close(mut self) {
        // It has written nothing, so there is nothing that could fail to be undone.
        let _ = sqlx::query("ROLLBACK").execute(&mut self.held).await;
        SqliteConnector::disconnect(self.held).await;
        self.store.close().await;
        self.lock.release().await;
    }

    pub(super) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.held
    }

    pub(super) async fn count(&mut self, table: &Table) -> Result<u64, TransferError> {
        let count = format!("SELECT COUNT(*) FROM \"{}\"", table.name);
        let rows: i64 = self.number(count).await?.unwrap_or_default();
        Ok(u64::try_from(rows).unwrap_or_default())
    }

    /// The last number that was given in a table that counts, whether or not its row is still there.
    pub(super) async fn last_number(
        &mut self,
        table: &'static str,
        column: &str,
    ) -> Result<Option<i64>, TransferError> {
        let counter = format!(
            "SELECT MAX(last) FROM (SELECT MAX(\"{column}\") AS last FROM \"{table}\" \
             UNION ALL SELECT seq FROM sqlite_sequence WHERE name = '{table}')"
        );
        self.number(counter).await
    }

    /// The months of the ledger's request ids. An id is made before its row, so that its month is the row's or the one before.
    pub(super) async fn ledger_months(&mut self) -> Result<Vec<Month>, TransferError> {
        let days: Vec<i64> =
            sqlx::query_scalar("SELECT DISTINCT day FROM usage_days").fetch_all(&mut self.held).await?;
        let mut possible = BTreeSet::new();
        for day in days {
            let month = Month::of(crate::db::values::day(day)?.start());
            possible.extend([month.previous(), month]);
        }
        let mut months = Vec::new();
        for month in possible {
            let (first_id, end_id) = ids_of(month);
            let ids = format!(
                "SELECT EXISTS (SELECT 1 FROM ledger WHERE request_id >= '{first_id}' AND request_id < '{end_id}')"
            );
            if self.number(ids).await? == Some(1) {
                months.push(month);
            }
        }
        Ok(months)
    }

    async fn number(&mut self, sql: String) -> Result<Option<i64>, TransferError> {
        let number = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut self.held).await;
        Ok(number?)
    }
}

/// Writes one row as COPY takes it, and adds it to the digest.
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
        written.map_err(|why| unreadable(table, column, row, why))?;
    }
    digest.add(&writer.written()[begin..]);
    Ok(())
}

/// Why a value cannot move.
enum Unmovable {
    Nul,
    Other(String),
}

fn write_column(kind: Kind, value: SqliteValueRef<'_>, writer: &mut Writer) -> Result<(), Unmovable> {
    if value.is_null() {
        writer.null();
        return Ok(());
    }
    fn decoded<'r, T: Decode<'r, Sqlite>>(value: SqliteValueRef<'r>) -> Result<T, Unmovable> {
        T::decode(value).map_err(|error| Unmovable::Other(error.to_string()))
    }
    let too_long =
        |bytes: usize| Unmovable::Other(format!("it has {bytes} bytes, which PostgreSQL does not take"));
    match kind {
        Kind::Number => writer.number(decoded(value)?),
        Kind::Flag => match decoded::<i64>(value)? {
            0 => writer.flag(false),
            1 => writer.flag(true),
            other => return Err(Unmovable::Other(format!("{other} is neither 0 nor 1"))),
        },
        Kind::Bytes => writer.bytes(decoded::<&[u8]>(value)?).map_err(too_long)?,
        Kind::Text => {
            let text = decoded::<&str>(value)?;
            if text.contains('\0') {
                return Err(Unmovable::Nul);
            }
            writer.bytes(text.as_bytes()).map_err(too_long)?;
        }
    }
    Ok(())
}

fn unreadable(table: &Table, column: &Column, row: &SqliteRow, why: Unmovable) -> TransferError {
    let (table_name, column_name) = (table.name, column.name.clone());
    match why {
        Unmovable::Nul => {
            TransferError::NulInTable { table: table_name, column: column_name, row: name_of(table, row) }
        }
        Unmovable::Other(why) => TransferError::NotMoved {
            table: table_name,
            why: format!("{column_name} of the row {}: {why}", name_of(table, row)),
        },
    }
}

/// By its first column that is not bytes, for those are hashes.
fn name_of(table: &Table, row: &SqliteRow) -> String {
    let named = table.columns.iter().enumerate().find_map(|(index, column)| {
        let value = match column.kind {
            Kind::Number | Kind::Flag => row.try_get::<i64, _>(index).ok()?.to_string(),
            Kind::Text => format!("{:?}", row.try_get::<&str, _>(index).ok()?),
            Kind::Bytes => return None,
        };
        Some(format!("with {} {value}", column.name))
    });
    named.unwrap_or_default()
}
