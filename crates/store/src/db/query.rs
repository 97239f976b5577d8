//! A statement with its parameters. It can run more than once, because busy locks and conflicts require retries.

use super::conn::{Conn, Dialect};
use super::row::{FromRow, Row};
use super::whole_transaction::{execute_whole, fetch_whole};
use sqlx::postgres::PgArguments;
use sqlx::sqlite::{SqliteArguments, SqliteQueryResult};
use sqlx::{Arguments, AssertSqlSafe, SqlSafeStr, SqlStr, SqliteConnection};
use std::borrow::Cow;

/// A statement with fixed SQL. SQL that is built at run time is a `Statement`.
pub(crate) fn query<'q>(sql: &'static str) -> Query<'q> {
    Query { text: Text::Fixed(sql), values: Vec::new(), is_persistent: true }
}

pub(crate) struct Query<'q> {
    text: Text,
    values: Vec<Value<'q>>,
    is_persistent: bool,
}

enum Text {
    Fixed(&'static str),
    Built { sqlite: SqlStr, postgres: SqlStr },
}

/// A NULL has a type too, because PostgreSQL requires one.
pub(crate) enum Value<'q> {
    Integer(Option<i64>),
    Boolean(Option<bool>),
    Text(Option<Cow<'q, str>>),
    Bytes(Option<Cow<'q, [u8]>>),
}

impl<'q> Query<'q> {
    pub(super) fn built(sqlite: String, postgres: String, values: Vec<Value<'q>>) -> Self {
        let (sqlite, postgres) =
            (AssertSqlSafe(sqlite).into_sql_str(), AssertSqlSafe(postgres).into_sql_str());
        Self { text: Text::Built { sqlite, postgres }, values, is_persistent: true }
    }

    pub(crate) fn bind(mut self, value: impl Into<Value<'q>>) -> Self {
        self.values.push(value.into());
        self
    }

    /// Whether the connection caches the prepared statement. False for SQL that differs from call to call.
    pub(crate) fn persistent(mut self, is_persistent: bool) -> Self {
        self.is_persistent = is_persistent;
        self
    }

    /// Returns the number of affected rows.
    pub(crate) async fn execute(&self, conn: &mut Conn<'_>) -> Result<u64, sqlx::Error> {
        match conn {
            Conn::Sqlite(conn) => {
                let query = sqlx::query_with(self.sql_for(Dialect::Sqlite), self.sqlite_arguments()?);
                let done = query.persistent(self.is_persistent).execute(&mut **conn).await?;
                Ok(done.rows_affected())
            }
            Conn::Postgres(conn) => {
                let query = sqlx::query_with(self.sql_for(Dialect::Postgres), self.postgres_arguments()?);
                let done = query.persistent(self.is_persistent).execute(&mut **conn).await?;
                Ok(done.rows_affected())
            }
        }
    }

    /// Runs a transaction in one command to SQLite (`whole_transaction`). Returns the number of affected rows of each
    /// statement; that of `BEGIN` and `COMMIT` means nothing.
    pub(super) async fn execute_whole(
        &self,
        connection: &mut SqliteConnection,
        statements: usize,
    ) -> Result<Vec<u64>, sqlx::Error> {
        let transaction = sqlx::query_with(self.sql_for(Dialect::Sqlite), self.sqlite_arguments()?);
        let results = execute_whole(connection, transaction, statements).await?;
        Ok(results.iter().map(SqliteQueryResult::rows_affected).collect())
    }

    /// Reads from one snapshot, in one command to SQLite (`whole_transaction`). The statements are built, because parameters
    /// with numbers would be numbered through.
    pub(super) async fn fetch_whole<const N: usize>(
        connection: &mut SqliteConnection,
        queries: &[Self; N],
    ) -> Result<[Vec<Row>; N], sqlx::Error> {
        let (mut sql, mut arguments) = ("BEGIN; ".to_owned(), SqliteArguments::default());
        for query in queries {
            sql.push_str(query.sql_for(Dialect::Sqlite).as_str());
            sql.push_str("; ");
            query.add_sqlite_arguments(&mut arguments)?;
        }
        sql.push_str("COMMIT");
        let is_persistent = queries.iter().all(|query| query.is_persistent);
        let transaction = sqlx::query_with(AssertSqlSafe(sql), arguments).persistent(is_persistent);
        let rows = fetch_whole(connection, transaction).await?;
        Ok(rows.map(|rows| rows.into_iter().map(Row::Sqlite).collect()))
    }

    pub(crate) async fn rows(&self, conn: &mut Conn<'_>) -> Result<Vec<Row>, sqlx::Error> {
        match conn {
            Conn::Sqlite(conn) => {
                let query = sqlx::query_with(self.sql_for(Dialect::Sqlite), self.sqlite_arguments()?);
                let rows = query.persistent(self.is_persistent).fetch_all(&mut **conn).await?;
                Ok(rows.into_iter().map(Row::Sqlite).collect())
            }
            Conn::Postgres(conn) => {
                let query = sqlx::query_with(self.sql_for(Dialect::Postgres), self.postgres_arguments()?);
                let rows = query.persistent(self.is_persistent).fetch_all(&mut **conn).await?;
                Ok(rows.into_iter().map(Row::Postgres).collect())
            }
        }
    }

    pub(crate) async fn fetch_all<T: FromRow>(&self, conn: &mut Conn<'_>) -> Result<Vec<T>, sqlx::Error> {
        self.rows(conn).await?.iter().map(T::read).collect()
    }

    pub(crate) async fn fetch_optional<T: FromRow>(
        &self,
        conn: &mut Conn<'_>,
    ) -> Result<Option<T>, sqlx::Error> {
        let row = match conn {
            Conn::Sqlite(conn) => {
                let query = sqlx::query_with(self.sql_for(Dialect::Sqlite), self.sqlite_arguments()?);
                let row = query.persistent(self.is_persistent).fetch_optional(&mut **conn).await?;
                row.map(Row::Sqlite)
            }
            Conn::Postgres(conn) => {
                let query = sqlx::query_with(self.sql_for(Dialect::Postgres), self.postgres_arguments()?);
                let row = query.persistent(self.is_persistent).fetch_optional(&mut **conn).await?;
                row.map(Row::Postgres)
            }
        };
        row.as_ref().map(T::read).transpose()
    }

    pub(crate) async fn fetch_one<T: FromRow>(&self, conn: &mut Conn<'_>) -> Result<T, sqlx::Error> {
        self.fetch_optional(conn).await?.ok_or(sqlx::Error::RowNotFound)
    }

    #[cfg(test)]
    pub(crate) fn sql(&self, dialect: Dialect) -> String {
        self.sql_for(dialect).as_str().to_owned()
    }

    fn sql_for(&self, dialect: Dialect) -> SqlStr {
        match (&self.text, dialect) {
            (Text::Fixed(sql), _) => SqlStr::from_static(sql),
            (Text::Built { sqlite, .. }, Dialect::Sqlite) => sqlite.clone(),
            (Text::Built { postgres, .. }, Dialect::Postgres) => postgres.clone(),
        }
    }

    fn sqlite_arguments(&self) -> Result<SqliteArguments, sqlx::Error> {
        let mut arguments = SqliteArguments::default();
        self.add_sqlite_arguments(&mut arguments)?;
        Ok(arguments)
    }

    fn add_sqlite_arguments(&self, arguments: &mut SqliteArguments) -> Result<(), sqlx::Error> {
        arguments.reserve(self.values.len(), 0);
        for value in &self.values {
            let added = match value {
                Value::Integer(value) => Arguments::add(arguments, *value),
                Value::Boolean(value) => Arguments::add(arguments, *value),
                Value::Text(value) => Arguments::add(arguments, value.as_deref()),
                Value::Bytes(value) => Arguments::add(arguments, value.as_deref()),
            };
            added.map_err(sqlx::Error::Encode)?;
        }
        Ok(())
    }

    fn postgres_arguments(&self) -> Result<PgArguments, sqlx::Error> {
        let mut arguments = PgArguments::default();
        arguments.reserve(self.values.len(), 0);
        for value in &self.values {
            let added = match value {
                Value::Integer(value) => Arguments::add(&mut arguments, *value),
                Value::Boolean(value) => Arguments::add(&mut arguments, *value),
                Value::Text(value) => Arguments::add(&mut arguments, value.as_deref()),
                Value::Bytes(value) => Arguments::add(&mut arguments, value.as_deref()),
            };
            added.map_err(sqlx::Error::Encode)?;
        }
        Ok(arguments)
    }
}

impl From<i64> for Value<'_> {
    fn from(value: i64) -> Self {
        Self::Integer(Some(value))
    }
}

impl From<Option<i64>> for Value<'_> {
    fn from(value: Option<i64>) -> Self {
        Self::Integer(value)
    }
}

impl From<bool> for Value<'_> {
    fn from(value: bool) -> Self {
        Self::Boolean(Some(value))
    }
}

impl<'q> From<&'q str> for Value<'q> {
    fn from(value: &'q str) -> Self {
        Self::Text(Some(Cow::Borrowed(value)))
    }
}

impl<'q> From<Option<&'q str>> for Value<'q> {
    fn from(value: Option<&'q str>) -> Self {
        Self::Text(value.map(Cow::Borrowed))
    }
}

impl From<Option<String>> for Value<'_> {
    fn from(value: Option<String>) -> Self {
        Self::Text(value.map(Cow::Owned))
    }
}

impl From<String> for Value<'_> {
    fn from(value: String) -> Self {
        Self::Text(Some(Cow::Owned(value)))
    }
}

impl<'q> From<&'q [u8]> for Value<'q> {
    fn from(value: &'q [u8]) -> Self {
        Self::Bytes(Some(Cow::Borrowed(value)))
    }
}

impl<'q> From<Option<&'q [u8]>> for Value<'q> {
    fn from(value: Option<&'q [u8]>) -> Self {
        Self::Bytes(value.map(Cow::Borrowed))
    }
}

impl From<Vec<u8>> for Value<'_> {
    fn from(value: Vec<u8>) -> Self {
        Self::Bytes(Some(Cow::Owned(value)))
    }
}
