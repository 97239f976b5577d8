//! A statement that is put together, for what a fixed text cannot say: lists, and conditions that are there or not.

use super::query::{Query, Value};
use std::fmt::Write as _;

pub(crate) struct Statement<'q> {
    sql: String,
    values: Vec<Value<'q>>,
}

impl<'q> Statement<'q> {
    pub(crate) fn new(sql: &str) -> Self {
        Self { sql: sql.to_owned(), values: Vec::new() }
    }

    pub(crate) fn push(&mut self, sql: &str) -> &mut Self {
        self.sql.push_str(sql);
        self
    }

    /// Adds a parameter.
    pub(crate) fn push_bind(&mut self, value: impl Into<Value<'q>>) -> &mut Self {
        self.values.push(value.into());
        // Writing to a `String` cannot fail.
        let _ = write!(self.sql, "${}", self.values.len());
        self
    }

    /// Adds a parameter for each value, in parentheses.
    pub(crate) fn push_list<V: Into<Value<'q>>>(&mut self, values: impl IntoIterator<Item = V>) -> &mut Self {
        self.sql.push('(');
        for (index, value) in values.into_iter().enumerate() {
            if index > 0 {
                self.sql.push_str(", ");
            }
            self.push_bind(value);
        }
        self.sql.push(')');
        self
    }

    /// Adds `VALUES` with a row of parameters for each item.
    pub(crate) fn push_values<T, const N: usize>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut columns: impl FnMut(T) -> [Value<'q>; N],
    ) -> &mut Self {
        self.sql.push_str("VALUES ");
        for (index, item) in items.into_iter().enumerate() {
            if index > 0 {
                self.sql.push_str(", ");
            }
            self.push_list(columns(item));
        }
        self
    }

    pub(crate) fn build(self) -> Query<'q> {
        Query::built(self.sql, self.values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_numbered_in_the_order_in_which_they_are_pushed() {
        let mut statement = Statement::new("SELECT 1 FROM t WHERE a = ");
        statement.push_bind(1_i64).push(" AND b IN ").push_list([2_i64, 3]);
        assert_eq!(statement.build().sql(), "SELECT 1 FROM t WHERE a = $1 AND b IN ($2, $3)");
        let mut insert = Statement::new("INSERT INTO t (a, b) ");
        insert.push_values([1_i64, 2], |number| [number.into(), "x".into()]);
        assert_eq!(insert.build().sql(), "INSERT INTO t (a, b) VALUES ($1, $2), ($3, $4)");
    }
}
