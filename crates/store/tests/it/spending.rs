//! Conformance: an account's monthly spending and reservations never exceed its cap.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::samples::{NOON, account, all_ledger_rows, key, name, row, with_tokens};
use chancery_domain::{
    AccountId, Day, KeyId, LimitScope, Month, Nanos, Randomness, SeededRandomness, UnixMillis, UsageRow,
};
use chancery_store::{
    AccountError, CapChange, CapStatus, LEASE_DURATION, LedgerError, LimitsChange, ReserveOutcome,
    Settlement, SpendingReservation, Store, UsageBy, UsageQuery,
};
use std::sync::Arc;
use tokio::task::JoinSet;

const LEASE_MS: i64 = LEASE_DURATION.as_millis() as i64;
const HOUR_MS: i64 = 3_600_000;

async fn capped(store: &Store, text: &str, cap: i64) -> (AccountId, KeyId) {
    let account = account(store, text).await.id;
    set_cap(store, text, CapChange::Set(Nanos(cap))).await;
    (account, key(store, Some(account)).await.id)
}

async fn set_cap(store: &Store, text: &str, spend_per_month: CapChange) {
    let change = LimitsChange { spend_per_month, ..LimitsChange::default() };
    store.set_limits(&name(text), change).await.unwrap();
}

fn reservation(number: usize, (account, key): (AccountId, KeyId), amount: i64) -> SpendingReservation {
    let request_id = crate::samples::request(number);
    SpendingReservation { request_id, account, key, amount: Nanos(amount), at: NOON, now: NOON }
}

/// A row with this cost in nanos, for a request that has a reservation.
fn settlement(number: usize, billed_key: (AccountId, KeyId), cost: u32) -> Settlement {
    let row = UsageRow { prices: crate::samples::prices(1, 2), ..row(number, billed_key) };
    Settlement { row: with_tokens(row, cost, 0), is_reserved: true, stored_reply: None }
}

async fn reserve(store: &Store, number: usize, payer: (AccountId, KeyId), amount: i64) -> ReserveOutcome {
    store.spending.reserve_spending(reservation(number, payer, amount)).await.unwrap()
}

fn rejected(cap: i64, spent: i64, reserved: i64) -> ReserveOutcome {
    rejected_by(LimitScope::Account, cap, spent, reserved)
}

fn rejected_by(scope: LimitScope, cap: i64, spent: i64, reserved: i64) -> ReserveOutcome {
    ReserveOutcome::Rejected(CapStatus {
        scope,
        cap: Nanos(cap),
        spent: Nanos(spent),
        reserved: Nanos(reserved),
    })
}

pub async fn spending_cap_can_be_set_kept_and_removed(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let id = account(&store, "One").await.id;
    let cap = async || store.account_lookup.account_by_name(&name("One")).await.unwrap().spend_per_month;
    assert_eq!(cap().await, None);
    for amount in [0, 1, i64::MAX] {
        set_cap(&store, "One", CapChange::Set(Nanos(amount))).await;
        assert_eq!(cap().await, Some(Nanos(amount)));
    }
    store
        .set_limits(&name("One"), LimitsChange { tokens_per_min: Some(5), ..LimitsChange::default() })
        .await
        .unwrap();
    assert_eq!(cap().await, Some(Nanos(i64::MAX)));
    let key = key(&store, Some(id)).await;
    let owner = store.keys.key_by_prefix(&key.prefix).await.unwrap().unwrap();
    assert_eq!(owner.account.unwrap().spend_per_month, Some(Nanos(i64::MAX)));
    set_cap(&store, "One", CapChange::Remove).await;
    assert_eq!(cap().await, None);
}

pub async fn account_without_cap_reserves_nothing(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let id = account(&store, "One").await.id;
    let id = (id, key(&store, Some(id)).await.id);
    assert_eq!(reserve(&store, 1, id, i64::MAX).await, ReserveOutcome::NoCap);
    set_cap(&store, "One", CapChange::Set(Nanos(10))).await;
    assert_eq!(reserve(&store, 2, id, 10).await, ReserveOutcome::Reserved, "nothing was set aside before");
    let unknown = store.spending.reserve_spending(reservation(3, (AccountId(777), id.1), 1)).await;
    assert!(matches!(unknown, Err(AccountError::NoSuchAccountId(AccountId(777)))));
}

pub async fn reserving_reduces_and_releasing_restores_available_spend(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let account = capped(&store, "One", 100).await;
    assert_eq!(reserve(&store, 1, account, 60).await, ReserveOutcome::Reserved);
    assert_eq!(reserve(&store, 2, account, 41).await, rejected(100, 0, 60));
    assert_eq!(
        reserve(&store, 3, account, 40).await,
        ReserveOutcome::Reserved,
        "the cap itself may be reached"
    );
    assert_eq!(reserve(&store, 4, account, 1).await, rejected(100, 0, 100));
    assert_eq!(
        reserve(&store, 5, account, 0).await,
        ReserveOutcome::Reserved,
        "what costs nothing always fits"
    );
    for _ in 0..2 {
        store.spending.release_spending(&crate::samples::request(1)).await.unwrap();
    }
    assert_eq!(reserve(&store, 6, account, 61).await, rejected(100, 0, 40));
    assert_eq!(reserve(&store, 7, account, 60).await, ReserveOutcome::Reserved);
    // Nothing can be reserved under a cap that is lower than the existing reservations.
    set_cap(&store, "One", CapChange::Set(Nanos(50))).await;
    assert_eq!(reserve(&store, 8, account, 1).await, rejected(50, 0, 100));
}

pub async fn settling_releases_reservation_and_spends_actual_cost(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = capped(&store, "One", 100).await;
    assert_eq!(reserve(&store, 1, billed_key, 100).await, ReserveOutcome::Reserved);
    for _ in 0..2 {
        store.ledger.settle(settlement(1, billed_key, 30)).await.unwrap();
    }
    assert_eq!(reserve(&store, 2, billed_key, 71).await, rejected(100, 30, 0));
    assert_eq!(reserve(&store, 3, billed_key, 70).await, ReserveOutcome::Reserved);
    store.ledger.settle(settlement(3, billed_key, 70)).await.unwrap();
    assert_eq!(reserve(&store, 4, billed_key, 1).await, rejected(100, 100, 0));
}

pub async fn cap_is_per_account_and_calendar_month(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (one, two) = (capped(&store, "One", 100).await, capped(&store, "Two", 100).await);
    let month = Month::containing(NOON);
    let (first, last) = (month.first_day().start(), UnixMillis(month.last_day().end().0 - 1));
    let spent = |number: usize, at: UnixMillis| {
        let Settlement { row, .. } = settlement(number, one, 10);
        UsageRow { at, ..row }
    };
    // Without a reservation, as if admitted before there was a cap.
    for (number, at) in [first, last, UnixMillis(first.0 - 1), UnixMillis(last.0 + 1)].into_iter().enumerate()
    {
        store.ledger.settle(spent(number, at).into()).await.unwrap();
    }
    let at = |number, payer, amount, at| SpendingReservation { at, ..reservation(number, payer, amount) };
    let outcome = store.spending.reserve_spending(at(10, one, 81, first)).await.unwrap();
    assert_eq!(outcome, rejected(100, 20, 0));
    assert_eq!(
        store.spending.reserve_spending(at(11, one, 80, last)).await.unwrap(),
        ReserveOutcome::Reserved
    );
    let next = Day(month.last_day().0 + 1).start();
    assert_eq!(store.spending.reserve_spending(at(12, one, 91, next)).await.unwrap(), rejected(100, 10, 0));
    assert_eq!(
        store.spending.reserve_spending(at(13, one, 90, next)).await.unwrap(),
        ReserveOutcome::Reserved
    );
    assert_eq!(reserve(&store, 14, two, 100).await, ReserveOutcome::Reserved);
}

pub async fn concurrent_reservations_never_exceed_cap(database: Arc<AnyDatabase>) {
    const STORES: usize = 3;
    let stores = [database.open().await, database.open().await, database.open().await];
    let account = capped(&stores[0], "One", 1000).await;
    let mut racing = JoinSet::new();
    for number in 0..60 * STORES {
        let store = Arc::clone(&stores[number % STORES]);
        racing.spawn(async move { reserve(&store, number, account, 30).await });
    }
    let admitted =
        racing.join_all().await.into_iter().filter(|outcome| *outcome == ReserveOutcome::Reserved).count();
    assert_eq!(admitted, 1000 / 30);
}

/// Requests with random maximum and actual costs reserve, then settle or release, on three nodes at once, while the spending
/// is read all the time.
pub async fn spending_never_exceeds_cap_under_load(database: Arc<AnyDatabase>) {
    const CAP: i64 = 5_000;
    const STORES: usize = 3;
    let stores = [database.open().await, database.open().await, database.open().await];
    let billed_key = capped(&stores[0], "One", CAP).await;
    let mut working = JoinSet::new();
    for worker in 0..4 * STORES {
        let store = Arc::clone(&stores[worker % STORES]);
        working.spawn(async move {
            let randomness = SeededRandomness::new(worker as u64);
            let draw = |below: u64| randomness.next_u64() % below;
            let mut spent = 0;
            for turn in 0..25 {
                let number = worker * 1000 + turn;
                let worst = 1 + draw(400);
                if reserve(&store, number, billed_key, worst as i64).await != ReserveOutcome::Reserved {
                    continue;
                }
                tokio::task::yield_now().await;
                if draw(4) == 0 {
                    store.spending.release_spending(&crate::samples::request(number)).await.unwrap();
                } else {
                    let cost = draw(worst + 1);
                    store.ledger.settle(settlement(number, billed_key, cost as u32)).await.unwrap();
                    spent += cost as i64;
                }
            }
            spent
        });
    }
    let mut spent = 0;
    while !working.is_empty() {
        let seen = month_spent(&stores[0], billed_key.0).await;
        assert!(seen <= CAP, "{seen} is spent");
        while let Some(worker) = working.try_join_next() {
            spent += worker.unwrap();
        }
    }
    assert_eq!(month_spent(&stores[0], billed_key.0).await, spent);
    // All reservations are closed by now, so the rest of the cap can be used to the last nano.
    assert_eq!(reserve(&stores[1], 999_999, billed_key, CAP - spent + 1).await, rejected(CAP, spent, 0));
    assert_eq!(reserve(&stores[1], 999_998, billed_key, CAP - spent).await, ReserveOutcome::Reserved);
}

async fn month_spent(store: &Store, account: AccountId) -> i64 {
    let query = UsageQuery { account: Some(account), from: None, to: None, by: UsageBy::Day };
    store.ledger.usage(query).await.unwrap().iter().map(|sum| sum.cost.0).sum()
}

pub async fn orphaned_reservations_do_not_count(database: Arc<AnyDatabase>) {
    let (dying, living) = (database.open().await, database.open().await);
    let billed_key = capped(&living, "One", 100).await;
    assert_eq!(reserve(&dying, 1, billed_key, 100).await, ReserveOutcome::Reserved);
    let at = |number, amount, now| SpendingReservation { now, ..reservation(number, billed_key, amount) };
    let within = UnixMillis(NOON.0 + LEASE_MS - 1);
    assert_eq!(living.spending.reserve_spending(at(2, 1, within)).await.unwrap(), rejected(100, 0, 100));
    let after = UnixMillis(NOON.0 + LEASE_MS);
    assert_eq!(living.spending.reserve_spending(at(3, 90, after)).await.unwrap(), ReserveOutcome::Reserved);

    // The process was only presumed dead. Its request can no longer be billed, and other rows are not lost because of
    // it.
    let (gone, fine) = tokio::join!(
        dying.ledger.settle(settlement(1, billed_key, 50)),
        dying.ledger.settle(row(9, billed_key).into())
    );
    assert!(
        matches!(gone, Err(LedgerError::ReservationLost(request)) if request == crate::samples::request(1))
    );
    fine.unwrap();
    assert_eq!(all_ledger_rows(&living).await.len(), 1);
}

pub async fn lease_renewal_keeps_reservations(database: Arc<AnyDatabase>) {
    let (working, other) = (database.open().await, database.open().await);
    let billed_key = capped(&other, "One", 100).await;
    assert_eq!(reserve(&working, 1, billed_key, 100).await, ReserveOutcome::Reserved);
    let mut now = NOON;
    for _ in 0..6 {
        now = UnixMillis(now.0 + LEASE_MS * 2 / 3);
        working.leases.renew_lease(now).await.unwrap();
        let late = SpendingReservation { now, ..reservation(2, billed_key, 1) };
        assert_eq!(other.spending.reserve_spending(late).await.unwrap(), rejected(100, 0, 100));
    }
    working.ledger.settle(settlement(1, billed_key, 100)).await.unwrap();
}

/// Its request may still be delivering text. If its place were given to another request, both would be billed.
pub async fn reservation_of_a_live_process_survives_any_clock_jump(database: Arc<AnyDatabase>) {
    let (store, other) = (database.open().await, database.open().await);
    let billed_key = capped(&store, "One", 100).await;
    assert_eq!(reserve(&store, 1, billed_key, 100).await, ReserveOutcome::Reserved);
    for years in [1, 0, 30, -30] {
        let now = UnixMillis(NOON.0 + years * 366 * 24 * HOUR_MS);
        let at = |number| SpendingReservation { now, ..reservation(number, billed_key, 100) };
        assert_eq!(store.spending.reserve_spending(at(2)).await.unwrap(), rejected(100, 0, 100), "{years}");
        assert_eq!(other.spending.reserve_spending(at(3)).await.unwrap(), rejected(100, 0, 100), "{years}");
        assert_eq!(store.leases.reap_orphaned_reservations(now, 100).await.unwrap(), 0, "{years}");
    }
    store.ledger.settle(settlement(1, billed_key, 100)).await.unwrap();
}

pub async fn clean_shutdown_releases_reservations(database: Arc<AnyDatabase>) {
    let (ending, other) = (database.open().await, database.open().await);
    let billed_key = capped(&other, "One", 100).await;
    assert_eq!(reserve(&ending, 1, billed_key, 100).await, ReserveOutcome::Reserved);
    ending.close().await;
    assert_eq!(reserve(&other, 2, billed_key, 100).await, ReserveOutcome::Reserved);
}

pub async fn orphaned_reservations_are_reaped_in_batches(database: Arc<AnyDatabase>) {
    let (dying, living) = (database.open().await, database.open().await);
    let billed_key = capped(&living, "One", 100).await;
    for number in 0..7 {
        assert_eq!(reserve(&dying, number, billed_key, 10).await, ReserveOutcome::Reserved);
    }
    assert_eq!(reserve(&living, 7, billed_key, 10).await, ReserveOutcome::Reserved);
    let later = UnixMillis(NOON.0 + LEASE_MS);
    living.leases.renew_lease(later).await.unwrap();
    assert_eq!(
        living.leases.reap_orphaned_reservations(NOON, 100).await.unwrap(),
        0,
        "no lease has expired yet"
    );
    for expected in [3, 3, 1, 0] {
        assert_eq!(living.leases.reap_orphaned_reservations(later, 3).await.unwrap(), expected);
    }
    living.ledger.settle(settlement(7, billed_key, 1)).await.unwrap();
}

/// As after the machine was suspended, or its clock was changed.
pub async fn process_resuming_after_lease_expiry_keeps_own_reservations(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = capped(&store, "One", 100).await;
    assert_eq!(reserve(&store, 1, billed_key, 100).await, ReserveOutcome::Reserved);
    let later = UnixMillis(NOON.0 + 10 * LEASE_MS);
    assert_eq!(store.leases.reap_orphaned_reservations(later, 100).await.unwrap(), 0);
    store.ledger.settle(settlement(1, billed_key, 1)).await.unwrap();
}
