//! Conformance: a month's usage is what the ledger's sums say, on record who read it, and refusals and peaks add up over nodes.

use crate::databases::TestDatabase;
use crate::firm::{arrive, ask, asker, decisions, firm_permit};
use crate::samples::{NOON, account, key, payer, prices, row, with_tokens};
use chancery_domain::{
    AccountId, Action, Day, HowEnded, KeyId, KeyPrefix, Month, Nanos, Role, UnixMillis, UsageRow,
};
use chancery_policy::{ReadUsage, TheFirm};
use chancery_store::{
    DbError, LedgerError, PeakDay, RefusedDay, RefusedOnDay, Store, UsageBy, UsageGroup, UsageMonth,
    UsageQuery, UsageReport, UsageSum, UsageTotals,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::task::JoinSet;

const MONTH: &str = "2026-11";

fn month() -> Month {
    MONTH.parse().unwrap()
}

async fn report(store: &Store, account: Option<AccountId>, month: Month) -> UsageReport {
    let permit = ask(chancery_domain::Asker::Operator, TheFirm).unwrap();
    store.usage_reports.read_usage(permit, UsageMonth { account, month }).await.unwrap()
}

/// What is drawn of a row: the day beside the month's ends, which of the keys and models, the counts, and which prices.
type Draw = (i32, usize, usize, u32, u32, usize);

fn drawn_rows() -> impl Strategy<Value = Vec<Draw>> {
    // Both ends of the month before, the month itself and the one after it are drawn often.
    let day = prop_oneof![-40..70_i32, -1..1_i32, 29..31_i32, -31..-29_i32];
    let draw = (day, 0..4_usize, 0..3_usize, 0..1_000_000_u32, 0..1_000_000_u32, 0..2_usize);
    proptest::collection::vec(draw, 60..160)
}

fn totals<'a>(rows: impl IntoIterator<Item = &'a UsageRow>) -> UsageTotals {
    rows.into_iter().fold(UsageTotals::default(), |sum, row| UsageTotals {
        requests: sum.requests + 1,
        input_tokens: sum.input_tokens + u64::from(row.input_tokens),
        output_tokens: sum.output_tokens + u64::from(row.output_tokens),
        cost: Nanos(sum.cost.0 + row.cost.0),
    })
}

fn totals_of(sum: &UsageSum) -> UsageTotals {
    let UsageSum { requests, input_tokens, output_tokens, cost, .. } = *sum;
    UsageTotals { requests, input_tokens, output_tokens, cost }
}

fn grouped<K: Ord>(rows: &[UsageRow], group: impl Fn(&UsageRow) -> K) -> Vec<(K, UsageTotals)> {
    let mut groups: BTreeMap<K, Vec<UsageRow>> = BTreeMap::new();
    for row in rows {
        groups.entry(group(row)).or_default().push(row.clone());
    }
    groups.into_iter().map(|(group, rows)| (group, totals(&rows))).collect()
}

/// `usage` is the query behind `GET /v1/usage` and `chancery usage`.
pub async fn a_months_report_equals_the_ledger_and_what_usage_gives<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let mut runner = TestRunner::deterministic();
    let draws = drawn_rows().new_tree(&mut runner).unwrap().current();
    let mut owners = Vec::new();
    for name in ["Zeta", "Aster & Co"] {
        let account = account(&store, name).await;
        for _ in 0..2 {
            owners.push((account.clone(), key(&store, Some(account.id)).await));
        }
    }
    let idle = account(&store, "Idle").await;
    let rows: Vec<UsageRow> = draws
        .into_iter()
        .enumerate()
        .map(|(place, (day, owner, model, input_tokens, output_tokens, price))| {
            let (account, key) = &owners[owner];
            let drawn = UsageRow {
                at: UnixMillis(Day(month().first_day().0 + day).start().0 + place as i64),
                model: ["b", "B", "é"][model].to_owned(),
                prices: [prices(100, 400), prices(150, 600)][price],
                ended: HowEnded::ALL[place % HowEnded::ALL.len()],
                ..row(place, (account.id, key.id))
            };
            with_tokens(drawn, input_tokens, output_tokens)
        })
        .collect();
    let mut settling = JoinSet::new();
    for row in rows.clone() {
        let store = Arc::clone(&store);
        settling.spawn(async move { store.ledger.settle(row.into()).await });
    }
    assert!(settling.join_all().await.iter().all(Result::is_ok));

    let prefixes: HashMap<KeyId, KeyPrefix> =
        owners.iter().map(|(_, key)| (key.id, key.prefix.clone())).collect();
    let names: HashMap<AccountId, String> =
        owners.iter().map(|(account, _)| (account.id, account.name.to_string())).collect();
    let first = rows.iter().map(|row| Month::of(row.at)).min();
    let everybody = [None, Some(owners[0].0.id), Some(owners[2].0.id), Some(idle.id)];
    for (account, asked) in everybody.into_iter().flat_map(|account| {
        [month().previous(), month(), month().next(), month().next().next().next()]
            .map(|month| (account, month))
    }) {
        let report = report(&store, account, asked).await;
        let of = |month: Month| -> Vec<UsageRow> {
            let is_asked = |row: &&UsageRow| account.is_none_or(|account| row.account == account);
            let within = rows.iter().filter(is_asked).filter(|row| Month::of(row.at) == month);
            within.cloned().collect()
        };
        let within = of(asked);
        let case = format!("{account:?} {asked}");
        let sums = |sums: &[UsageSum]| -> Vec<(UsageGroup, UsageTotals)> {
            sums.iter().map(|sum| (sum.group.clone(), totals_of(sum))).collect()
        };
        assert_eq!(sums(&report.days), grouped(&within, |row| UsageGroup::Day(Day::of(row.at))), "{case}");
        assert_eq!(
            sums(&report.models),
            grouped(&within, |row| UsageGroup::Model(row.model.clone())),
            "{case}"
        );
        let keys: Vec<_> = report.keys.iter().map(|key| (key.prefix.clone(), key.totals)).collect();
        assert_eq!(keys, grouped(&within, |row| prefixes[&row.key].clone()), "{case}");
        assert!(report.keys.iter().all(|key| key.label == "a label"));
        assert_eq!(report.previous, totals(&of(asked.previous())), "{case}");
        let by_account: Vec<_> =
            report.by_account.iter().map(|usage| (usage.name.to_string(), usage.totals)).collect();
        match account {
            None => assert_eq!(by_account, grouped(&within, |row| names[&row.account].clone()), "{case}"),
            Some(_) => assert_eq!(by_account, []),
        }
        assert_eq!(report.account.map(|account| account.id), account);
        let listed: Vec<_> = report.accounts.iter().map(|account| account.name.to_string()).collect();
        assert_eq!(listed, ["Aster & Co", "Idle", "Zeta"]);
        assert_eq!(report.first_month, first);

        let usage = |by| {
            let (from, to) = (Some(asked.first_day()), Some(asked.last_day()));
            store.ledger.usage(UsageQuery { account, from, to, by })
        };
        assert_eq!(usage(UsageBy::Day).await.unwrap(), report.days, "{case}");
        assert_eq!(usage(UsageBy::Model).await.unwrap(), report.models, "{case}");
        let by_key = sums(&usage(UsageBy::Key).await.unwrap());
        assert_eq!(
            by_key,
            keys.into_iter().map(|(key, sum)| (UsageGroup::Key(key), sum)).collect::<Vec<_>>()
        );
        let by_account = sums(&usage(UsageBy::Account).await.unwrap());
        let expected = grouped(&within, |row| UsageGroup::Account(names[&row.account].parse().unwrap()));
        assert_eq!(by_account, expected, "{case}");
    }
}

pub async fn reading_usage_is_on_record_and_an_unknown_account_has_none<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let (ruth, tom) =
        (arrive(&store, "ruth", Role::Partner).await, arrive(&store, "tom", Role::Consultant).await);
    let everybody = UsageMonth { account: None, month: month() };
    let empty = store.usage_reports.read_usage(firm_permit(&ruth), everybody).await.unwrap();
    assert_eq!((empty.days, empty.first_month, empty.accounts), (vec![], None, vec![]));
    let unknown = UsageMonth { account: Some(AccountId(777)), ..everybody };
    let refused = store.usage_reports.read_usage(firm_permit(&ruth), unknown).await;
    assert!(matches!(refused, Err(LedgerError::NoSuchAccountId(AccountId(777)))), "{refused:?}");
    assert!(ask::<ReadUsage>(asker(&tom), TheFirm).is_err());
    let noted = decisions(&store).await;
    assert_eq!(noted.len(), 2, "{noted:?}");
    assert!(noted.iter().all(|row| row.asked.action == Action::ReadUsage), "{noted:?}");
}

pub async fn a_month_too_large_to_be_exact_is_an_error<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let payer = payer(&store).await;
    for number in 0..3 {
        let at = Day(month().first_day().0 + number).start();
        // It costs a little over a third of the largest amount.
        let dear = UsageRow { prices: prices(0, 716_000_000), at, ..row(number as usize, payer) };
        store.ledger.settle(with_tokens(dear, 0, u32::MAX).into()).await.unwrap();
    }
    for month in [month(), month().next()] {
        let permit = ask(chancery_domain::Asker::Operator, TheFirm).unwrap();
        let outcome = store.usage_reports.read_usage(permit, UsageMonth { account: None, month }).await;
        assert!(matches!(outcome, Err(LedgerError::Database(DbError::SumTooLarge))), "{month}: {outcome:?}");
    }
    report(&store, None, month().previous()).await;
}

fn refused(account: Option<AccountId>, key: KeyId, code: &str, refusals: u64) -> RefusedDay {
    RefusedDay { account, day: Day::of(NOON), key, code: code.to_owned(), refusals, last_at: NOON }
}

fn peak(account: AccountId, day: Day, (requests, tokens): (u64, u64), at: i64) -> PeakDay {
    let at = UnixMillis(at);
    PeakDay { account, day, requests, requests_at: at, tokens, tokens_at: at }
}

fn on_day(line: &RefusedDay, refusals: u64, last_at: UnixMillis) -> RefusedOnDay {
    RefusedOnDay { day: line.day, code: line.code.clone(), refusals, last_at }
}

pub async fn refusals_add_up_by_day_and_code<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let (one, two) = (account(&store, "One").await.id, account(&store, "Two").await.id);
    let (of_one, of_two, of_nobody) =
        (key(&store, Some(one)).await.id, key(&store, Some(two)).await.id, key(&store, None).await.id);
    let later = |line: RefusedDay, at: i64| RefusedDay { last_at: UnixMillis(at), ..line };
    store.activity.note_activity(&[], &[]).await.unwrap();
    let first = [
        refused(Some(two), of_two, "rate_limited", 7),
        later(refused(Some(one), of_one, "rate_limited", 2), NOON.0 + 5),
        // Twice in one call.
        later(refused(Some(one), of_one, "rate_limited", 3), NOON.0 + 1),
        refused(Some(one), of_one, "spending_cap_reached", 1),
        refused(None, of_nobody, "no_billing_account", 4),
    ];
    store.activity.note_activity(&first, &[]).await.unwrap();
    let next_month = RefusedDay { day: month().next().first_day(), ..first[1].clone() };
    store.activity.note_activity(&[later(first[2].clone(), NOON.0), next_month.clone()], &[]).await.unwrap();

    let last = UnixMillis(NOON.0 + 5);
    let (unpaid, capped) = (on_day(&first[4], 4, NOON), on_day(&first[3], 1, NOON));
    let of_all = [unpaid, on_day(&first[0], 7 + 8, last), capped.clone()];
    assert_eq!(report(&store, None, month()).await.refusals, of_all);
    assert_eq!(report(&store, Some(one), month()).await.refusals, [on_day(&first[1], 8, last), capped]);
    let after = report(&store, Some(one), month().next()).await.refusals;
    assert_eq!(after, [on_day(&next_month, 2, next_month.last_at)]);
    assert_eq!(report(&store, None, month().previous()).await.refusals, []);
}

pub async fn a_peak_rises_and_never_falls_and_keeps_its_moment<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let (one, two) = (account(&store, "One").await.id, account(&store, "Two").await.id);
    let today = Day::of(NOON);
    let tomorrow = Day(today.0 + 1);
    store
        .activity
        .note_activity(&[], &[peak(one, today, (5, 500), 1), peak(two, today, (9, 9), 1)])
        .await
        .unwrap();
    store.activity.note_activity(&[], &[peak(one, today, (4, 600), 2)]).await.unwrap();
    // Several of one day in one call, and one that is as high.
    let more = [
        peak(one, tomorrow, (1, 1), 9),
        peak(one, today, (6, 100), 3),
        peak(one, today, (2, 599), 4),
        peak(one, today, (6, 600), 5),
    ];
    store.activity.note_activity(&[], &more).await.unwrap();
    let highest = PeakDay { tokens: 600, tokens_at: UnixMillis(2), ..peak(one, today, (6, 0), 3) };
    assert_eq!(report(&store, Some(one), month()).await.peaks, [highest, more[0]]);
    assert_eq!(report(&store, None, month()).await.peaks, []);
}

pub async fn nodes_that_note_at_once_add_up<D: TestDatabase>(database: Arc<D>) {
    const ROUNDS: u64 = 12;
    const KEYS: usize = 20;
    let stores = [database.open().await, database.open().await];
    let mut owners = Vec::new();
    for number in 0..KEYS {
        let account = account(&stores[0], &format!("Account {number}")).await.id;
        owners.push((account, key(&stores[0], Some(account)).await.id));
    }
    let mut noting = JoinSet::new();
    for round in 0..ROUNDS {
        for (node, store) in stores.iter().enumerate() {
            let (store, mut owners) = (Arc::clone(store), owners.clone());
            // Everybody comes with another order.
            owners.rotate_left((round as usize * 7 + node * 3) % KEYS);
            if node == 1 {
                owners.reverse();
            }
            noting.spawn(async move {
                let lines: Vec<_> = owners
                    .iter()
                    .map(|(account, key)| refused(Some(*account), *key, "rate_limited", round + 1))
                    .collect();
                let height = round * 2 + node as u64;
                let peaks: Vec<_> = owners
                    .iter()
                    .map(|(account, _)| peak(*account, Day::of(NOON), (height, height), height as i64))
                    .collect();
                store.activity.note_activity(&lines, &peaks).await
            });
        }
    }
    for outcome in noting.join_all().await {
        outcome.unwrap();
    }
    let sum = 2 * (1..=ROUNDS).sum::<u64>();
    let refusals = report(&stores[0], None, month()).await.refusals;
    let counts: Vec<u64> = refusals.iter().map(|line| line.refusals).collect();
    assert_eq!(counts, [sum * KEYS as u64]);
    for (account, _) in &owners {
        let refusals = report(&stores[0], Some(*account), month()).await.refusals;
        assert!(refusals.iter().all(|line| line.refusals == sum), "{refusals:?}");
    }
    let height = ROUNDS * 2 - 1;
    for (account, _) in owners {
        let peaks = report(&stores[1], Some(account), month()).await.peaks;
        assert_eq!(peaks, [peak(account, Day::of(NOON), (height, height), height as i64)]);
    }
}
