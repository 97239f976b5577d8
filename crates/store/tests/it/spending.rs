//! Conformance: what an account spends and has set aside in a month never passes its cap.

use crate::databases::TestDatabase;
use crate::samples::{NOON, account, key, name, row, whole_ledger, with_tokens};
use chancery_domain::{
    AccountId, Day, KeyId, Month, Nanos, Randomness, SeededRandomness, UnixMillis, UsageRow,
};
use chancery_store::{
    AccountError, CapChange, LEASE, LedgerError, LimitsChange, Reserved, Settlement, SpendingReservation,
    Store, UsageBy, UsageQuery,
};
use std::sync::Arc;
use tokio::task::JoinSet;

const LEASE_MS: i64 = LEASE.as_millis() as i64;
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

fn reservation(number: usize, account: AccountId, amount: i64) -> SpendingReservation {
    let request_id = crate::samples::request(number);
    let expires_at = UnixMillis(NOON.0 + HOUR_MS);
    SpendingReservation { request_id, account, amount: Nanos(amount), at: NOON, now: NOON, expires_at }
}

/// A row that costs so many nanos, for a request that set something aside.
fn settlement(number: usize, payer: (AccountId, KeyId), cost: u32) -> Settlement {
    let row = UsageRow { prices: crate::samples::prices(1, 2), ..row(number, payer) };
    Settlement { row: with_tokens(row, cost, 0), is_reserved: true, kept: None }
}

async fn reserve(store: &Store, number: usize, account: AccountId, amount: i64) -> Reserved {
    store.spending.reserve_spending(reservation(number, account, amount)).await.unwrap()
}

fn refused(cap: i64, spent: i64, set_aside: i64) -> Reserved {
    Reserved::Refused { cap: Nanos(cap), spent: Nanos(spent), set_aside: Nanos(set_aside) }
}

pub async fn a_cap_is_set_kept_and_removed<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let id = account(&store, "One").await.id;
    let cap = async || store.account_lookup.account_named(&name("One")).await.unwrap().spend_per_month;
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
    let owner = store.keys.key_with_prefix(&key.prefix).await.unwrap().unwrap();
    assert_eq!(owner.account.unwrap().spend_per_month, Some(Nanos(i64::MAX)));
    set_cap(&store, "One", CapChange::Remove).await;
    assert_eq!(cap().await, None);
}

pub async fn an_account_without_a_cap_sets_nothing_aside<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let id = account(&store, "One").await.id;
    assert_eq!(reserve(&store, 1, id, i64::MAX).await, Reserved::NotNeeded);
    set_cap(&store, "One", CapChange::Set(Nanos(10))).await;
    assert_eq!(reserve(&store, 2, id, 10).await, Reserved::Yes, "nothing was set aside before");
    let unknown = store.spending.reserve_spending(reservation(3, AccountId(777), 1)).await;
    assert!(matches!(unknown, Err(AccountError::NoSuchAccountId(AccountId(777)))));
}

pub async fn what_is_set_aside_leaves_less_room_and_given_back_leaves_more<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
    let (account, _) = capped(&store, "One", 100).await;
    assert_eq!(reserve(&store, 1, account, 60).await, Reserved::Yes);
    assert_eq!(reserve(&store, 2, account, 41).await, refused(100, 0, 60));
    assert_eq!(reserve(&store, 3, account, 40).await, Reserved::Yes, "the cap itself may be reached");
    assert_eq!(reserve(&store, 4, account, 1).await, refused(100, 0, 100));
    assert_eq!(reserve(&store, 5, account, 0).await, Reserved::Yes, "what costs nothing always fits");
    for _ in 0..2 {
        store.spending.release_spending(&crate::samples::request(1)).await.unwrap();
    }
    assert_eq!(reserve(&store, 6, account, 61).await, refused(100, 0, 40));
    assert_eq!(reserve(&store, 7, account, 60).await, Reserved::Yes);
    // Nothing is set aside of a cap that is lower than what is used.
    set_cap(&store, "One", CapChange::Set(Nanos(50))).await;
    assert_eq!(reserve(&store, 8, account, 1).await, refused(50, 0, 100));
}

pub async fn settling_gives_back_what_was_set_aside_and_spends_the_true_cost<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
    let payer = capped(&store, "One", 100).await;
    assert_eq!(reserve(&store, 1, payer.0, 100).await, Reserved::Yes);
    for _ in 0..2 {
        store.ledger.settle(settlement(1, payer, 30)).await.unwrap();
    }
    assert_eq!(reserve(&store, 2, payer.0, 71).await, refused(100, 30, 0));
    assert_eq!(reserve(&store, 3, payer.0, 70).await, Reserved::Yes);
    store.ledger.settle(settlement(3, payer, 70)).await.unwrap();
    assert_eq!(reserve(&store, 4, payer.0, 1).await, refused(100, 100, 0));
}

pub async fn a_cap_counts_one_account_and_one_calendar_month<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let (one, two) = (capped(&store, "One", 100).await, capped(&store, "Two", 100).await);
    let month = Month::of(NOON);
    let (first, last) = (month.first_day().start(), UnixMillis(month.last_day().end().0 - 1));
    let spent = |number: usize, at: UnixMillis| {
        let Settlement { row, .. } = settlement(number, one, 10);
        UsageRow { at, ..row }
    };
    // Without a reservation: admitted before there was a cap.
    for (number, at) in [first, last, UnixMillis(first.0 - 1), UnixMillis(last.0 + 1)].into_iter().enumerate()
    {
        store.ledger.settle(spent(number, at).into()).await.unwrap();
    }
    let at = |number, account, amount, at| SpendingReservation { at, ..reservation(number, account, amount) };
    let outcome = store.spending.reserve_spending(at(10, one.0, 81, first)).await.unwrap();
    assert_eq!(outcome, refused(100, 20, 0));
    assert_eq!(store.spending.reserve_spending(at(11, one.0, 80, last)).await.unwrap(), Reserved::Yes);
    let next = Day(month.last_day().0 + 1).start();
    assert_eq!(store.spending.reserve_spending(at(12, one.0, 91, next)).await.unwrap(), refused(100, 10, 0));
    assert_eq!(store.spending.reserve_spending(at(13, one.0, 90, next)).await.unwrap(), Reserved::Yes);
    assert_eq!(reserve(&store, 14, two.0, 100).await, Reserved::Yes);
}

pub async fn however_many_race_no_more_is_set_aside_than_the_cap<D: TestDatabase>(database: Arc<D>) {
    const STORES: usize = 3;
    let stores = [database.open().await, database.open().await, database.open().await];
    let (account, _) = capped(&stores[0], "One", 1000).await;
    let mut racing = JoinSet::new();
    for number in 0..60 * STORES {
        let store = Arc::clone(&stores[number % STORES]);
        racing.spawn(async move { reserve(&store, number, account, 30).await });
    }
    let admitted = racing.join_all().await.into_iter().filter(|outcome| *outcome == Reserved::Yes).count();
    assert_eq!(admitted, 1000 / 30);
}

/// Requests of random worst and true costs reserve, settle, or come to nothing, on three nodes at once, while somebody
/// looks all the time.
pub async fn spending_never_passes_the_cap_while_requests_come_and_go<D: TestDatabase>(database: Arc<D>) {
    const CAP: i64 = 5_000;
    const STORES: usize = 3;
    let stores = [database.open().await, database.open().await, database.open().await];
    let payer = capped(&stores[0], "One", CAP).await;
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
                if reserve(&store, number, payer.0, worst as i64).await != Reserved::Yes {
                    continue;
                }
                tokio::task::yield_now().await;
                if draw(4) == 0 {
                    store.spending.release_spending(&crate::samples::request(number)).await.unwrap();
                } else {
                    let cost = draw(worst + 1);
                    store.ledger.settle(settlement(number, payer, cost as u32)).await.unwrap();
                    spent += cost as i64;
                }
            }
            spent
        });
    }
    let mut spent = 0;
    while !working.is_empty() {
        let seen = month_spent(&stores[0], payer.0).await;
        assert!(seen <= CAP, "{seen} is spent");
        while let Some(worker) = working.try_join_next() {
            spent += worker.unwrap();
        }
    }
    assert_eq!(month_spent(&stores[0], payer.0).await, spent);
    // Whatever was set aside is given back by now: the rest of the cap can be used to the last nano.
    assert_eq!(reserve(&stores[1], 999_999, payer.0, CAP - spent + 1).await, refused(CAP, spent, 0));
    assert_eq!(reserve(&stores[1], 999_998, payer.0, CAP - spent).await, Reserved::Yes);
}

async fn month_spent(store: &Store, account: AccountId) -> i64 {
    let query = UsageQuery { account: Some(account), from: None, to: None, by: UsageBy::Day };
    store.ledger.usage(query).await.unwrap().iter().map(|sum| sum.cost.0).sum()
}

pub async fn what_a_dead_process_had_set_aside_no_longer_counts<D: TestDatabase>(database: Arc<D>) {
    let (dying, living) = (database.open().await, database.open().await);
    let payer = capped(&living, "One", 100).await;
    assert_eq!(reserve(&dying, 1, payer.0, 100).await, Reserved::Yes);
    let at = |number, amount, now| SpendingReservation { now, ..reservation(number, payer.0, amount) };
    let within = UnixMillis(NOON.0 + LEASE_MS - 1);
    assert_eq!(living.spending.reserve_spending(at(2, 1, within)).await.unwrap(), refused(100, 0, 100));
    let after = UnixMillis(NOON.0 + LEASE_MS);
    assert_eq!(living.spending.reserve_spending(at(3, 90, after)).await.unwrap(), Reserved::Yes);

    // It was only thought dead. What it did cannot be billed any more, and neither can others' rows be lost for it.
    let (gone, fine) = tokio::join!(
        dying.ledger.settle(settlement(1, payer, 50)),
        dying.ledger.settle(row(9, payer).into())
    );
    assert!(
        matches!(gone, Err(LedgerError::ReservationGone(request)) if request == crate::samples::request(1))
    );
    fine.unwrap();
    assert_eq!(whole_ledger(&living).await.len(), 1);
}

pub async fn a_process_that_says_it_lives_keeps_what_it_has_set_aside<D: TestDatabase>(database: Arc<D>) {
    let (working, other) = (database.open().await, database.open().await);
    let payer = capped(&other, "One", 100).await;
    assert_eq!(reserve(&working, 1, payer.0, 100).await, Reserved::Yes);
    let mut now = NOON;
    for _ in 0..6 {
        now = UnixMillis(now.0 + LEASE_MS * 2 / 3);
        working.leases.renew_lease(now).await.unwrap();
        let late = SpendingReservation { now, ..reservation(2, payer.0, 1) };
        assert_eq!(other.spending.reserve_spending(late).await.unwrap(), refused(100, 0, 100));
    }
    working.ledger.settle(settlement(1, payer, 100)).await.unwrap();
}

pub async fn what_is_past_its_time_no_longer_counts_though_its_process_lives<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
    let payer = capped(&store, "One", 100).await;
    assert_eq!(reserve(&store, 1, payer.0, 100).await, Reserved::Yes);
    let at = |now_ms| SpendingReservation { now: UnixMillis(now_ms), ..reservation(2, payer.0, 100) };
    store.leases.renew_lease(UnixMillis(NOON.0 + HOUR_MS - 1)).await.unwrap();
    assert_eq!(
        store.spending.reserve_spending(at(NOON.0 + HOUR_MS - 1)).await.unwrap(),
        refused(100, 0, 100)
    );
    let late = SpendingReservation { expires_at: UnixMillis(NOON.0 + 2 * HOUR_MS), ..at(NOON.0 + HOUR_MS) };
    assert_eq!(store.spending.reserve_spending(late).await.unwrap(), Reserved::Yes);
    let gone = store.ledger.settle(settlement(1, payer, 1)).await;
    assert!(matches!(gone, Err(LedgerError::ReservationGone(_))), "{gone:?}");
}

pub async fn a_process_that_ends_frees_what_it_has_set_aside_at_once<D: TestDatabase>(database: Arc<D>) {
    let (ending, other) = (database.open().await, database.open().await);
    let payer = capped(&other, "One", 100).await;
    assert_eq!(reserve(&ending, 1, payer.0, 100).await, Reserved::Yes);
    ending.close().await;
    assert_eq!(reserve(&other, 2, payer.0, 100).await, Reserved::Yes);
}

pub async fn what_the_dead_leave_is_forgotten_a_little_at_a_time<D: TestDatabase>(database: Arc<D>) {
    let (dying, living) = (database.open().await, database.open().await);
    let payer = capped(&living, "One", 100).await;
    for number in 0..7 {
        assert_eq!(reserve(&dying, number, payer.0, 10).await, Reserved::Yes);
    }
    assert_eq!(reserve(&living, 7, payer.0, 10).await, Reserved::Yes);
    let later = UnixMillis(NOON.0 + LEASE_MS);
    living.leases.renew_lease(later).await.unwrap();
    assert_eq!(living.leases.forget_dead(NOON, 100).await.unwrap(), 0, "nobody is dead yet");
    for expected in [3, 3, 1, 0] {
        assert_eq!(living.leases.forget_dead(later, 3).await.unwrap(), expected);
    }
    living.ledger.settle(settlement(7, payer, 1)).await.unwrap();
}

/// As after a pause of the machine, or a step of its clock.
pub async fn a_process_that_slept_past_its_lease_does_not_take_itself_for_dead<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
    let payer = capped(&store, "One", 100).await;
    assert_eq!(reserve(&store, 1, payer.0, 100).await, Reserved::Yes);
    let later = UnixMillis(NOON.0 + 10 * LEASE_MS);
    assert_eq!(store.leases.forget_dead(later, 100).await.unwrap(), 0);
    store.ledger.settle(settlement(1, payer, 1)).await.unwrap();
}
