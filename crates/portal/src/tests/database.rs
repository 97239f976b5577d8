//! All that a desk's database holds, to see what a request changed.

use super::Desk;
use sqlx::{AssertSqlSafe, SqlitePool};
use std::collections::BTreeMap;

pub(super) struct Database(SqlitePool);

/// By table: every row, in words of SQL.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contents(BTreeMap<String, String>);

impl Database {
    pub(super) async fn of(desk: &Desk) -> Self {
        let file = desk.folder.path().join("chancery.db");
        Self(SqlitePool::connect(&format!("sqlite:{}", file.display())).await.unwrap())
    }

    /// Everything but the audit, which every decision adds to.
    pub(super) async fn contents(&self) -> Contents {
        let tables: Vec<String> =
            sqlx::query_scalar("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
                .fetch_all(&self.0)
                .await
                .unwrap();
        let mut contents = BTreeMap::new();
        for table in tables {
            if table.starts_with("audit_") || table.starts_with("sqlite_") {
                continue;
            }
            let columns: Vec<String> = sqlx::query_scalar("SELECT name FROM pragma_table_info($1)")
                .bind(&table)
                .fetch_all(&self.0)
                .await
                .unwrap();
            let row = columns.iter().map(|column| format!("quote(\"{column}\")")).collect::<Vec<_>>();
            let rows = format!(
                "SELECT coalesce(group_concat({}, char(10)), '') FROM \"{table}\"",
                row.join(" || ',' || ")
            );
            contents.insert(table, sqlx::query_scalar(AssertSqlSafe(rows)).fetch_one(&self.0).await.unwrap());
        }
        assert!(contents.contains_key("clients") && contents.contains_key("people"), "{contents:?}");
        Contents(contents)
    }
}

impl Contents {
    /// Tables whose rows are not the same.
    pub(super) fn differing(&self, other: &Self) -> Vec<&str> {
        let differs = |(table, rows): &(&String, &String)| other.0.get(*table) != Some(*rows);
        self.0.iter().filter(differs).map(|(table, _)| table.as_str()).collect()
    }
}
