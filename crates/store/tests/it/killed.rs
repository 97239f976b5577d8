//! Conformance: a process that is killed at any moment (SIGKILL) leaves every row that it was told is settled.

use crate::databases::{SqliteFile, TestDatabase, on_a_fresh};
use crate::samples::{NOON, account, key, name, request, row, whole_ledger};
use chancery_domain::RequestId;
use chancery_store::{DatabaseUrl, Store};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;

const VICTIM_URL: &str = "CHANCERY_TEST_VICTIM_URL";
const CALLERS: usize = 8;
/// More than a process settles before it is killed.
const ROWS_PER_CALLER: usize = 100_000;

/// The process that the conformance case kills is this same test, started with a URL; it then settles without end. On
/// its own it settles a little and looks whether what it told of is there.
#[tokio::test]
async fn a_process_tells_of_a_row_only_when_it_is_settled() {
    if let Ok(url) = std::env::var(VICTIM_URL) {
        settle_and_tell(&url.parse().unwrap(), ROWS_PER_CALLER).await;
        return;
    }
    on_a_fresh::<SqliteFile, _>(|database| async move {
        let store = database.open().await;
        let account = account(&store, "Hale & Ward").await.id;
        key(&store, Some(account)).await;
        settle_and_tell(&database.url(), 5).await;
        assert_eq!(whole_ledger(&store).await.len(), 5 * CALLERS);
    })
    .await;
}

async fn settle_and_tell(url: &DatabaseUrl, rows_per_caller: usize) {
    let store = Arc::new(Store::open(url).await.unwrap());
    let account = store.account_lookup.account_named(&name("Hale & Ward")).await.unwrap().id;
    let key = store.account_lookup.list_keys().await.unwrap()[0].key.id;
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let store = Arc::clone(&store);
        callers.spawn(async move {
            for number in (caller * ROWS_PER_CALLER..).take(rows_per_caller) {
                store.ledger.settle(row(number, (account, key)).into()).await.unwrap();
                // One write call per line, so that a line is never cut in two.
                std::io::stdout().write_all(format!("settled {number}\n").as_bytes()).unwrap();
            }
        });
    }
    callers.join_all().await;
}

pub async fn a_killed_process_leaves_every_settled_row_once<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let account = account(&store, "Hale & Ward").await.id;
    key(&store, Some(account)).await;
    let mut told: BTreeSet<RequestId> = BTreeSet::new();
    for round in 0..3 {
        let before = whole_ledger(&store).await.len();
        let lines_until_killed = 50 + 211 * round;
        let url = database.url_text();
        let lines = tokio::task::spawn_blocking(move || kill_after(&url, lines_until_killed)).await.unwrap();
        let new: BTreeSet<RequestId> = lines.into_iter().map(request).collect();
        assert!(new.len() >= lines_until_killed - CALLERS);
        told.extend(new);
        let stored: Vec<RequestId> =
            whole_ledger(&store).await.into_iter().map(|row| row.request_id).collect();
        let lost: Vec<_> = told.iter().filter(|request| stored.binary_search(request).is_err()).collect();
        assert!(lost.is_empty(), "round {round} lost {lost:?}");
        // At most one row per caller was settled without being told, in this round and in those before.
        assert!(
            stored.len() <= told.len() + CALLERS * (round + 1),
            "{before} before, {} after",
            stored.len()
        );
        assert!(stored.windows(2).all(|pair| pair[0] < pair[1]));
    }
    // The survivors go on as if nothing had been.
    store.revoke_key(&store.account_lookup.list_keys().await.unwrap()[0].key.prefix, NOON).await.unwrap();
    store.close().await;
}

/// Starts the child, kills it when it has told of so many rows, and returns all it told of.
pub fn kill_after(url: &str, lines: usize) -> Vec<usize> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::a_process_tells_of_a_row_only_when_it_is_settled", "--nocapture"])
        .env(VICTIM_URL, url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        // The test harness writes lines of its own before.
        if let Some(number) = line.unwrap().strip_prefix("settled ") {
            told.push(number.parse().unwrap());
        }
        if told.len() == lines {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    told
}
