//! Conformance: of all requests under one idempotency key, one row at most reaches the ledger, and its reply is kept.

use crate::databases::TestDatabase;
use crate::samples::{HOSTILE, NOON, account, key, payer, request, row, whole_ledger};
use chancery_domain::{
    AccountId, Fingerprint, IdempotencyKey, KeyId, Randomness, SeededRandomness, UnixMillis,
};
use chancery_store::{
    Claim, Claimed, DbError, FinishedReply, KeptReply, KeyHolder, LEASE, LedgerError, Settlement, Store,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

const LEASE_MS: i64 = LEASE.as_millis() as i64;
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

fn name(text: &str) -> IdempotencyKey {
    text.parse().unwrap()
}

fn at(later_ms: i64) -> UnixMillis {
    UnixMillis(NOON.0 + later_ms)
}

fn claim(number: usize, account: AccountId) -> Claim {
    let (key, fingerprint) = (name("order-17"), Fingerprint([7; 32]));
    Claim { account, key, fingerprint, request_id: request(number), now: NOON, expires_at: at(HOUR_MS) }
}

/// The request's row, and its reply to be kept until tomorrow.
fn settlement(number: usize, payer: (AccountId, KeyId), text: &str) -> Settlement {
    let (output_text, expires_at) = (text.to_owned(), at(DAY_MS));
    let kept = KeptReply { key: name("order-17"), output_text, cached_tokens: 16, expires_at };
    Settlement { row: row(number, payer), is_reserved: false, kept: Some(kept) }
}

fn under_way() -> KeyHolder {
    KeyHolder { fingerprint: Fingerprint([7; 32]), reply: None }
}

fn finished(number: usize, payer: (AccountId, KeyId), text: &str) -> KeyHolder {
    let reply = FinishedReply { row: row(number, payer), output_text: text.to_owned(), cached_tokens: 16 };
    KeyHolder { fingerprint: Fingerprint([7; 32]), reply: Some(reply) }
}

async fn holder(store: &Store, account: AccountId, now: UnixMillis) -> Option<KeyHolder> {
    store.idempotency.key_holder(account, &name("order-17"), now).await.unwrap()
}

pub async fn a_claimed_key_is_held_until_it_is_freed<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let (account, _) = payer(&store).await;
    assert_eq!(holder(&store, account, NOON).await, None);
    assert_eq!(store.idempotency.claim_key(&claim(1, account)).await.unwrap(), Claimed::Yes);
    assert_eq!(holder(&store, account, NOON).await, Some(under_way()));
    let other = Claim { fingerprint: Fingerprint([8; 32]), ..claim(2, account) };
    assert_eq!(
        store.idempotency.claim_key(&other).await.unwrap(),
        Claimed::HeldBy(under_way()),
        "the first one's"
    );
    store.idempotency.free_key(&other).await.unwrap();
    assert_eq!(holder(&store, account, NOON).await, Some(under_way()), "it was not the second's to free");
    for _ in 0..2 {
        store.idempotency.free_key(&claim(1, account)).await.unwrap();
    }
    assert_eq!(holder(&store, account, NOON).await, None);
    assert_eq!(store.idempotency.claim_key(&other).await.unwrap(), Claimed::Yes);
}

pub async fn a_key_is_an_accounts_own<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let (one, two) = (account(&store, "One").await.id, account(&store, "Two").await.id);
    assert_eq!(store.idempotency.claim_key(&claim(1, one)).await.unwrap(), Claimed::Yes);
    assert_eq!(store.idempotency.claim_key(&claim(2, two)).await.unwrap(), Claimed::Yes);
    let another = Claim { key: name("ORDER-17"), ..claim(3, one) };
    assert_eq!(store.idempotency.claim_key(&another).await.unwrap(), Claimed::Yes, "case counts");
    store.idempotency.free_key(&claim(1, one)).await.unwrap();
    assert_eq!(holder(&store, two, NOON).await, Some(under_way()));
}

pub async fn settling_keeps_the_reply_with_its_row<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let payer = payer(&store).await;
    store.idempotency.claim_key(&claim(1, payer.0)).await.unwrap();
    for _ in 0..2 {
        store.ledger.settle(settlement(1, payer, "A ledger is a book.")).await.unwrap();
    }
    let expected = finished(1, payer, "A ledger is a book.");
    assert_eq!(holder(&store, payer.0, NOON).await, Some(expected.clone()));
    assert_eq!(
        store.idempotency.claim_key(&claim(2, payer.0)).await.unwrap(),
        Claimed::HeldBy(expected.clone())
    );
    assert_eq!(whole_ledger(&store).await, [row(1, payer)]);

    // It outlives its process, dead or closed.
    store.close().await;
    let store = database.open().await;
    assert_eq!(holder(&store, payer.0, at(DAY_MS - 1)).await, Some(expected));
}

pub async fn hostile_texts_are_kept_unchanged<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let payer = payer(&store).await;
    let long = "word ".repeat(200_000);
    let texts = HOSTILE.into_iter().chain(["", "a\0b", long.as_str()]);
    for (number, text) in texts.enumerate() {
        let key = name(&format!("key'\";--$1%_\\{number}"));
        store.idempotency.claim_key(&Claim { key: key.clone(), ..claim(number, payer.0) }).await.unwrap();
        let Settlement { row, kept, .. } = settlement(number, payer, text);
        let kept = kept.map(|kept| KeptReply { key: key.clone(), ..kept });
        store.ledger.settle(Settlement { row, is_reserved: false, kept }).await.unwrap();
        let held = store.idempotency.key_holder(payer.0, &key, NOON).await.unwrap().unwrap();
        assert_eq!(held.reply.unwrap().output_text, text);
    }
}

pub async fn of_many_racing_to_one_key_one_wins<D: TestDatabase>(database: Arc<D>) {
    const STORES: usize = 3;
    let stores = [database.open().await, database.open().await, database.open().await];
    let (account, _) = payer(&stores[0]).await;
    let mut racing = JoinSet::new();
    for number in 0..20 * STORES {
        let store = Arc::clone(&stores[number % STORES]);
        racing.spawn(async move { store.idempotency.claim_key(&claim(number, account)).await.unwrap() });
    }
    let outcomes = racing.join_all().await;
    let won = outcomes.iter().filter(|outcome| **outcome == Claimed::Yes).count();
    let lost = outcomes.iter().filter(|outcome| **outcome == Claimed::HeldBy(under_way())).count();
    assert_eq!((won, lost), (1, 20 * STORES - 1));
}

pub async fn what_a_dead_process_had_claimed_can_be_claimed_again_and_is_billed_once<D: TestDatabase>(
    database: Arc<D>,
) {
    let (dying, living) = (database.open().await, database.open().await);
    let payer = payer(&living).await;
    assert_eq!(dying.idempotency.claim_key(&claim(1, payer.0)).await.unwrap(), Claimed::Yes);
    let again = |now| Claim { now, ..claim(2, payer.0) };
    assert_eq!(
        living.idempotency.claim_key(&again(at(LEASE_MS - 1))).await.unwrap(),
        Claimed::HeldBy(under_way())
    );
    assert_eq!(holder(&living, payer.0, at(LEASE_MS)).await, None);
    assert_eq!(living.idempotency.claim_key(&again(at(LEASE_MS))).await.unwrap(), Claimed::Yes);

    // It was only thought dead. It can neither settle nor free what is another's now.
    let gone = dying.ledger.settle(settlement(1, payer, "late")).await;
    assert!(matches!(&gone, Err(LedgerError::ClaimGone(lost)) if *lost == request(1)), "{gone:?}");
    dying.idempotency.free_key(&claim(1, payer.0)).await.unwrap();
    living.ledger.settle(settlement(2, payer, "in time")).await.unwrap();
    let gone = dying.ledger.settle(settlement(1, payer, "later still")).await;
    assert!(matches!(gone, Err(LedgerError::ClaimGone(_))), "{gone:?}");
    assert_eq!(holder(&living, payer.0, at(LEASE_MS)).await, Some(finished(2, payer, "in time")));
    assert_eq!(whole_ledger(&living).await, [row(2, payer)]);

    // A process that ends frees what it has claimed at once.
    let ending = database.open().await;
    let third = Claim { key: name("another"), now: at(LEASE_MS), ..claim(3, payer.0) };
    assert_eq!(ending.idempotency.claim_key(&third).await.unwrap(), Claimed::Yes);
    ending.close().await;
    assert_eq!(living.idempotency.key_holder(payer.0, &third.key, third.now).await.unwrap(), None);
}

pub async fn a_process_that_says_it_lives_keeps_its_claims<D: TestDatabase>(database: Arc<D>) {
    let (working, other) = (database.open().await, database.open().await);
    let payer = payer(&other).await;
    assert_eq!(working.idempotency.claim_key(&claim(1, payer.0)).await.unwrap(), Claimed::Yes);
    let mut now = NOON;
    for _ in 0..4 {
        now = UnixMillis(now.0 + LEASE_MS * 2 / 3);
        working.leases.renew_lease(now).await.unwrap();
        let late = Claim { now, ..claim(2, payer.0) };
        assert_eq!(other.idempotency.claim_key(&late).await.unwrap(), Claimed::HeldBy(under_way()));
    }
    working.ledger.settle(settlement(1, payer, "done")).await.unwrap();
}

pub async fn a_claim_that_is_gone_spoils_no_other_row<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let payer = payer(&store).await;
    let mut settling = JoinSet::new();
    for number in 0..40 {
        let store = Arc::clone(&store);
        settling.spawn(async move {
            let key = name(&format!("key-{number}"));
            // Every fifth never claimed its key, and every other claims none and has no reply to keep.
            let Settlement { row, kept, .. } = settlement(number, payer, "text");
            let kept =
                (number % 2 == 0).then_some(kept.unwrap()).map(|kept| KeptReply { key: key.clone(), ..kept });
            if number % 5 != 0 {
                store.idempotency.claim_key(&Claim { key, ..claim(number, payer.0) }).await.unwrap();
            }
            (number, store.ledger.settle(Settlement { row, is_reserved: false, kept }).await)
        });
    }
    for (number, outcome) in settling.join_all().await {
        let is_refused = number % 2 == 0 && number % 5 == 0;
        assert_eq!(matches!(outcome, Err(LedgerError::ClaimGone(_))), is_refused, "{number}: {outcome:?}");
        assert_eq!(outcome.is_ok(), !is_refused);
    }
    assert_eq!(whole_ledger(&store).await.len(), 36);
    assert_eq!(store.stored_replies.kept_keys(None, 100).await.unwrap().len(), 16);
}

pub async fn a_freed_key_does_not_take_a_finished_reply_along<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let payer = payer(&store).await;
    store.idempotency.claim_key(&claim(1, payer.0)).await.unwrap();
    store.ledger.settle(settlement(1, payer, "kept")).await.unwrap();
    // As after a commit whose answer was lost.
    store.idempotency.free_key(&claim(1, payer.0)).await.unwrap();
    assert_eq!(holder(&store, payer.0, NOON).await, Some(finished(1, payer, "kept")));
}

pub async fn an_expired_key_counts_as_absent<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let payer = payer(&store).await;
    store.idempotency.claim_key(&claim(1, payer.0)).await.unwrap();
    store.ledger.settle(settlement(1, payer, "old")).await.unwrap();
    assert_eq!(holder(&store, payer.0, at(DAY_MS - 1)).await, Some(finished(1, payer, "old")));
    assert_eq!(holder(&store, payer.0, at(DAY_MS)).await, None);
    let again = Claim { now: at(DAY_MS), expires_at: at(DAY_MS + HOUR_MS), ..claim(2, payer.0) };
    assert_eq!(store.idempotency.claim_key(&again).await.unwrap(), Claimed::Yes);
    assert_eq!(holder(&store, payer.0, at(DAY_MS)).await, Some(under_way()));

    // So does a request that takes longer than any may, though its process lives.
    let late = at(DAY_MS + HOUR_MS);
    store.leases.renew_lease(late).await.unwrap();
    assert_eq!(holder(&store, payer.0, late).await, None);
}

pub async fn expired_keys_are_forgotten_a_little_at_a_time<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let payer = payer(&store).await;
    for number in 0..7 {
        let key = name(&format!("key-{number}"));
        store.idempotency.claim_key(&Claim { key: key.clone(), ..claim(number, payer.0) }).await.unwrap();
        let Settlement { row, kept, .. } = settlement(number, payer, "text");
        let kept = kept.map(|kept| KeptReply { key, ..kept });
        store.ledger.settle(Settlement { row, is_reserved: false, kept }).await.unwrap();
    }
    let running = Claim { expires_at: at(2 * DAY_MS), ..claim(9, payer.0) };
    store.idempotency.claim_key(&running).await.unwrap();
    assert_eq!(store.idempotency.forget_expired_keys(at(DAY_MS - 1), 100).await.unwrap(), 0);
    for expected in [3, 3, 1, 0] {
        assert_eq!(store.idempotency.forget_expired_keys(at(DAY_MS), 3).await.unwrap(), expected);
    }
    assert_eq!(store.stored_replies.kept_keys(None, 100).await.unwrap(), []);
    assert_eq!(whole_ledger(&store).await.len(), 7, "the bill stays");
    let Settlement { row, kept, .. } = settlement(9, payer, "still running");
    store.ledger.settle(Settlement { row, is_reserved: false, kept }).await.unwrap();
}

/// Requests under one key on three nodes, some of which are thought dead in the middle of their work by clocks that
/// disagree: whatever happens, one of them is billed, and its reply is the one that is kept.
pub async fn under_one_key_at_most_one_row_whoever_dies<D: TestDatabase>(database: Arc<D>) {
    const STORES: usize = 3;
    let stores = [database.open().await, database.open().await, database.open().await];
    let payer = payer(&stores[0]).await;
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
                    let claim = Claim { key: key.clone(), now, ..claim(number, payer.0) };
                    match store.idempotency.claim_key(&claim).await {
                        Ok(Claimed::Yes) => {}
                        // With clocks like these the key changes hands so often that a claim may give up.
                        Ok(Claimed::HeldBy(_)) | Err(DbError::Unavailable(_)) => continue,
                        Err(error) => panic!("{error}"),
                    }
                    tokio::time::sleep(Duration::from_millis(draw(3))).await;
                    if draw(3) == 0 {
                        store.idempotency.free_key(&claim).await.unwrap();
                        continue;
                    }
                    let Settlement { row, kept, .. } = settlement(number, payer, &number.to_string());
                    let kept = kept.map(|kept| KeptReply { key: key.clone(), ..kept });
                    match store.ledger.settle(Settlement { row, is_reserved: false, kept }).await {
                        Ok(()) | Err(LedgerError::ClaimGone(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        working.join_all().await;
        // Everybody may have been thought dead in turn; then one more is not.
        if whole_ledger(&stores[0]).await.len() == round {
            let number = (round * 100 + 99) * 100;
            let claim = Claim { key: key.clone(), now: at(100 * LEASE_MS), ..claim(number, payer.0) };
            assert!(matches!(stores[0].idempotency.claim_key(&claim).await, Ok(Claimed::Yes)));
            let Settlement { row, kept, .. } = settlement(number, payer, &number.to_string());
            let kept = kept.map(|kept| KeptReply { key: key.clone(), ..kept });
            stores[0].ledger.settle(Settlement { row, is_reserved: false, kept }).await.unwrap();
        }
        let rows = whole_ledger(&stores[0]).await;
        assert_eq!(rows.len(), round + 1);
        let reply =
            stores[1].idempotency.key_holder(payer.0, &key, NOON).await.unwrap().unwrap().reply.unwrap();
        assert_eq!(reply.row.request_id, request(reply.output_text.parse().unwrap()));
        assert!(rows.contains(&reply.row));
    }
}

pub async fn kept_keys_are_paged_with_the_account_that_was_billed<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let mut expected = Vec::new();
    for (place, text) in ["One", "Two"].into_iter().enumerate() {
        let payer = (account(&store, text).await.id, key(&store, None).await.id);
        for number in 0..3 {
            let key = name(&format!("key-{number}"));
            let number = place * 10 + number;
            store.idempotency.claim_key(&Claim { key: key.clone(), ..claim(number, payer.0) }).await.unwrap();
            let Settlement { row, kept, .. } = settlement(number, payer, "text");
            let kept = kept.map(|kept| KeptReply { key: key.clone(), ..kept });
            store.ledger.settle(Settlement { row, is_reserved: false, kept }).await.unwrap();
            expected.push((payer.0, key, request(number), Some(payer.0)));
        }
        // What is under way has no row to be compared with.
        store.idempotency.claim_key(&claim(place * 10 + 9, payer.0)).await.unwrap();
    }
    let (mut found, mut last) = (Vec::new(), None);
    loop {
        let page = store.stored_replies.kept_keys(last.as_ref(), 2).await.unwrap();
        let Some(end) = page.last() else { break };
        last = Some(end.clone());
        found.extend(
            page.into_iter().map(|kept| (kept.account, kept.key, kept.request_id, kept.billed_account)),
        );
    }
    assert_eq!(found, expected);
}

pub async fn a_kept_reply_without_its_row_is_an_error<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let payer = payer(&store).await;
    store.idempotency.claim_key(&claim(1, payer.0)).await.unwrap();
    store.ledger.settle(settlement(1, payer, "text")).await.unwrap();
    database.raw("UPDATE idempotency_keys SET request_id = 'req_forged'").await.unwrap();
    let error = store.idempotency.key_holder(payer.0, &name("order-17"), NOON).await.unwrap_err();
    assert!(matches!(error, DbError::Corrupt { .. }), "{error:?}");
    assert!(error.to_string().contains("req_forged"), "{error}");
    assert_eq!(store.stored_replies.kept_keys(None, 10).await.unwrap()[0].billed_account, None);
}
