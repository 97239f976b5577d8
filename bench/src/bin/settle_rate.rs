//! Measures the cost of a durable row: settle latency, CPU time of this process, settled rows per second, rows per
//! commit, and key lookups. Uses 1, 16 and 256 concurrent callers, or the numbers given after the URL. It fills the
//! ledger, so use a throwaway database:
//!
//!     cargo run --release -p chancery-bench --bin settle_rate -- sqlite:/tmp/rate.db
//!     cargo run --release -p chancery-bench --bin settle_rate -- postgres://postgres@localhost/rate
#![expect(clippy::unwrap_used, reason = "a measurement that fails has nothing to clean up")]

use chancery_bench::accounts::{create_account, create_key, usage_row};
use chancery_bench::cpu;
use chancery_domain::{Clock, OsRandomness, Randomness, RateLimits, SystemClock};
use chancery_store::{DatabaseUrl, Store};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

const MEASURED: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() {
    let url: DatabaseUrl = std::env::args().nth(1).unwrap().parse().unwrap();
    measure(Arc::new(Store::open(&url).await.unwrap())).await;
}

async fn measure(store: Arc<Store>) {
    let limits = RateLimits { requests_per_min: 1, tokens_per_min: 1 };
    let account = create_account(&store, &format!("Measured {}", OsRandomness.next_u64()), limits).await;
    let (key, api_key) = create_key(&store, account, "").await;
    let mut crowds: Vec<usize> = std::env::args().skip(2).map(|callers| callers.parse().unwrap()).collect();
    if crowds.is_empty() {
        crowds = vec![1, 16, 256];
    }
    for callers in crowds {
        let commits_before = store.ledger_commits();
        let settled = work(callers, {
            let store = Arc::clone(&store);
            let id = key;
            move || {
                let store = Arc::clone(&store);
                async move { store.ledger.settle(usage_row(account, id).into()).await.unwrap() }
            }
        })
        .await;
        let committed = store.ledger_commits() - commits_before;
        let looked_up = work(callers, {
            let (store, prefix) = (Arc::clone(&store), api_key.prefix());
            move || {
                let (store, prefix) = (Arc::clone(&store), prefix.clone());
                async move { drop(store.keys.key_by_prefix(&prefix).await.unwrap().unwrap()) }
            }
        })
        .await;
        println!(
            "{callers:4} callers: settling takes {:6} us (median), {:6} us (99 %), {:4.0} us of CPU; \
             {:8.0} settled/s, {:5.1} to a commit; {:8.0} keys looked up/s",
            settled.latency_us(50),
            settled.latency_us(99),
            settled.cpu.as_secs_f64() * 1e6 / settled.count() as f64,
            settled.per_second(),
            settled.count() as f64 / committed as f64,
            looked_up.per_second()
        );
    }
    store.close().await;
}

/// What the callers did in the measured time.
struct Done {
    /// Sorted.
    latencies: Vec<Duration>,
    cpu: Duration,
}

impl Done {
    fn count(&self) -> usize {
        self.latencies.len()
    }

    fn per_second(&self) -> f64 {
        self.count() as f64 / MEASURED.as_secs_f64()
    }

    fn latency_us(&self, percent: usize) -> u128 {
        self.latencies[(self.count() - 1) * percent / 100].as_micros()
    }
}

/// The callers repeat the work until the time is up.
async fn work<F: Future<Output = ()> + Send>(
    callers: usize,
    work: impl Fn() -> F + Clone + Send + 'static,
) -> Done {
    let cpu_before = cpu::of_this_process();
    let end = SystemClock.monotonic() + MEASURED;
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let work = work.clone();
        running.spawn(async move {
            let mut latencies = Vec::new();
            let mut began = SystemClock.monotonic();
            while began < end {
                work().await;
                let ended = SystemClock.monotonic();
                latencies.push(ended - began);
                began = ended;
            }
            latencies
        });
    }
    let mut latencies = running.join_all().await.concat();
    latencies.sort_unstable();
    Done { latencies, cpu: cpu::of_this_process() - cpu_before }
}
