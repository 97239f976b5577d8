//! What signed checkpoints show that hash chains cannot: every forgery here is complete, with new hashes, heads and sums, and
//! the chains say that all is well. On both databases.

use crate::databases::{Database, Kind};
use crate::ledger::{NOON, ONE_LESS, ledger, settle, verified, writer_of};
use chancery_domain::{ChainHead, Clock, LogName, ManualClock, OsRandomness, UnixMillis};
use chancery_store::Store;
use chancery_transparency::{
    CHECKPOINT_FOLDER, CheckpointFolder, Checkpointer, FiledCheckpoints, PUBLIC_KEY_FILE, load_or_create_key,
    load_verifier_keys,
};
use chancery_verify::{verify_audit, verify_log};
use std::path::Path;
use std::sync::Arc;

const KINDS: [Kind; 2] = [Kind::Sqlite, Kind::Postgres];

/// What a server with this data directory does each minute.
async fn checkpoint(database: &Database, data: &Path) {
    let store = Store::open(&database.url()).await.unwrap();
    let key = load_or_create_key(data, None, "api.example.com", &OsRandomness).unwrap();
    let keys = load_verifier_keys(&data.join(PUBLIC_KEY_FILE)).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(UnixMillis(NOON)));
    let folder = CheckpointFolder::open(data).unwrap();
    let checkpointer = Checkpointer::new(store.logs(), folder, key, keys, clock).unwrap();
    checkpointer.checkpoint().await;
    store.close().await;
}

/// The findings of both logs, with the checkpoints in the data directory or in a copy.
async fn findings(database: &Database, data: &Path, copy: Option<&Path>) -> Vec<String> {
    let keys = load_verifier_keys(&data.join(PUBLIC_KEY_FILE)).unwrap();
    let filed = match copy {
        Some(copy) => FiledCheckpoints::read(copy, &keys).unwrap(),
        None => FiledCheckpoints::read_data(data, &keys).unwrap(),
    };
    let store = Store::open(&database.url()).await.unwrap();
    let mut found = filed.problems.clone();
    for log in LogName::ALL {
        found
            .extend(verify_log(&store.verify(), log, &filed, &keys, |_| {}).await.unwrap().findings.reported);
    }
    store.close().await;
    found
}

/// Numbers the rows of each writer again, in their order, and computes all hashes and heads.
async fn rehash_ledger(database: &Database) {
    let store = Store::open(&database.url()).await.unwrap();
    let (mut sql, mut last) = ("UPDATE ledger SET position = position + 10000;".to_owned(), None);
    while let Some(writer) = store.ledger_chains.next_writer(last).await.unwrap() {
        last = Some(writer);
        let mut head = ChainHead::default();
        for linked in store.ledger_chains.chained_rows(writer, None, 1_000).await.unwrap() {
            let position = head.rows;
            head = head.with_row(writer, &linked.row);
            let (request, hash) = (&linked.row.request_id, database.hash_literal(head.hash.0));
            sql += &format!(
                "UPDATE ledger SET position = {position}, hash = {hash} WHERE request_id = '{request}';"
            );
        }
        let hash = database.hash_literal(head.hash.0);
        sql += &format!(
            "UPDATE ledger_writers SET row_count = {}, head = {hash} WHERE id = {writer};",
            head.rows
        );
    }
    store.close().await;
    database.tamper(&sql).await;
}

async fn rehash_audit(database: &Database) {
    let store = Store::open(&database.url()).await.unwrap();
    let (mut sql, mut last) = (String::new(), None);
    while let Some(writer) = store.audit_chains.next_audit_writer(last).await.unwrap() {
        last = Some(writer);
        let mut head = ChainHead::default();
        for linked in store.audit_chains.audit_rows(writer, 0, 1_000).await.unwrap() {
            head = head.with_row(writer, &linked.row);
            let (position, hash) = (linked.position, database.hash_literal(head.hash.0));
            sql += &format!(
                "UPDATE audit_rows SET hash = {hash} WHERE writer_id = {writer} AND position = {position};"
            );
        }
        let hash = database.hash_literal(head.hash.0);
        sql += &format!(
            "UPDATE audit_writers SET row_count = {}, head = {hash} WHERE id = {writer};",
            head.rows
        );
    }
    store.close().await;
    database.tamper(&sql).await;
}

/// A ledger of 25 rows by two writers, with a checkpoint of each log.
async fn checkpointed(kind: Kind) -> (Database, tempfile::TempDir) {
    let (database, data) = (Database::create(kind).await, tempfile::tempdir().unwrap());
    ledger(&database).await;
    checkpoint(&database, data.path()).await;
    assert_eq!(findings(&database, data.path(), None).await, Vec::<String>::new());
    (database, data)
}

/// The forged ledger has no finding of its own, and its log has one.
async fn expect_log_finding(change: &str, expected: &str) {
    for kind in KINDS {
        let (database, data) = checkpointed(kind).await;
        database.tamper(change).await;
        rehash_ledger(&database).await;
        let chains = verified(&database).await.findings.reported;
        assert_eq!(chains, Vec::<String>::new(), "{kind:?}: the forgery is complete: {change}");
        let found = findings(&database, data.path(), None).await;
        assert!(found.iter().any(|finding| finding.contains(expected)), "{kind:?}: {change}: {found:#?}");
    }
}

#[tokio::test]
async fn edited_row_is_found_though_all_hashes_are_new() {
    let change = "UPDATE ledger SET at_ms = at_ms + 1 WHERE request_id = 'req_007'";
    expect_log_finding(change, "ledger log: its first 25 rows are not those of the checkpoint in").await;
}

#[tokio::test]
async fn deleted_row_is_found_though_all_hashes_are_new() {
    let change = format!("DELETE FROM ledger WHERE request_id = 'req_007'; {ONE_LESS}");
    expect_log_finding(&change, "is missing or there twice").await;
}

#[tokio::test]
async fn inserted_row_is_found_though_all_hashes_are_new() {
    // Between two rows: rehashing numbers them again.
    let make_room = format!(
        "UPDATE ledger SET position = position + 1000 WHERE position >= 7 AND writer_id = {}",
        writer_of("req_007")
    );
    let copy = "INSERT INTO ledger (request_id, account_id, key_id, model, input_tokens, cached_input_tokens, \
        output_tokens, input_price_nanos, cached_price_nanos, output_price_nanos, cost_nanos, at_ms, stop_reason, \
        writer_id, position, hash) \
        SELECT 'req_x', account_id, key_id, model, 0, 0, 0, input_price_nanos, cached_price_nanos, \
        output_price_nanos, 0, at_ms, stop_reason, writer_id, 100, hash FROM ledger WHERE request_id = 'req_003'";
    let change = format!("{make_room}; {copy}; UPDATE daily_usage SET requests = requests + 1");
    expect_log_finding(&change, "ledger log: its first 25 rows are not those of the checkpoint in").await;
}

#[tokio::test]
async fn reordered_rows_are_found_though_all_hashes_are_new() {
    let change = "UPDATE ledger SET position = 1000 WHERE request_id = 'req_004'; \
        UPDATE ledger SET position = 4 WHERE request_id = 'req_009'; \
        UPDATE ledger SET position = 9 WHERE request_id = 'req_004'";
    expect_log_finding(change, "ledger log: its first 25 rows are not those of the checkpoint in").await;
}

#[tokio::test]
async fn truncated_chain_is_found_though_all_hashes_are_new() {
    let change = format!("DELETE FROM ledger WHERE request_id = 'req_019'; {ONE_LESS}");
    expect_log_finding(&change, "is missing or there twice").await;
}

#[tokio::test]
async fn emptied_tables_are_found() {
    const EMPTY_LEDGER: &str = "DELETE FROM ledger; DELETE FROM ledger_writers; DELETE FROM daily_usage; \
        DELETE FROM idempotency_keys";
    const EMPTY_AUDIT: &str = "DELETE FROM audit_rows; DELETE FROM audit_writers";
    for kind in KINDS {
        let (database, data) = checkpointed(kind).await;
        database.tamper(EMPTY_AUDIT).await;
        let store = Store::open(&database.url()).await.unwrap();
        let chains = verify_audit(&store.verify(), |_| {}).await.unwrap();
        assert_eq!((chains.rows, chains.findings.reported), (0, vec![]), "{kind:?}: the chains know nothing");
        store.close().await;
        let found = findings(&database, data.path(), None).await.join("\n");
        assert!(found.contains("audit log: row 0 is missing or there twice"), "{kind:?}: {found}");

        database.tamper(EMPTY_LEDGER).await;
        assert_eq!(verified(&database).await.findings.reported, Vec::<String>::new(), "{kind:?}");
        let found = findings(&database, data.path(), None).await.join("\n");
        assert!(found.contains("ledger log: row 0 is missing or there twice"), "{kind:?}: {found}");

        database.tamper("DELETE FROM log_segments; DELETE FROM log_nodes; DELETE FROM log_checkpoints").await;
        let found = findings(&database, data.path(), None).await.join("\n");
        for log in LogName::ALL {
            assert!(found.contains(&format!("{log} log: it has 0 rows, but the checkpoint in")), "{found}");
            assert!(found.contains(&format!("{log} log: the checkpoint of")), "{found}");
        }
    }
}

#[tokio::test]
async fn edited_audit_row_is_found_though_all_hashes_are_new() {
    for kind in KINDS {
        let (database, data) = checkpointed(kind).await;
        database.tamper("UPDATE audit_rows SET request_id = 'req_other' WHERE position = 0").await;
        rehash_audit(&database).await;
        let store = Store::open(&database.url()).await.unwrap();
        let chains = verify_audit(&store.verify(), |_| {}).await.unwrap();
        assert_eq!(chains.findings.reported, Vec::<String>::new(), "{kind:?}");
        store.close().await;
        let found = findings(&database, data.path(), None).await.join("\n");
        assert!(
            found.contains("audit log: its first 2 rows are not those of the checkpoint in"),
            "{kind:?}: {found}"
        );
    }
}

/// Someone with the key and the data directory can make both agree again. They cannot change a copy.
#[tokio::test]
async fn forgery_with_the_key_is_found_by_a_copy_of_the_checkpoints() {
    for kind in KINDS {
        let (database, data) = checkpointed(kind).await;
        let (folder, copies) = (data.path().join(CHECKPOINT_FOLDER), tempfile::tempdir().unwrap());
        let file = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
        let copy = copies.path().join("copy.txt");
        std::fs::copy(&file, &copy).unwrap();
        assert_eq!(findings(&database, data.path(), Some(&copy)).await, Vec::<String>::new(), "{kind:?}");

        let change = "UPDATE ledger SET at_ms = at_ms + 1 WHERE request_id = 'req_007'; \
            DELETE FROM log_segments; DELETE FROM log_nodes; DELETE FROM log_checkpoints";
        database.tamper(change).await;
        rehash_ledger(&database).await;
        std::fs::remove_dir_all(&folder).unwrap();
        checkpoint(&database, data.path()).await;
        assert_eq!(findings(&database, data.path(), None).await, Vec::<String>::new(), "{kind:?}");
        let found = findings(&database, data.path(), Some(&copy)).await.join("\n");
        assert!(
            found.contains("ledger log: its first 25 rows are not those of the checkpoint in"),
            "{found}"
        );
        assert!(found.contains("copy.txt:1"), "{found}");
    }
}

#[tokio::test]
async fn removed_folder_is_found() {
    for kind in KINDS {
        let (database, data) = (Database::create(kind).await, tempfile::tempdir().unwrap());
        let payer = ledger(&database).await;
        checkpoint(&database, data.path()).await;
        let store = Arc::new(Store::open(&database.url()).await.unwrap());
        settle(&store, 100..101, payer).await;
        store.close().await;
        checkpoint(&database, data.path()).await;
        std::fs::remove_dir_all(data.path().join(CHECKPOINT_FOLDER)).unwrap();
        let found = findings(&database, data.path(), None).await.join("\n");
        assert!(found.contains("ledger log: the database has 2 checkpoints"), "{kind:?}: {found}");
        assert!(found.contains("its files have none: they were removed"), "{kind:?}: {found}");
    }
}

/// The server crashed in between, or is about to write the file.
#[tokio::test]
async fn first_checkpoint_that_is_only_in_the_database_is_no_finding() {
    for kind in KINDS {
        let (database, data) = checkpointed(kind).await;
        std::fs::remove_dir_all(data.path().join(CHECKPOINT_FOLDER)).unwrap();
        assert_eq!(findings(&database, data.path(), None).await, Vec::<String>::new(), "{kind:?}");
    }
}

/// Someone logs a later row of a writer themselves, so that the server goes on after it.
#[tokio::test]
async fn rows_that_the_log_leaves_out_are_found() {
    for kind in KINDS {
        let (database, data) = (Database::create(kind).await, tempfile::tempdir().unwrap());
        let payer = ledger(&database).await;
        checkpoint(&database, data.path()).await;
        let store = Arc::new(Store::open(&database.url()).await.unwrap());
        settle(&store, 100..105, payer).await;
        store.close().await;
        let add = "INSERT INTO log_segments (log, first_index, writer_id, first_position, row_count) \
            SELECT 'ledger', 25, writer_id, position, 1 FROM ledger WHERE request_id = 'req_102'";
        database.tamper(add).await;
        checkpoint(&database, data.path()).await;
        let found = findings(&database, data.path(), None).await;
        assert_eq!(found.len(), 1, "{kind:?}: {found:#?}");
        assert!(found[0].contains("ledger log: at row 25 it has row 2 of writer"), "{kind:?}: {found:#?}");
    }
}

/// It would keep later rows of its writer out of the log. Here it lies behind the first page of segments.
#[tokio::test]
async fn segment_within_another_one_is_found() {
    let writer = writer_of("req_003");
    let rows = "WITH RECURSIVE numbers (number) AS \
            (SELECT 100 UNION ALL SELECT number + 1 FROM numbers WHERE number < 1100) \
        INSERT INTO ledger (request_id, account_id, key_id, model, input_tokens, cached_input_tokens, output_tokens, \
            input_price_nanos, cached_price_nanos, output_price_nanos, cost_nanos, at_ms, stop_reason, writer_id, \
            position, hash) \
        SELECT 'req_x' || number, account_id, key_id, model, 0, 0, 0, input_price_nanos, cached_price_nanos, \
            output_price_nanos, 0, at_ms, stop_reason, writer_id, number, hash FROM ledger, numbers \
        WHERE request_id = 'req_003'";
    let add = "INSERT INTO log_segments (log, first_index, writer_id, first_position, row_count)";
    let change = format!(
        "{rows}; {add} SELECT 'ledger', position - 100, writer_id, position, 1 FROM ledger \
            WHERE position BETWEEN 100 AND 1098; \
        {add} VALUES ('ledger', 999, {writer}, 1099, 2), ('ledger', 1000, {writer}, 5000, 1)"
    );
    for kind in KINDS {
        let (database, data) = (Database::create(kind).await, tempfile::tempdir().unwrap());
        ledger(&database).await;
        database.tamper(&change).await;
        let found = findings(&database, data.path(), None).await.join("\n");
        assert!(found.contains("ledger log: the segment at row 1001 is missing"), "{kind:?}: {found}");
    }
}

#[tokio::test]
async fn changed_checkpoint_in_file_or_database_is_found() {
    for kind in KINDS {
        let (database, data) = checkpointed(kind).await;
        database.tamper("UPDATE log_checkpoints SET note = replace(note, 'ledger', 'ledgar')").await;
        let found = findings(&database, data.path(), None).await;
        assert!(found.is_empty(), "another name is another key, which is ignored: {found:#?}");
        database.tamper("UPDATE log_checkpoints SET note = replace(note, 'ledgar', 'ledger')").await;
        database.tamper("UPDATE log_checkpoints SET note = replace(note, '\n25\n', '\n24\n')").await;
        let found = findings(&database, data.path(), None).await.join("\n");
        assert!(
            found.contains("ledger log: the checkpoint of 25 rows in the database was changed"),
            "{found}"
        );
        let file =
            std::fs::read_dir(data.path().join(CHECKPOINT_FOLDER)).unwrap().next().unwrap().unwrap().path();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replacen("\n25\n", "\n24\n", 1)).unwrap();
        let found = findings(&database, data.path(), None).await.join("\n");
        assert!(found.contains(".txt:1: the signature is wrong"), "{found}");
    }
}

/// Nodes exist from 256 rows on.
#[tokio::test]
async fn changed_and_removed_nodes_are_found() {
    for kind in KINDS {
        let (database, data) = (Database::create(kind).await, tempfile::tempdir().unwrap());
        let payer = ledger(&database).await;
        let store = Arc::new(Store::open(&database.url()).await.unwrap());
        settle(&store, 100..400, payer).await;
        store.close().await;
        checkpoint(&database, data.path()).await;
        assert_eq!(findings(&database, data.path(), None).await, Vec::<String>::new(), "{kind:?}");
        database.tamper("DELETE FROM log_nodes").await;
        let found = findings(&database, data.path(), None).await.join("\n");
        assert!(found.contains("ledger log: the stored nodes of level 1 from 0 on are missing"), "{found}");
    }
}

/// Checkpoints are signed while rows are written; no verification may report anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_verify_while_they_grow() {
    for kind in KINDS {
        let (database, data) = (Database::create(kind).await, tempfile::tempdir().unwrap());
        let payer = ledger(&database).await;
        let store = Arc::new(Store::open(&database.url()).await.unwrap());
        let writing = tokio::spawn({
            let store = Arc::clone(&store);
            async move { settle(&store, 100..700, payer).await }
        });
        while !writing.is_finished() {
            checkpoint(&database, data.path()).await;
            assert_eq!(findings(&database, data.path(), None).await, Vec::<String>::new(), "{kind:?}");
        }
        writing.await.unwrap();
        checkpoint(&database, data.path()).await;
        assert_eq!(findings(&database, data.path(), None).await, Vec::<String>::new(), "{kind:?}");
        assert_eq!(store.log_reader.log_size(LogName::Ledger).await.unwrap(), 625);
        store.close().await;
    }
}
