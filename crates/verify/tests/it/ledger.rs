//! What `verify_ledger` finds when somebody changes the ledger behind Chancery's back, on both databases.

use crate::databases::{Database, Kind};
use chancery_domain::{
    AccountId, ApiKey, Fingerprint, HowEnded, IdempotencyKey, KeyId, Nanos, OsRandomness, Prices, RateLimits,
    RequestId, TokenPrice, UnixMillis, UsageRow,
};
use chancery_store::{Claim, Claimed, KeptReply, NewAccount, NewKey, Settlement, Store};
use chancery_verify::{LedgerVerification, verify_ledger};
use std::sync::Arc;

const NOON: i64 = 1_794_744_000_000;

fn row(number: i64, (account, key): (AccountId, KeyId)) -> UsageRow {
    UsageRow {
        request_id: RequestId::from_stored(format!("req_{number:03}")),
        account,
        key,
        model: "m".to_owned(),
        input_tokens: 10,
        output_tokens: 5,
        prices: Prices {
            input: TokenPrice::from_nanos_per_token(100),
            output: TokenPrice::from_nanos_per_token(400),
        },
        cost: Nanos(10 * 100 + 5 * 400),
        at: UnixMillis(NOON),
        ended: HowEnded::Complete,
    }
}

/// Two processes' ledgers: rows 0 to 19 by one, rows 20 to 24 by the other.
async fn ledger(database: &Database) -> (AccountId, KeyId) {
    let store = Arc::new(Store::open(&database.url()).await.unwrap());
    let limits = RateLimits { requests_per_min: 1, tokens_per_min: 1 };
    let new = NewAccount { name: "A".parse().unwrap(), limits, created_at: UnixMillis(0) };
    let account = store.create_account(new).await.unwrap().id;
    let (key, created_at) = (ApiKey::generate(&OsRandomness), UnixMillis(0));
    let (prefix, hash, label) = (key.prefix(), key.hash(), String::new());
    let new = NewKey { prefix, hash, label, account: Some(account), created_at };
    let key = store.create_key(new).await.unwrap().id;
    settle(&store, 0..20, (account, key)).await;
    store.close().await;
    let store = Arc::new(Store::open(&database.url()).await.unwrap());
    settle(&store, 20..25, (account, key)).await;
    store.close().await;
    (account, key)
}

async fn settle(store: &Arc<Store>, numbers: std::ops::Range<i64>, payer: (AccountId, KeyId)) {
    for number in numbers {
        let row = row(number, payer);
        let kept = match number % 5 {
            0 => Some(kept_reply(store, &row).await),
            _ => None,
        };
        store.ledger.settle(Settlement { row, is_reserved: false, kept }).await.unwrap();
    }
}

/// What is to be kept of a request's reply, once its key is claimed.
async fn kept_reply(store: &Arc<Store>, row: &UsageRow) -> KeptReply {
    let key: IdempotencyKey = format!("key-{}", row.request_id).parse().unwrap();
    let (now, expires_at) = (UnixMillis(NOON), UnixMillis(NOON + 3_600_000));
    let fingerprint = Fingerprint::of("/v1/generate", b"{}");
    let (account, request_id) = (row.account, row.request_id.clone());
    let claim = Claim { account, key: key.clone(), fingerprint, request_id, now, expires_at };
    assert_eq!(store.idempotency.claim_key(&claim).await.unwrap(), Claimed::Yes);
    KeptReply { key, output_text: "A ledger is a book.".to_owned(), cached_tokens: 0, expires_at }
}

async fn verified(database: &Database) -> LedgerVerification {
    let store = Arc::new(Store::open(&database.url()).await.unwrap());
    let found = verify_ledger(&store.verify(), |_| {}).await.unwrap();
    store.close().await;
    found
}

/// Makes the ledger, changes it, and gives what is found then. Every change must be found on a ledger that was sound.
async fn findings_after(kind: Kind, change: &str) -> Vec<String> {
    let database = Database::create(kind).await;
    ledger(&database).await;
    let sound = verified(&database).await;
    assert_eq!((sound.findings.told, sound.total.requests, sound.chains.len()), (vec![], 25, 2));
    database.change_behind_the_back(change).await;
    verified(&database).await.findings.told
}

/// One request less in the sums: what a careful forger changes along with a row that is taken away.
const ONE_LESS: &str = "UPDATE usage_days SET requests = requests - 1, input_tokens = input_tokens - 10, \
    output_tokens = output_tokens - 5, cost_nanos = cost_nanos - 3000;";

/// The writer of a row, for statements about its chain.
fn writer_of(request: &str) -> String {
    format!("(SELECT writer_id FROM ledger WHERE request_id = '{request}')")
}

async fn is_found(change: &str, expected: &[&str]) {
    for kind in [Kind::Sqlite, Kind::Postgres] {
        let found = findings_after(kind, change).await;
        let first = found.first().unwrap_or_else(|| panic!("{kind:?}: nothing was found after {change}"));
        assert!(expected.iter().all(|text| first.contains(text)), "{kind:?}: {found:#?}");
    }
}

#[tokio::test]
async fn a_row_whose_tokens_and_cost_were_changed_is_named() {
    let change = "UPDATE ledger SET output_tokens = 4, cost_nanos = cost_nanos - 400 WHERE request_id = 'req_007'; \
        UPDATE usage_days SET output_tokens = output_tokens - 1, cost_nanos = cost_nanos - 400";
    is_found(change, &["ledger row req_007", "not what was written as number 7"]).await;
}

#[tokio::test]
async fn a_row_given_another_time_or_ending_is_named() {
    is_found("UPDATE ledger SET at_ms = at_ms + 1 WHERE request_id = 'req_000'", &["ledger row req_000"])
        .await;
    is_found("UPDATE ledger SET ended = 'cancelled' WHERE request_id = 'req_024'", &["ledger row req_024"])
        .await;
}

#[tokio::test]
async fn a_row_that_was_removed_is_missed_where_it_was() {
    let change = format!("DELETE FROM ledger WHERE request_id = 'req_007'; {ONE_LESS}");
    is_found(&change, &["ledger row req_008", "number 7 is missing"]).await;
    let change = format!("DELETE FROM ledger WHERE request_id = 'req_000'; {ONE_LESS}");
    is_found(&change, &["ledger row req_001", "number 0 is missing"]).await;
}

#[tokio::test]
async fn a_row_that_was_removed_at_the_end_is_missed() {
    let change = format!("DELETE FROM ledger WHERE request_id = 'req_019'; {ONE_LESS}");
    is_found(&change, &["wrote 20 rows", "the last one there is req_018"]).await;
}

#[tokio::test]
async fn a_chain_cut_off_together_with_its_end_is_missed_in_the_sums() {
    let last_but_one = "(SELECT hash FROM ledger WHERE request_id = 'req_018')";
    let change = format!(
        "UPDATE ledger_writers SET row_count = 19, head = {last_but_one} WHERE id = {}; \
         DELETE FROM ledger WHERE request_id = 'req_019'",
        writer_of("req_019")
    );
    is_found(&change, &["usage of 2026-11-15", "25 requests", "the rows make 24 requests"]).await;
}

#[tokio::test]
async fn a_whole_chain_that_was_removed_is_missed_in_the_sums() {
    let change = format!(
        "DELETE FROM ledger_writers WHERE id = {}; DELETE FROM ledger WHERE request_id >= 'req_020'",
        writer_of("req_020")
    );
    is_found(&change, &["usage of 2026-11-15", "the rows make 20 requests"]).await;
}

/// A row like `req_003`, under another name and place, with a hash that some other row has.
fn insert(request: &str, writer: &str, place: &str) -> String {
    format!(
        "INSERT INTO ledger (request_id, account_id, key_id, model, input_tokens, output_tokens, \
         input_price_nanos, output_price_nanos, cost_nanos, at_ms, ended, writer_id, place, hash) \
         SELECT '{request}', account_id, key_id, model, 0, 0, 1, 2, 0, at_ms, ended, {writer}, {place}, hash \
         FROM ledger WHERE request_id = 'req_003'; UPDATE usage_days SET requests = requests + 1"
    )
}

#[tokio::test]
async fn a_row_that_was_added_is_named() {
    is_found(&insert("req_x", &writer_of("req_019"), "20"), &["ledger row req_x", "number 20"]).await;
    is_found(&insert("req_x", "777", "0"), &["ledger row req_x"]).await;
    let found = findings_after(Kind::Postgres, &insert("req_x", &writer_of("req_019"), "7")).await;
    assert!(found[0].contains("ledger row req_x: another row is number 7"), "{found:#?}");
}

#[tokio::test]
async fn rows_that_changed_places_are_named() {
    let swap = "UPDATE ledger SET place = 100 WHERE request_id = 'req_004'; \
        UPDATE ledger SET place = 4 WHERE request_id = 'req_009'; \
        UPDATE ledger SET place = 9 WHERE request_id = 'req_004'";
    is_found(swap, &["ledger row req_009", "number 4"]).await;
    // The hashes go along with the places: what stands there is still not what was written there.
    let swap_hashes = "UPDATE ledger SET hash = (SELECT hash FROM ledger WHERE request_id = 'req_005') WHERE request_id = 'req_004'";
    is_found(swap_hashes, &["ledger row req_004"]).await;
}

#[tokio::test]
async fn a_row_moved_to_another_chain_is_named() {
    let change = format!(
        "UPDATE ledger SET place = 5, writer_id = {} WHERE request_id = 'req_019'",
        writer_of("req_024")
    );
    for kind in [Kind::Sqlite, Kind::Postgres] {
        let found = findings_after(kind, &change).await.join("\n");
        assert!(found.contains("ledger row req_019") && found.contains("wrote 20 rows"), "{found}");
    }
}

#[tokio::test]
async fn an_end_or_a_sum_that_was_changed_is_named() {
    let other = "(SELECT hash FROM ledger WHERE request_id = 'req_003')";
    let change = format!("UPDATE ledger_writers SET head = {other} WHERE id = {}", writer_of("req_019"));
    is_found(&change, &["ledger row req_019", "not the one that writer"]).await;
    let change = "UPDATE usage_days SET cost_nanos = cost_nanos - 1";
    is_found(change, &["usage of 2026-11-15", "the rows make"]).await;
    is_found("DELETE FROM usage_days", &["0 requests", "the rows make 25 requests"]).await;
    is_found(&format!("DELETE FROM ledger_writers WHERE id = {}", writer_of("req_024")), &["no such writer"])
        .await;
}

#[tokio::test]
async fn a_kept_reply_that_lost_its_row_or_changed_its_account_is_named() {
    let change = "UPDATE idempotency_keys SET request_id = 'req_x' WHERE request_id = 'req_005'";
    is_found(change, &["reply of req_x", "no ledger row"]).await;
    let change = "UPDATE idempotency_keys SET account_id = 777 WHERE request_id = 'req_005'";
    is_found(change, &["reply of req_005, kept for account 777", "its ledger row bills account"]).await;
}

/// The rows go in while the ledger is read over and over, and no reading finds anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_that_is_being_written_is_sound_at_every_moment() {
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
            assert_eq!(found.findings.told, Vec::<String>::new(), "{kind:?}, reading {readings}");
            readings += 1;
        }
        writing.await.unwrap();
        assert!(readings > 0);
        assert_eq!(verify_ledger(&store.verify(), |_| {}).await.unwrap().total.requests, 1425);
        store.close().await;
    }
}
