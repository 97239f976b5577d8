//! A result row, and how values are read from it.

use super::error_codes::QueryError;
use chancery_domain::UnixMillis;
use std::str::FromStr;

pub(crate) enum Row<'r> {
    Sqlite(&'r rusqlite::Row<'r>),
    Postgres(&'r tokio_postgres::Row),
}

/// A type that both databases can decode.
pub(crate) trait Column:
    rusqlite::types::FromSql + for<'r> tokio_postgres::types::FromSql<'r>
{
}

impl<T: rusqlite::types::FromSql + for<'r> tokio_postgres::types::FromSql<'r>> Column for T {}

/// A type whose values are stored in one column. `values` lists those of the domain.
pub(crate) trait FromColumn: Sized {
    type Stored: Column;

    fn from_column(stored: Self::Stored) -> Result<Self, QueryError>;
}

/// NULL is `None`.
impl<T: FromColumn> FromColumn for Option<T> {
    type Stored = Option<T::Stored>;

    fn from_column(stored: Self::Stored) -> Result<Self, QueryError> {
        stored.map(T::from_column).transpose()
    }
}

impl Row<'_> {
    pub(crate) fn get<T: FromColumn>(&self, column: &str) -> Result<T, QueryError> {
        let bad = |why: String| QueryError::BadColumn { column: column.to_owned(), why };
        T::from_column(match self {
            Self::Sqlite(row) => row.get(column).map_err(|error| bad(error.to_string()))?,
            Self::Postgres(row) => row.try_get(column).map_err(|error| bad(error.to_string()))?,
        })
    }

    /// A text that is parsed; `what` names it in the error.
    pub(crate) fn parse<T: FromStr<Err: ToString>>(
        &self,
        column: &str,
        what: &'static str,
    ) -> Result<T, QueryError> {
        self.get::<String>(column)?.parse().map_err(|error: T::Err| corrupt(what, error))
    }

    /// A text that is parsed, `None` if it is NULL; `what` names it in the error.
    pub(crate) fn parse_optional<T: FromStr<Err: ToString>>(
        &self,
        column: &str,
        what: &'static str,
    ) -> Result<Option<T>, QueryError> {
        let stored: Option<String> = self.get(column)?;
        stored.map(|text| text.parse()).transpose().map_err(|error: T::Err| corrupt(what, error))
    }

    /// The value, or its default for NULL.
    pub(crate) fn or_default<T: FromColumn + Default>(&self, column: &str) -> Result<T, QueryError> {
        self.get::<Option<T>>(column).map(Option::unwrap_or_default)
    }

    /// A time, or zero for NULL.
    pub(crate) fn time_or_zero(&self, column: &str) -> Result<UnixMillis, QueryError> {
        self.or_default(column).map(UnixMillis)
    }

    /// Whether a number is not NULL.
    pub(crate) fn is_set(&self, column: &str) -> Result<bool, QueryError> {
        self.get::<Option<i64>>(column).map(|stored| stored.is_some())
    }

    /// A number that is not zero.
    pub(crate) fn flag(&self, column: &str) -> Result<bool, QueryError> {
        self.get::<i64>(column).map(|stored| stored != 0)
    }

    /// A count that does not fit is `u32::MAX`.
    pub(crate) fn capped_count(&self, column: &str) -> Result<u32, QueryError> {
        self.get::<i64>(column).map(|stored| u32::try_from(stored).unwrap_or(u32::MAX))
    }

    /// A hash of 32 bytes; `what` names it in the error.
    pub(crate) fn hash(&self, column: &str, what: &'static str) -> Result<[u8; 32], QueryError> {
        hash(self.get(column)?, what)
    }

    /// The value of a statement with one column.
    fn first<T: Column>(&self) -> Result<T, QueryError> {
        let bad = |why: String| QueryError::BadColumn { column: "0".to_owned(), why };
        match self {
            Self::Sqlite(row) => row.get(0).map_err(|error| bad(error.to_string())),
            Self::Postgres(row) => row.try_get(0).map_err(|error| bad(error.to_string())),
        }
    }
}

/// Reads a domain type from a row, by column names.
pub(crate) trait FromRow: Sized {
    /// The column that identifies the row in an error about another column.
    const ROW_LABEL_COLUMN: Option<&'static str> = None;

    fn from_row(row: &Row<'_>) -> Result<Self, QueryError>;

    fn read(row: &Row<'_>) -> Result<Self, QueryError> {
        Self::from_row(row).map_err(|error| match (error, Self::ROW_LABEL_COLUMN) {
            (QueryError::BadColumn { column, why }, Some(name)) => match row.get::<String>(name) {
                Ok(name) => QueryError::BadColumn { column: format!("{column} of {name}"), why },
                Err(_) => QueryError::BadColumn { column, why },
            },
            (error, _) => error,
        })
    }
}

/// Implements `FromRow` for a struct. A field is read from the column of its name, from another (`id: "session_id"`), by a
/// method of `Row` (`by: author()`), or by a function of the row (`totals: UsageTotals::from_row`). A text after the struct
/// is its `ROW_LABEL_COLUMN`.
macro_rules! from_row {
    (@ $row:ident, $field:ident) => { $row.get(stringify!($field))? };
    (@ $row:ident, $field:ident, $column:literal) => { $row.get($column)? };
    (@ $row:ident, $field:ident, $method:ident($($argument:expr),*)) => { $row.$method($($argument),*)? };
    (@ $row:ident, $field:ident, $read:path) => { $read($row)? };
    (
        $name:ident { $($field:ident $(: $first:tt $(:: $rest:tt)* $(($($argument:tt)*))?)?),* $(,)? }
        $(, $label:literal)?
    ) => {
        impl $crate::db::FromRow for $name {
            $(const ROW_LABEL_COLUMN: Option<&'static str> = Some($label);)?

            fn from_row(row: &$crate::db::Row<'_>) -> Result<Self, $crate::db::QueryError> {
                Ok(Self {
                    $($field: $crate::db::from_row!(
                        @ row, $field $(, $first $(:: $rest)* $(($($argument)*))?)?
                    ),)*
                })
            }
        }
    };
}

pub(crate) use from_row;

/// Types that are read from a statement's only column.
macro_rules! only_column {
    ($($name:ty),*) => {
        $(impl FromRow for $name {
            fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
                row.first()
            }
        })*
    };
}

only_column!(i64, Option<i64>, bool, String, Vec<u8>);

/// The error for a value that no version of this program writes.
#[expect(
    clippy::needless_pass_by_value,
    reason = "callers hand over an error or a text that they are done with"
)]
pub(crate) fn corrupt(what: &'static str, why: impl ToString) -> QueryError {
    QueryError::Corrupt { what, why: why.to_string() }
}

pub(crate) fn hash(stored: Vec<u8>, what: &'static str) -> Result<[u8; 32], QueryError> {
    stored
        .try_into()
        .map_err(|bytes: Vec<u8>| corrupt(what, format!("it has {} bytes instead of 32", bytes.len())))
}
