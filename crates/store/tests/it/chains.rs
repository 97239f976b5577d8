//! Conformance: every writer's rows form one chain, and the sums by day always equal the rows.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::samples::{NOON, account, all_ledger_rows, billed_key, key, row, with_tokens};
use chancery_domain::{ChainHead, Day, Prices, UnixMillis, UsageRow, WriterId};
use chancery_store::{DailyUsage, Store, UsageTotals};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Reads every chain, a few rows at a time, checks it against its head, and returns the rows of each.
async fn verified_chains(store: &Store) -> BTreeMap<WriterId, Vec<UsageRow>> {
    let mut chains = BTreeMap::new();
    let mut last = None;
    while let Some(writer) = store.ledger_chains.next_writer(last).await.unwrap() {
        assert!(last < Some(writer));
        last = Some(writer);
        let mut head = ChainHead::default();
        let (mut rows, mut after) = (Vec::new(), None);
        loop {
            let page = store.ledger_chains.chained_rows(writer, after.as_ref(), 7).await.unwrap();
            let Some(end) = page.last() else { break };
            after = Some(end.clone());
            for chained in page {
                assert_eq!(chained.position, head.rows);
                head = head.with_row(writer, &chained.row);
                assert_eq!(chained.hash, head.hash);
                rows.push(chained.row);
            }
        }
        assert_eq!(store.ledger_chains.chain_head(writer).await.unwrap(), Some(head));
        chains.insert(writer, rows);
    }
    chains
}

/// Compares the sums by day with the rows.
async fn assert_sums_match_rows(store: &Store) {
    let mut expected = BTreeMap::new();
    for row in all_ledger_rows(store).await {
        let Prices { input, cached_input, output } = row.prices;
        let key = (row.account, Day::containing(row.at), row.key, row.model, [input, cached_input, output]);
        let totals: &mut UsageTotals = expected.entry(key).or_default();
        totals.requests += 1;
        totals.input_tokens += u64::from(row.input_tokens);
        totals.cached_input_tokens += u64::from(row.cached_input_tokens);
        totals.output_tokens += u64::from(row.output_tokens);
        totals.cost = totals.cost.checked_add(row.cost).unwrap();
    }
    let expected: Vec<DailyUsage> = expected
        .into_iter()
        .map(|((account, day, key, model, [input, cached_input, output]), totals)| DailyUsage {
            account,
            day,
            key,
            model,
            prices: Prices { input, cached_input, output },
            totals,
        })
        .collect();
    let mut stored: Vec<DailyUsage> = Vec::new();
    loop {
        let page = store.ledger_chains.daily_usage(stored.last(), 3).await.unwrap();
        if page.is_empty() {
            break;
        }
        stored.extend(page);
    }
    assert_eq!(stored, expected);
}

pub async fn an_empty_ledger_has_no_chains(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    billed_key(&store).await;
    assert_eq!(store.ledger_chains.next_writer(None).await.unwrap(), None);
    assert_eq!(store.ledger_chains.chain_head(WriterId(1)).await.unwrap(), None);
    assert!(store.ledger_chains.daily_usage(None, 10).await.unwrap().is_empty());
}

pub async fn concurrent_stores_keep_own_chains_and_shared_sums(database: Arc<AnyDatabase>) {
    const STORES: usize = 3;
    const ROWS: usize = 120;
    let first = database.open().await;
    let mut payers = Vec::new();
    for name in ["One", "Two", "Three"] {
        let account = account(&first, name).await.id;
        payers.push((account, key(&first, Some(account)).await.id));
    }
    let stores = [Arc::clone(&first), database.open().await, database.open().await];
    let mut settling = JoinSet::new();
    for number in 0..STORES * ROWS {
        let store = Arc::clone(&stores[number % STORES]);
        // Every node writes for every account and day, in its own order.
        let turn = if number % STORES == 0 { number } else { STORES * ROWS - number };
        let at = UnixMillis(NOON.0 + 86_400_000 * (turn % 5) as i64);
        let row = UsageRow { at, ..row(number, payers[turn % payers.len()]) };
        let row = with_tokens(row, turn as u32, 1);
        settling.spawn(async move {
            store.ledger.settle(row.clone().into()).await?;
            // Some are settled again, as after a lost response.
            if turn % 4 == 0 { store.ledger.settle(row.into()).await } else { Ok(()) }
        });
    }
    for outcome in settling.join_all().await {
        outcome.unwrap();
    }
    let chains = verified_chains(&first).await;
    assert_eq!(chains.values().map(Vec::len).collect::<Vec<_>>(), [ROWS; STORES]);
    assert_sums_match_rows(&first).await;
}

pub async fn duplicates_and_invalid_rows_leave_no_chain_gap(database: Arc<AnyDatabase>) {
    let (store, other) = (database.open().await, database.open().await);
    let (account, key) = billed_key(&store).await;
    other.ledger.settle(row(5, (account, key)).into()).await.unwrap();
    let mut settling = JoinSet::new();
    for number in 0..60 {
        let store = Arc::clone(&store);
        let request = number % 40;
        let billed_key =
            if number % 20 == 7 { (chancery_domain::AccountId(777), key) } else { (account, key) };
        let row = row(request, billed_key);
        settling.spawn(async move { (request, store.ledger.settle(row.into()).await) });
    }
    for (request, outcome) in settling.join_all().await {
        assert_eq!(outcome.is_ok(), request % 20 != 7, "{request}: {outcome:?}");
    }
    let chains = verified_chains(&store).await;
    assert_eq!(chains.len(), 2);
    assert_eq!(chains.values().map(Vec::len).sum::<usize>(), 38);
    assert_sums_match_rows(&store).await;
}

pub async fn killed_process_leaves_valid_chain(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let account = account(&store, "Hale & Ward").await.id;
    key(&store, Some(account)).await;
    for lines in [30, 170] {
        let url = database.url_text();
        tokio::task::spawn_blocking(move || crate::crash_recovery::kill_after(&url, lines)).await.unwrap();
        verified_chains(&store).await;
        assert_sums_match_rows(&store).await;
    }
    assert_eq!(verified_chains(&store).await.len(), 2);
}
