//! Conformance: of all requests under one idempotency key, at most one row reaches the ledger, and its reply is stored.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::samples::{HOSTILE_TEXTS, NOON, account, all_ledger_rows, billed_key, key, request, row};
use chancery_domain::{
    AccountId, Fingerprint, IdempotencyKey, KeyId, Randomness, SeededRandomness, UnixMillis,
};
use chancery_store::{
    ClaimOutcome, DbError, FinishedReply, IdempotencyRecord, KeyClaim, LEASE_DURATION, LedgerError,
    Settlement, Store, StoredReply,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

const LEASE_MS: i64 = LEASE_DURATION.as_millis() as i64;
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

fn name(text: &str) -> IdempotencyKey {
    text.parse().unwrap()
}

fn at(later_ms: i64) -> UnixMillis {
    UnixMillis(NOON.0 + later_ms)
}

fn claim(number: usize, account: AccountId) -> KeyClaim {
    let (key, fingerprint) = (name("order-17"), Fingerprint([7; 32]));
    KeyClaim { account, key, fingerprint, request_id: request(number), now: NOON, expires_at: at(HOUR_MS) }
}

/// The request's row, and its reply to be stored for a day.
fn settlement(number: usize, billed_key: (AccountId, KeyId), text: &str) -> Settlement {
    let (output_text, expires_at) = (text.to_owned(), at(DAY_MS));
    let stored_reply = StoredReply {
        key: name("order-17"),
        reasoning_text: format!("They want {text}"),
        output_text,
        logprobs: logprobs(number),
        reasoning_tokens: 3,
        expires_at,
    };
    Settlement { row: row(number, billed_key), is_reserved: false, stored_reply: Some(stored_reply) }
}

/// Of every second request, with bytes that are no text.
fn logprobs(number: usize) -> Option<Vec<u8>> {
    (number % 2 == 1).then(|| vec![1, 0, 0xff, number as u8])
}

fn in_progress() -> IdempotencyRecord {
    IdempotencyRecord { fingerprint: Fingerprint([7; 32]), reply: None }
}

fn finished(number: usize, billed_key: (AccountId, KeyId), text: &str) -> IdempotencyRecord {
    let reply = FinishedReply {
        row: row(number, billed_key),
        reasoning_text: format!("They want {text}"),
        output_text: text.to_owned(),
        logprobs: logprobs(number),
        reasoning_tokens: 3,
    };
    IdempotencyRecord { fingerprint: Fingerprint([7; 32]), reply: Some(reply) }
}

async fn holder(store: &Store, account: AccountId, now: UnixMillis) -> Option<IdempotencyRecord> {
    store.idempotency.idempotency_record(account, &name("order-17"), now).await.unwrap()
}

pub async fn claimed_key_stays_claimed_until_released(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (account, _) = billed_key(&store).await;
    assert_eq!(holder(&store, account, NOON).await, None);
    assert_eq!(store.idempotency.claim_key(&claim(1, account)).await.unwrap(), ClaimOutcome::Claimed);
    assert_eq!(holder(&store, account, NOON).await, Some(in_progress()));
    let other = KeyClaim { fingerprint: Fingerprint([8; 32]), ..claim(2, account) };
    assert_eq!(
        store.idempotency.claim_key(&other).await.unwrap(),
        ClaimOutcome::AlreadyClaimed(Box::new(in_progress())),
        "the first one's"
    );
    store.idempotency.release_key(&other).await.unwrap();
    assert_eq!(holder(&store, account, NOON).await, Some(in_progress()), "it was not the second's to free");
    for _ in 0..2 {
        store.idempotency.release_key(&claim(1, account)).await.unwrap();
    }
    assert_eq!(holder(&store, account, NOON).await, None);
    assert_eq!(store.idempotency.claim_key(&other).await.unwrap(), ClaimOutcome::Claimed);
}

pub async fn idempotency_keys_are_per_account(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (one, two) = (account(&store, "One").await.id, account(&store, "Two").await.id);
    assert_eq!(store.idempotency.claim_key(&claim(1, one)).await.unwrap(), ClaimOutcome::Claimed);
    assert_eq!(store.idempotency.claim_key(&claim(2, two)).await.unwrap(), ClaimOutcome::Claimed);
    let another = KeyClaim { key: name("ORDER-17"), ..claim(3, one) };
    assert_eq!(store.idempotency.claim_key(&another).await.unwrap(), ClaimOutcome::Claimed, "case counts");
    store.idempotency.release_key(&claim(1, one)).await.unwrap();
    assert_eq!(holder(&store, two, NOON).await, Some(in_progress()));
}

pub async fn settling_stores_reply_with_row(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    store.idempotency.claim_key(&claim(1, billed_key.0)).await.unwrap();
    for _ in 0..2 {
        store.ledger.settle(settlement(1, billed_key, "A ledger is a book.")).await.unwrap();
    }
    let expected = finished(1, billed_key, "A ledger is a book.");
    assert_eq!(holder(&store, billed_key.0, NOON).await, Some(expected.clone()));
    assert_eq!(
        store.idempotency.claim_key(&claim(2, billed_key.0)).await.unwrap(),
        ClaimOutcome::AlreadyClaimed(Box::new(expected.clone()))
    );
    assert_eq!(all_ledger_rows(&store).await, [row(1, billed_key)]);

    // The reply outlives its process.
    store.close().await;
    let store = database.open().await;
    assert_eq!(holder(&store, billed_key.0, at(DAY_MS - 1)).await, Some(expected));
}

pub async fn hostile_replies_round_trip(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    let long = "word ".repeat(200_000);
    let texts = HOSTILE_TEXTS.into_iter().chain(["", "a\0b", long.as_str()]);
    for (number, text) in texts.enumerate() {
        let key = name(&format!("key'\";--$1%_\\{number}"));
        store
            .idempotency
            .claim_key(&KeyClaim { key: key.clone(), ..claim(number, billed_key.0) })
            .await
            .unwrap();
        let Settlement { row, stored_reply, .. } = settlement(number, billed_key, text);
        let stored_reply = stored_reply.map(|stored_reply| StoredReply { key: key.clone(), ..stored_reply });
        store.ledger.settle(Settlement { row, is_reserved: false, stored_reply }).await.unwrap();
        let record = store.idempotency.idempotency_record(billed_key.0, &key, NOON).await.unwrap().unwrap();
        assert_eq!(record.reply.unwrap().output_text, text);
    }
}

pub async fn concurrent_claims_of_one_key_have_one_winner(database: Arc<AnyDatabase>) {
    const STORES: usize = 3;
    let stores = [database.open().await, database.open().await, database.open().await];
    let (account, _) = billed_key(&stores[0]).await;
    let mut racing = JoinSet::new();
    for number in 0..20 * STORES {
        let store = Arc::clone(&stores[number % STORES]);
        racing.spawn(async move { store.idempotency.claim_key(&claim(number, account)).await.unwrap() });
    }
    let outcomes = racing.join_all().await;
    let won = outcomes.iter().filter(|outcome| **outcome == ClaimOutcome::Claimed).count();
    let lost = outcomes
        .iter()
        .filter(|outcome| **outcome == ClaimOutcome::AlreadyClaimed(Box::new(in_progress())))
        .count();
    assert_eq!((won, lost), (1, 20 * STORES - 1));
}

pub async fn orphaned_claim_can_be_reclaimed_and_bills_once(database: Arc<AnyDatabase>) {
    let (dying, living) = (database.open().await, database.open().await);
    let billed_key = billed_key(&living).await;
    assert_eq!(dying.idempotency.claim_key(&claim(1, billed_key.0)).await.unwrap(), ClaimOutcome::Claimed);
    let again = |now| KeyClaim { now, ..claim(2, billed_key.0) };
    assert_eq!(
        living.idempotency.claim_key(&again(at(LEASE_MS - 1))).await.unwrap(),
        ClaimOutcome::AlreadyClaimed(Box::new(in_progress()))
    );
    assert_eq!(holder(&living, billed_key.0, at(LEASE_MS)).await, None);
    assert_eq!(living.idempotency.claim_key(&again(at(LEASE_MS))).await.unwrap(), ClaimOutcome::Claimed);

    // It was only presumed dead. It can neither settle nor release what another process has claimed.
    let gone = dying.ledger.settle(settlement(1, billed_key, "late")).await;
    assert!(matches!(&gone, Err(LedgerError::ClaimLost(lost)) if *lost == request(1)), "{gone:?}");
    dying.idempotency.release_key(&claim(1, billed_key.0)).await.unwrap();
    living.ledger.settle(settlement(2, billed_key, "in time")).await.unwrap();
    let gone = dying.ledger.settle(settlement(1, billed_key, "later still")).await;
    assert!(matches!(gone, Err(LedgerError::ClaimLost(_))), "{gone:?}");
    assert_eq!(holder(&living, billed_key.0, at(LEASE_MS)).await, Some(finished(2, billed_key, "in time")));
    assert_eq!(all_ledger_rows(&living).await, [row(2, billed_key)]);

    // A process that shuts down frees its claims at once.
    let ending = database.open().await;
    let third = KeyClaim { key: name("another"), now: at(LEASE_MS), ..claim(3, billed_key.0) };
    assert_eq!(ending.idempotency.claim_key(&third).await.unwrap(), ClaimOutcome::Claimed);
    ending.close().await;
    assert_eq!(
        living.idempotency.idempotency_record(billed_key.0, &third.key, third.now).await.unwrap(),
        None
    );
}

pub async fn lease_renewal_keeps_claims(database: Arc<AnyDatabase>) {
    let (working, other) = (database.open().await, database.open().await);
    let billed_key = billed_key(&other).await;
    assert_eq!(working.idempotency.claim_key(&claim(1, billed_key.0)).await.unwrap(), ClaimOutcome::Claimed);
    let mut now = NOON;
    for _ in 0..4 {
        now = UnixMillis(now.0 + LEASE_MS * 2 / 3);
        working.leases.renew_lease(now).await.unwrap();
        let late = KeyClaim { now, ..claim(2, billed_key.0) };
        assert_eq!(
            other.idempotency.claim_key(&late).await.unwrap(),
            ClaimOutcome::AlreadyClaimed(Box::new(in_progress()))
        );
    }
    working.ledger.settle(settlement(1, billed_key, "done")).await.unwrap();
}

pub async fn lost_claim_fails_only_its_own_row(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    let mut settling = JoinSet::new();
    for number in 0..40 {
        let store = Arc::clone(&store);
        settling.spawn(async move {
            let key = name(&format!("key-{number}"));
            // Every fifth request never claimed its key, and every other one has no reply to store.
            let Settlement { row, stored_reply, .. } = settlement(number, billed_key, "text");
            let stored_reply = (number % 2 == 0)
                .then_some(stored_reply.unwrap())
                .map(|stored_reply| StoredReply { key: key.clone(), ..stored_reply });
            if number % 5 != 0 {
                store.idempotency.claim_key(&KeyClaim { key, ..claim(number, billed_key.0) }).await.unwrap();
            }
            (number, store.ledger.settle(Settlement { row, is_reserved: false, stored_reply }).await)
        });
    }
    for (number, outcome) in settling.join_all().await {
        let is_rejected = number % 2 == 0 && number % 5 == 0;
        assert_eq!(matches!(outcome, Err(LedgerError::ClaimLost(_))), is_rejected, "{number}: {outcome:?}");
        assert_eq!(outcome.is_ok(), !is_rejected);
    }
    assert_eq!(all_ledger_rows(&store).await.len(), 36);
    assert_eq!(store.stored_replies.finished_keys(None, 100).await.unwrap().len(), 16);
}

pub async fn releasing_key_keeps_finished_reply(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    store.idempotency.claim_key(&claim(1, billed_key.0)).await.unwrap();
    store.ledger.settle(settlement(1, billed_key, "kept")).await.unwrap();
    // As after a commit whose response was lost.
    store.idempotency.release_key(&claim(1, billed_key.0)).await.unwrap();
    assert_eq!(holder(&store, billed_key.0, NOON).await, Some(finished(1, billed_key, "kept")));
}

pub async fn expired_key_is_free(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    store.idempotency.claim_key(&claim(1, billed_key.0)).await.unwrap();
    store.ledger.settle(settlement(1, billed_key, "old")).await.unwrap();
    assert_eq!(holder(&store, billed_key.0, at(DAY_MS - 1)).await, Some(finished(1, billed_key, "old")));
    assert_eq!(holder(&store, billed_key.0, at(DAY_MS)).await, None);
    let again = KeyClaim { now: at(DAY_MS), expires_at: at(DAY_MS + HOUR_MS), ..claim(2, billed_key.0) };
    assert_eq!(store.idempotency.claim_key(&again).await.unwrap(), ClaimOutcome::Claimed);
    assert_eq!(holder(&store, billed_key.0, at(DAY_MS)).await, Some(in_progress()));

    // So is the key of a request that exceeds the maximum duration, although its process is alive.
    let late = at(DAY_MS + HOUR_MS);
    store.leases.renew_lease(late).await.unwrap();
    assert_eq!(holder(&store, billed_key.0, late).await, None);
}

pub async fn expired_keys_are_deleted_in_batches(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    for number in 0..7 {
        let key = name(&format!("key-{number}"));
        store
            .idempotency
            .claim_key(&KeyClaim { key: key.clone(), ..claim(number, billed_key.0) })
            .await
            .unwrap();
        let Settlement { row, stored_reply, .. } = settlement(number, billed_key, "text");
        let stored_reply = stored_reply.map(|stored_reply| StoredReply { key, ..stored_reply });
        store.ledger.settle(Settlement { row, is_reserved: false, stored_reply }).await.unwrap();
    }
    let running = KeyClaim { expires_at: at(2 * DAY_MS), ..claim(9, billed_key.0) };
    store.idempotency.claim_key(&running).await.unwrap();
    assert_eq!(store.idempotency.delete_expired_keys(at(DAY_MS - 1), 100).await.unwrap(), 0);
    for expected in [3, 3, 1, 0] {
        assert_eq!(store.idempotency.delete_expired_keys(at(DAY_MS), 3).await.unwrap(), expected);
    }
    assert_eq!(store.stored_replies.finished_keys(None, 100).await.unwrap(), []);
    assert_eq!(all_ledger_rows(&store).await.len(), 7, "the bill stays");
    let Settlement { row, stored_reply, .. } = settlement(9, billed_key, "still running");
    store.ledger.settle(Settlement { row, is_reserved: false, stored_reply }).await.unwrap();
}

/// Requests under one key on three nodes. Because their clocks disagree, some are presumed dead while they work. In every
/// case one of them is billed, and its reply is the stored one.
pub async fn one_key_bills_at_most_once_despite_crashes(database: Arc<AnyDatabase>) {
    const STORES: usize = 3;
    let stores = [database.open().await, database.open().await, database.open().await];
    let billed_key = billed_key(&stores[0]).await;
    for round in 0..5_usize {
        let key = name(&format!("round-{round}"));
        let mut working = JoinSet::new();
        for worker in 0..4 * STORES {
            let (store, key) = (Arc::clone(&stores[worker % STORES]), key.clone());
            working.spawn(async move {
                let randomness = SeededRandomness::new((round * 100 + worker) as u64);
                let draw = |below: u64| randomness.next_u64() % below;
                for turn in 0..10 {
                    let number = (round * 100 + worker) * 100 + turn;
                    let now = at(draw(3) as i64 * LEASE_MS);
                    let claim = KeyClaim { key: key.clone(), now, ..claim(number, billed_key.0) };
                    match store.idempotency.claim_key(&claim).await {
                        Ok(ClaimOutcome::Claimed) => {}
                        // With such clocks the key changes hands so often that a claim may give up.
                        Ok(ClaimOutcome::AlreadyClaimed(_)) | Err(DbError::Unavailable(_)) => continue,
                        Err(error) => panic!("{error}"),
                    }
                    tokio::time::sleep(Duration::from_millis(draw(3))).await;
                    if draw(3) == 0 {
                        store.idempotency.release_key(&claim).await.unwrap();
                        continue;
                    }
                    let Settlement { row, stored_reply, .. } =
                        settlement(number, billed_key, &number.to_string());
                    let stored_reply =
                        stored_reply.map(|stored_reply| StoredReply { key: key.clone(), ..stored_reply });
                    match store.ledger.settle(Settlement { row, is_reserved: false, stored_reply }).await {
                        Ok(()) | Err(LedgerError::ClaimLost(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        working.join_all().await;
        // If all of them were presumed dead in turn, one more request is not.
        if all_ledger_rows(&stores[0]).await.len() == round {
            let number = (round * 100 + 99) * 100;
            let claim = KeyClaim { key: key.clone(), now: at(100 * LEASE_MS), ..claim(number, billed_key.0) };
            assert!(matches!(stores[0].idempotency.claim_key(&claim).await, Ok(ClaimOutcome::Claimed)));
            let Settlement { row, stored_reply, .. } = settlement(number, billed_key, &number.to_string());
            let stored_reply =
                stored_reply.map(|stored_reply| StoredReply { key: key.clone(), ..stored_reply });
            stores[0].ledger.settle(Settlement { row, is_reserved: false, stored_reply }).await.unwrap();
        }
        let rows = all_ledger_rows(&stores[0]).await;
        assert_eq!(rows.len(), round + 1);
        let reply = stores[1]
            .idempotency
            .idempotency_record(billed_key.0, &key, NOON)
            .await
            .unwrap()
            .unwrap()
            .reply
            .unwrap();
        assert_eq!(reply.row.request_id, request(reply.output_text.parse().unwrap()));
        assert!(rows.contains(&reply.row));
    }
}

pub async fn finished_keys_page_with_billed_account(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let mut expected = Vec::new();
    for (index, text) in ["One", "Two"].into_iter().enumerate() {
        let billed_key = (account(&store, text).await.id, key(&store, None).await.id);
        for number in 0..3 {
            let key = name(&format!("key-{number}"));
            let number = index * 10 + number;
            store
                .idempotency
                .claim_key(&KeyClaim { key: key.clone(), ..claim(number, billed_key.0) })
                .await
                .unwrap();
            let Settlement { row, stored_reply, .. } = settlement(number, billed_key, "text");
            let stored_reply =
                stored_reply.map(|stored_reply| StoredReply { key: key.clone(), ..stored_reply });
            store.ledger.settle(Settlement { row, is_reserved: false, stored_reply }).await.unwrap();
            expected.push((billed_key.0, key, request(number), Some(billed_key.0)));
        }
        // A running request has no row to compare with.
        store.idempotency.claim_key(&claim(index * 10 + 9, billed_key.0)).await.unwrap();
    }
    let (mut found, mut last) = (Vec::new(), None);
    loop {
        let page = store.stored_replies.finished_keys(last.as_ref(), 2).await.unwrap();
        let Some(end) = page.last() else { break };
        last = Some(end.clone());
        found.extend(page.into_iter().map(|stored_reply| {
            (stored_reply.account, stored_reply.key, stored_reply.request_id, stored_reply.billed_account)
        }));
    }
    assert_eq!(found, expected);
}

pub async fn stored_reply_without_ledger_row_is_an_error(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    store.idempotency.claim_key(&claim(1, billed_key.0)).await.unwrap();
    store.ledger.settle(settlement(1, billed_key, "text")).await.unwrap();
    database.raw("UPDATE idempotency_keys SET request_id = 'req_forged'").await.unwrap();
    let error =
        store.idempotency.idempotency_record(billed_key.0, &name("order-17"), NOON).await.unwrap_err();
    assert!(matches!(error, DbError::Corrupt { .. }), "{error:?}");
    assert!(error.to_string().contains("req_forged"), "{error}");
    assert_eq!(store.stored_replies.finished_keys(None, 10).await.unwrap()[0].billed_account, None);
}
