//! Measures requests settled per second by one, two and three concurrent writers, which is what that many nodes are to
//! PostgreSQL. The requests are all for one account, which share its row of daily sums, or for ten thousand accounts.

use crate::accounts::{Accounts, row};
use crate::postgres::{Postgres, taken_since};
use crate::{Options, sizes};
use chancery_bench::watch::{Latencies, Watch, crowd, us_each};
use chancery_domain::{AccountId, Clock, OsRandomness, Randomness, SystemClock, UnixMillis};
use chancery_store::Store;
use chancery_test_support::PostgresDatabase;
use std::sync::Arc;
use std::time::Duration;

const WRITERS: [usize; 3] = [1, 2, 3];
const MANY_ACCOUNTS: i64 = 10_000;
/// Concurrent requests per node.
const CALLERS: usize = 512;
const WARM_UP: Duration = Duration::from_secs(2);
/// Replies take up to this long, so rows create_person in a different order than their ids.
const LONGEST_REPLY_MS: u64 = 20_000;

pub async fn measure(options: &Options) {
    let bench_database = PostgresDatabase::create_at(&options.postgres, "bench");
    let url = bench_database.url();
    let mut stores = Vec::new();
    for _ in 0..WRITERS[WRITERS.len() - 1] {
        stores.push(Arc::new(Store::open(&url.parse().unwrap()).await.unwrap()));
    }
    stores[0].partitions.create_month_partitions(SystemClock.now()).await.unwrap();
    let mut database = Postgres::connect(&url).await;
    let many = Accounts::grown_to(&mut database, MANY_ACCOUNTS).await;
    println!(
        "\n## Settling on PostgreSQL, {CALLERS} requests under way at each writer\n\n\
         | Writers | Accounts | settled/s | median ms | 99 % ms | rows to a commit | commits/s | node CPU µs/row | PostgreSQL CPU µs/row | WAL bytes/row | \
         whole pages per 1,000 rows | others' share of the machine |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
    );
    for accounts in [Accounts { count: 1 }, many] {
        for writers in WRITERS {
            let stores = &stores[..writers];
            settle(stores, accounts, WARM_UP).await;
            let wal = database.wal().await;
            let (commits, processes) = (commits(stores), database.processes().await);
            let watch = Watch::start();
            let settled = settle(stores, accounts, options.measured()).await;
            let watched = watch.stop();
            let postgres = taken_since(&processes, &database.processes().await);
            let rows = settled.count();
            let committed = self::commits(stores) - commits;
            let written = database.wal().await;
            println!(
                "| {writers} | {} | {:.0} | {:.1} | {:.1} | {:.0} | {:.0} | {:.1} | {:.1} | {:.0} | {:.1} | {:.0} % |",
                accounts.count,
                settled.per_second(watched.elapsed),
                settled.us(50) as f64 / 1e3,
                settled.us(99) as f64 / 1e3,
                rows as f64 / committed as f64,
                committed as f64 / watched.elapsed.as_secs_f64(),
                us_each(watched.own, rows),
                us_each(postgres, rows),
                (written.bytes - wal.bytes) as f64 / rows as f64,
                (written.pages - wal.pages) as f64 * 1e3 / rows as f64,
                watched.others_percent(postgres),
            );
        }
    }
    println!("\nAs these writers left them:");
    sizes::print_heading();
    sizes::print(&mut database, "the ledger, this month", &this_month()).await;
    let watch = Watch::start();
    let processes = database.processes().await;
    let found = chancery_verify::verify_ledger(&stores[0].verify(), |_| {}).await.unwrap();
    let watched = watch.stop();
    let postgres = taken_since(&processes, &database.processes().await);
    assert_eq!(found.findings.reported, [""; 0]);
    let rows = usize::try_from(found.total.requests).unwrap();
    println!(
        "\nVerifying all of it: {rows} rows in {:.1} s, {:.0} rows/s; CPU of the command {:.1} µs/row, of PostgreSQL {:.1}; others took {:.0} %.",
        watched.elapsed.as_secs_f64(),
        rows as f64 / watched.elapsed.as_secs_f64(),
        us_each(watched.own, rows),
        us_each(postgres, rows),
        watched.others_percent(postgres),
    );
    for store in stores {
        store.close().await;
    }
    drop(database);
}

pub fn this_month() -> String {
    let month = chancery_domain::Month::containing(SystemClock.now());
    format!("ledger_{}", month.to_string().replace('-', "_"))
}

fn commits(stores: &[Arc<Store>]) -> u64 {
    stores.iter().map(|store| store.ledger_commits()).sum()
}

async fn settle(stores: &[Arc<Store>], accounts: Accounts, measured: Duration) -> Latencies {
    let stores: Arc<[_]> = stores.into();
    crowd(CALLERS * stores.len(), measured, move |caller| {
        let store = Arc::clone(&stores[caller % stores.len()]);
        let account = if accounts.count == 1 { AccountId(1) } else { accounts.any() };
        async move {
            let ago_ms = OsRandomness.next_u64() % LONGEST_REPLY_MS;
            let at = UnixMillis(SystemClock.now().0 - ago_ms.cast_signed());
            store.ledger.settle(row(account, at).into()).await.unwrap();
        }
    })
    .await
}
