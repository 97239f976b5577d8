//! Conformance: the database's sums equal those computed here, for random ledgers.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::samples::{account, discounted, key, prices, row, with_cached, with_tokens};
use chancery_domain::{Day, KeyId, KeyPrefix, Nanos, StopReason, UnixMillis, UsageRow};
use chancery_store::{UsageBy, UsageGroup, UsageQuery, UsageSum};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::task::JoinSet;

const LEDGERS: usize = 12;

/// A random row: its time, key, model, token counts, prices and stop reason.
type RandomCase = (i64, usize, usize, u32, u32, i64, i64, usize);

fn random_ledger() -> impl Strategy<Value = Vec<RandomCase>> {
    // Four days, with the moments around midnight drawn often.
    let at_ms = prop_oneof![
        0..4 * 86_400_000_i64,
        (1..4_i64, -1..=1_i64).prop_map(|(day, beside)| day * 86_400_000 + beside)
    ];
    let draw = (
        at_ms,
        0..3_usize,
        0..4_usize,
        any::<u32>(),
        any::<u32>(),
        0..1_000_000_i64,
        0..1_000_000_i64,
        0..StopReason::ALL.len(),
    );
    proptest::collection::vec(draw, 0..80)
}

fn sums(rows: &[UsageRow], group: impl Fn(&UsageRow) -> UsageGroup) -> Vec<UsageSum> {
    let mut sums: BTreeMap<UsageGroup, ([u64; 4], i64)> = BTreeMap::new();
    for row in rows {
        let sum = sums.entry(group(row)).or_default();
        let tokens = [row.input_tokens, row.cached_input_tokens, row.output_tokens].map(u64::from);
        sum.0[0] += 1;
        sum.0[1..].iter_mut().zip(tokens).for_each(|(sum, tokens)| *sum += tokens);
        sum.1 += row.cost.0;
    }
    sums.into_iter()
        .map(|(group, ([requests, input_tokens, cached_input_tokens, output_tokens], cost))| UsageSum {
            group,
            requests,
            input_tokens,
            cached_input_tokens,
            output_tokens,
            cost: Nanos(cost),
        })
        .collect()
}

pub async fn sql_sums_match_rust_on_random_ledgers(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let mut runner = TestRunner::deterministic();
    for ledger in 0..LEDGERS {
        let draws = random_ledger().new_tree(&mut runner).unwrap().current();
        let account = account(&store, &format!("Account {ledger}")).await.id;
        let mut keys: Vec<(KeyId, KeyPrefix)> = Vec::new();
        for _ in 0..3 {
            let key = key(&store, Some(account)).await;
            keys.push((key.id, key.prefix));
        }
        let rows: Vec<UsageRow> = draws
            .into_iter()
            .enumerate()
            .map(|(index, (at_ms, key, model, input_tokens, output_tokens, input, more, ended))| {
                let sample = UsageRow {
                    at: UnixMillis(at_ms),
                    model: ["a", "B", "é", "a b"][model].to_owned(),
                    prices: discounted(prices(input, input + more), input / 4),
                    stop_reason: StopReason::ALL[ended],
                    ..row(ledger * 1000 + index, (account, keys[key].0))
                };
                let (input_tokens, output_tokens) = (input_tokens % 1_000_000, output_tokens % 1_000_000);
                let cached_input_tokens = output_tokens.min(input_tokens);
                with_cached(with_tokens(sample, input_tokens, output_tokens), cached_input_tokens)
            })
            .collect();
        let mut settling = JoinSet::new();
        for row in rows.clone() {
            let store = Arc::clone(&store);
            settling.spawn(async move { store.ledger.settle(row.into()).await });
        }
        assert!(settling.join_all().await.iter().all(Result::is_ok), "ledger {ledger}");

        let prefixes: HashMap<KeyId, KeyPrefix> = keys.into_iter().collect();
        let by = |by| store.ledger.usage(UsageQuery { account: Some(account), from: None, to: None, by });
        assert_eq!(
            by(UsageBy::Day).await.unwrap(),
            sums(&rows, |row| UsageGroup::Day(Day::containing(row.at)))
        );
        assert_eq!(
            by(UsageBy::Model).await.unwrap(),
            sums(&rows, |row| UsageGroup::Model(row.model.clone()))
        );
        assert_eq!(
            by(UsageBy::Key).await.unwrap(),
            sums(&rows, |row| UsageGroup::Key(prefixes[&row.key].clone()))
        );
        for (from, to) in [(0, 0), (1, 2), (3, 9), (2, 1)].map(|(from, to)| (Day(from), Day(to))) {
            let bounded =
                UsageQuery { account: Some(account), from: Some(from), to: Some(to), by: UsageBy::Day };
            let within: Vec<UsageRow> =
                rows.iter().filter(|row| (from..=to).contains(&Day::containing(row.at))).cloned().collect();
            assert_eq!(
                store.ledger.usage(bounded).await.unwrap(),
                sums(&within, |row| UsageGroup::Day(Day::containing(row.at))),
                "ledger {ledger}, {from} to {to}"
            );
        }
    }
}
