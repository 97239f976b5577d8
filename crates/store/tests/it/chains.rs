//! Conformance: every writer's rows make one chain, and the sums by day are those of the rows, whatever happens.

use crate::databases::TestDatabase;
use crate::samples::{NOON, account, key, payer, row, whole_ledger, with_tokens};
use chancery_domain::{ChainHead, Day, Prices, UnixMillis, UsageRow, WriterId};
use chancery_store::{DayUsage, Store, UsageTotals};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Reads every chain, a few rows at a time, and holds it against its end; gives the rows of each.
async fn sound_chains(store: &Store) -> BTreeMap<WriterId, Vec<UsageRow>> {
    let mut chains = BTreeMap::new();
    let mut last = None;
    while let Some(writer) = store.ledger_chains.writer_after(last).await.unwrap() {
        assert!(last < Some(writer));
        last = Some(writer);
        let mut head = ChainHead::default();
        let (mut rows, mut after) = (Vec::new(), None);
        loop {
            let page = store.ledger_chains.chained_rows(writer, after.as_ref(), 7).await.unwrap();
            let Some(end) = page.last() else { break };
            after = Some(end.clone());
            for chained in page {
                assert_eq!(chained.place, head.rows);
                head = head.followed_by(writer, &chained.row);
                assert_eq!(chained.hash, head.hash);
                rows.push(chained.row);
            }
        }
        assert_eq!(store.ledger_chains.chain_head(writer).await.unwrap(), Some(head));
        chains.insert(writer, rows);
    }
    chains
}

/// Holds the sums by day against the rows.
async fn sound_sums(store: &Store) {
    let mut expected = BTreeMap::new();
    for row in whole_ledger(store).await {
        let key = (row.account, Day::of(row.at), row.key, row.model, row.prices.input, row.prices.output);
        let totals: &mut UsageTotals = expected.entry(key).or_default();
        totals.requests += 1;
        totals.input_tokens += u64::from(row.input_tokens);
        totals.output_tokens += u64::from(row.output_tokens);
        totals.cost = totals.cost.checked_add(row.cost).unwrap();
    }
    let expected: Vec<DayUsage> = expected
        .into_iter()
        .map(|((account, day, key, model, input, output), totals)| DayUsage {
            account,
            day,
            key,
            model,
            prices: Prices { input, output },
            totals,
        })
        .collect();
    let mut kept: Vec<DayUsage> = Vec::new();
    loop {
        let page = store.ledger_chains.day_usage(kept.last(), 3).await.unwrap();
        if page.is_empty() {
            break;
        }
        kept.extend(page);
    }
    assert_eq!(kept, expected);
}

pub async fn an_empty_ledger_has_no_chains<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    payer(&store).await;
    assert_eq!(store.ledger_chains.writer_after(None).await.unwrap(), None);
    assert_eq!(store.ledger_chains.chain_head(WriterId(1)).await.unwrap(), None);
    assert!(store.ledger_chains.day_usage(None, 10).await.unwrap().is_empty());
}

pub async fn racing_stores_make_a_chain_each_and_sums_together<D: TestDatabase>(database: Arc<D>) {
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
        // Every node writes for every account and day, in an order of its own.
        let turn = if number % STORES == 0 { number } else { STORES * ROWS - number };
        let at = UnixMillis(NOON.0 + 86_400_000 * (turn % 5) as i64);
        let row = UsageRow { at, ..row(number, payers[turn % payers.len()]) };
        let row = with_tokens(row, turn as u32, 1);
        settling.spawn(async move {
            store.ledger.settle(row.clone().into()).await?;
            // Some are settled again, as after a lost answer.
            if turn % 4 == 0 { store.ledger.settle(row.into()).await } else { Ok(()) }
        });
    }
    for outcome in settling.join_all().await {
        outcome.unwrap();
    }
    let chains = sound_chains(&first).await;
    assert_eq!(chains.values().map(Vec::len).collect::<Vec<_>>(), [ROWS; STORES]);
    sound_sums(&first).await;
}

pub async fn twins_and_bad_rows_leave_no_gap_in_the_chain<D: TestDatabase>(database: Arc<D>) {
    let (store, other) = (database.open().await, database.open().await);
    let (account, key) = payer(&store).await;
    other.ledger.settle(row(5, (account, key)).into()).await.unwrap();
    let mut settling = JoinSet::new();
    for number in 0..60 {
        let store = Arc::clone(&store);
        let request = number % 40;
        let payer = if number % 20 == 7 { (chancery_domain::AccountId(777), key) } else { (account, key) };
        let row = row(request, payer);
        settling.spawn(async move { (request, store.ledger.settle(row.into()).await) });
    }
    for (request, outcome) in settling.join_all().await {
        assert_eq!(outcome.is_ok(), request % 20 != 7, "{request}: {outcome:?}");
    }
    let chains = sound_chains(&store).await;
    assert_eq!(chains.len(), 2);
    assert_eq!(chains.values().map(Vec::len).sum::<usize>(), 38);
    sound_sums(&store).await;
}

pub async fn a_killed_process_leaves_a_sound_chain<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let account = account(&store, "Hale & Ward").await.id;
    key(&store, Some(account)).await;
    for lines in [30, 170] {
        let url = database.url_text();
        tokio::task::spawn_blocking(move || crate::killed::kill_after(&url, lines)).await.unwrap();
        sound_chains(&store).await;
        sound_sums(&store).await;
    }
    assert_eq!(sound_chains(&store).await.len(), 2);
}
