//! Bytes per row on disk, of a table and of each of its indexes.

use crate::postgres::Postgres;

/// Prints a line for the table and for each of its indexes. `what` names the rows in the output; `tables` lists all partitions.
pub async fn print(database: &mut Postgres, what: &str, tables: &str) {
    database.run(format!("VACUUM (ANALYZE) {tables}")).await;
    for table in tables.split(", ") {
        let rows = database.number(format!("SELECT COUNT(*) FROM {table}")).await;
        if rows == 0 {
            continue;
        }
        let each = |bytes: i64| format!("{:.1}", bytes as f64 / rows as f64);
        // Includes TOAST storage, but not the free space and visibility maps, which are negligible.
        let own = database
            .number(format!(
                "SELECT pg_relation_size('{table}') + COALESCE((SELECT pg_total_relation_size(reltoastrelid) FROM pg_class \
                 WHERE oid = '{table}'::regclass AND reltoastrelid <> 0), 0)"
            ))
            .await;
        let indexes = database
            .texts(format!(
                "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = '{table}'::regclass ORDER BY 1"
            ))
            .await;
        let mut all = own;
        let mut parts = Vec::new();
        for index in indexes {
            let bytes = database.number(format!("SELECT pg_relation_size('{index}')")).await;
            all += bytes;
            parts.push(format!("{index} {}", each(bytes)));
        }
        println!("| {what} ({table}) | {rows} | {} | {} | **{}** |", each(own), parts.join(", "), each(all));
    }
}

pub fn print_heading() {
    println!(
        "\n| Row of | rows measured | bytes in the table | bytes in each index | together |\n|---|---|---|---|---|"
    );
}
