//! What `verify_ledger` reports after tampering with the ledger, on both databases.

use crate::databases::{Database, Kind};
use chancery_domain::{
    AccountId, ApiKey, Fingerprint, IdempotencyKey, KeyId, KeyLimits, Nanos, OsRandomness, Prices,
    RateLimits, RequestId, StopReason, TokenPrice, UnixMillis, UsageRow,
};
use chancery_store::{ClaimOutcome, KeyClaim, NewAccount, NewKey, Settlement, Store, StoredReply};
use chancery_verify::{LedgerVerification, verify_ledger};
use std::sync::Arc;

pub const NOON: i64 = 1_794_744_000_000;

fn row(number: i64, (account, key): (AccountId, KeyId)) -> UsageRow {
    UsageRow {
        request_id: RequestId::from_stored(format!("req_{number:03}")),
        account,
        key,
        model: "m".to_owned(),
        input_tokens: 10,
        cached_input_tokens: 4,
        output_tokens: 5,
        prices: Prices {
            input: TokenPrice::from_nanos_per_token(100),
            cached_input: TokenPrice::from_nanos_per_token(25),
            output: TokenPrice::from_nanos_per_token(400),
        },
        cost: Nanos(6 * 100 + 4 * 25 + 5 * 400),
        at: UnixMillis(NOON),
        stop_reason: StopReason::Complete,
    }
}

/// A ledger with two writers: rows 0 to 19 by one, rows 20 to 24 by the other.
pub async fn ledger(database: &Database) -> (AccountId, KeyId) {
    let store = Arc::new(Store::open(&database.url()).await.unwrap());
    let limits = RateLimits { requests_per_min: 1, tokens_per_min: 1 };
    let new = NewAccount { name: "A".parse().unwrap(), limits, created_at: UnixMillis(0) };
    let account = store.create_account(new).await.unwrap().id;
    let (key, created_at) = (ApiKey::generate(&OsRandomness), UnixMillis(0));
    let (prefix, hash, label) = (key.prefix(), key.hash(), String::new());
    let new =
        NewKey { prefix, hash, label, account: Some(account), created_at, limits: KeyLimits::default() };
    let key = store.create_key(new).await.unwrap().id;
    settle(&store, 0..20, (account, key)).await;
    store.close().await;
    let store = Arc::new(Store::open(&database.url()).await.unwrap());
    settle(&store, 20..25, (account, key)).await;
    store.close().await;
    (account, key)
}

pub async fn settle(store: &Arc<Store>, numbers: std::ops::Range<i64>, payer: (AccountId, KeyId)) {
    for number in numbers {
        let row = row(number, payer);
        let stored_reply = match number % 5 {
            0 => Some(stored_reply_for(store, &row).await),
            _ => None,
        };
        store.ledger.settle(Settlement { row, is_reserved: false, stored_reply }).await.unwrap();
    }
}

/// Claims the request's idempotency key, and returns the reply to store under it.
async fn stored_reply_for(store: &Arc<Store>, row: &UsageRow) -> StoredReply {
    let key: IdempotencyKey = format!("key-{}", row.request_id).parse().unwrap();
    let (now, expires_at) = (UnixMillis(NOON), UnixMillis(NOON + 3_600_000));
    let fingerprint = Fingerprint::of("/v1/generate", b"{}");
    let (account, request_id) = (row.account, row.request_id.clone());
    let claim = KeyClaim { account, key: key.clone(), fingerprint, request_id, now, expires_at };
    assert_eq!(store.idempotency.claim_key(&claim).await.unwrap(), ClaimOutcome::Claimed);
    StoredReply {
        key,
        reasoning_text: String::new(),
        output_text: "A ledger is a book.".to_owned(),
        logprobs: None,
        reasoning_tokens: 0,
        expires_at,
    }
}

pub async fn verified(database: &Database) -> LedgerVerification {
    let store = Arc::new(Store::open(&database.url()).await.unwrap());
    let found = verify_ledger(&store.verify(), |_| {}).await.unwrap();
    store.close().await;
    found
}

/// Creates a valid ledger, applies the change, and returns the findings.
async fn findings_after(kind: Kind, change: &str) -> Vec<String> {
    let database = Database::create(kind).await;
    ledger(&database).await;
    let sound = verified(&database).await;
    assert_eq!((sound.findings.reported, sound.total.requests, sound.chains.len()), (vec![], 25, 2));
    database.tamper(change).await;
    verified(&database).await.findings.reported
}

/// One request less in the sums: what a careful forger changes along with a removed row.
pub const ONE_LESS: &str = "UPDATE daily_usage SET requests = requests - 1, input_tokens = input_tokens - 10, \
    cached_input_tokens = cached_input_tokens - 4, output_tokens = output_tokens - 5, cost_nanos = cost_nanos - 2700;";

/// SQL for the writer of a row.
pub fn writer_of(request: &str) -> String {
    format!("(SELECT writer_id FROM ledger WHERE request_id = '{request}')")
}

async fn expect_finding(change: &str, expected: &[&str]) {
    for kind in [Kind::Sqlite, Kind::Postgres] {
        let found = findings_after(kind, change).await;
        let first = found.first().unwrap_or_else(|| panic!("{kind:?}: nothing was found after {change}"));
        assert!(expected.iter().all(|text| first.contains(text)), "{kind:?}: {found:#?}");
    }
}

#[tokio::test]
async fn changed_tokens_and_cost_are_reported() {
    let change = "UPDATE ledger SET output_tokens = 4, cost_nanos = cost_nanos - 400 WHERE request_id = 'req_007'; \
        UPDATE daily_usage SET output_tokens = output_tokens - 1, cost_nanos = cost_nanos - 400";
    expect_finding(change, &["ledger row req_007", "hash mismatch at row 7 of writer"]).await;
}

/// More cached tokens make a request cheaper.
#[tokio::test]
async fn changed_cached_tokens_and_cost_are_reported() {
    let change = "UPDATE ledger SET cached_input_tokens = 8, cost_nanos = cost_nanos - 300 WHERE request_id = 'req_007'; \
        UPDATE daily_usage SET cached_input_tokens = cached_input_tokens + 4, cost_nanos = cost_nanos - 300";
    expect_finding(change, &["ledger row req_007", "hash mismatch at row 7 of writer"]).await;
    let change = "UPDATE daily_usage SET cached_input_tokens = cached_input_tokens + 1";
    expect_finding(change, &["usage of 2026-11-15", "(101 cached)", "the rows sum to", "(100 cached)"]).await;
    let change =
        "UPDATE ledger SET cached_price_nanos = 24, cost_nanos = cost_nanos - 4 WHERE request_id = 'req_007'";
    expect_finding(change, &["ledger row req_007"]).await;
}

#[tokio::test]
async fn changed_time_or_stop_reason_is_reported() {
    expect_finding(
        "UPDATE ledger SET at_ms = at_ms + 1 WHERE request_id = 'req_000'",
        &["ledger row req_000"],
    )
    .await;
    expect_finding(
        "UPDATE ledger SET stop_reason = 'cancelled' WHERE request_id = 'req_024'",
        &["ledger row req_024"],
    )
    .await;
}

#[tokio::test]
async fn removed_row_is_reported_at_its_index() {
    let change = format!("DELETE FROM ledger WHERE request_id = 'req_007'; {ONE_LESS}");
    expect_finding(&change, &["ledger row req_008", "row 7 is missing"]).await;
    let change = format!("DELETE FROM ledger WHERE request_id = 'req_000'; {ONE_LESS}");
    expect_finding(&change, &["ledger row req_001", "row 0 is missing"]).await;
}

#[tokio::test]
async fn removed_last_row_is_reported() {
    let change = format!("DELETE FROM ledger WHERE request_id = 'req_019'; {ONE_LESS}");
    expect_finding(&change, &["20 rows written", "last row found: req_018"]).await;
}

#[tokio::test]
async fn chain_truncated_with_its_head_is_found_in_the_sums() {
    let last_but_one = "(SELECT hash FROM ledger WHERE request_id = 'req_018')";
    let change = format!(
        "UPDATE ledger_writers SET row_count = 19, head = {last_but_one} WHERE id = {}; \
         DELETE FROM ledger WHERE request_id = 'req_019'",
        writer_of("req_019")
    );
    expect_finding(&change, &["usage of 2026-11-15", "25 requests", "the rows sum to 24 requests"]).await;
}

#[tokio::test]
async fn removed_chain_is_found_in_the_sums() {
    let change = format!(
        "DELETE FROM ledger_writers WHERE id = {}; DELETE FROM ledger WHERE request_id >= 'req_020'",
        writer_of("req_020")
    );
    expect_finding(&change, &["usage of 2026-11-15", "the rows sum to 20 requests"]).await;
}

/// Inserts a copy of `req_003` with another id and position, and with the same hash.
fn insert(request: &str, writer: &str, position: &str) -> String {
    format!(
        "INSERT INTO ledger (request_id, account_id, key_id, model, input_tokens, cached_input_tokens, output_tokens, \
         input_price_nanos, cached_price_nanos, output_price_nanos, cost_nanos, at_ms, stop_reason, writer_id, position, \
         hash) \
         SELECT '{request}', account_id, key_id, model, 0, 0, 0, 1, 1, 2, 0, at_ms, stop_reason, {writer}, {position}, hash \
         FROM ledger WHERE request_id = 'req_003'; UPDATE daily_usage SET requests = requests + 1"
    )
}

#[tokio::test]
async fn inserted_row_is_reported() {
    expect_finding(&insert("req_x", &writer_of("req_019"), "20"), &["ledger row req_x", "row 20 of writer"])
        .await;
    expect_finding(&insert("req_x", "777", "0"), &["ledger row req_x"]).await;
    let found = findings_after(Kind::Postgres, &insert("req_x", &writer_of("req_019"), "7")).await;
    assert!(found[0].contains("ledger row req_x: duplicate row number 7"), "{found:#?}");
}

#[tokio::test]
async fn swapped_rows_are_reported() {
    let swap = "UPDATE ledger SET position = 100 WHERE request_id = 'req_004'; \
        UPDATE ledger SET position = 4 WHERE request_id = 'req_009'; \
        UPDATE ledger SET position = 9 WHERE request_id = 'req_004'";
    expect_finding(swap, &["ledger row req_009", "row 4 of writer"]).await;
    // Another row's hash does not match the row either.
    let swap_hashes = "UPDATE ledger SET hash = (SELECT hash FROM ledger WHERE request_id = 'req_005') WHERE request_id = 'req_004'";
    expect_finding(swap_hashes, &["ledger row req_004"]).await;
}

#[tokio::test]
async fn row_moved_to_another_chain_is_reported() {
    let change = format!(
        "UPDATE ledger SET position = 5, writer_id = {} WHERE request_id = 'req_019'",
        writer_of("req_024")
    );
    for kind in [Kind::Sqlite, Kind::Postgres] {
        let found = findings_after(kind, &change).await.join("\n");
        assert!(found.contains("ledger row req_019") && found.contains("20 rows written"), "{found}");
    }
}

#[tokio::test]
async fn changed_chain_head_or_sum_is_reported() {
    let other = "(SELECT hash FROM ledger WHERE request_id = 'req_003')";
    let change = format!("UPDATE ledger_writers SET head = {other} WHERE id = {}", writer_of("req_019"));
    expect_finding(&change, &["ledger row req_019", "does not match the recorded chain head of writer"])
        .await;
    let change = "UPDATE daily_usage SET cost_nanos = cost_nanos - 1";
    expect_finding(change, &["usage of 2026-11-15", "the rows sum to"]).await;
    expect_finding("DELETE FROM daily_usage", &["0 requests", "the rows sum to 25 requests"]).await;
    expect_finding(
        &format!("DELETE FROM ledger_writers WHERE id = {}", writer_of("req_024")),
        &["unknown writer"],
    )
    .await;
}

#[tokio::test]
async fn stored_reply_without_its_row_or_account_is_reported() {
    let change = "UPDATE idempotency_keys SET request_id = 'req_x' WHERE request_id = 'req_005'";
    expect_finding(change, &["stored reply of req_x", "no ledger row"]).await;
    let change = "UPDATE idempotency_keys SET account_id = 777 WHERE request_id = 'req_005'";
    expect_finding(change, &["stored reply of req_005, account 777", "its ledger row bills account"]).await;
}

/// Verifies repeatedly while rows are being written; no run may report anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ledger_verifies_while_it_is_being_written() {
    for kind in [Kind::Sqlite, Kind::Postgres] {
        let database = Database::create(kind).await;
        let payer = ledger(&database).await;
        let store = Arc::new(Store::open(&database.url()).await.unwrap());
        let writing = tokio::spawn({
            let store = Arc::clone(&store);
            async move { settle(&store, 100..1500, payer).await }
        });
        let mut readings = 0;
        while !writing.is_finished() {
            let found = verify_ledger(&store.verify(), |_| {}).await.unwrap();
            assert_eq!(found.findings.reported, Vec::<String>::new(), "{kind:?}, reading {readings}");
            readings += 1;
        }
        writing.await.unwrap();
        assert!(readings > 0);
        assert_eq!(verify_ledger(&store.verify(), |_| {}).await.unwrap().total.requests, 1425);
        store.close().await;
    }
}
