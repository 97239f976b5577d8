//! Transfer from SQLite to PostgreSQL: everything is transferred and continues to work, or nothing is.

use crate::billing::{document, issue_new, read_invoice};
use crate::databases::{PostgresDatabase, SqliteFile, TestDatabase};
use crate::firm::{create, listed, search_for, verified_audit_chains};
use crate::sample_firm::{SampleFirm, SeededRng, random_firm};
use crate::samples::{NOON, account, all_ledger_rows, billed_key, key, row};
use chancery_domain::{OsRandomness, Randomness, RequestId, UnixMillis, UsageRow};
use chancery_store::{
    LimitStorage, OpenError, ServingLock, Store, TransferError, TransferProgress, TransferSource,
    TransferTarget, TransferredTable, UsageBy, UsageQuery,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Number of randomly generated firms; each takes about ten seconds.
const FIRMS: u64 = 3;

async fn moved(from: &SqliteFile, to: &PostgresDatabase) -> Result<Vec<TransferredTable>, TransferError> {
    let mut source = TransferSource::open(&from.url()).await?;
    let outcome = async {
        let mut target = TransferTarget::open(&to.url()).await?;
        let outcome = target.fill(&mut source, &mut |_| {}).await;
        target.close().await;
        outcome
    };
    let outcome = outcome.await;
    source.close().await;
    outcome
}

/// Every column of every row as text, by table, read independently of the transfer's code.
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
        let mut rows = connection.texts(&sql).await;
        rows.sort();
        contents.insert(table, rows);
    }
    contents
}

async fn contents_of_postgres(database: &PostgresDatabase, like: &SqliteFile) -> Contents {
    let mut connection = database.connect().await;
    let mut contents = Contents::new();
    for (table, columns) in columns_of_sqlite(like).await {
        let query =
            "SELECT column_name::text, data_type::text FROM information_schema.columns WHERE table_name";
        let kinds = connection.rows(&format!("{query} = '{table}'")).await;
        let column = |column: &String| {
            let [_, kind] = kinds.iter().find(|[name, _]| name == column).unwrap();
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
        let mut rows = connection.texts(&sql).await;
        rows.sort();
        contents.insert(table, rows);
    }
    contents
}

/// Without `schema_migrations`.
async fn columns_of_sqlite(file: &SqliteFile) -> BTreeMap<String, Vec<String>> {
    let mut connection = file.connect().await;
    let rows = connection.rows(
        "SELECT t.name, c.name FROM sqlite_schema t JOIN pragma_table_info(t.name) c WHERE t.type = 'table' \
         AND t.name NOT IN ('schema_migrations', 'sqlite_sequence') ORDER BY t.name, c.cid",
    );
    let mut columns: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for [table, column] in rows.await {
        columns.entry(table).or_default().push(column);
    }
    columns
}

/// The whole schema of a PostgreSQL database, without the ledger's partitions.
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
    let lines = database.connect().await.texts(sql).await;
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
    let query = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'";
    database.connect().await.texts(query).await.into_iter().collect()
}

/// A source file and a target database.
fn source_and_target() -> (SqliteFile, Arc<PostgresDatabase>) {
    (SqliteFile::create(), Arc::new(PostgresDatabase::create()))
}

#[tokio::test]
async fn every_table_is_copied_or_excluded_with_reason() {
    let (file, database) = source_and_target();
    file.open().await.close().await;
    let moved = moved(&file, &database).await.unwrap();
    let moved: BTreeSet<String> = moved.iter().map(|table| table.name.to_owned()).collect();
    let here: BTreeSet<String> = columns_of_sqlite(&file).await.into_keys().collect();
    assert_eq!(moved, here, "a table of SQLite is not in `transfer/tables.rs`");
    let mut there = tables(&database).await;
    assert!(there.remove("schema_migrations") && there.remove("ledger_default"));
    assert_eq!(moved, there, "a table of PostgreSQL is not in `transfer/tables.rs`");
}

#[tokio::test]
async fn unlisted_table_or_column_aborts_transfer_by_name() {
    let (file, database) = source_and_target();
    file.open().await.close().await;
    file.raw("CREATE TABLE stamps (id INTEGER PRIMARY KEY) STRICT").await.unwrap();
    let rejected = moved(&file, &database).await.unwrap_err().to_string();
    assert!(rejected.contains("stamps"), "{rejected}");
    file.raw("DROP TABLE stamps; ALTER TABLE people ADD COLUMN hat TEXT").await.unwrap();
    let rejected = moved(&file, &database).await.unwrap_err().to_string();
    assert!(rejected.contains("people"), "{rejected}");
    assert!(tables(&database).await.is_empty(), "nothing was left behind");
}

#[tokio::test]
async fn random_firm_transfers_completely_and_continues() {
    let first_seed = OsRandomness.next_u64();
    for seed in (0..FIRMS).map(|number| first_seed.wrapping_add(number)) {
        eprintln!("seed {seed}");
        let (file, database) = source_and_target();
        let store = file.open().await;
        let sample = random_firm(&store, &SeededRng::new(seed)).await;
        // Not closed, as if its process had died: its reservations still exist.
        drop(store);
        let before = contents_of_sqlite(&file).await;
        let empty: Vec<&String> =
            before.iter().filter(|(_, rows)| rows.is_empty()).map(|(name, _)| name).collect();
        assert!(empty.is_empty(), "seed {seed}: nothing is in {empty:?}, so moving it shows nothing");

        let moved = moved(&file, &database).await.unwrap();
        for TransferredTable { name, rows } in moved {
            assert_eq!(rows, before[name].len() as u64, "seed {seed}: {name}");
        }
        assert_eq!(contents_of_sqlite(&file).await, before, "seed {seed}: the source is as it was");
        assert_eq!(contents_of_postgres(&database, &file).await, before, "seed {seed}");
        assert_same_reads(&file, &database, &sample).await;
        assert_continues(&file, &database, &sample).await;
    }
}

/// Compares both databases through the store's own methods.
async fn assert_same_reads(file: &SqliteFile, database: &PostgresDatabase, sample: &SampleFirm) {
    let (here, there) = (file.open().await, Store::open_for_test(&database.url()).await.unwrap());
    assert_eq!(
        here.account_lookup.list_accounts().await.unwrap(),
        there.account_lookup.list_accounts().await.unwrap()
    );
    assert_eq!(
        format!("{:?}", here.account_lookup.list_keys().await.unwrap()),
        format!("{:?}", there.account_lookup.list_keys().await.unwrap())
    );
    let webhooks = here.webhooks.list_webhooks().await.unwrap();
    assert_eq!(webhooks, there.webhooks.list_webhooks().await.unwrap());
    for webhook in webhooks {
        assert_eq!(
            here.webhooks.webhook_by_id(&webhook.id).await.unwrap(),
            there.webhooks.webhook_by_id(&webhook.id).await.unwrap(),
            "the same key decrypts both"
        );
    }
    assert_eq!(all_ledger_rows(&here).await, all_ledger_rows(&there).await);
    for by in [UsageBy::Day, UsageBy::Model, UsageBy::Key, UsageBy::Account] {
        let query = UsageQuery { account: None, from: None, to: None, by };
        assert_eq!(here.ledger.usage(query.clone()).await.unwrap(), there.ledger.usage(query).await.unwrap());
    }
    assert_eq!(verified_audit_chains(&here).await, verified_audit_chains(&there).await);
    for query in [search_for(""), search_for("süd"), search_for("drop")] {
        assert_eq!(listed(&here, &sample.maya, &query).await, listed(&there, &sample.maya, &query).await);
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

async fn assert_continues(file: &SqliteFile, database: &PostgresDatabase, sample: &SampleFirm) {
    let (here, there) = (file.open().await, Store::open_for_test(&database.url()).await.unwrap());
    assert_eq!(
        account(&here, "Another").await.id,
        account(&there, "Another").await.id,
        "accounts are counted on from the same number"
    );
    assert_eq!(key(&here, None).await.id, key(&there, None).await.id);
    let client = create(&there, &sample.maya, "Another").await;
    assert_eq!(client, create(&here, &sample.maya, "Another").await);
    assert_eq!(client.0, sample.clients.last().unwrap().0 + 1, "clients are counted on without a gap");
    assert_eq!(
        listed(&there, &sample.maya, &search_for("")).await,
        listed(&here, &sample.maya, &search_for("")).await,
        "how many there are was counted on too"
    );

    // An invoiced month stays closed, and the next number follows the last one.
    let closed: UnixMillis = "2025-12-20T12:00:00Z".parse().unwrap();
    let usage = |at: UnixMillis| {
        let row = row(0, sample.payers[0]);
        UsageRow { request_id: RequestId::new(at, &OsRandomness), at, ..row }
    };
    let rejected = there.ledger.settle(usage(closed).into()).await.unwrap_err();
    assert!(rejected.to_string().contains("invoiced"), "{rejected}");
    there.ledger.settle(usage(NOON).into()).await.unwrap();
    let last = there.issued_invoices.issued_invoices(None, 100).await.unwrap().last().unwrap().invoice.number;
    let number = issue_new(&there, sample.payers[0].0, "2026-09", "2026-10-05").await;
    assert_eq!((number.year, number.serial), (last.year, last.serial + 1), "no gap");
    assert!(read_invoice(&there, number).await.invoice.bill.total.0 > 0);
    verified_audit_chains(&there).await;
    here.close().await;
    there.close().await;

    // Every month has its partition, and triggers and constraints apply again.
    let orphan = database.connect().await.number("SELECT COUNT(*) FROM ledger_default").await;
    assert_eq!(orphan, 0, "every row has the partition of its month");
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
        let rejected = database.raw(statement).await.unwrap_err().to_string();
        assert!(rejected.contains(table), "{statement}: {rejected}");
    }
}

#[tokio::test]
async fn transferred_database_has_same_schema_as_new_one() {
    let (file, database) = source_and_target();
    let store = file.open().await;
    random_firm(&store, &SeededRng::new(1)).await;
    drop(store);
    moved(&file, &database).await.unwrap();
    let filled = schema(&database).await;
    let new = PostgresDatabase::create();
    new.open().await.close().await;
    assert_eq!(filled, schema(&new).await);
}

#[tokio::test]
async fn empty_existing_schema_is_accepted_as_target() {
    let (file, database) = source_and_target();
    let store = file.open().await;
    billed_key(&store).await;
    store.close().await;
    let there = database.open().await;
    there.partitions.create_month_partitions(NOON).await.unwrap();
    there.close().await;
    moved(&file, &database).await.unwrap();
    assert_eq!(database.open().await.account_lookup.list_accounts().await.unwrap().len(), 1);
}

#[tokio::test]
async fn non_empty_target_is_rejected_by_table_name() {
    let (file, database) = source_and_target();
    let store = file.open().await;
    billed_key(&store).await;
    store.close().await;
    database.open().await.close().await;
    database.raw("INSERT INTO shared_secrets VALUES ('portal', 'x')").await.unwrap();
    let rejected = moved(&file, &database).await.unwrap_err();
    assert!(matches!(rejected, TransferError::TargetNotEmpty { table: "shared_secrets" }), "{rejected:?}");
    let message = rejected.to_string();
    assert!(message.contains("shared_secrets"), "{message}");
    let there = contents_of_postgres(&database, &file).await;
    assert_eq!(there.values().map(Vec::len).sum::<usize>(), 1);

    // A second transfer is rejected.
    database.raw("DELETE FROM shared_secrets").await.unwrap();
    moved(&file, &database).await.unwrap();
    let rejected = moved(&file, &database).await.unwrap_err();
    assert!(matches!(rejected, TransferError::TargetNotEmpty { table: "accounts" }), "{rejected:?}");
}

#[tokio::test]
async fn foreign_tables_with_same_names_abort_transfer() {
    let (file, database) = source_and_target();
    file.open().await.close().await;
    database.raw("CREATE TABLE people (id INT); INSERT INTO people VALUES (7)").await.unwrap();
    let rejected = moved(&file, &database).await.unwrap_err();
    assert!(matches!(rejected, TransferError::Open(OpenError::NotChanceryDatabase)), "{rejected:?}");
    assert_eq!(tables(&database).await, BTreeSet::from(["people".to_owned()]));
    // Tables with other names may stay.
    database.raw("ALTER TABLE people RENAME TO members").await.unwrap();
    moved(&file, &database).await.unwrap();
    assert!(tables(&database).await.contains("members"));
}

#[tokio::test]
async fn nul_in_source_text_aborts_transfer_by_column() {
    let (file, database) = source_and_target();
    let store = file.open().await;
    random_firm(&store, &SeededRng::new(2)).await;
    drop(store);
    file.raw("UPDATE sessions SET browser = 'fire' || char(0) || 'fox' WHERE id = 1").await.unwrap();
    let rejected = moved(&file, &database).await.unwrap_err();
    assert!(matches!(rejected, TransferError::NulInTable { table: "sessions", .. }), "{rejected:?}");
    let message = rejected.to_string();
    assert!(message.contains("sessions.browser of the row with id 1 contains a NUL"), "{message}");
    assert!(tables(&database).await.is_empty(), "not even its schema was left behind");
    let (_, fix) = message.split_once('`').unwrap();
    file.raw(fix.split_once('`').unwrap().0).await.unwrap();
    moved(&file, &database).await.unwrap();
    assert_eq!(contents_of_postgres(&database, &file).await, contents_of_sqlite(&file).await);
}

#[tokio::test]
async fn row_rejected_by_postgres_aborts_transfer_by_table() {
    let (file, database) = source_and_target();
    let store = file.open().await;
    random_firm(&store, &SeededRng::new(3)).await;
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
                PRAGMA foreign_keys = OFF; INSERT INTO record_views VALUES (1, 1, 1, 1)",
            "record_views",
        ),
    ];
    for (table, statement, why) in broken {
        file.raw(statement).await.unwrap();
        let rejected = moved(&file, &database).await.unwrap_err();
        let message = rejected.to_string();
        assert!(message.contains(why) && message.contains("the target is unchanged"), "{table}: {message}");
        assert!(tables(&database).await.is_empty(), "{message}");
    }
}

#[tokio::test]
async fn transfer_excludes_servers_and_source_writers() {
    let (file, database) = source_and_target();
    let store = file.open().await;
    billed_key(&store).await;
    store.close().await;
    let server = ServingLock::take(&file.url(), LimitStorage::InMemory).await.unwrap();
    assert!(matches!(
        TransferSource::open(&file.url()).await,
        Err(TransferError::Open(OpenError::DatabaseFileInUse { .. }))
    ));
    server.release().await;
    for limits in [LimitStorage::InMemory, LimitStorage::Shared] {
        let server = ServingLock::take(&database.url(), limits).await.unwrap();
        assert!(matches!(
            TransferTarget::open(&database.url()).await,
            Err(TransferError::Open(OpenError::OtherServerRunning))
        ));
        server.release().await;
    }

    let mut source = TransferSource::open(&file.url()).await.unwrap();
    let mut target = TransferTarget::open(&database.url()).await.unwrap();
    assert!(ServingLock::take(&file.url(), LimitStorage::Shared).await.is_err());
    assert!(ServingLock::take(&database.url(), LimitStorage::Shared).await.is_err());
    assert_eq!(source.store().account_lookup.list_accounts().await.unwrap().len(), 1, "it can be read");
    let mut other = file.connect().await;
    other.run("PRAGMA busy_timeout = 10").await.unwrap();
    let rejected = other.run("DELETE FROM idempotency_keys").await.unwrap_err();
    assert!(rejected.to_string().contains("locked"), "{rejected}");

    let mut steps = Vec::new();
    target.fill(&mut source, &mut |step| steps.push(step)).await.unwrap();
    // An account and a key, each with its history event and its audit row, and the head of the audit chain.
    assert_eq!(steps[0], TransferProgress::Started { rows: 7 });
    assert!(steps.contains(&TransferProgress::Table { name: "api_keys", rows: 1 }), "{steps:?}");
    assert!(ServingLock::take(&database.url(), LimitStorage::Shared).await.is_err(), "until it is let go");
    source.close().await;
    target.close().await;
    ServingLock::take(&file.url(), LimitStorage::InMemory).await.unwrap().release().await;
    ServingLock::take(&database.url(), LimitStorage::InMemory).await.unwrap().release().await;
    other.run("DELETE FROM idempotency_keys").await.unwrap();
}

#[tokio::test]
async fn missing_or_non_sqlite_source_is_reported() {
    let (file, database) = source_and_target();
    let missing = TransferSource::open(&file.url()).await.err().unwrap();
    assert!(matches!(missing, TransferError::Open(OpenError::NoDatabase { .. })), "{missing:?}");
    assert_eq!(std::fs::read_dir(file.folder.path()).unwrap().count(), 0, "nothing was made there");
    let backwards = TransferSource::open(&database.url()).await.err().unwrap();
    assert!(matches!(backwards, TransferError::Open(OpenError::BadUrl(_))), "{backwards:?}");
}
