//! A statement with its parameters. It can run more than once, because a step can.

use super::error_codes::QueryError;
use super::row::{FromRow, Row};
use super::tx::{Dialect, Driver, Tx};
use super::value::Value;

/// A statement with fixed SQL. SQL that is built at run time is a `Statement`.
pub(crate) fn query(sql: &'static str) -> Query {
    Query { text: Text::Fixed(sql), values: Vec::new(), is_persistent: true }
}

pub(crate) struct Query {
    text: Text,
    values: Vec<Value>,
    is_persistent: bool,
}

enum Text {
    Fixed(&'static str),
    Built { sqlite: String, postgres: String },
}

impl Query {
    pub(super) fn built(sqlite: String, postgres: String, values: Vec<Value>) -> Self {
        Self { text: Text::Built { sqlite, postgres }, values, is_persistent: true }
    }

    pub(crate) fn bind(mut self, value: impl Into<Value>) -> Self {
        self.values.push(value.into());
        self
    }

    /// Whether the connection keeps the prepared statement. False for SQL that differs from call to call.
    pub(crate) fn persistent(mut self, is_persistent: bool) -> Self {
        self.is_persistent = is_persistent;
        self
    }

    /// Returns the number of affected rows.
    pub(crate) fn execute(&self, tx: &mut Tx<'_>) -> Result<u64, QueryError> {
        let sql = self.sql(tx.dialect());
        let outcome = match tx.driver() {
            Driver::Sqlite(connection) => {
                self.with_sqlite(connection, sql, |statement| Ok(statement.raw_execute()? as u64))
            }
            Driver::Postgres(session) => session.execute(sql, &self.values, self.is_persistent),
        };
        tx.checked(outcome)
    }

    pub(crate) fn fetch_all<T: FromRow>(&self, tx: &mut Tx<'_>) -> Result<Vec<T>, QueryError> {
        self.fetch(tx, usize::MAX)
    }

    pub(crate) fn fetch_optional<T: FromRow>(&self, tx: &mut Tx<'_>) -> Result<Option<T>, QueryError> {
        Ok(self.fetch(tx, 1)?.pop())
    }

    pub(crate) fn fetch_one<T: FromRow>(&self, tx: &mut Tx<'_>) -> Result<T, QueryError> {
        self.fetch_optional(tx)?.ok_or(QueryError::NotFound)
    }

    /// Reads the first rows, at most `max`.
    fn fetch<T: FromRow>(&self, tx: &mut Tx<'_>, max: usize) -> Result<Vec<T>, QueryError> {
        let sql = self.sql(tx.dialect());
        let outcome = match tx.driver() {
            Driver::Sqlite(connection) => self.with_sqlite(connection, sql, |statement| {
                let (mut rows, mut found) = (statement.raw_query(), Vec::new());
                // A statement that writes must run to its end.
                while let Some(row) = rows.next()? {
                    if found.len() < max {
                        found.push(T::read(&Row::Sqlite(row)));
                    }
                }
                Ok(found)
            }),
            Driver::Postgres(session) => {
                let rows = session.query(sql, &self.values, self.is_persistent);
                rows.map(|rows| rows.iter().take(max).map(|row| T::read(&Row::Postgres(row))).collect())
            }
        };
        tx.checked(outcome)?.into_iter().collect()
    }

    fn with_sqlite<T>(
        &self,
        connection: &rusqlite::Connection,
        sql: &str,
        run: impl FnOnce(&mut rusqlite::Statement<'_>) -> Result<T, rusqlite::Error>,
    ) -> Result<T, QueryError> {
        if self.is_persistent {
            let mut statement = connection.prepare_cached(sql)?;
            self.bind_to(&mut statement)?;
            Ok(run(&mut statement)?)
        } else {
            let mut statement = connection.prepare(sql)?;
            self.bind_to(&mut statement)?;
            Ok(run(&mut statement)?)
        }
    }

    /// `$3` is a name in SQLite, so its value is bound by the number in the name, not by where it stands.
    fn bind_to(&self, statement: &mut rusqlite::Statement<'_>) -> Result<(), QueryError> {
        for index in 1..=statement.parameter_count() {
            let number = match statement.parameter_name(index) {
                Some(name) => name.get(1..).and_then(|number| number.parse().ok()).unwrap_or_default(),
                None => index,
            };
            let Some(value) = number.checked_sub(1).and_then(|place: usize| self.values.get(place)) else {
                return Err(QueryError::BadValue(format!("parameter {index} has no value")));
            };
            statement.raw_bind_parameter(index, value)?;
        }
        Ok(())
    }

    pub(crate) fn sql(&self, dialect: Dialect) -> &str {
        match (&self.text, dialect) {
            (Text::Fixed(sql), _) => sql,
            (Text::Built { sqlite, .. }, Dialect::Sqlite) => sqlite,
            (Text::Built { postgres, .. }, Dialect::Postgres) => postgres,
        }
    }
}

/// SQLite's query plan: each step with its id, its parent's id and its description.
#[cfg(test)]
pub(crate) async fn query_plan(db: &super::Db, query: &Query) -> Vec<(i64, i64, String)> {
    struct PlanStep((i64, i64, String));

    impl FromRow for PlanStep {
        fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
            Ok(Self((row.get("id")?, row.get("parent")?, row.get("detail")?)))
        }
    }

    let sql = query.sql(Dialect::Sqlite);
    let mut explain = super::Statement::new(&format!("EXPLAIN QUERY PLAN {sql}")).build();
    for _ in sql.matches('?') {
        explain = explain.bind(None::<i64>);
    }
    let steps: Vec<PlanStep> = db.fetch_all(explain).await.unwrap();
    steps.into_iter().map(|step| step.0).collect()
}
