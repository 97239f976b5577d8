//! Builds SQL at run time, for lists and optional conditions.

use super::query::Query;
use super::value::Value;
use std::fmt::Write as _;

pub(crate) struct Statement {
    /// With bare parameters (`?`). SQLite also accepts `$1`, but as a name that it looks up in a list for every
    /// parameter of every run. With thousands of parameters that costs more than the rows.
    sqlite: String,
    /// With numbered parameters, the only kind that PostgreSQL has.
    postgres: String,
    values: Vec<Value>,
}

impl Statement {
    pub(crate) fn new(sql: &str) -> Self {
        Self { sqlite: sql.to_owned(), postgres: sql.to_owned(), values: Vec::new() }
    }

    pub(crate) fn push(&mut self, sql: &str) -> &mut Self {
        self.sqlite.push_str(sql);
        self.postgres.push_str(sql);
        self
    }

    /// Adds a parameter.
    pub(crate) fn push_bind(&mut self, value: impl Into<Value>) -> &mut Self {
        self.values.push(value.into());
        self.sqlite.push('?');
        // Writing to a `String` cannot fail.
        let _ = write!(self.postgres, "${}", self.values.len());
        self
    }

    /// Adds a parenthesized list of parameters.
    pub(crate) fn push_list<V: Into<Value>>(&mut self, values: impl IntoIterator<Item = V>) -> &mut Self {
        self.push("(");
        for (index, value) in values.into_iter().enumerate() {
            if index > 0 {
                self.push(", ");
            }
            self.push_bind(value);
        }
        self.push(")")
    }

    /// Adds `VALUES` with one row of parameters per item.
    pub(crate) fn push_values<T, const N: usize>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut columns: impl FnMut(T) -> [Value; N],
    ) -> &mut Self {
        self.push("VALUES ");
        for (index, item) in items.into_iter().enumerate() {
            if index > 0 {
                self.push(", ");
            }
            self.push_list(columns(item));
        }
        self
    }

    pub(crate) fn build(self) -> Query {
        Query::built(self.sqlite, self.postgres, self.values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Dialect;

    #[test]
    fn parameters_are_numbered_in_push_order() {
        let mut statement = Statement::new("SELECT 1 FROM t WHERE a = ");
        statement.push_bind(1_i64).push(" AND b IN ").push_list([2_i64, 3]);
        let query = statement.build();
        assert_eq!(query.sql(Dialect::Sqlite), "SELECT 1 FROM t WHERE a = ? AND b IN (?, ?)");
        assert_eq!(query.sql(Dialect::Postgres), "SELECT 1 FROM t WHERE a = $1 AND b IN ($2, $3)");
        let mut insert = Statement::new("INSERT INTO t (a, b) ");
        insert.push_values([1_i64, 2], |number| [number.into(), "x".into()]);
        let query = insert.build();
        assert_eq!(query.sql(Dialect::Postgres), "INSERT INTO t (a, b) VALUES ($1, $2), ($3, $4)");
    }
}
