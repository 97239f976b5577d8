//! What only a file can show: modes, missing folders, foreign and broken files, and the lock between processes.

use crate::billing::{issue_new, read_invoice, use_a_million};
use crate::databases::{SqliteFile, TestDatabase};
use crate::samples::{NOON, account, insert_row, name, new_account, payer, row, whole_ledger};
use chancery_store::{DatabaseUrl, DbError, LedgerError, OpenError, Store};
use sqlx::Connection;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

async fn refusal(file: &Path) -> OpenError {
    match Store::open_file(file).await {
        Ok(_) => panic!("{} was opened", file.display()),
        Err(error) => error,
    }
}

async fn refusal_to_look(file: &Path) -> OpenError {
    match Store::open_existing(&DatabaseUrl::sqlite_file(file)).await {
        Ok(_) => panic!("{} was opened", file.display()),
        Err(error) => error,
    }
}

#[cfg(unix)]
#[tokio::test]
async fn only_the_owner_may_read_the_files() {
    use std::os::unix::fs::PermissionsExt;
    let database = SqliteFile::create().await;
    let store = database.open().await;
    account(&store, "Hale & Ward").await;
    let mut files = 0;
    for entry in std::fs::read_dir(database.folder.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
        files += 1;
    }
    assert_eq!(files, 3, "the database, its log and the log's index");
}

#[tokio::test]
async fn a_path_with_odd_characters_is_taken_as_it_stands() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("büro süd?mode=ro#1 %41.db");
    let url: DatabaseUrl = format!("sqlite:{}", file.display()).parse().unwrap();
    let store = Arc::new(Store::open(&url).await.unwrap());
    store.create_account(new_account("Hale & Ward")).await.unwrap();
    store.close().await;
    assert!(file.is_file());
}

#[tokio::test]
async fn a_missing_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let error = refusal(&missing.join("chancery.db")).await;
    assert!(error.to_string().contains(&missing.display().to_string()), "{error}");
    assert!(matches!(error, OpenError::NoFolder { .. }));
    assert!(!missing.exists());
}

#[tokio::test]
async fn a_folder_that_is_a_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("data");
    std::fs::write(&file, "not a folder").unwrap();
    let error = refusal(&file.join("chancery.db")).await;
    assert!(matches!(error, OpenError::NoFolder { folder } if folder == file));
}

#[tokio::test]
async fn a_folder_in_the_files_place_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = refusal(folder.path()).await;
    assert!(error.to_string().contains(&folder.path().display().to_string()), "{error}");
    assert!(matches!(error, OpenError::CannotOpen { .. }));
}

#[tokio::test]
async fn a_file_that_is_not_a_database_is_named_and_left_alone() {
    let database = SqliteFile::create().await;
    let text = "Minutes of the meeting of 15 November. ".repeat(100);
    std::fs::write(database.path(), &text).unwrap();
    let error = refusal(&database.path()).await;
    assert!(error.to_string().contains("is not a database"), "{error}");
    assert!(matches!(error, OpenError::NotADatabase { file } if file == database.path()));
    assert_eq!(std::fs::read_to_string(database.path()).unwrap(), text);
}

#[tokio::test]
async fn a_broken_database_is_an_error_that_says_so() {
    let database = SqliteFile::create().await;
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
async fn looking_leaves_the_folder_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let text_file = folder.path().join("minutes.txt");
    std::fs::write(&text_file, "Minutes of the meeting").unwrap();
    for file in
        [folder.path().join("chancery.db"), missing.join("chancery.db"), text_file.join("chancery.db")]
    {
        let error = refusal_to_look(&file).await;
        assert!(
            matches!(&error, OpenError::NoDatabase { place } if *place == file.display().to_string()),
            "{error:?}"
        );
    }
    assert!(matches!(refusal_to_look(&text_file).await, OpenError::NotADatabase { .. }));
    assert!(matches!(refusal_to_look(folder.path()).await, OpenError::CannotOpen { .. }));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "only the text file is there");

    let empty = folder.path().join("empty.db");
    std::fs::write(&empty, "").unwrap();
    assert!(matches!(refusal_to_look(&empty).await, OpenError::NoDatabase { .. }));
    assert_eq!(std::fs::metadata(&empty).unwrap().len(), 0, "it is still empty");
}

#[tokio::test]
async fn looking_at_another_programs_file_changes_no_byte_of_it() {
    let database = SqliteFile::create().await;
    database.raw("CREATE TABLE theirs (a INTEGER)").await.unwrap();
    let before = std::fs::read(database.path()).unwrap();
    assert!(matches!(refusal_to_look(&database.path()).await, OpenError::NoDatabase { .. }));
    assert_eq!(std::fs::read(database.path()).unwrap(), before);
}

#[tokio::test]
async fn a_row_whose_text_is_not_utf_8_names_its_request() {
    let database = SqliteFile::create().await;
    let store = database.open().await;
    let (account, key) = payer(&store).await;
    let values =
        format!("'req_odd', {account}, {key}, CAST(x'ff' AS TEXT), 1, 0, 1, 1, 1, 1, 'complete', 1, 0");
    database.raw(&insert_row::<SqliteFile>(&values)).await.unwrap();
    let error = store.ledger_chains.ledger_rows(None, 1).await.unwrap_err();
    assert!(matches!(error, DbError::Corrupt { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("req_odd") && text.contains("model"), "{text}");
}

#[tokio::test]
async fn a_row_cannot_be_replaced_either() {
    let database = SqliteFile::create().await;
    let store = database.open().await;
    let row = row(1, payer(&store).await);
    store.ledger.settle(row.clone().into()).await.unwrap();
    let (account, key, request) = (row.account, row.key, &row.request_id);
    let writer = store.ledger_chains.writer_after(None).await.unwrap().unwrap();
    // Both the request and the place in the chain are taken.
    for (request, writer, place) in [(request.as_str(), 1, 0), ("req_other", writer.0, 0)] {
        let values =
            format!("'{request}', {account}, {key}, 'm', 0, 0, 0, 0, 0, 0, 'complete', {writer}, {place}");
        let replace = insert_row::<SqliteFile>(&values).replace("INSERT", "INSERT OR REPLACE");
        let _ = database.raw(&replace).await;
        assert_eq!(whole_ledger(&store).await, std::slice::from_ref(&row));
    }
}

#[tokio::test]
async fn writes_wait_for_another_process_and_then_happen() {
    let database = SqliteFile::create().await;
    let store = database.open().await;
    let payer = payer(&store).await;
    let mut other = database.connect().await;
    let lock = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let settling = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.ledger.settle(row(1, payer).into()).await }
    });
    // Reading goes on meanwhile, and sees the row only once it is committed.
    for _ in 0..20 {
        assert!(whole_ledger(&store).await.is_empty());
    }
    lock.rollback().await.unwrap();
    settling.await.unwrap().unwrap();
    assert_eq!(whole_ledger(&store).await.len(), 1);
}

#[tokio::test]
async fn opening_waits_while_another_process_sets_the_file_up() {
    let database = SqliteFile::create().await;
    let mut other = database.connect().await;
    // On a file that is not in WAL mode yet, SQLite answers "locked" to this without waiting.
    let lock = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let mut opening = tokio::spawn({
        let file = database.path();
        async move { Store::open_file(&file).await }
    });
    let early = tokio::time::timeout(Duration::from_millis(200), &mut opening).await;
    assert!(early.is_err(), "it neither failed nor went ahead");
    lock.rollback().await.unwrap();
    account(&opening.await.unwrap().unwrap(), "Hale & Ward").await;
}

#[tokio::test]
async fn a_lock_that_is_never_released_is_an_error_and_no_write() {
    let database = SqliteFile::create().await;
    let store = database.open().await;
    let payer = payer(&store).await;
    let mut other = database.connect().await;
    let lock = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let error = store.ledger.settle(row(1, payer).into()).await.unwrap_err();
    assert!(
        matches!(&error, LedgerError::Database(DbError::Unavailable(why)) if why.contains("another process")),
        "{error:?}"
    );
    lock.rollback().await.unwrap();
    assert!(whole_ledger(&store).await.is_empty());
    store.ledger.settle(row(1, payer).into()).await.unwrap();
}

#[tokio::test]
async fn a_command_waits_longer_for_its_turn_than_a_settlement() {
    let database = SqliteFile::create().await;
    let store = database.open().await;
    let payer = payer(&store).await;
    let mut other = database.connect().await;
    let lock = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let command = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.create_account(new_account("Late")).await }
    });
    // Settling gives up first, and is not kept from trying by the command that waits beside it.
    for _ in 0..2 {
        store.ledger.settle(row(1, payer).into()).await.unwrap_err();
        assert!(!command.is_finished(), "the command waits on");
    }
    lock.rollback().await.unwrap();
    command.await.unwrap().unwrap();
}

/// The command's turns are not timed: a slow disk makes each of them slow. Without turns it would give up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_gets_its_turn_while_a_server_settles_without_pause() {
    const TURNS: usize = 5;
    let database = SqliteFile::create().await;
    let server = database.open().await;
    let payer = payer(&server).await;
    let command = database.open().await;
    let is_over = Arc::new(AtomicBool::new(false));
    let mut settling = tokio::task::JoinSet::new();
    for client in 0..16 {
        let (server, is_over) = (Arc::clone(&server), Arc::clone(&is_over));
        settling.spawn(async move {
            for number in (client * 1_000_000..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                server.ledger.settle(row(number, payer).into()).await.unwrap();
            }
        });
    }
    for turn in 0..TURNS {
        // The server is back at full pace before the command asks again.
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

/// SQLite's way to remove a row without a trigger that sees it go.
#[tokio::test]
async fn an_invoice_cannot_be_replaced() {
    let database = SqliteFile::create().await;
    let store = database.open().await;
    let payer = payer(&store).await;
    use_a_million(&store, 1, payer, "2026-10-15").await;
    let number = issue_new(&store, payer.0, "2026-10", "2026-11-02").await;
    database
        .raw("INSERT INTO account_events (deed, detail, at_ms) VALUES ('make', 'made it', 1)")
        .await
        .unwrap();
    let (before, bytes) =
        (read_invoice(&store, number).await, store.issued_invoices.issued_document(number).await.unwrap());
    for sql in [
        "INSERT OR REPLACE INTO invoices SELECT * FROM invoices",
        "INSERT OR REPLACE INTO invoice_lines SELECT * FROM invoice_lines",
        "INSERT OR REPLACE INTO invoice_documents SELECT year, serial, x'00' FROM invoice_documents",
        "REPLACE INTO invoice_events SELECT * FROM invoice_events",
        "REPLACE INTO account_months (account_id, month) SELECT account_id, month FROM account_months",
        "INSERT OR REPLACE INTO invoice_events (year, serial, deed, at_ms) VALUES (2026, 1, 'issued', 0)",
        "INSERT OR REPLACE INTO invoice_serials (year, serial) VALUES (2026, 1)",
        "INSERT OR REPLACE INTO account_events (id, deed, detail, at_ms) SELECT id, '', '', 0 FROM account_events",
        "UPDATE OR REPLACE invoice_lines SET place = 1 WHERE place = 0",
    ] {
        let error = database.raw(sql).await.unwrap_err().to_string();
        assert!(error.contains("is never"), "{sql}: {error}");
    }
    assert_eq!(read_invoice(&store, number).await, before);
    assert_eq!(store.issued_invoices.issued_document(number).await.unwrap(), bytes);
    assert_eq!(store.issued_invoices.billed_months(None, 10).await.unwrap().len(), 1);
}
