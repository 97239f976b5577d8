//! The tables to transfer, and their columns. Table names are listed in code; columns are read from both databases and
//! must be the same. A source table in neither list aborts the transfer. A test fails first, so a migration that adds a
//! table cannot be overlooked.

use super::{fetch_all, schemas_differ};
use crate::db::tables::TABLES;
use crate::db::{Driver, Tx, from_row, query};
use crate::transfer::TransferError;
use tokio_postgres::Client;

/// Tables that are not transferred, each with the reason.
pub(super) const NOT_COPIED: &[(&str, &str)] =
    &[("schema_migrations", "each database has its own steps, with its own checksums")];

/// A table, the same in both databases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) name: &'static str,
    /// In source order.
    pub(super) columns: Vec<Column>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) kind: ColumnType,
}

/// A column type, by its SQLite and PostgreSQL names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnType {
    Number,
    Boolean,
    Text,
    Bytes,
}

impl ColumnType {
    fn of(sqlite: &str, postgres: &str) -> Option<Self> {
        match (sqlite, postgres) {
            ("INTEGER", "bigint") => Some(Self::Number),
            ("INTEGER", "boolean") => Some(Self::Boolean),
            ("TEXT", "text") => Some(Self::Text),
            ("BLOB", "bytea") => Some(Self::Bytes),
            _ => None,
        }
    }
}

impl Table {
    /// Comma-separated. The names come from the schema.
    pub(super) fn column_names(&self) -> String {
        let quoted: Vec<String> = self.columns.iter().map(|column| format!("\"{}\"", column.name)).collect();
        quoted.join(", ")
    }
}

struct StoredColumn {
    table_name: String,
    column_name: String,
    kind: String,
}

from_row!(StoredColumn { table_name, column_name, kind });

/// Excludes SQLite's internal tables.
const SQLITE_COLUMNS: &str = "SELECT t.name AS table_name, c.name AS column_name, c.type AS kind \
    FROM sqlite_schema t JOIN pragma_table_xinfo(t.name) c \
    WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY t.name, c.cid";

/// Only our tables: other programs may have theirs in the same schema.
const POSTGRES_COLUMNS: &str = "SELECT t.relname::text AS table_name, c.attname::text AS column_name, \
    format_type(c.atttypid, NULL) AS kind \
    FROM pg_catalog.pg_class t JOIN pg_catalog.pg_attribute c ON c.attrelid = t.oid \
    WHERE t.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = current_schema()) \
    AND c.attnum > 0 AND NOT c.attisdropped AND t.relname = ANY($1)";

/// The tables to transfer, after checking that both databases have the same tables and columns.
pub(super) async fn read_tables(
    source: &rusqlite::Connection,
    target: &Client,
) -> Result<Vec<Table>, TransferError> {
    let sqlite_columns = query(SQLITE_COLUMNS).fetch_all(&mut Tx::outside(Driver::Sqlite(source)))?;
    let postgres_columns = fetch_all(target, POSTGRES_COLUMNS, &[&TABLES]).await?;
    match_tables(&sqlite_columns, &postgres_columns)
}

fn match_tables(
    sqlite_columns: &[StoredColumn],
    postgres_columns: &[StoredColumn],
) -> Result<Vec<Table>, TransferError> {
    let is_known =
        |name: &str| TABLES.contains(&name) || NOT_COPIED.iter().any(|(not_copied, _)| *not_copied == name);
    if let Some(unknown) = sqlite_columns.iter().find(|column| !is_known(&column.table_name)) {
        return Err(schemas_differ(format!("the table {} is in no transfer list", unknown.table_name)));
    }
    TABLES.iter().map(|name| match_columns(name, sqlite_columns, postgres_columns)).collect()
}

fn match_columns(
    name: &'static str,
    sqlite_columns: &[StoredColumn],
    postgres_columns: &[StoredColumn],
) -> Result<Table, TransferError> {
    let of_table = |columns: &'_ [StoredColumn]| -> Vec<(String, String)> {
        let of_table = columns.iter().filter(|column| column.table_name == name);
        of_table.map(|column| (column.column_name.clone(), column.kind.clone())).collect()
    };
    let (sqlite_columns, postgres_columns) = (of_table(sqlite_columns), of_table(postgres_columns));
    if sqlite_columns.is_empty() || sqlite_columns.len() != postgres_columns.len() {
        let (sqlite_columns, postgres_columns) = (sqlite_columns.len(), postgres_columns.len());
        return Err(schemas_differ(format!(
            "{name} has {sqlite_columns} columns in SQLite and {postgres_columns} in PostgreSQL"
        )));
    }
    let columns = sqlite_columns.into_iter().map(|(column, sqlite)| {
        let in_postgres = postgres_columns.iter().find(|(other, _)| *other == column);
        let Some((_, postgres)) = in_postgres else {
            return Err(schemas_differ(format!("{name} has no column {column} in PostgreSQL")));
        };
        let kind = ColumnType::of(&sqlite, postgres);
        let kind = kind.ok_or_else(|| {
            schemas_differ(format!("{name}.{column} is {sqlite} here and {postgres} there"))
        })?;
        Ok(Column { name: column, kind })
    });
    Ok(Table { name, columns: columns.collect::<Result<_, _>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(table: &str, column: &str, kind: &str) -> StoredColumn {
        StoredColumn { table_name: table.to_owned(), column_name: column.to_owned(), kind: kind.to_owned() }
    }

    /// Every table with one column.
    fn schema(kind: &str) -> Vec<StoredColumn> {
        TABLES.iter().map(|table| column(table, "id", kind)).collect()
    }

    #[track_caller]
    fn rejected(sqlite_columns: &[StoredColumn], postgres_columns: &[StoredColumn]) -> String {
        match_tables(sqlite_columns, postgres_columns).unwrap_err().to_string()
    }

    #[test]
    fn unlisted_table_aborts_transfer() {
        let (mut sqlite_columns, postgres_columns) = (schema("INTEGER"), schema("bigint"));
        assert_eq!(match_tables(&sqlite_columns, &postgres_columns).unwrap().len(), TABLES.len());
        sqlite_columns.push(column("schema_migrations", "version", "INTEGER"));
        assert_eq!(match_tables(&sqlite_columns, &postgres_columns).unwrap().len(), TABLES.len());
        sqlite_columns.push(column("stamps", "id", "INTEGER"));
        assert!(
            rejected(&sqlite_columns, &postgres_columns).contains("the table stamps is in no transfer list")
        );
    }

    #[test]
    fn column_mismatch_aborts_transfer() {
        let (mut sqlite_columns, mut postgres_columns) = (schema("INTEGER"), schema("bigint"));
        sqlite_columns.push(column("accounts", "name", "TEXT"));
        assert!(
            rejected(&sqlite_columns, &postgres_columns)
                .contains("accounts has 2 columns in SQLite and 1 in PostgreSQL")
        );
        postgres_columns.push(column("accounts", "named", "text"));
        assert!(
            rejected(&sqlite_columns, &postgres_columns)
                .contains("accounts has no column name in PostgreSQL")
        );
        postgres_columns.pop();
        postgres_columns.push(column("accounts", "name", "jsonb"));
        assert!(
            rejected(&sqlite_columns, &postgres_columns)
                .contains("accounts.name is TEXT here and jsonb there")
        );
        postgres_columns.pop();
        postgres_columns.push(column("accounts", "name", "text"));
        assert_eq!(
            match_tables(&sqlite_columns, &postgres_columns).unwrap()[0].column_names(),
            "\"id\", \"name\""
        );
        sqlite_columns.retain(|column| column.table_name != "ledger");
        assert!(rejected(&sqlite_columns, &postgres_columns).contains("ledger has 0 columns in SQLite"));
    }

    #[test]
    fn no_table_is_both_copied_and_excluded() {
        assert!(NOT_COPIED.iter().all(|(not_copied, why)| !TABLES.contains(not_copied) && !why.is_empty()));
    }
}
