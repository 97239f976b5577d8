//! Conformance: the ledger.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::samples::{
    HOSTILE_TEXTS, NOON, account, all_ledger_rows, billed_key, discounted, insert_row, key, prices, request,
    row, with_cached, with_tokens,
};
use chancery_domain::{AccountId, Day, Nanos, RequestId, StopReason, UnixMillis, UsageRow};
use chancery_store::{DbError, LedgerError, UsageBy, UsageGroup, UsageQuery, UsageSum, UsageTotals};
use std::sync::Arc;
use tokio::task::JoinSet;

fn every(by: UsageBy) -> UsageQuery {
    UsageQuery { account: None, from: None, to: None, by }
}

pub async fn settled_row_round_trips(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    let mut rows: Vec<UsageRow> = StopReason::ALL
        .into_iter()
        .enumerate()
        .map(|(n, stop_reason)| UsageRow { stop_reason, ..row(n, billed_key) })
        .collect();
    rows.push(with_cached(UsageRow { prices: discounted(prices(100, 400), 25), ..row(9, billed_key) }, 256));
    let extreme = UsageRow { prices: prices(0, 1 << 30), at: UnixMillis(0), ..row(10, billed_key) };
    rows.push(with_tokens(extreme, u32::MAX, u32::MAX));
    rows.push(with_tokens(row(11, billed_key), 0, 0));
    for row in rows.clone() {
        store.ledger.settle(row.into()).await.unwrap();
    }
    assert_eq!(all_ledger_rows(&store).await, rows);
}

pub async fn settling_the_same_row_twice_bills_it_once(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let row = row(1, billed_key(&store).await);
    for _ in 0..3 {
        store.ledger.settle(row.clone().into()).await.unwrap();
    }
    assert_eq!(all_ledger_rows(&store).await, [row]);
}

pub async fn same_request_id_with_other_values_is_rejected(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let first = row(1, billed_key(&store).await);
    store.ledger.settle(first.clone().into()).await.unwrap();
    for other in [
        with_tokens(first.clone(), 290, 65),
        UsageRow { model: "another".to_owned(), ..first.clone() },
        UsageRow { at: UnixMillis(first.at.0 + 1), ..first.clone() },
        UsageRow { stop_reason: StopReason::Cancelled, ..first.clone() },
    ] {
        let error = store.ledger.settle(other.into()).await.unwrap_err();
        assert!(matches!(error, LedgerError::RequestAlreadyBilled(billed) if billed == first.request_id));
    }
    assert_eq!(all_ledger_rows(&store).await, [first]);
}

pub async fn duplicate_requests_in_one_batch_bill_once(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    let (first, other) = (row(1, billed_key), with_tokens(row(1, billed_key), 1, 1));
    // Joined futures are polled in turn before the writer runs, so all five are one batch.
    let (a, b, c, d, e) = tokio::join!(
        store.ledger.settle(first.clone().into()),
        store.ledger.settle(first.clone().into()),
        store.ledger.settle(other.into()),
        store.ledger.settle(row(2, billed_key).into()),
        store.ledger.settle(first.clone().into()),
    );
    assert!(a.is_ok() && b.is_ok() && d.is_ok() && e.is_ok());
    assert!(matches!(c, Err(LedgerError::RequestAlreadyBilled(_))));
    assert_eq!(all_ledger_rows(&store).await, [first, row(2, billed_key)]);
}

pub async fn concurrent_settlements_share_commits_without_loss(database: Arc<AnyDatabase>) {
    const ROWS: usize = 500;
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    let mut settling = JoinSet::new();
    for number in 0..ROWS {
        let store = Arc::clone(&store);
        settling.spawn(async move { store.ledger.settle(row(number, billed_key).into()).await });
    }
    assert!(settling.join_all().await.iter().all(Result::is_ok));
    let commits = store.ledger_commits();
    assert!(commits >= 1 && commits <= ROWS as u64 / 10, "{ROWS} rows took {commits} commits");

    // A second store reads only what was committed.
    let expected: Vec<UsageRow> = (0..ROWS).map(|number| row(number, billed_key)).collect();
    assert_eq!(all_ledger_rows(&*database.open().await).await, expected);
}

pub async fn invalid_row_does_not_fail_its_batch(database: Arc<AnyDatabase>) {
    const ROWS: usize = 41;
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    let mut settling = JoinSet::new();
    for number in 0..ROWS {
        let store = Arc::clone(&store);
        let billed_key = if number % 20 == 7 { (AccountId(777), billed_key.1) } else { billed_key };
        settling.spawn(async move { (number, store.ledger.settle(row(number, billed_key).into()).await) });
    }
    for (number, outcome) in settling.join_all().await {
        if number % 20 == 7 {
            let error = outcome.unwrap_err();
            assert!(
                matches!(&error, LedgerError::RowRejected { request: rejected, .. } if *rejected == request(number))
            );
        } else {
            outcome.unwrap();
        }
    }
    let expected: Vec<UsageRow> =
        (0..ROWS).filter(|number| number % 20 != 7).map(|number| row(number, billed_key)).collect();
    assert_eq!(all_ledger_rows(&store).await, expected);
}

pub async fn cost_must_equal_tokens_times_prices(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    let good = row(1, billed_key);
    let overflowing = UsageRow {
        input_tokens: u32::MAX,
        output_tokens: u32::MAX,
        prices: prices(1 << 40, 1 << 41),
        cost: Nanos(i64::MAX),
        ..good.clone()
    };
    let cached = with_cached(UsageRow { prices: discounted(prices(100, 400), 25), ..row(2, billed_key) }, 16);
    assert_eq!(cached.cost, Nanos(274 * 100 + 16 * 25 + 64 * 400));
    for bad in [
        UsageRow { cost: good.cost, ..cached.clone() },
        UsageRow { cached_input_tokens: 17, ..cached.clone() },
        UsageRow { cached_input_tokens: 291, prices: discounted(prices(100, 400), 100), ..good.clone() },
        UsageRow { cost: Nanos(good.cost.0 + 1), ..good.clone() },
        UsageRow { cost: Nanos(-good.cost.0), ..good.clone() },
        UsageRow { prices: prices(-100, 400), cost: Nanos(64 * 400 - 290 * 100), ..good.clone() },
        overflowing,
    ] {
        let error = store.ledger.settle(bad.into()).await.unwrap_err();
        assert!(matches!(error, LedgerError::RowRejected { .. }), "{error:?}");
    }
    assert!(all_ledger_rows(&store).await.is_empty());
    store.ledger.settle(good.clone().into()).await.unwrap();
    store.ledger.settle(cached.clone().into()).await.unwrap();
    assert_eq!(all_ledger_rows(&store).await, [good, cached]);
}

pub async fn row_before_1970_is_rejected(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let early = UsageRow { at: UnixMillis(-1), ..row(1, billed_key(&store).await) };
    assert!(matches!(store.ledger.settle(early.into()).await, Err(LedgerError::RowRejected { .. })));
}

pub async fn nul_in_model_name_is_rejected(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    let bad = UsageRow { model: "a\0b".to_owned(), ..row(1, billed_key) };
    assert!(matches!(
        store.ledger.settle(bad.into()).await,
        Err(LedgerError::Database(DbError::NulCharacter { .. }))
    ));
    let bad = UsageRow { request_id: RequestId::from_stored("req_\0".to_owned()), ..row(1, billed_key) };
    assert!(matches!(
        store.ledger.settle(bad.into()).await,
        Err(LedgerError::Database(DbError::NulCharacter { .. }))
    ));
    assert!(all_ledger_rows(&store).await.is_empty());
}

pub async fn hostile_model_names_round_trip(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    for (number, model) in HOSTILE_TEXTS.into_iter().enumerate() {
        store
            .ledger
            .settle(UsageRow { model: model.to_owned(), ..row(number, billed_key) }.into())
            .await
            .unwrap();
    }
    let mut expected = HOSTILE_TEXTS;
    expected.sort_unstable();
    let sums = store.ledger.usage(every(UsageBy::Model)).await.unwrap();
    let models: Vec<UsageGroup> = sums.into_iter().map(|sum| sum.group).collect();
    assert_eq!(models, expected.map(|model| UsageGroup::Model(model.to_owned())));
}

pub async fn dropped_caller_still_settles_its_row(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    for number in 0..50 {
        // Polled once, then dropped.
        tokio::select! {
            biased;
            outcome = store.ledger.settle(row(number, billed_key).into()) => outcome.unwrap(),
            () = std::future::ready(()) => {}
        }
    }
    // Rows are written in the order of arrival, so this one comes after all the others.
    store.ledger.settle(row(50, billed_key).into()).await.unwrap();
    let expected: Vec<UsageRow> = (0..=50).map(|number| row(number, billed_key)).collect();
    assert_eq!(all_ledger_rows(&store).await, expected);
}

pub async fn close_flushes_queued_rows(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    for number in 0..50 {
        tokio::select! {
            biased;
            outcome = store.ledger.settle(row(number, billed_key).into()) => outcome.unwrap(),
            () = std::future::ready(()) => {}
        }
    }
    tokio::join!(store.close(), store.close());
    assert_eq!(all_ledger_rows(&*database.open().await).await.len(), 50);
}

pub async fn probe_write_leaves_nothing_behind(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    store.ledger.probe_write().await.unwrap();
    let billed_key = billed_key(&store).await;
    let settled = store.ledger.settle(row(1, billed_key).into());
    let (probed, settled) = tokio::join!(store.ledger.probe_write(), settled);
    probed.unwrap();
    settled.unwrap();
    store.ledger.probe_write().await.unwrap();
    assert_eq!(store.idempotency.delete_expired_keys(NOON, 10).await.unwrap(), 0);
    assert_eq!(store.ledger_chains.ledger_rows(None, 10).await.unwrap().len(), 1);
}

pub async fn usage_days_start_at_midnight_utc(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    let day = Day::containing(NOON);
    let (before, after) = (Day(day.0 - 1), Day(day.0 + 1));
    for (number, at_ms) in
        [day.start().0 - 1, day.start().0, NOON.0, day.end().0 - 1, day.end().0].into_iter().enumerate()
    {
        let at = UsageRow { at: UnixMillis(at_ms), ..row(number, billed_key) };
        store.ledger.settle(with_tokens(at, 10, 1 << number).into()).await.unwrap();
    }
    let sum = |day: Day, requests: u64, output_tokens: u64| UsageSum {
        group: UsageGroup::Day(day),
        requests,
        input_tokens: 10 * requests,
        cached_input_tokens: 0,
        output_tokens,
        cost: Nanos((10 * requests * 100 + output_tokens * 400) as i64),
    };
    let (first, second, third) = (sum(before, 1, 1), sum(day, 3, 2 + 4 + 8), sum(after, 1, 16));
    for (from, to, expected) in [
        (None, None, vec![first.clone(), second.clone(), third.clone()]),
        (Some(day), Some(day), vec![second.clone()]),
        (Some(day), None, vec![second.clone(), third.clone()]),
        (None, Some(day), vec![first, second]),
        (Some(after), Some(Day(i32::MAX)), vec![third]),
        (Some(Day(-5)), Some(Day(-1)), vec![]),
        (Some(after), Some(before), vec![]),
    ] {
        let query = UsageQuery { account: Some(billed_key.0), from, to, by: UsageBy::Day };
        assert_eq!(store.ledger.usage(query).await.unwrap(), expected, "from {from:?} to {to:?}");
    }
}

pub async fn usage_by_key_and_model_is_sorted(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let account = account(&store, "Hale & Ward").await.id;
    let mut prefixes = Vec::new();
    for number in 0..6 {
        let key = key(&store, Some(account)).await;
        let model = ["zeta", "Alpha", "beta"][number % 3].to_owned();
        store.ledger.settle(UsageRow { model, ..row(number, (account, key.id)) }.into()).await.unwrap();
        prefixes.push(UsageGroup::Key(key.prefix));
    }
    prefixes.sort();
    let by_key: Vec<UsageGroup> =
        store.ledger.usage(every(UsageBy::Key)).await.unwrap().into_iter().map(|sum| sum.group).collect();
    assert_eq!(by_key, prefixes);
    let by_model = store.ledger.usage(every(UsageBy::Model)).await.unwrap();
    let expected = ["Alpha", "beta", "zeta"].map(|model| UsageSum {
        group: UsageGroup::Model(model.to_owned()),
        requests: 2,
        input_tokens: 580,
        cached_input_tokens: 0,
        output_tokens: 128,
        cost: Nanos(2 * (290 * 100 + 64 * 400)),
    });
    assert_eq!(by_model, expected);
}

pub async fn usage_of_one_account_excludes_others(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let mut payers = Vec::new();
    for (number, name) in ["One", "Two"].into_iter().enumerate() {
        let account = account(&store, name).await.id;
        let billed_key = (account, key(&store, Some(account)).await.id);
        store.ledger.settle(with_tokens(row(number, billed_key), 1, number as u32 + 1).into()).await.unwrap();
        payers.push(billed_key);
    }
    for by in [UsageBy::Day, UsageBy::Model, UsageBy::Key] {
        for (billed_key, output_tokens) in payers.iter().zip(1..) {
            let sums =
                store.ledger.usage(UsageQuery { account: Some(billed_key.0), ..every(by) }).await.unwrap();
            assert_eq!(sums.len(), 1);
            assert_eq!((sums[0].requests, sums[0].output_tokens), (1, output_tokens));
        }
        let total: u64 =
            store.ledger.usage(every(by)).await.unwrap().iter().map(|sum| sum.output_tokens).sum();
        assert_eq!(total, 3);
    }
}

pub async fn usage_without_rows_is_empty(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    for by in [UsageBy::Day, UsageBy::Model, UsageBy::Key] {
        assert!(store.ledger.usage(every(by)).await.unwrap().is_empty());
        assert!(
            store
                .ledger
                .usage(UsageQuery { account: Some(AccountId(777)), ..every(by) })
                .await
                .unwrap()
                .is_empty()
        );
    }
    assert!(all_ledger_rows(&store).await.is_empty());
}

pub async fn usage_stays_with_the_account_a_key_had_then(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (one, two) = (account(&store, "One").await.id, account(&store, "Two").await.id);
    let key = key(&store, Some(one)).await;
    store.ledger.settle(row(1, (one, key.id)).into()).await.unwrap();
    store.attach_key(&key.prefix, two).await.unwrap();
    store.ledger.settle(row(2, (two, key.id)).into()).await.unwrap();
    for account in [one, two] {
        let query = UsageQuery { account: Some(account), ..every(UsageBy::Key) };
        assert_eq!(store.ledger.usage(query).await.unwrap()[0].requests, 1);
    }
}

/// The row with a cost of a little over a third of the largest amount.
fn expensive(row: UsageRow) -> UsageRow {
    with_tokens(UsageRow { prices: prices(0, 716_000_000), ..row }, 0, u32::MAX)
}

pub async fn overflowing_sum_is_an_error(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    for number in 0..3 {
        let on_its_own_day = UsageRow { at: Day(number).start(), ..row(number as usize, billed_key) };
        store.ledger.settle(expensive(on_its_own_day).into()).await.unwrap();
        let last_fits = number < 2;
        for by in [UsageBy::Model, UsageBy::Key] {
            match store.ledger.usage(every(by)).await {
                Ok(_) => assert!(last_fits, "{by:?}: an inexact sum was given"),
                Err(error) => {
                    assert!(
                        !last_fits && matches!(error, LedgerError::Database(DbError::SumTooLarge)),
                        "{by:?}: {error:?}"
                    );
                }
            }
        }
        let days = store.ledger.usage(every(UsageBy::Day)).await.unwrap();
        assert_eq!(UsageTotals::of(&days).is_ok(), last_fits);
    }
}

pub async fn row_that_overflows_daily_sum_is_rejected(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    // All in one batch: the third expensive one overflows, whichever that is.
    let (one, two, three, small) = tokio::join!(
        store.ledger.settle(expensive(row(1, billed_key)).into()),
        store.ledger.settle(expensive(row(2, billed_key)).into()),
        store.ledger.settle(expensive(row(3, billed_key)).into()),
        store.ledger.settle(with_tokens(row(4, billed_key), 1, 1).into()),
    );
    let rejected = [&one, &two, &three].into_iter().filter(|outcome| outcome.is_err()).count();
    assert!(rejected == 1 && small.is_ok(), "{one:?} {two:?} {three:?} {small:?}");
    let error = [one, two, three].into_iter().find_map(Result::err).unwrap();
    assert!(matches!(error, LedgerError::RowRejected { .. }), "{error:?}");
    let rows = all_ledger_rows(&store).await;
    let sums = store.ledger.usage(every(UsageBy::Day)).await.unwrap();
    assert_eq!((sums[0].requests, sums[0].cost), (3, Nanos(rows.iter().map(|row| row.cost.0).sum())));
}

pub async fn ledger_paging_visits_every_row_once(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    let mut settling = JoinSet::new();
    for number in 0..100_usize {
        let store = Arc::clone(&store);
        // Settled out of order: 37 and 100 have no common divisor.
        settling.spawn(async move { store.ledger.settle(row(number * 37 % 100, billed_key).into()).await });
    }
    assert!(settling.join_all().await.iter().all(Result::is_ok));
    for limit in [1, 7, 99, 100, 101, u32::MAX] {
        let mut seen: Vec<UsageRow> = Vec::new();
        loop {
            let after = seen.last().map(|row| row.request_id.clone());
            let page = store.ledger_chains.ledger_rows(after.as_ref(), limit).await.unwrap();
            assert!(page.len() as u64 <= u64::from(limit));
            if page.is_empty() {
                break;
            }
            seen.extend(page);
        }
        let expected: Vec<UsageRow> = (0..100).map(|number| row(number, billed_key)).collect();
        assert_eq!(seen, expected, "{limit} at a time");
    }
    assert!(store.ledger_chains.ledger_rows(None, 0).await.unwrap().is_empty());
}

pub async fn raw_sql_cannot_update_or_delete_ledger_rows(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let row = row(1, billed_key(&store).await);
    store.ledger.settle(row.clone().into()).await.unwrap();
    for sql in [
        "UPDATE ledger SET cost_nanos = 0, output_tokens = 0, input_tokens = 0",
        "UPDATE ledger SET model = 'another'",
        "DELETE FROM ledger",
        "DELETE FROM api_keys",
        "DELETE FROM accounts",
    ] {
        assert!(database.raw(sql).await.is_err(), "{sql}");
    }
    assert_eq!(all_ledger_rows(&store).await, [row]);
}

pub async fn raw_sql_cannot_insert_invalid_ledger_row(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (account, key) = billed_key(&store).await;
    let insert = |values: String| {
        let database = Arc::clone(&database);
        async move { database.raw(&insert_row(&*database, &format!("{values}, 1, 0"))).await }
    };
    for bad in [
        format!("'r', {account}, {key}, 'm', 1, 0, 1, 1, 1, 2, 4, 1, 'complete'"),
        format!("'r', {account}, {key}, 'm', -1, 0, 1, 1, 1, 2, 1, 1, 'complete'"),
        format!("'r', {account}, {key}, 'm', 1, 0, 1, 1, 1, 2, 3, -1, 'complete'"),
        format!("'r', {account}, {key}, 'm', 1, 0, 1, 1, 1, 2, 3, 1, 'lost'"),
        format!("'r', {account}, {key}, 'm', 1, 2, 1, 1, 1, 2, 3, 1, 'complete'"),
        format!("'r', {account}, {key}, 'm', 1, -1, 1, 1, 1, 2, 3, 1, 'complete'"),
        format!("'r', {account}, {key}, 'm', 1, 1, 1, 1, 0, 2, 3, 1, 'complete'"),
        format!("'', {account}, {key}, 'm', 1, 0, 1, 1, 1, 2, 3, 1, 'complete'"),
        format!("'r', 777, {key}, 'm', 1, 0, 1, 1, 1, 2, 3, 1, 'complete'"),
        format!("'r', {account}, 777, 'm', 1, 0, 1, 1, 1, 2, 3, 1, 'complete'"),
    ] {
        assert!(insert(bad.clone()).await.is_err(), "{bad}");
    }
    // The same statement without the fault is accepted, so each rejection above was for its fault.
    insert(format!("'r', {account}, {key}, 'm', 1, 0, 1, 1, 1, 2, 3, 1, 'complete'")).await.unwrap();
}

pub async fn raw_sql_cannot_insert_ledger_row_without_position_and_hash(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (account, key) = billed_key(&store).await;
    let row = format!("'r', {account}, {key}, 'm', 1, 0, 1, 1, 1, 2, 3, 1, 'complete'");
    for bad in [
        insert_row(&*database, &format!("{row}, 1, -1")),
        insert_row(&*database, &format!("{row}, 1, NULL")),
        insert_row(&*database, &format!("{row}, NULL, 0")),
        insert_row(&*database, &format!("{row}, 1, 0")).replace(database.some_hash(), "NULL"),
        insert_row(&*database, &format!("{row}, 1, 0")).replace(database.some_hash(), "''"),
    ] {
        assert!(database.raw(&bad).await.is_err(), "{bad}");
    }
    database.raw(&insert_row(&*database, &format!("{row}, 1, 0"))).await.unwrap();
}

pub async fn corrupt_row_error_names_its_request(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (account, key) = billed_key(&store).await;
    let tokens = u64::from(u32::MAX) + 1;
    let values = format!(
        "'req_too_long', {account}, {key}, 'm', {tokens}, 0, 0, 1, 1, 1, {tokens}, 1, 'complete', 1, 0"
    );
    database.raw(&insert_row(&*database, &values)).await.unwrap();
    let error = store.ledger_chains.ledger_rows(None, 1).await.unwrap_err();
    assert!(matches!(error, DbError::Corrupt { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("req_too_long") && text.contains(&tokens.to_string()), "{text}");
}
