//! Conformance: the limits of a key, its secrets and its last use. A key's monthly cap holds together with its account's.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::firm::{after_s, decisions, firm_permit, people};
use crate::samples::{NOON, account, key, name, new_key, request, row, with_tokens};
use chancery_domain::{
    AccountId, ApiKey, Key, KeyId, KeyLimits, KeyPrefix, LimitScope, Month, Nanos, OsRandomness, Randomness,
    SeededRandomness, UnixMillis, UsageRow,
};
use chancery_policy::ReadAccounts;
use chancery_store::{
    AccountChange, AccountError, ActivityBatch, CapChange, CapStatus, CapStatuses, KeyLimitsChange,
    KeyRotation, KeyUse, LEASE_DURATION, LimitChange, LimitsChange, NewKey, ReserveOutcome, Settlement,
    SpendingReservation, Store,
};
use std::sync::Arc;
use tokio::task::JoinSet;

fn every_limit() -> KeyLimits {
    KeyLimits {
        requests_per_min: Some(5),
        tokens_per_min: Some(6_000),
        spend_per_month: Some(Nanos(7_000_000_000)),
        models: Some("words,letters".parse().unwrap()),
        expires_at: Some(after_s(60)),
    }
}

async fn found(store: &Store, prefix: &KeyPrefix) -> Key {
    store.keys.key_by_prefix(prefix).await.unwrap().unwrap().key
}

/// A key with a cap, of an account with a cap.
async fn capped(store: &Store, account_cap: Option<i64>, key_cap: Option<i64>) -> (AccountId, KeyId) {
    let account = account(store, "One").await.id;
    if let Some(cap) = account_cap {
        let spend_per_month = CapChange::Set(Nanos(cap));
        store
            .set_limits(&name("One"), LimitsChange { spend_per_month, ..LimitsChange::default() })
            .await
            .unwrap();
    }
    (account, capped_key(store, account, key_cap).await)
}

async fn capped_key(store: &Store, account: AccountId, cap: Option<i64>) -> KeyId {
    let limits = KeyLimits { spend_per_month: cap.map(Nanos), ..KeyLimits::default() };
    store.create_key(NewKey { limits, ..new_key(Some(account)) }).await.unwrap().id
}

fn reservation(number: usize, (account, key): (AccountId, KeyId), amount: i64) -> SpendingReservation {
    let request_id = request(number);
    SpendingReservation { request_id, account, key, amount: Nanos(amount), at: NOON, now: NOON }
}

async fn reserve(store: &Store, number: usize, payer: (AccountId, KeyId), amount: i64) -> ReserveOutcome {
    store.spending.reserve_spending(reservation(number, payer, amount)).await.unwrap()
}

fn status(scope: LimitScope, cap: i64, spent: i64, reserved: i64) -> CapStatus {
    CapStatus { scope, cap: Nanos(cap), spent: Nanos(spent), reserved: Nanos(reserved) }
}

fn rejected(scope: LimitScope, cap: i64, spent: i64, reserved: i64) -> ReserveOutcome {
    ReserveOutcome::Rejected(status(scope, cap, spent, reserved))
}

async fn statuses(store: &Store, (account, key): (AccountId, KeyId)) -> CapStatuses {
    store.spending.cap_statuses(account, key, Month::containing(NOON)).await.unwrap()
}

/// A row with this cost in nanos, for a request that has a reservation.
fn settlement(number: usize, payer: (AccountId, KeyId), cost: u32) -> Settlement {
    let row = UsageRow { prices: crate::samples::prices(1, 2), ..row(number, payer) };
    Settlement { row: with_tokens(row, cost, 0), is_reserved: true, stored_reply: None }
}

pub async fn key_limits_round_trip(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let account = account(&store, "One").await.id;
    let extremes = KeyLimits {
        requests_per_min: Some(u32::MAX),
        tokens_per_min: Some(1),
        spend_per_month: Some(Nanos(0)),
        ..KeyLimits::default()
    };
    for limits in [KeyLimits::default(), every_limit(), extremes] {
        let new = NewKey { limits: limits.clone(), ..new_key(Some(account)) };
        let created = store.create_key(new).await.unwrap();
        assert_eq!(created.limits, limits);
        assert_eq!(found(&store, &created.prefix).await.limits, limits);
        let by_id = store.keys.key_by_id(created.id).await.unwrap().unwrap();
        assert_eq!((by_id.key.prefix, by_id.key.limits), (created.prefix, limits));
    }
    assert!(store.keys.key_by_id(KeyId(777)).await.unwrap().is_none());
}

pub async fn key_limits_can_be_set_kept_and_removed_with_history(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let account = account(&store, "One").await.id;
    let prefix = key(&store, Some(account)).await.prefix;
    let KeyLimits { requests_per_min, tokens_per_min, spend_per_month, models, expires_at } = every_limit();
    let all = KeyLimitsChange {
        requests_per_min: LimitChange::Set(requests_per_min.unwrap()),
        tokens_per_min: LimitChange::Set(tokens_per_min.unwrap()),
        spend_per_month: LimitChange::Set(spend_per_month.unwrap()),
        models: LimitChange::Set(models.unwrap()),
        expires_at: LimitChange::Set(expires_at.unwrap()),
    };
    assert_eq!(store.set_key_limits(&prefix, all).await.unwrap().limits, every_limit());
    let some = KeyLimitsChange {
        requests_per_min: LimitChange::Set(1_200),
        models: LimitChange::Remove,
        expires_at: LimitChange::Remove,
        ..KeyLimitsChange::default()
    };
    store.set_key_limits(&prefix, some).await.unwrap();
    let expected =
        KeyLimits { requests_per_min: Some(1_200), models: None, expires_at: None, ..every_limit() };
    assert_eq!(found(&store, &prefix).await.limits, expected);

    let permit = firm_permit::<ReadAccounts>(&people.ruth);
    let record =
        store.accounts.read_account(permit, account, Month::containing(NOON)).await.unwrap().unwrap();
    let lines: Vec<&str> = record.events.iter().map(|event| event.description.as_str()).take(2).collect();
    let expires_at = after_s(60).to_iso();
    assert_eq!(
        lines,
        [
            format!(
                "changed, for the key {prefix}, requests per minute from 5 to 1,200, \
                 the allowed models from letters,words to none, the expiry from {expires_at} to none"
            ),
            format!(
                "changed, for the key {prefix}, requests per minute from none to 5, \
                 tokens per minute from none to 6,000, the monthly cap from none to 7.00, \
                 the allowed models from none to letters,words, the expiry from none to {expires_at}"
            ),
        ]
    );
}

pub async fn invalid_or_unchanged_key_limits_leave_no_event(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let account = account(&store, "One").await.id;
    let prefix =
        store.create_key(NewKey { limits: every_limit(), ..new_key(Some(account)) }).await.unwrap().prefix;
    let same = KeyLimitsChange { requests_per_min: LimitChange::Set(5), ..KeyLimitsChange::default() };
    for change in [KeyLimitsChange::default(), same] {
        let change = AccountChange::SetKeyLimits { key: prefix.clone(), change };
        let outcome = store.accounts.change_account(firm_permit(&people.ruth), change).await.unwrap();
        assert!(outcome.event.is_none());
    }
    let before = decisions(&store).await.len();
    let zero = KeyLimitsChange { requests_per_min: LimitChange::Set(0), ..KeyLimitsChange::default() };
    let change = AccountChange::SetKeyLimits { key: prefix.clone(), change: zero };
    assert!(store.accounts.change_account(firm_permit(&people.ruth), change).await.is_err());
    let unknown = KeyPrefix::from_stored("ck_nobody00".to_owned());
    let change = AccountChange::SetKeyLimits { key: unknown, change: KeyLimitsChange::default() };
    let outcome = store.accounts.change_account(firm_permit(&people.ruth), change).await;
    assert!(matches!(outcome, Err(AccountError::NoSuchKey)), "{outcome:?}");
    assert_eq!(decisions(&store).await.len(), before);
    assert_eq!(found(&store, &prefix).await.limits, every_limit());
}

fn rotation(old: &ApiKey, overlap_ends_at: UnixMillis) -> (ApiKey, KeyRotation) {
    let key = ApiKey::with_new_secret(&old.prefix(), &OsRandomness);
    let rotation = KeyRotation {
        key: old.prefix(),
        replaces: old.hash(),
        hash: key.hash(),
        overlap_ends_at,
        ends_running_overlap: false,
    };
    (key, rotation)
}

async fn created(store: &Store) -> ApiKey {
    let key = ApiKey::generate(&OsRandomness);
    let new = NewKey { prefix: key.prefix(), hash: key.hash(), limits: every_limit(), ..new_key(None) };
    store.create_key(new).await.unwrap();
    key
}

pub async fn rotated_key_has_two_secrets_until_the_overlap_ends(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let old = created(&store).await;
    let (new, rotation) = rotation(&old, after_s(30));
    let before = found(&store, &old.prefix()).await;
    store.rotate_key(rotation).await.unwrap();
    let after = found(&store, &old.prefix()).await;
    assert_eq!((after.id, &after.limits), (before.id, &before.limits), "one key, with the same limits");
    // It expires after 60 seconds, whatever the secret.
    for (now, accepts_old, accepts_new) in
        [(after_s(29), true, true), (after_s(30), false, true), (after_s(60), false, false)]
    {
        assert_eq!(after.accepts(&old.hash(), now), accepts_old, "{now:?}");
        assert_eq!(after.accepts(&new.hash(), now), accepts_new, "{now:?}");
    }
}

/// Callers may still use the first secret.
pub async fn second_rotation_ends_a_running_overlap_only_if_requested(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let first = created(&store).await;
    let (second, once) = rotation(&first, after_s(30));
    let (third, twice) = rotation(&second, after_s(30));
    store.rotate_key(once).await.unwrap();
    let accepted = async || {
        let stored = found(&store, &first.prefix()).await;
        [&first, &second, &third].map(|key| stored.accepts(&key.hash(), NOON))
    };
    let rejected = store.rotate_key(twice.clone()).await;
    let Err(AccountError::OverlapRunning { key, ends_at }) = rejected else { panic!("{rejected:?}") };
    assert_eq!((key, ends_at), (first.prefix(), after_s(30)));
    assert_eq!(accepted().await, [true, true, false]);
    store.rotate_key(KeyRotation { ends_running_overlap: true, ..twice }).await.unwrap();
    assert_eq!(accepted().await, [false, true, true]);
}

/// A form that is sent twice, or by two people at once.
pub async fn secret_is_replaced_only_once(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let first = created(&store).await;
    let (second, once) = rotation(&first, NOON);
    let (_, stale) = rotation(&first, NOON);
    let (one, other) = tokio::join!(store.rotate_key(once.clone()), store.rotate_key(stale.clone()));
    let stored = found(&store, &first.prefix()).await;
    let (accepted, rejected) = if one.is_ok() { (&once, other) } else { (&stale, one) };
    assert!(
        matches!(&rejected, Err(AccountError::KeyAlreadyRotated(prefix)) if *prefix == second.prefix()),
        "{rejected:?}"
    );
    assert!(stored.hash.matches(&accepted.hash));
}

pub async fn revoked_or_unknown_key_is_not_rotated(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let key = created(&store).await;
    store.revoke_key(&key.prefix(), NOON).await.unwrap();
    let (_, of_revoked) = rotation(&key, after_s(30));
    let outcome = store.rotate_key(of_revoked).await;
    assert!(matches!(outcome, Err(AccountError::KeyRevoked(prefix)) if prefix == key.prefix()));
    assert!(found(&store, &key.prefix()).await.hash.matches(&key.hash()));
    let (_, of_unknown) = rotation(&ApiKey::generate(&OsRandomness), after_s(30));
    assert!(matches!(store.rotate_key(of_unknown).await, Err(AccountError::NoSuchKey)));
}

pub async fn last_use_of_a_key_only_advances(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let account = account(&store, "One").await.id;
    let (used, unused) = (key(&store, Some(account)).await, key(&store, Some(account)).await);
    let key_use = |seconds| KeyUse { key: used.id, at: after_s(seconds) };
    for key_uses in [vec![key_use(5)], vec![key_use(7), key_use(9), key_use(8)], vec![key_use(6)]] {
        let batch = ActivityBatch { key_uses: &key_uses, ..ActivityBatch::default() };
        store.activity.record_activity(batch).await.unwrap();
    }
    let last_use =
        async |prefix: &KeyPrefix| store.keys.key_by_prefix(prefix).await.unwrap().unwrap().last_used_at;
    assert_eq!((last_use(&used.prefix).await, last_use(&unused.prefix).await), (Some(after_s(9)), None));
    let permit = firm_permit::<ReadAccounts>(&people.ruth);
    let record =
        store.accounts.read_account(permit, account, Month::containing(NOON)).await.unwrap().unwrap();
    let listed = record.keys.iter().find(|listed| listed.key.id == used.id).unwrap();
    assert_eq!(listed.last_used_at, Some(after_s(9)));
}

pub async fn cap_of_a_key_and_of_its_account_both_hold(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let narrow = capped(&store, Some(100), Some(30)).await;
    let wide = (narrow.0, capped_key(&store, narrow.0, None).await);
    assert_eq!(reserve(&store, 1, narrow, 31).await, rejected(LimitScope::Key, 30, 0, 0));
    assert_eq!(reserve(&store, 2, narrow, 30).await, ReserveOutcome::Reserved);
    assert_eq!(reserve(&store, 3, wide, 71).await, rejected(LimitScope::Account, 100, 0, 30));
    assert_eq!(reserve(&store, 4, wide, 70).await, ReserveOutcome::Reserved);
    store.ledger.settle(settlement(2, narrow, 20)).await.unwrap();
    let expected = CapStatuses {
        account: Some(status(LimitScope::Account, 100, 20, 70)),
        key: Some(status(LimitScope::Key, 30, 20, 0)),
    };
    assert_eq!(statuses(&store, narrow).await, expected);
    // Both have ten left.
    assert_eq!(reserve(&store, 5, narrow, 10).await, ReserveOutcome::Reserved);
    assert!(matches!(reserve(&store, 6, narrow, 1).await, ReserveOutcome::Rejected(_)));
    store.spending.release_spending(&request(4)).await.unwrap();
    assert_eq!(reserve(&store, 7, narrow, 1).await, rejected(LimitScope::Key, 30, 20, 10));
    assert_eq!(reserve(&store, 8, wide, 70).await, ReserveOutcome::Reserved);
}

pub async fn reservations_of_a_key_count_in_its_account(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let narrow = capped(&store, None, Some(30)).await;
    let wide = (narrow.0, capped_key(&store, narrow.0, None).await);
    assert_eq!(reserve(&store, 1, wide, 1_000).await, ReserveOutcome::NoCap);
    assert_eq!(reserve(&store, 2, narrow, 20).await, ReserveOutcome::Reserved);
    let spend_per_month = CapChange::Set(Nanos(50));
    let change = LimitsChange { spend_per_month, ..LimitsChange::default() };
    store.set_limits(&name("One"), change).await.unwrap();
    assert_eq!(reserve(&store, 3, wide, 31).await, rejected(LimitScope::Account, 50, 0, 20));
    assert_eq!(reserve(&store, 4, wide, 30).await, ReserveOutcome::Reserved);
    assert_eq!(reserve(&store, 5, narrow, 1).await, rejected(LimitScope::Account, 50, 0, 50));
}

pub async fn racing_reservations_exceed_neither_the_key_cap_nor_the_account_cap(database: Arc<AnyDatabase>) {
    let stores = [database.open().await, database.open().await, database.open().await];
    let narrow = capped(&stores[0], Some(1_000), Some(400)).await;
    let wide = (narrow.0, capped_key(&stores[0], narrow.0, Some(900)).await);
    let mut racing = JoinSet::new();
    for number in 0..180 {
        let (store, payer) = (Arc::clone(&stores[number % 3]), if number % 2 == 0 { narrow } else { wide });
        racing.spawn(async move { (payer.1, reserve(&store, number, payer, 30).await) });
    }
    let outcomes = racing.join_all().await;
    let admitted = |key: KeyId| {
        outcomes.iter().filter(|(of, outcome)| *of == key && *outcome == ReserveOutcome::Reserved).count()
    };
    let (narrow, wide) = (admitted(narrow.1), admitted(wide.1));
    assert!(narrow <= 400 / 30 && wide <= 900 / 30, "{narrow} and {wide}");
    assert_eq!(narrow + wide, 1_000 / 30, "the account's cap is used up, and not exceeded");
}

/// Requests of two keys with random maximum and actual costs reserve, then settle or release, on three nodes at once.
pub async fn spending_of_a_key_and_its_account_never_exceeds_either_cap_under_load(
    database: Arc<AnyDatabase>,
) {
    const ACCOUNT_CAP: i64 = 5_000;
    const KEY_CAP: i64 = 2_000;
    let stores = [database.open().await, database.open().await, database.open().await];
    let narrow = capped(&stores[0], Some(ACCOUNT_CAP), Some(KEY_CAP)).await;
    let wide = (narrow.0, capped_key(&stores[0], narrow.0, None).await);
    let mut working = JoinSet::new();
    for worker in 0..12 {
        let (store, payer) = (Arc::clone(&stores[worker % 3]), if worker % 2 == 0 { narrow } else { wide });
        working.spawn(async move {
            let randomness = SeededRandomness::new(worker as u64);
            let draw = |below: u64| randomness.next_u64() % below;
            for turn in 0..25 {
                let (number, worst) = (worker * 1_000 + turn, 1 + draw(400));
                if reserve(&store, number, payer, worst as i64).await != ReserveOutcome::Reserved {
                    continue;
                }
                tokio::task::yield_now().await;
                if draw(4) == 0 {
                    store.spending.release_spending(&request(number)).await.unwrap();
                } else {
                    let cost = draw(worst + 1) as u32;
                    store.ledger.settle(settlement(number, payer, cost)).await.unwrap();
                }
            }
        });
    }
    while !working.is_empty() {
        let CapStatuses { account, key } = statuses(&stores[0], narrow).await;
        let (account, key) = (account.unwrap(), key.unwrap());
        assert!(account.remaining().0 >= 0 && key.remaining().0 >= 0, "{account:?} {key:?}");
        while let Some(worker) = working.try_join_next() {
            worker.unwrap();
        }
    }
    // All reservations are closed by now, so the rest of a cap can be used to the last nano.
    let CapStatuses { account, key } = statuses(&stores[1], narrow).await;
    let (account, key) = (account.unwrap(), key.unwrap());
    assert_eq!((account.reserved, key.reserved), (Nanos(0), Nanos(0)));
    let left = account.remaining().min(key.remaining()).0;
    assert!(matches!(reserve(&stores[1], 999_999, narrow, left + 1).await, ReserveOutcome::Rejected(_)));
    assert_eq!(reserve(&stores[1], 999_998, narrow, left).await, ReserveOutcome::Reserved);
}

pub async fn orphaned_reservations_do_not_count_against_a_key(database: Arc<AnyDatabase>) {
    let (dying, living) = (database.open().await, database.open().await);
    let payer = capped(&living, None, Some(100)).await;
    assert_eq!(reserve(&dying, 1, payer, 100).await, ReserveOutcome::Reserved);
    let lease_ms = LEASE_DURATION.as_millis() as i64;
    let at = |number, now_ms| SpendingReservation {
        now: UnixMillis(NOON.0 + now_ms),
        ..reservation(number, payer, 100)
    };
    let within = living.spending.reserve_spending(at(2, lease_ms - 1)).await.unwrap();
    assert_eq!(within, rejected(LimitScope::Key, 100, 0, 100));
    let after = living.spending.reserve_spending(at(3, lease_ms)).await.unwrap();
    assert_eq!(after, ReserveOutcome::Reserved);
}
