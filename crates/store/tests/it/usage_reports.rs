//! Conformance: a month's report equals the ledger's sums, reading it is audited, and rejections and peaks add up over
//! nodes.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::firm::{ask, decisions, firm_permit, principal, sign_in};
use crate::samples::{NOON, account, billed_key, discounted, key, prices, row, with_cached, with_tokens};
use chancery_domain::{
    AccountId, Action, Day, KeyId, KeyPrefix, Month, Nanos, Role, StopReason, UnixMillis, UsageRow,
};
use chancery_policy::{FirmResource, ReadUsage};
use chancery_store::{
    ActivityBatch, DailyPeak, DailyRejectionTotals, DailyRejections, DbError, LedgerError, MonthlyUsageQuery,
    Store, UsageBy, UsageGroup, UsageQuery, UsageReport, UsageSum, UsageTotals,
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
    let permit = ask(chancery_domain::Principal::Operator, FirmResource).unwrap();
    store.usage_reports.read_usage(permit, MonthlyUsageQuery { account, month }).await.unwrap()
}

/// A random row: its day, counted from the first of the month, its key, model and token counts, and which prices.
type RandomCase = (i32, usize, usize, u32, u32, usize);

fn random_rows() -> impl Strategy<Value = Vec<RandomCase>> {
    // The days around the start and the end of the month, and the start of the month before, are drawn often.
    let day = prop_oneof![-40..70_i32, -1..1_i32, 29..31_i32, -31..-29_i32];
    let draw = (day, 0..4_usize, 0..3_usize, 0..1_000_000_u32, 0..1_000_000_u32, 0..2_usize);
    proptest::collection::vec(draw, 60..160)
}

fn totals<'a>(rows: impl IntoIterator<Item = &'a UsageRow>) -> UsageTotals {
    rows.into_iter().fold(UsageTotals::default(), |sum, row| UsageTotals {
        requests: sum.requests + 1,
        input_tokens: sum.input_tokens + u64::from(row.input_tokens),
        cached_input_tokens: sum.cached_input_tokens + u64::from(row.cached_input_tokens),
        output_tokens: sum.output_tokens + u64::from(row.output_tokens),
        cost: Nanos(sum.cost.0 + row.cost.0),
    })
}

fn totals_of(sum: &UsageSum) -> UsageTotals {
    let UsageSum { requests, input_tokens, cached_input_tokens, output_tokens, cost, .. } = *sum;
    UsageTotals { requests, input_tokens, cached_input_tokens, output_tokens, cost }
}

fn grouped<K: Ord>(rows: &[UsageRow], group: impl Fn(&UsageRow) -> K) -> Vec<(K, UsageTotals)> {
    let mut groups: BTreeMap<K, Vec<UsageRow>> = BTreeMap::new();
    for row in rows {
        groups.entry(group(row)).or_default().push(row.clone());
    }
    groups.into_iter().map(|(group, rows)| (group, totals(&rows))).collect()
}

/// `usage` is the query behind `GET /v1/usage` and `chancery usage`.
pub async fn monthly_report_equals_ledger_and_usage_query(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let mut runner = TestRunner::deterministic();
    let draws = random_rows().new_tree(&mut runner).unwrap().current();
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
        .map(|(index, (day, owner, model, input_tokens, output_tokens, price))| {
            let (account, key) = &owners[owner];
            let sample = UsageRow {
                at: UnixMillis(Day(month().first_day().0 + day).start().0 + index as i64),
                model: ["b", "B", "é"][model].to_owned(),
                prices: [prices(100, 400), discounted(prices(150, 600), 40)][price],
                stop_reason: StopReason::ALL[index % StopReason::ALL.len()],
                ..row(index, (account.id, key.id))
            };
            with_cached(with_tokens(sample, input_tokens, output_tokens), input_tokens / 3)
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
    let first = rows.iter().map(|row| Month::containing(row.at)).min();
    let everybody = [None, Some(owners[0].0.id), Some(owners[2].0.id), Some(idle.id)];
    for (account, reported_month) in everybody.into_iter().flat_map(|account| {
        [month().previous(), month(), month().next(), month().next().next().next()]
            .map(|month| (account, month))
    }) {
        let report = report(&store, account, reported_month).await;
        let of = |month: Month| -> Vec<UsageRow> {
            let is_included = |row: &&UsageRow| account.is_none_or(|account| row.account == account);
            let within = rows.iter().filter(is_included).filter(|row| Month::containing(row.at) == month);
            within.cloned().collect()
        };
        let within = of(reported_month);
        let case = format!("{account:?} {reported_month}");
        let sums = |sums: &[UsageSum]| -> Vec<(UsageGroup, UsageTotals)> {
            sums.iter().map(|sum| (sum.group.clone(), totals_of(sum))).collect()
        };
        assert_eq!(
            sums(&report.days),
            grouped(&within, |row| UsageGroup::Day(Day::containing(row.at))),
            "{case}"
        );
        assert_eq!(
            sums(&report.models),
            grouped(&within, |row| UsageGroup::Model(row.model.clone())),
            "{case}"
        );
        let keys: Vec<_> = report.keys.iter().map(|key| (key.prefix.clone(), key.totals)).collect();
        assert_eq!(keys, grouped(&within, |row| prefixes[&row.key].clone()), "{case}");
        assert!(report.keys.iter().all(|key| key.label == "a label"));
        assert_eq!(report.previous, totals(&of(reported_month.previous())), "{case}");
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
            let (from, to) = (Some(reported_month.first_day()), Some(reported_month.last_day()));
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

pub async fn reading_usage_is_audited_and_unknown_account_is_rejected(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (ruth, tom) =
        (sign_in(&store, "ruth", Role::Partner).await, sign_in(&store, "tom", Role::Consultant).await);
    let everybody = MonthlyUsageQuery { account: None, month: month() };
    let empty = store.usage_reports.read_usage(firm_permit(&ruth), everybody).await.unwrap();
    assert_eq!((empty.days, empty.first_month, empty.accounts), (vec![], None, vec![]));
    let unknown = MonthlyUsageQuery { account: Some(AccountId(777)), ..everybody };
    let rejected = store.usage_reports.read_usage(firm_permit(&ruth), unknown).await;
    assert!(matches!(rejected, Err(LedgerError::NoSuchAccountId(AccountId(777)))), "{rejected:?}");
    assert!(ask::<ReadUsage>(principal(&tom), FirmResource).is_err());
    let recorded = decisions(&store).await;
    assert_eq!(recorded.len(), 2, "{recorded:?}");
    assert!(recorded.iter().all(|row| row.access_request.action == Action::ReadUsage), "{recorded:?}");
}

pub async fn overflowing_month_is_an_error(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    for number in 0..3 {
        let at = Day(month().first_day().0 + number).start();
        // The row costs a little over a third of the largest amount.
        let dear = UsageRow { prices: prices(0, 716_000_000), at, ..row(number as usize, billed_key) };
        store.ledger.settle(with_tokens(dear, 0, u32::MAX).into()).await.unwrap();
    }
    for month in [month(), month().next()] {
        let permit = ask(chancery_domain::Principal::Operator, FirmResource).unwrap();
        let outcome =
            store.usage_reports.read_usage(permit, MonthlyUsageQuery { account: None, month }).await;
        assert!(matches!(outcome, Err(LedgerError::Database(DbError::SumTooLarge))), "{month}: {outcome:?}");
    }
    report(&store, None, month().previous()).await;
}

fn rejected(account: Option<AccountId>, key: KeyId, code: &str, rejections: u64) -> DailyRejections {
    DailyRejections {
        account,
        day: Day::containing(NOON),
        key,
        code: code.to_owned(),
        rejections,
        last_at: NOON,
    }
}

fn peak(account: AccountId, day: Day, (requests, tokens): (u64, u64), at: i64) -> DailyPeak {
    let at = UnixMillis(at);
    DailyPeak { account, day, requests, requests_at: at, tokens, tokens_at: at }
}

fn on_day(line: &DailyRejections, rejections: u64, last_at: UnixMillis) -> DailyRejectionTotals {
    DailyRejectionTotals { day: line.day, code: line.code.clone(), rejections, last_at }
}

pub async fn rejections_sum_by_day_and_code(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (one, two) = (account(&store, "One").await.id, account(&store, "Two").await.id);
    let (of_one, of_two, of_no_account) =
        (key(&store, Some(one)).await.id, key(&store, Some(two)).await.id, key(&store, None).await.id);
    let later = |line: DailyRejections, at: i64| DailyRejections { last_at: UnixMillis(at), ..line };
    store.activity.record_activity(ActivityBatch::default()).await.unwrap();
    let first = [
        rejected(Some(two), of_two, "rate_limited", 7),
        later(rejected(Some(one), of_one, "rate_limited", 2), NOON.0 + 5),
        // The same counter again in one call.
        later(rejected(Some(one), of_one, "rate_limited", 3), NOON.0 + 1),
        rejected(Some(one), of_one, "spending_cap_reached", 1),
        rejected(None, of_no_account, "no_billing_account", 4),
    ];
    store
        .activity
        .record_activity(ActivityBatch { rejections: &first, ..ActivityBatch::default() })
        .await
        .unwrap();
    let next_month = DailyRejections { day: month().next().first_day(), ..first[1].clone() };
    store
        .activity
        .record_activity(ActivityBatch {
            rejections: &[later(first[2].clone(), NOON.0), next_month.clone()],
            ..ActivityBatch::default()
        })
        .await
        .unwrap();

    let last = UnixMillis(NOON.0 + 5);
    let (unpaid, capped) = (on_day(&first[4], 4, NOON), on_day(&first[3], 1, NOON));
    let of_all = [unpaid, on_day(&first[0], 7 + 8, last), capped.clone()];
    assert_eq!(report(&store, None, month()).await.rejections, of_all);
    assert_eq!(report(&store, Some(one), month()).await.rejections, [on_day(&first[1], 8, last), capped]);
    let after = report(&store, Some(one), month().next()).await.rejections;
    assert_eq!(after, [on_day(&next_month, 2, next_month.last_at)]);
    assert_eq!(report(&store, None, month().previous()).await.rejections, []);
}

pub async fn daily_peak_only_rises_and_keeps_its_time(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (one, two) = (account(&store, "One").await.id, account(&store, "Two").await.id);
    let today = Day::containing(NOON);
    let tomorrow = Day(today.0 + 1);
    store
        .activity
        .record_activity(ActivityBatch {
            peaks: &[peak(one, today, (5, 500), 1), peak(two, today, (9, 9), 1)],
            ..ActivityBatch::default()
        })
        .await
        .unwrap();
    store
        .activity
        .record_activity(ActivityBatch {
            peaks: &[peak(one, today, (4, 600), 2)],
            ..ActivityBatch::default()
        })
        .await
        .unwrap();
    // Several of one day in one call, one of them equal to the highest.
    let more = [
        peak(one, tomorrow, (1, 1), 9),
        peak(one, today, (6, 100), 3),
        peak(one, today, (2, 599), 4),
        peak(one, today, (6, 600), 5),
    ];
    store.activity.record_activity(ActivityBatch { peaks: &more, ..ActivityBatch::default() }).await.unwrap();
    let highest = DailyPeak { tokens: 600, tokens_at: UnixMillis(2), ..peak(one, today, (6, 0), 3) };
    assert_eq!(report(&store, Some(one), month()).await.peaks, [highest, more[0]]);
    assert_eq!(report(&store, None, month()).await.peaks, []);
}

pub async fn concurrent_activity_from_nodes_adds_up(database: Arc<AnyDatabase>) {
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
            // Each call has a different order.
            owners.rotate_left((round as usize * 7 + node * 3) % KEYS);
            if node == 1 {
                owners.reverse();
            }
            noting.spawn(async move {
                let lines: Vec<_> = owners
                    .iter()
                    .map(|(account, key)| rejected(Some(*account), *key, "rate_limited", round + 1))
                    .collect();
                let height = round * 2 + node as u64;
                let peaks: Vec<_> = owners
                    .iter()
                    .map(|(account, _)| {
                        peak(*account, Day::containing(NOON), (height, height), height as i64)
                    })
                    .collect();
                store
                    .activity
                    .record_activity(ActivityBatch {
                        rejections: &lines,
                        peaks: &peaks,
                        ..ActivityBatch::default()
                    })
                    .await
            });
        }
    }
    for outcome in noting.join_all().await {
        outcome.unwrap();
    }
    let sum = 2 * (1..=ROUNDS).sum::<u64>();
    let rejections = report(&stores[0], None, month()).await.rejections;
    let counts: Vec<u64> = rejections.iter().map(|line| line.rejections).collect();
    assert_eq!(counts, [sum * KEYS as u64]);
    for (account, _) in &owners {
        let rejections = report(&stores[0], Some(*account), month()).await.rejections;
        assert!(rejections.iter().all(|line| line.rejections == sum), "{rejections:?}");
    }
    let height = ROUNDS * 2 - 1;
    for (account, _) in owners {
        let peaks = report(&stores[1], Some(account), month()).await.peaks;
        assert_eq!(peaks, [peak(account, Day::containing(NOON), (height, height), height as i64)]);
    }
}
