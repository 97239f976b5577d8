//! A result row, and how values are read from it.

use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{Decode, Postgres, Sqlite, Type};

pub(crate) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

/// A type that both databases can decode.
pub(crate) trait Column:
    for<'r> Decode<'r, Sqlite> + Type<Sqlite> + for<'r> Decode<'r, Postgres> + Type<Postgres>
{
}

impl<T> Column for T where
    T: for<'r> Decode<'r, Sqlite> + Type<Sqlite> + for<'r> Decode<'r, Postgres> + Type<Postgres>
{
}

impl Row {
    pub(crate) fn get<T: Column>(&self, column: &str) -> Result<T, sqlx::Error> {
        match self {
            Self::Sqlite(row) => sqlx::Row::try_get(row, column),
            Self::Postgres(row) => sqlx::Row::try_get(row, column),
        }
    }

    /// The value of a statement with one column.
    fn first<T: Column>(&self) -> Result<T, sqlx::Error> {
        match self {
            Self::Sqlite(row) => sqlx::Row::try_get(row, 0),
            Self::Postgres(row) => sqlx::Row::try_get(row, 0),
        }
    }
}

/// Reads a domain type from a row, by column names.
pub(crate) trait FromRow: Sized {
    /// The column that identifies the row in an error about another column.
    const ROW_LABEL_COLUMN: Option<&'static str> = None;

    fn from_row(row: &Row) -> Result<Self, sqlx::Error>;

    fn read(row: &Row) -> Result<Self, sqlx::Error> {
        Self::from_row(row).map_err(|error| match (error, Self::ROW_LABEL_COLUMN) {
            (sqlx::Error::ColumnDecode { index, source }, Some(name)) => match row.get::<String>(name) {
                Ok(name) => sqlx::Error::ColumnDecode { index: format!("{index} of {name}"), source },
                Err(_) => sqlx::Error::ColumnDecode { index, source },
            },
            (error, _) => error,
        })
    }
}

impl FromRow for i64 {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        row.first()
    }
}

impl FromRow for Option<i64> {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        row.first()
    }
}

impl FromRow for bool {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        row.first()
    }
}

impl FromRow for String {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        row.first()
    }
}

impl FromRow for Vec<u8> {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        row.first()
    }
}

/// The cause that `corrupt` wraps in sqlx's error type.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {why}")]
pub(crate) struct Corrupt {
    pub(crate) what: &'static str,
    pub(crate) why: String,
}

/// The error for a value that no version of this program writes.
#[expect(
    clippy::needless_pass_by_value,
    reason = "callers hand over an error or a text that they are done with"
)]
pub(crate) fn corrupt(what: &'static str, why: impl ToString) -> sqlx::Error {
    sqlx::Error::Decode(Box::new(Corrupt { what, why: why.to_string() }))
}
