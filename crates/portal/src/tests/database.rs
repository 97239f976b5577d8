//! Dumps the database, to see what a request changed.

use super::TestPortal;
use chancery_test_support::{PostgresDatabase, RawConnection};
use std::collections::BTreeMap;

pub(super) struct Database {
    connection: RawConnection,
    /// A single query for all rows, because it runs before and after every request.
    question: String,
}

/// What the worker of the outbox never changes. It may send a message of an earlier request at any time.
const OUTBOX: &str = "outbox_messages";
const MESSAGE_COLUMNS: [&str; 2] = ["event_id", "destination"];

/// By table: all rows as text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contents(BTreeMap<String, String>);

impl Database {
    pub(super) async fn of(portal: &TestPortal) -> Self {
        let file = portal.folder.path().join("chancery.db");
        let url =
            portal.postgres.as_ref().map_or(format!("sqlite:{}", file.display()), PostgresDatabase::url);
        let mut connection = RawConnection::open(&url).await;
        let question = match portal.postgres {
            Some(_) => postgres_question(&mut connection).await,
            None => sqlite_question(&mut connection).await,
        };
        Self { connection, question }
    }

    /// Everything but the audit log, to which every decision adds.
    pub(super) async fn contents(&mut self) -> Contents {
        let rows = self.connection.rows(&self.question).await;
        let contents: BTreeMap<_, _> = rows.into_iter().map(|[table, rows]| (table, rows)).collect();
        assert!(contents.contains_key("clients") && contents.contains_key("people"), "{contents:?}");
        Contents(contents)
    }
}

async fn sqlite_question(connection: &mut RawConnection) -> String {
    let tables = connection.texts("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").await;
    let mut of_tables = Vec::new();
    for table in tables {
        if table.starts_with("audit_") || table.starts_with("sqlite_") {
            continue;
        }
        let mut columns = connection.texts(&format!("SELECT name FROM pragma_table_info('{table}')")).await;
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

async fn postgres_question(connection: &mut RawConnection) -> String {
    let tables = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public' ORDER BY 1";
    let tables = connection.texts(tables).await;
    let of_table = |table: &String| {
        let row =
            if table == OUTBOX { format!("ROW({})", MESSAGE_COLUMNS.join(", ")) } else { "t".to_owned() };
        format!(
            "SELECT '{table}', coalesce(string_agg(line, chr(10) ORDER BY line), '') \
             FROM (SELECT {row}::text AS line FROM \"{table}\" t) AS lines"
        )
    };
    let tables = tables.iter().filter(|table| !table.starts_with("audit_"));
    tables.map(of_table).collect::<Vec<_>>().join(" UNION ALL ")
}

impl Contents {
    /// Tables whose rows differ.
    pub(super) fn differing(&self, other: &Self) -> Vec<&str> {
        let differs = |(table, rows): &(&String, &String)| other.0.get(*table) != Some(*rows);
        self.0.iter().filter(differs).map(|(table, _)| table.as_str()).collect()
    }
}
