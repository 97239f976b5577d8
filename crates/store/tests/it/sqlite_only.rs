//! Tests specific to SQLite: file modes, missing folders, foreign and corrupt files, and the lock between processes.

use crate::billing::{issue_new, read_invoice, record_million_tokens};
use crate::databases::{SqliteFile, TestDatabase};
use crate::firm::{after_s, create_whole, new_client, note, people, permit, read_parts};
use crate::samples::{NOON, account, all_ledger_rows, billed_key, insert_row, name, new_account, row};
use chancery_store::{DatabaseUrl, DbError, LedgerError, NewClient, OpenError, Store};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

async fn open_error(file: &Path) -> OpenError {
    match Store::open_file(file).await {
        Ok(_) => panic!("{} was opened", file.display()),
        Err(error) => error,
    }
}

async fn open_existing_error(file: &Path) -> OpenError {
    match Store::open_existing(&DatabaseUrl::sqlite_file(file)).await {
        Ok(_) => panic!("{} was opened", file.display()),
        Err(error) => error,
    }
}

#[cfg(unix)]
#[tokio::test]
async fn database_files_are_mode_0600() {
    use std::os::unix::fs::PermissionsExt;
    let database = SqliteFile::create();
    let store = database.open().await;
    account(&store, "Hale & Ward").await;
    let mut files = 0;
    for entry in std::fs::read_dir(database.folder.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
        files += 1;
    }
    assert_eq!(files, 4, "the database, its log, the log's index and the lock file of its writers");
}

#[tokio::test]
async fn path_characters_are_not_interpreted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("büro süd?mode=ro#1 %41.db");
    let url: DatabaseUrl = format!("sqlite:{}", file.display()).parse().unwrap();
    let store = Arc::new(Store::open(&url).await.unwrap());
    store.create_account(new_account("Hale & Ward")).await.unwrap();
    store.close().await;
    assert!(file.is_file());
}

#[cfg(unix)]
#[tokio::test]
async fn file_with_a_second_name_is_opened_under_neither() {
    let database = SqliteFile::create();
    let store = database.open().await;
    let accounts = [account(&store, "Hale & Ward").await];
    let file = database.folder.path().join("chancery.db");
    let [link, symlink] = ["link.db", "symlink.db"].map(|name| database.folder.path().join(name));
    std::fs::hard_link(&file, &link).unwrap();
    std::os::unix::fs::symlink(&link, &symlink).unwrap();
    for name in [&file, &link, &symlink] {
        for error in [open_error(name).await, open_existing_error(name).await] {
            let text = error.to_string();
            assert!(matches!(&error, OpenError::HardLinked { links: 2, .. }), "{text}");
            assert!(text.contains(&name.display().to_string()) && text.contains("-samefile"), "{text}");
        }
    }
    assert!(!link.with_file_name("link.db-wal").exists());
    std::fs::remove_file(&link).unwrap();
    let again = database.open().await;
    assert_eq!(again.account_lookup.list_accounts().await.unwrap(), accounts);
}

#[tokio::test]
async fn missing_folder_error_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let error = open_error(&missing.join("chancery.db")).await;
    assert!(error.to_string().contains(&missing.display().to_string()), "{error}");
    assert!(matches!(error, OpenError::NoFolder { .. }));
    assert!(!missing.exists());
}

#[tokio::test]
async fn file_as_parent_folder_error_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("data");
    std::fs::write(&file, "not a folder").unwrap();
    let error = open_error(&file.join("chancery.db")).await;
    assert!(matches!(error, OpenError::NoFolder { folder } if folder == file));
}

#[tokio::test]
async fn folder_as_database_file_error_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let error = open_error(folder.path()).await;
    assert!(error.to_string().contains(&folder.path().display().to_string()), "{error}");
    assert!(matches!(error, OpenError::CannotOpen { .. }));
}

#[tokio::test]
async fn non_database_file_is_rejected_and_untouched() {
    let database = SqliteFile::create();
    let text = "Minutes of the meeting of 15 November. ".repeat(100);
    std::fs::write(database.path(), &text).unwrap();
    let error = open_error(&database.path()).await;
    assert!(error.to_string().contains("is not a database"), "{error}");
    assert!(matches!(error, OpenError::NotADatabase { file } if file == database.path()));
    assert_eq!(std::fs::read_to_string(database.path()).unwrap(), text);
}

#[tokio::test]
async fn corrupt_database_is_reported() {
    let database = SqliteFile::create();
    let store = database.open().await;
    for number in 0..200 {
        account(&store, &format!("Account {number}")).await;
    }
    store.close().await;
    let mut file = std::fs::OpenOptions::new().write(true).open(database.path()).unwrap();
    let length = file.metadata().unwrap().len();
    file.seek(SeekFrom::Start(4096)).unwrap();
    file.write_all(&vec![0xaa; usize::try_from(length).unwrap() - 4096]).unwrap();
    drop(file);
    let error = match database.try_open().await {
        Err(error) => error,
        Ok(store) => store.account_lookup.list_accounts().await.unwrap_err().into(),
    };
    assert!(matches!(error, OpenError::Database(DbError::Corrupt { .. })), "{error:?}");
    assert!(error.to_string().contains("backup"), "{error}");
}

#[tokio::test]
async fn open_existing_leaves_folder_untouched() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let text_file = folder.path().join("minutes.txt");
    std::fs::write(&text_file, "Minutes of the meeting").unwrap();
    for file in
        [folder.path().join("chancery.db"), missing.join("chancery.db"), text_file.join("chancery.db")]
    {
        let error = open_existing_error(&file).await;
        assert!(
            matches!(&error, OpenError::NoDatabase { location } if *location == file.display().to_string()),
            "{error:?}"
        );
    }
    assert!(matches!(open_existing_error(&text_file).await, OpenError::NotADatabase { .. }));
    assert!(matches!(open_existing_error(folder.path()).await, OpenError::CannotOpen { .. }));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "only the text file is there");

    let empty = folder.path().join("empty.db");
    std::fs::write(&empty, "").unwrap();
    assert!(matches!(open_existing_error(&empty).await, OpenError::NoDatabase { .. }));
    assert_eq!(std::fs::metadata(&empty).unwrap().len(), 0, "it is still empty");
}

#[tokio::test]
async fn open_existing_leaves_foreign_file_untouched() {
    let database = SqliteFile::create();
    database.raw("CREATE TABLE theirs (a INTEGER)").await.unwrap();
    let before = std::fs::read(database.path()).unwrap();
    assert!(matches!(open_existing_error(&database.path()).await, OpenError::NoDatabase { .. }));
    assert_eq!(std::fs::read(database.path()).unwrap(), before);
}

#[tokio::test]
async fn non_utf8_row_error_names_its_request() {
    let database = SqliteFile::create();
    let store = database.open().await;
    let (account, key) = billed_key(&store).await;
    let values =
        format!("'req_odd', {account}, {key}, CAST(x'ff' AS TEXT), 1, 0, 0, 1, 1, 1, 1, 1, 'complete', 1, 0");
    database.raw(&insert_row(&database, &values)).await.unwrap();
    let error = store.ledger_chains.ledger_rows(None, 1).await.unwrap_err();
    assert!(matches!(error, DbError::Corrupt { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("req_odd") && text.contains("model"), "{text}");
}

#[tokio::test]
async fn insert_or_replace_cannot_replace_ledger_row() {
    let database = SqliteFile::create();
    let store = database.open().await;
    let row = row(1, billed_key(&store).await);
    store.ledger.settle(row.clone().into()).await.unwrap();
    let (account, key, request) = (row.account, row.key, &row.request_id);
    let writer = store.ledger_chains.next_writer(None).await.unwrap().unwrap();
    // Both the request id and the position in the chain are taken.
    for (request, writer, position) in [(request.as_str(), 1, 0), ("req_other", writer.0, 0)] {
        let values =
            format!("'{request}', {account}, {key}, 'm', 0, 0, 0, 0, 0, 0, 'complete', {writer}, {position}");
        let replace = insert_row(&database, &values).replace("INSERT", "INSERT OR REPLACE");
        let _ = database.raw(&replace).await;
        assert_eq!(all_ledger_rows(&store).await, std::slice::from_ref(&row));
    }
}

#[tokio::test]
async fn moved_chain_head_changes_nothing_and_is_read_again() {
    let database = SqliteFile::create();
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    store.ledger.settle(row(1, billed_key).into()).await.unwrap();
    database.raw("UPDATE ledger_writers SET row_count = 7").await.unwrap();
    store.ledger.settle(row(2, billed_key).into()).await.unwrap();
    let writer = store.ledger_chains.next_writer(None).await.unwrap().unwrap();
    let chain = store.ledger_chains.chained_rows(writer, None, 10).await.unwrap();
    assert_eq!(chain.iter().map(|link| link.position).collect::<Vec<_>>(), [0, 7]);
    assert_eq!(store.ledger_chains.chain_head(writer).await.unwrap().unwrap().rows, 8);
    let usage = store.ledger_chains.daily_usage(None, 10).await.unwrap();
    assert_eq!(usage.iter().map(|day| day.totals.requests).sum::<u64>(), 2, "each row is summed once");
}

#[tokio::test]
async fn batches_of_every_size_settle_each_row_once() {
    let database = SqliteFile::create();
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    let mut settled = 0;
    for rows in [1, 2, 5, 7, 11, 33, 65, 200] {
        let rows = (settled..settled + rows).map(|number| row(number, billed_key));
        let settling: Vec<_> = rows
            .map(|row| {
                let store = Arc::clone(&store);
                tokio::spawn(async move { store.ledger.settle(row.into()).await })
            })
            .collect();
        for settling in settling {
            settling.await.unwrap().unwrap();
            settled += 1;
        }
        // One that is stored makes its whole batch fail, and the others settle without it.
        let (again, new) = (row(0, billed_key), row(settled, billed_key));
        let (again, new) = tokio::join!(store.ledger.settle(again.into()), store.ledger.settle(new.into()));
        again.unwrap();
        new.unwrap();
        settled += 1;
        assert_eq!(all_ledger_rows(&store).await.len(), settled);
    }
}

#[tokio::test]
async fn writes_wait_for_write_lock_of_other_process() {
    let database = SqliteFile::create();
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    let mut other = database.connect().await;
    other.run("BEGIN IMMEDIATE").await.unwrap();
    let settling = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.ledger.settle(row(1, billed_key).into()).await }
    });
    // Reads continue meanwhile, and see the row only once it is committed.
    for _ in 0..20 {
        assert!(all_ledger_rows(&store).await.is_empty());
    }
    other.run("ROLLBACK").await.unwrap();
    settling.await.unwrap().unwrap();
    assert_eq!(all_ledger_rows(&store).await.len(), 1);
}

#[tokio::test]
async fn pages_of_a_record_are_read_without_the_writer() {
    let database = SqliteFile::create();
    let store = database.open().await;
    let people = people(&store).await;
    let entries = (0..300).map(|number| note(people.maya.id, after_s(number), "A note")).collect();
    let new = NewClient { entries, ..new_client("Harbour Lane Bakery") };
    let client = create_whole(&store, &people.maya, new).await;
    let open = store.clients.open_record(permit(&people.maya, client, people.maya.id)).await;
    let mut record = open.unwrap().unwrap();
    let exports = vec![permit(&people.maya, client, people.maya.id)];
    let mut export = store.clients.open_records(exports).await.unwrap();
    let mut other = database.connect().await;
    other.run("BEGIN IMMEDIATE").await.unwrap();
    for parts in [read_parts(&mut record).await, read_parts(&mut export).await] {
        assert_eq!(parts.iter().map(|part| part.entries.len()).sum::<usize>(), 300);
    }
    drop(other);
}

#[tokio::test]
async fn open_waits_for_concurrent_setup() {
    let database = SqliteFile::create();
    let mut other = database.connect().await;
    // On a file that is not in WAL mode yet, SQLite returns "locked" here without waiting.
    other.run("BEGIN IMMEDIATE").await.unwrap();
    let mut opening = tokio::spawn({
        let file = database.path();
        async move { Store::open_file(&file).await }
    });
    let early = tokio::time::timeout(Duration::from_millis(200), &mut opening).await;
    assert!(early.is_err(), "it neither failed nor went ahead");
    other.run("ROLLBACK").await.unwrap();
    account(&opening.await.unwrap().unwrap(), "Hale & Ward").await;
}

#[tokio::test]
async fn held_write_lock_times_out_without_writing() {
    let database = SqliteFile::create();
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    let mut other = database.connect().await;
    other.run("BEGIN IMMEDIATE").await.unwrap();
    let error = store.ledger.settle(row(1, billed_key).into()).await.unwrap_err();
    assert!(
        matches!(&error, LedgerError::Database(DbError::Unavailable(why)) if why.contains("another process")),
        "{error:?}"
    );
    other.run("ROLLBACK").await.unwrap();
    assert!(all_ledger_rows(&store).await.is_empty());
    store.ledger.settle(row(1, billed_key).into()).await.unwrap();
}

#[tokio::test]
async fn commands_wait_longer_than_settlements_for_write_lock() {
    let database = SqliteFile::create();
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    let mut other = database.connect().await;
    other.run("BEGIN IMMEDIATE").await.unwrap();
    let command = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.create_account(new_account("Late")).await }
    });
    // Settling times out first, and the waiting command does not block its attempts.
    for _ in 0..2 {
        store.ledger.settle(row(1, billed_key).into()).await.unwrap_err();
        assert!(!command.is_finished(), "the command waits on");
    }
    other.run("ROLLBACK").await.unwrap();
    command.await.unwrap().unwrap();
}

/// The command's writes are not timed, because a slow disk slows each of them. Without gaps between the server's commits, the
/// command would time out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_gets_write_lock_under_constant_settlement() {
    const TURNS: usize = 5;
    let database = SqliteFile::create();
    let server = database.open().await;
    let billed_key = billed_key(&server).await;
    let command = database.open().await;
    let is_over = Arc::new(AtomicBool::new(false));
    let mut settling = tokio::task::JoinSet::new();
    for client in 0..16 {
        let (server, is_over) = (Arc::clone(&server), Arc::clone(&is_over));
        settling.spawn(async move {
            for number in (client * 1_000_000..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                server.ledger.settle(row(number, billed_key).into()).await.unwrap();
            }
        });
    }
    for turn in 0..TURNS {
        // The server is back at full speed before the command's next write.
        let commits_before = server.ledger_commits();
        while server.ledger_commits() < commits_before + 5 {
            tokio::task::yield_now().await;
        }
        account(&command, &format!("Account {turn}")).await;
        command.close_account(&name(&format!("Account {turn}")), NOON).await.unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
    settling.join_all().await;
    server.close().await;
}

/// INSERT OR REPLACE removes a row without firing a delete trigger.
#[tokio::test]
async fn insert_or_replace_cannot_replace_invoice() {
    let database = SqliteFile::create();
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    record_million_tokens(&store, 1, billed_key, "2026-10-15").await;
    let number = issue_new(&store, billed_key.0, "2026-10", "2026-11-02").await;
    database
        .raw("INSERT INTO account_events (kind, detail, at_ms) VALUES ('make', 'made it', 1)")
        .await
        .unwrap();
    let (before, bytes) =
        (read_invoice(&store, number).await, store.issued_invoices.issued_document(number).await.unwrap());
    let unchangeable = "issued invoices cannot be changed";
    for (sql, expected) in [
        ("INSERT OR REPLACE INTO invoices SELECT * FROM invoices", unchangeable),
        // Two triggers reject this, and SQLite does not define which comes first.
        ("INSERT OR REPLACE INTO invoice_lines SELECT * FROM invoice_lines", "; issue a credit note"),
        (
            "INSERT OR REPLACE INTO invoice_documents SELECT year, serial, x'00' FROM invoice_documents",
            unchangeable,
        ),
        ("REPLACE INTO invoice_events SELECT * FROM invoice_events", unchangeable),
        (
            "REPLACE INTO billing_months (account_id, month) SELECT account_id, month FROM billing_months",
            "billing months with usage cannot be deleted",
        ),
        (
            "INSERT OR REPLACE INTO invoice_events (year, serial, kind, at_ms) VALUES (2026, 1, 'issued', 0)",
            unchangeable,
        ),
        (
            "INSERT OR REPLACE INTO invoice_serials (year, serial) VALUES (2026, 1)",
            "invoice numbers must be consecutive",
        ),
        (
            "INSERT OR REPLACE INTO account_events (id, kind, detail, at_ms) SELECT id, '', '', 0 FROM account_events",
            "the account history is append-only",
        ),
        ("UPDATE OR REPLACE invoice_lines SET position = 1 WHERE position = 0", unchangeable),
    ] {
        let error = database.raw(sql).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{sql}: {error}");
    }
    assert_eq!(read_invoice(&store, number).await, before);
    assert_eq!(store.issued_invoices.issued_document(number).await.unwrap(), bytes);
    assert_eq!(store.issued_invoices.billed_months(None, 10).await.unwrap().len(), 1);
}
