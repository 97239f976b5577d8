//! Which tables move, and what their columns are. The names stand here; the columns are read from both databases when
//! something moves, and must be the same. A table of the source that is in neither list stops the move, so that a
//! migration that adds one cannot be forgotten: a test fails first.

use super::not_alike;
use crate::db::tables::TABLES;
use crate::db::{Conn, FromRow, Row, Statement, query};
use crate::transfer::TransferError;
use sqlx::{PgConnection, SqliteConnection};

/// Tables that stay behind, each with the reason.
pub(super) const LEFT: &[(&str, &str)] =
    &[("schema_migrations", "each database has its own steps, with its own checksums")];

/// A table as both databases have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) name: &'static str,
    /// In the order of the source.
    pub(super) columns: Vec<Column>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) kind: Kind,
}

/// What the rows are made of, in SQLite's words and in PostgreSQL's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Number,
    Flag,
    Text,
    Bytes,
}

impl Kind {
    fn of(sqlite: &str, postgres: &str) -> Option<Self> {
        match (sqlite, postgres) {
            ("INTEGER", "bigint") => Some(Self::Number),
            ("INTEGER", "boolean") => Some(Self::Flag),
            ("TEXT", "text") => Some(Self::Text),
            ("BLOB", "bytea") => Some(Self::Bytes),
            _ => None,
        }
    }
}

impl Table {
    /// With commas between them. The names are the schema's own.
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

impl FromRow for StoredColumn {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let (table_name, column_name) = (row.get("table_name")?, row.get("column_name")?);
        Ok(Self { table_name, column_name, kind: row.get("kind")? })
    }
}

/// Without SQLite's own tables.
const SQLITE_COLUMNS: &str = "SELECT t.name AS table_name, c.name AS column_name, c.type AS kind \
    FROM sqlite_schema t JOIN pragma_table_xinfo(t.name) c \
    WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY t.name, c.cid";

/// Of our own tables alone: other programs may have some of theirs beside them.
const POSTGRES_COLUMNS: &str = "SELECT t.relname::text AS table_name, c.attname::text AS column_name, \
    format_type(c.atttypid, NULL) AS kind \
    FROM pg_catalog.pg_class t JOIN pg_catalog.pg_attribute c ON c.attrelid = t.oid \
    WHERE t.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = current_schema()) \
    AND c.attnum > 0 AND NOT c.attisdropped AND t.relname IN ";

/// The tables that move, once both databases are known to have the same ones with the same columns.
pub(super) async fn read_tables(
    source: &mut SqliteConnection,
    target: &mut PgConnection,
) -> Result<Vec<Table>, TransferError> {
    let here: Vec<StoredColumn> = query(SQLITE_COLUMNS).fetch_all(&mut Conn::from(source)).await?;
    let mut there = Statement::new(POSTGRES_COLUMNS);
    there.push_list(TABLES.iter().copied());
    let there: Vec<StoredColumn> = there.build().fetch_all(&mut Conn::from(target)).await?;
    match_tables(&here, &there)
}

fn match_tables(here: &[StoredColumn], there: &[StoredColumn]) -> Result<Vec<Table>, TransferError> {
    let is_known =
        |name: &str| TABLES.contains(&name) || LEFT.iter().any(|(left_behind, _)| *left_behind == name);
    if let Some(unknown) = here.iter().find(|column| !is_known(&column.table_name)) {
        return Err(not_alike(format!("nothing says whether the table {} moves", unknown.table_name)));
    }
    TABLES.iter().map(|name| match_columns(name, here, there)).collect()
}

fn match_columns(
    name: &'static str,
    here: &[StoredColumn],
    there: &[StoredColumn],
) -> Result<Table, TransferError> {
    let of_table = |columns: &'_ [StoredColumn]| -> Vec<(String, String)> {
        let of_table = columns.iter().filter(|column| column.table_name == name);
        of_table.map(|column| (column.column_name.clone(), column.kind.clone())).collect()
    };
    let (here, there) = (of_table(here), of_table(there));
    if here.is_empty() || here.len() != there.len() {
        let (here, there) = (here.len(), there.len());
        return Err(not_alike(format!("{name} has {here} columns in SQLite and {there} in PostgreSQL")));
    }
    let columns = here.into_iter().map(|(column, sqlite)| {
        let in_postgres = there.iter().find(|(other, _)| *other == column);
        let Some((_, postgres)) = in_postgres else {
            return Err(not_alike(format!("{name} has no column {column} in PostgreSQL")));
        };
        let kind = Kind::of(&sqlite, postgres);
        let kind =
            kind.ok_or_else(|| not_alike(format!("{name}.{column} is {sqlite} here and {postgres} there")))?;
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
    fn refused(here: &[StoredColumn], there: &[StoredColumn]) -> String {
        match_tables(here, there).unwrap_err().to_string()
    }

    #[test]
    fn a_table_that_nobody_decided_about_stops_the_move() {
        let (mut here, there) = (schema("INTEGER"), schema("bigint"));
        assert_eq!(match_tables(&here, &there).unwrap().len(), TABLES.len());
        here.push(column("schema_migrations", "version", "INTEGER"));
        assert_eq!(match_tables(&here, &there).unwrap().len(), TABLES.len());
        here.push(column("stamps", "id", "INTEGER"));
        assert!(refused(&here, &there).contains("whether the table stamps moves"));
    }

    #[test]
    fn a_column_that_one_side_lacks_or_has_otherwise_stops_the_move() {
        let (mut here, mut there) = (schema("INTEGER"), schema("bigint"));
        here.push(column("accounts", "name", "TEXT"));
        assert!(refused(&here, &there).contains("accounts has 2 columns in SQLite and 1 in PostgreSQL"));
        there.push(column("accounts", "named", "text"));
        assert!(refused(&here, &there).contains("accounts has no column name in PostgreSQL"));
        there.pop();
        there.push(column("accounts", "name", "jsonb"));
        assert!(refused(&here, &there).contains("accounts.name is TEXT here and jsonb there"));
        there.pop();
        there.push(column("accounts", "name", "text"));
        assert_eq!(match_tables(&here, &there).unwrap()[0].column_names(), "\"id\", \"name\"");
        here.retain(|column| column.table_name != "ledger");
        assert!(refused(&here, &there).contains("ledger has 0 columns in SQLite"));
    }

    #[test]
    fn no_table_is_both_moved_and_left() {
        assert!(LEFT.iter().all(|(left_behind, why)| !TABLES.contains(left_behind) && !why.is_empty()));
    }
}
