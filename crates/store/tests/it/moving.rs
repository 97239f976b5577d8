//! Moving a firm from SQLite to PostgreSQL: everything comes along and goes on, or nothing does.

use crate::billing::{document, issue_new, read_invoice};
use crate::databases::{PostgresDatabase, SqliteFile, TestDatabase, on_a_fresh};
use crate::firm::{create, listed, sound_audit, words};
use crate::moving_firm::{Chance, Made, random_firm};
use crate::samples::{NOON, account, key, payer, row, whole_ledger};
use chancery_domain::{OsRandomness, Randomness, RequestId, UnixMillis, UsageRow};
use chancery_store::{
    LimitsKept, MoveSource, MoveStep, MoveTarget, MovedTable, OpenError, ServingLock, Store, TransferError,
    UsageBy, UsageQuery,
};
use sqlx::{AssertSqlSafe, Row};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The firms that are made by chance, each in some ten seconds.
const FIRMS: u64 = 3;

async fn moved(from: &SqliteFile, to: &PostgresDatabase) -> Result<Vec<MovedTable>, TransferError> {
    let mut source = MoveSource::open(&from.url()).await?;
    let outcome = async {
        let mut target = MoveTarget::open(&to.url()).await?;
        let outcome = target.fill(&mut source, &mut |_| {}).await;
        target.close().await;
        outcome
    };
    let outcome = outcome.await;
    source.close().await;
    outcome
}

/// Every column of every row as text, by table: read by other means than those that move them.
type Contents = BTreeMap<String, Vec<String>>;

async fn contents_of_sqlite(file: &SqliteFile) -> Contents {
    let mut connection = file.connect().await;
    let mut contents = Contents::new();
    for (table, columns) in columns_of_sqlite(file).await {
        let columns: Vec<String> = columns
            .iter()
            .map(|column| {
                format!(
                    "CASE typeof({column}) WHEN 'null' THEN '-' WHEN 'integer' THEN {column} ELSE hex({column}) END"
                )
            })
            .collect();
        let sql = format!("SELECT {} FROM {table}", columns.join(" || '|' || "));
        let mut rows: Vec<String> =
            sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut connection).await.unwrap();
        rows.sort();
        contents.insert(table, rows);
    }
    contents
}

async fn contents_of_postgres(database: &PostgresDatabase, like: &SqliteFile) -> Contents {
    let mut connection = database.connect().await;
    let mut contents = Contents::new();
    for (table, columns) in columns_of_sqlite(like).await {
        let kinds: Vec<(String, String)> = sqlx::query_as(
            "SELECT column_name::text, data_type::text FROM information_schema.columns WHERE table_name = $1",
        )
        .bind(&table)
        .fetch_all(&mut connection)
        .await
        .unwrap();
        let column = |column: &String| {
            let (_, kind) = kinds.iter().find(|(name, _)| name == column).unwrap();
            let value = match kind.as_str() {
                "bigint" => format!("{column}::text"),
                "boolean" => format!("{column}::int::text"),
                "text" => format!("upper(encode(convert_to({column}, 'UTF8'), 'hex'))"),
                "bytea" => format!("upper(encode({column}, 'hex'))"),
                other => panic!("{table}.{column} is {other}"),
            };
            format!("COALESCE({value}, '-')")
        };
        let columns: Vec<String> = columns.iter().map(column).collect();
        let sql = format!("SELECT {} FROM {table}", columns.join(" || '|' || "));
        let mut rows: Vec<String> =
            sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut connection).await.unwrap();
        rows.sort();
        contents.insert(table, rows);
    }
    contents
}

/// Without the list of migrations.
async fn columns_of_sqlite(file: &SqliteFile) -> BTreeMap<String, Vec<String>> {
    let rows = sqlx::query(
        "SELECT t.name, c.name FROM sqlite_schema t JOIN pragma_table_info(t.name) c WHERE t.type = 'table' \
         AND t.name NOT IN ('schema_migrations', 'sqlite_sequence') ORDER BY t.name, c.cid",
    )
    .fetch_all(&mut file.connect().await)
    .await
    .unwrap();
    let mut columns: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in rows {
        columns.entry(row.get(0)).or_default().push(row.get(1));
    }
    columns
}

/// Everything that the schema of a PostgreSQL database says, without the ledger's partitions.
async fn schema(database: &PostgresDatabase) -> Vec<String> {
    let sql = "SELECT 'column ' || table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' ' \
            || COALESCE(column_default, '') || ' ' || COALESCE(identity_generation, '') || ' ' || COALESCE(identity_start, '') \
            FROM information_schema.columns WHERE table_schema = 'public' \
        UNION ALL SELECT 'rule ' || conrelid::regclass || ' ' || conname || ' ' || convalidated || ' ' || pg_get_constraintdef(oid) \
            FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND conparentid = 0 \
        UNION ALL SELECT 'trigger ' || tgrelid::regclass || ' ' || tgname || ' ' || tgenabled::text || ' ' || pg_get_triggerdef(oid) \
            FROM pg_trigger WHERE NOT tgisinternal \
        UNION ALL SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = 'public' \
        UNION ALL SELECT 'internal triggers ' || tgrelid::regclass || ' ' || tgenabled::text || ' ' || count(*) \
            FROM pg_trigger WHERE tgisinternal GROUP BY tgrelid, tgenabled";
    let lines: Vec<String> = sqlx::query_scalar(sql).fetch_all(&mut database.connect().await).await.unwrap();
    let of_a_partition = |line: &String| {
        line.contains("ledger_2")
            || line.starts_with("internal triggers accounts")
            || line.starts_with("internal triggers api_keys")
    };
    let mut lines: Vec<String> = lines.into_iter().filter(|line| !of_a_partition(line)).collect();
    lines.sort();
    lines
}

async fn tables(database: &PostgresDatabase) -> BTreeSet<String> {
    let tables: Vec<String> =
        sqlx::query_scalar("SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'")
            .fetch_all(&mut database.connect().await)
            .await
            .unwrap();
    tables.into_iter().collect()
}

/// A case with a file to move and a database to move it to, which is removed even when the case fails.
async fn with_a_target<F: Future<Output = ()> + Send + 'static>(
    case: impl FnOnce(SqliteFile, Arc<PostgresDatabase>) -> F,
) {
    let file = SqliteFile::create().await;
    on_a_fresh::<PostgresDatabase, _>(|database| case(file, database)).await;
}

#[tokio::test]
async fn every_table_of_the_schema_moves_or_is_left_with_a_reason() {
    with_a_target(async |file, database| {
        file.open().await.close().await;
        let moved = moved(&file, &database).await.unwrap();
        let moved: BTreeSet<String> = moved.iter().map(|table| table.name.to_owned()).collect();
        let here: BTreeSet<String> = columns_of_sqlite(&file).await.into_keys().collect();
        assert_eq!(moved, here, "a table of SQLite is not in `moving/tables.rs`");
        let mut there = tables(&database).await;
        assert!(there.remove("schema_migrations") && there.remove("ledger_of_no_month"));
        assert_eq!(moved, there, "a table of PostgreSQL is not in `moving/tables.rs`");
    })
    .await;
}

#[tokio::test]
async fn a_table_or_column_that_a_later_migration_forgot_stops_the_move_by_name() {
    with_a_target(async |file, database| {
        file.open().await.close().await;
        file.raw("CREATE TABLE stamps (id INTEGER PRIMARY KEY) STRICT").await.unwrap();
        let refused = moved(&file, &database).await.unwrap_err().to_string();
        assert!(refused.contains("stamps"), "{refused}");
        file.raw("DROP TABLE stamps; ALTER TABLE people ADD COLUMN hat TEXT").await.unwrap();
        let refused = moved(&file, &database).await.unwrap_err().to_string();
        assert!(refused.contains("people"), "{refused}");
        assert!(tables(&database).await.is_empty(), "nothing was left behind");
    })
    .await;
}

#[tokio::test]
async fn a_firm_made_by_chance_is_the_same_on_both_sides_and_goes_on() {
    let first_seed = OsRandomness.next_u64();
    for seed in (0..FIRMS).map(|number| first_seed.wrapping_add(number)) {
        eprintln!("seed {seed}");
        with_a_target(async move |file, database| {
            let store = file.open().await;
            let made = random_firm(&store, &Chance::new(seed)).await;
            // Not closed: its process has died, and what it held is there.
            drop(store);
            let before = contents_of_sqlite(&file).await;
            let empty: Vec<&String> =
                before.iter().filter(|(_, rows)| rows.is_empty()).map(|(name, _)| name).collect();
            assert!(empty.is_empty(), "seed {seed}: nothing is in {empty:?}, so moving it shows nothing");

            let moved = moved(&file, &database).await.unwrap();
            for MovedTable { name, rows } in moved {
                assert_eq!(rows, before[name].len() as u64, "seed {seed}: {name}");
            }
            assert_eq!(contents_of_sqlite(&file).await, before, "seed {seed}: the source is as it was");
            assert_eq!(contents_of_postgres(&database, &file).await, before, "seed {seed}");
            reads_alike(&file, &database, &made).await;
            goes_on(&file, &database, &made).await;
        })
        .await;
    }
}

/// Through the store's own methods.
async fn reads_alike(file: &SqliteFile, database: &PostgresDatabase, made: &Made) {
    let (here, there) = (file.open().await, Store::open(&database.url()).await.unwrap());
    assert_eq!(
        here.account_lookup.list_accounts().await.unwrap(),
        there.account_lookup.list_accounts().await.unwrap()
    );
    assert_eq!(
        format!("{:?}", here.account_lookup.list_keys().await.unwrap()),
        format!("{:?}", there.account_lookup.list_keys().await.unwrap())
    );
    assert_eq!(whole_ledger(&here).await, whole_ledger(&there).await);
    for by in [UsageBy::Day, UsageBy::Model, UsageBy::Key, UsageBy::Account] {
        let query = UsageQuery { account: None, from: None, to: None, by };
        assert_eq!(here.ledger.usage(query.clone()).await.unwrap(), there.ledger.usage(query).await.unwrap());
    }
    assert_eq!(sound_audit(&here).await, sound_audit(&there).await);
    for query in [words(""), words("süd"), words("drop")] {
        assert_eq!(listed(&here, &made.maya, &query).await, listed(&there, &made.maya, &query).await);
    }
    let invoices = here.issued_invoices.issued_invoices(None, 100).await.unwrap();
    assert_eq!(
        format!("{invoices:?}"),
        format!("{:?}", there.issued_invoices.issued_invoices(None, 100).await.unwrap())
    );
    for record in invoices {
        let number = record.invoice.number;
        assert_eq!(
            there.issued_invoices.issued_document(number).await.unwrap(),
            Some(document(&record.invoice))
        );
    }
    here.close().await;
    there.close().await;
}

async fn goes_on(file: &SqliteFile, database: &PostgresDatabase, made: &Made) {
    let (here, there) = (file.open().await, Store::open(&database.url()).await.unwrap());
    assert_eq!(
        account(&here, "Another").await.id,
        account(&there, "Another").await.id,
        "accounts are counted on from the same number"
    );
    assert_eq!(key(&here, None).await.id, key(&there, None).await.id);
    let client = create(&there, &made.maya, "Another").await;
    assert_eq!(client, create(&here, &made.maya, "Another").await);
    assert_eq!(client.0, made.clients.last().unwrap().0 + 1, "clients are counted on without a gap");
    assert_eq!(
        listed(&there, &made.maya, &words("")).await,
        listed(&here, &made.maya, &words("")).await,
        "how many there are was counted on too"
    );

    // A month that is invoiced stays closed, and the next number follows the last one.
    let closed: UnixMillis = "2025-12-20T12:00:00Z".parse().unwrap();
    let usage = |at: UnixMillis| {
        let row = row(0, made.payers[0]);
        UsageRow { request_id: RequestId::new(at, &OsRandomness), at, ..row }
    };
    let refused = there.ledger.settle(usage(closed).into()).await.unwrap_err();
    assert!(refused.to_string().contains("invoiced"), "{refused}");
    there.ledger.settle(usage(NOON).into()).await.unwrap();
    let last = there.issued_invoices.issued_invoices(None, 100).await.unwrap().last().unwrap().invoice.number;
    let number = issue_new(&there, made.payers[0].0, "2026-09", "2026-10-05").await;
    assert_eq!((number.year, number.serial), (last.year, last.serial + 1), "no gap");
    assert!(read_invoice(&there, number).await.invoice.bill.total.0 > 0);
    sound_audit(&there).await;
    here.close().await;
    there.close().await;

    // Every month has its partition, and what was made for moving is gone.
    let stray: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM ledger_of_no_month")
        .fetch_one(&mut database.connect().await)
        .await
        .unwrap();
    assert_eq!(stray, 0, "every row has the partition of its month");
    for (table, statement) in [
        ("ledger", "DELETE FROM ledger"),
        ("audit", "UPDATE audit_rows SET at_ms = 0"),
        ("invoice", "DELETE FROM invoice_documents"),
        ("number", "UPDATE invoice_serials SET serial = serial + 2"),
        ("number", "INSERT INTO invoice_serials VALUES (1999, 7)"),
        (
            "foreign key",
            "INSERT INTO api_keys (prefix, hash, label, account_id, created_at_ms) \
            VALUES ('ck_x', decode(repeat('00', 32), 'hex'), '', 4711, 0)",
        ),
    ] {
        let refused = database.raw(statement).await.unwrap_err().to_string();
        assert!(refused.contains(table), "{statement}: {refused}");
    }
}

#[tokio::test]
async fn after_a_move_the_target_has_exactly_the_rules_of_one_that_was_made_empty() {
    with_a_target(async |file, database| {
        let store = file.open().await;
        random_firm(&store, &Chance::new(1)).await;
        drop(store);
        moved(&file, &database).await.unwrap();
        let filled = schema(&database).await;
        on_a_fresh::<PostgresDatabase, _>(async move |database: Arc<PostgresDatabase>| {
            database.open().await.close().await;
            assert_eq!(filled, schema(&database).await);
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_schema_that_is_there_and_empty_is_filled() {
    with_a_target(async |file, database| {
        let store = file.open().await;
        payer(&store).await;
        store.close().await;
        let there = database.open().await;
        there.partitions.make_months_ready(NOON).await.unwrap();
        there.close().await;
        moved(&file, &database).await.unwrap();
        assert_eq!(database.open().await.account_lookup.list_accounts().await.unwrap().len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_target_that_holds_anything_is_refused_with_the_tables_name_and_left_alone() {
    with_a_target(async |file, database| {
        let store = file.open().await;
        payer(&store).await;
        store.close().await;
        database.open().await.close().await;
        database.raw("INSERT INTO shared_secrets VALUES ('portal', 'x')").await.unwrap();
        let refused = moved(&file, &database).await.unwrap_err();
        assert!(matches!(refused, TransferError::TargetHoldsRows { table: "shared_secrets" }), "{refused:?}");
        let told = refused.to_string();
        assert!(told.contains("shared_secrets"), "{told}");
        let there = contents_of_postgres(&database, &file).await;
        assert_eq!(there.values().map(Vec::len).sum::<usize>(), 1);

        // Twice is once too often.
        database.raw("DELETE FROM shared_secrets").await.unwrap();
        moved(&file, &database).await.unwrap();
        let refused = moved(&file, &database).await.unwrap_err();
        assert!(matches!(refused, TransferError::TargetHoldsRows { table: "accounts" }), "{refused:?}");
    })
    .await;
}

#[tokio::test]
async fn another_programs_tables_of_the_same_names_are_left_alone() {
    with_a_target(async |file, database| {
        file.open().await.close().await;
        database.raw("CREATE TABLE people (id INT); INSERT INTO people VALUES (7)").await.unwrap();
        let refused = moved(&file, &database).await.unwrap_err();
        assert!(matches!(refused, TransferError::Open(OpenError::ForeignDatabase)), "{refused:?}");
        assert_eq!(tables(&database).await, BTreeSet::from(["people".to_owned()]));
        // Of other names they may stay.
        database.raw("ALTER TABLE people RENAME TO members").await.unwrap();
        moved(&file, &database).await.unwrap();
        assert!(tables(&database).await.contains("members"));
    })
    .await;
}

#[tokio::test]
async fn a_nul_in_a_text_is_named_and_nothing_moves_until_it_is_taken_out() {
    with_a_target(async |file, database| {
        let store = file.open().await;
        random_firm(&store, &Chance::new(2)).await;
        drop(store);
        file.raw("UPDATE sessions SET browser = 'fire' || char(0) || 'fox' WHERE id = 1").await.unwrap();
        let refused = moved(&file, &database).await.unwrap_err();
        assert!(matches!(refused, TransferError::NulInTable { table: "sessions", .. }), "{refused:?}");
        let told = refused.to_string();
        assert!(told.contains("sessions.browser of the row with id 1 holds a NUL"), "{told}");
        assert!(tables(&database).await.is_empty(), "not even its schema was left behind");
        let (_, fix) = told.split_once('`').unwrap();
        file.raw(fix.split_once('`').unwrap().0).await.unwrap();
        moved(&file, &database).await.unwrap();
        assert_eq!(contents_of_postgres(&database, &file).await, contents_of_sqlite(&file).await);
    })
    .await;
}

#[tokio::test]
async fn what_postgresql_does_not_take_stops_the_move_by_table_and_leaves_nothing() {
    with_a_target(async |file, database| {
        let store = file.open().await;
        random_firm(&store, &Chance::new(3)).await;
        drop(store);
        let broken = [
            (
                "client_versions",
                "UPDATE client_versions SET is_archived = 7 WHERE version = 1",
                "neither 0 nor 1",
            ),
            (
                "client_versions",
                "UPDATE client_versions SET is_archived = 0; \
                PRAGMA foreign_keys = OFF; INSERT INTO client_looks VALUES (1, 1, 1, 1)",
                "client_looks",
            ),
        ];
        for (table, statement, why) in broken {
            file.raw(statement).await.unwrap();
            let refused = moved(&file, &database).await.unwrap_err();
            let told = refused.to_string();
            assert!(told.contains(why) && told.contains("as it was"), "{table}: {told}");
            assert!(tables(&database).await.is_empty(), "{told}");
        }
    })
    .await;
}

#[tokio::test]
async fn nobody_serves_either_side_and_nobody_writes_to_the_source_meanwhile() {
    with_a_target(async |file, database| {
        let store = file.open().await;
        payer(&store).await;
        store.close().await;
        let server = ServingLock::take(&file.url(), LimitsKept::InMemory).await.unwrap();
        assert!(matches!(
            MoveSource::open(&file.url()).await,
            Err(TransferError::Open(OpenError::FileIsServed { .. }))
        ));
        server.release().await;
        for limits in [LimitsKept::InMemory, LimitsKept::Shared] {
            let server = ServingLock::take(&database.url(), limits).await.unwrap();
            assert!(matches!(
                MoveTarget::open(&database.url()).await,
                Err(TransferError::Open(OpenError::ServedByAnother))
            ));
            server.release().await;
        }

        let mut source = MoveSource::open(&file.url()).await.unwrap();
        let mut target = MoveTarget::open(&database.url()).await.unwrap();
        assert!(ServingLock::take(&file.url(), LimitsKept::Shared).await.is_err());
        assert!(ServingLock::take(&database.url(), LimitsKept::Shared).await.is_err());
        assert_eq!(source.store().account_lookup.list_accounts().await.unwrap().len(), 1, "it can be read");
        let mut other = file.connect().await;
        sqlx::query("PRAGMA busy_timeout = 10").execute(&mut other).await.unwrap();
        let refused = sqlx::query("DELETE FROM idempotency_keys").execute(&mut other).await.unwrap_err();
        assert!(refused.to_string().contains("locked"), "{refused}");

        let mut steps = Vec::new();
        target.fill(&mut source, &mut |step| steps.push(step)).await.unwrap();
        // An account and a key, each with its line of history and its row of the audit, and the audit chain's end.
        assert_eq!(steps[0], MoveStep::Begins { rows: 7 });
        assert!(steps.contains(&MoveStep::Table { name: "api_keys", rows: 1 }), "{steps:?}");
        assert!(ServingLock::take(&database.url(), LimitsKept::Shared).await.is_err(), "until it is let go");
        source.close().await;
        target.close().await;
        ServingLock::take(&file.url(), LimitsKept::InMemory).await.unwrap().release().await;
        ServingLock::take(&database.url(), LimitsKept::InMemory).await.unwrap().release().await;
        sqlx::query("DELETE FROM idempotency_keys").execute(&mut other).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_source_that_is_not_there_or_no_sqlite_file_is_named() {
    with_a_target(async |file, database| {
        let missing = MoveSource::open(&file.url()).await.err().unwrap();
        assert!(matches!(missing, TransferError::Open(OpenError::NoDatabase { .. })), "{missing:?}");
        assert_eq!(std::fs::read_dir(file.folder.path()).unwrap().count(), 0, "nothing was made there");
        let backwards = MoveSource::open(&database.url()).await.err().unwrap();
        assert!(matches!(backwards, TransferError::Open(OpenError::BadUrl(_))), "{backwards:?}");
    })
    .await;
}
