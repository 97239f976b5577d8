//! Dumps the database, to see what a request changed.

use super::TestPortal;
use sqlx::{AssertSqlSafe, PgPool, SqlitePool};
use std::collections::BTreeMap;

pub(super) enum Database {
    /// With the query for all rows, which is the same before and after every request.
    Sqlite(SqlitePool, String),
    Postgres(PgPool),
}

/// What the worker of the outbox never changes. It may send a message of an earlier request at any time.
const OUTBOX: &str = "outbox_messages";
const MESSAGE_COLUMNS: [&str; 2] = ["event_id", "destination"];

/// By table: all rows as text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contents(BTreeMap<String, String>);

impl Database {
    pub(super) async fn of(portal: &TestPortal) -> Self {
        match &portal.postgres {
            Some(database) => Self::Postgres(PgPool::connect(&database.url()).await.unwrap()),
            None => {
                let file = portal.folder.path().join("chancery.db");
                let pool = SqlitePool::connect(&format!("sqlite:{}", file.display())).await.unwrap();
                let question = sqlite_question(&pool).await;
                Self::Sqlite(pool, question)
            }
        }
    }

    /// Everything but the audit log, to which every decision adds.
    pub(super) async fn contents(&self) -> Contents {
        let contents = match self {
            Self::Sqlite(pool, question) => {
                let rows: Vec<(String, String)> =
                    sqlx::query_as(AssertSqlSafe(question.clone())).fetch_all(pool).await.unwrap();
                rows.into_iter().collect()
            }
            Self::Postgres(pool) => postgres_contents(pool).await,
        };
        assert!(contents.contains_key("clients") && contents.contains_key("people"), "{contents:?}");
        Contents(contents)
    }
}

async fn sqlite_question(pool: &SqlitePool) -> String {
    let tables: Vec<String> =
        sqlx::query_scalar("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
            .fetch_all(pool)
            .await
            .unwrap();
    let mut of_tables = Vec::new();
    for table in tables {
        if table.starts_with("audit_") || table.starts_with("sqlite_") {
            continue;
        }
        let mut columns: Vec<String> = sqlx::query_scalar("SELECT name FROM pragma_table_info($1)")
            .bind(&table)
            .fetch_all(pool)
            .await
            .unwrap();
        if table == OUTBOX {
            columns.retain(|column| MESSAGE_COLUMNS.contains(&column.as_str()));
        }
        let row = columns.iter().map(|column| format!("quote(\"{column}\")")).collect::<Vec<_>>();
        of_tables.push(format!(
            "SELECT '{table}', coalesce(group_concat({}, char(10)), '') FROM \"{table}\"",
            row.join(" || ',' || ")
        ));
    }
    of_tables.join(" UNION ALL ")
}

async fn postgres_contents(pool: &PgPool) -> BTreeMap<String, String> {
    let tables: Vec<String> =
        sqlx::query_scalar("SELECT tablename::text FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
            .fetch_all(pool)
            .await
            .unwrap();
    // A single query, because it runs before and after every request.
    let of_table = |table: &String| {
        let row =
            if table == OUTBOX { format!("ROW({})", MESSAGE_COLUMNS.join(", ")) } else { "t".to_owned() };
        format!(
            "SELECT '{table}', coalesce(string_agg(line, chr(10) ORDER BY line), '') \
             FROM (SELECT {row}::text AS line FROM \"{table}\" t) AS lines"
        )
    };
    let tables = tables.iter().filter(|table| !table.starts_with("audit_"));
    let question = tables.map(of_table).collect::<Vec<_>>().join(" UNION ALL ");
    let contents: Vec<(String, String)> =
        sqlx::query_as(AssertSqlSafe(question)).fetch_all(pool).await.unwrap();
    contents.into_iter().collect()
}

impl Contents {
    /// Tables whose rows differ.
    pub(super) fn differing(&self, other: &Self) -> Vec<&str> {
        let differs = |(table, rows): &(&String, &String)| other.0.get(*table) != Some(*rows);
        self.0.iter().filter(differs).map(|(table, _)| table.as_str()).collect()
    }
}
