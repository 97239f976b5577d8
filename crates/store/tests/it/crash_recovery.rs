//! Conformance: a process killed at any time (SIGKILL) loses no row that was reported as settled.

use crate::databases::{AnyDatabase, SqliteFile, TestDatabase};
use crate::samples::{NOON, account, all_ledger_rows, key, name, request, row};
use chancery_domain::RequestId;
use chancery_store::{DatabaseUrl, Store};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;

const CHILD_URL: &str = "CHANCERY_TEST_VICTIM_URL";
const CALLERS: usize = 8;
/// More than a process settles before it is killed.
const ROWS_PER_CALLER: usize = 100_000;

/// The conformance case starts this test as the process to kill, with a URL. It then settles until it is killed. Run on
/// its own, it settles a few rows and checks that they are stored.
#[tokio::test]
async fn rows_are_reported_only_after_settlement() {
    if let Ok(url) = std::env::var(CHILD_URL) {
        settle_and_report(&url.parse().unwrap(), ROWS_PER_CALLER).await;
        return;
    }
    let database = Arc::new(SqliteFile::create());
    let store = database.open().await;
    let account = account(&store, "Hale & Ward").await.id;
    key(&store, Some(account)).await;
    settle_and_report(&database.url(), 5).await;
    assert_eq!(all_ledger_rows(&store).await.len(), 5 * CALLERS);
}

async fn settle_and_report(url: &DatabaseUrl, rows_per_caller: usize) {
    let store = Arc::new(Store::open(url).await.unwrap());
    let account = store.account_lookup.account_by_name(&name("Hale & Ward")).await.unwrap().id;
    let key = store.account_lookup.list_keys().await.unwrap()[0].key.id;
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let store = Arc::clone(&store);
        callers.spawn(async move {
            for number in (caller * ROWS_PER_CALLER..).take(rows_per_caller) {
                store.ledger.settle(row(number, (account, key)).into()).await.unwrap();
                // One write call per line, so that no line is split.
                std::io::stdout().write_all(format!("settled {number}\n").as_bytes()).unwrap();
            }
        });
    }
    callers.join_all().await;
}

pub async fn killed_process_keeps_each_settled_row_once(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let account = account(&store, "Hale & Ward").await.id;
    key(&store, Some(account)).await;
    let mut reported: BTreeSet<RequestId> = BTreeSet::new();
    for round in 0..3 {
        let before = all_ledger_rows(&store).await.len();
        let lines_until_killed = 50 + 211 * round;
        let url = database.url_text();
        let lines = tokio::task::spawn_blocking(move || kill_after(&url, lines_until_killed)).await.unwrap();
        let new: BTreeSet<RequestId> = lines.into_iter().map(request).collect();
        assert!(new.len() >= lines_until_killed - CALLERS);
        reported.extend(new);
        let stored: Vec<RequestId> =
            all_ledger_rows(&store).await.into_iter().map(|row| row.request_id).collect();
        let lost: Vec<_> = reported.iter().filter(|request| stored.binary_search(request).is_err()).collect();
        assert!(lost.is_empty(), "round {round} lost {lost:?}");
        // In each round, at most one row per caller was settled but not reported.
        assert!(
            stored.len() <= reported.len() + CALLERS * (round + 1),
            "{before} before, {} after",
            stored.len()
        );
        assert!(stored.windows(2).all(|pair| pair[0] < pair[1]));
    }
    // Other processes continue normally.
    store.revoke_key(&store.account_lookup.list_keys().await.unwrap()[0].key.prefix, NOON).await.unwrap();
    store.close().await;
}

/// Starts the child, kills it after it has reported `lines` rows, and returns all rows it reported.
pub fn kill_after(url: &str, lines: usize) -> Vec<usize> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash_recovery::rows_are_reported_only_after_settlement", "--nocapture"])
        .env(CHILD_URL, url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reported = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        // The test harness prints its own lines first.
        if let Some(number) = line.unwrap().strip_prefix("settled ") {
            reported.push(number.parse().unwrap());
        }
        if reported.len() == lines {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    reported
}
