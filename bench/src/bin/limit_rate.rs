//! Measures a rate-limit store: how many requests per second it reserves and settles, with 1, 16 and 256 concurrent
//! callers, or with the numbers given after the store. Each caller has its own account; with `one`, all share one:
//!
//!     cargo run --release -p chancery-bench --bin limit_rate -- memory
//!     cargo run --release -p chancery-bench --bin limit_rate -- redis://127.0.0.1:6379 one
#![expect(clippy::unwrap_used, reason = "a measurement that fails has nothing to clean up")]

use chancery_domain::{AccountId, Clock, OsRandomness, Randomness, RateLimits, RequestId, SystemClock};
use chancery_metering::{Bucket, Decision, Limiter, Reservation, open_limiter};
use std::sync::Arc;
use std::time::Duration;

const MEASURED: Duration = Duration::from_secs(3);
const CROWDS: [i64; 3] = [1, 16, 256];

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let limiter = open_limiter(&arguments[0].parse().unwrap(), Arc::new(SystemClock)).await.unwrap();
    let is_one_account = arguments.get(1).is_some_and(|word| word == "one");
    for callers in CROWDS {
        let first_account = (OsRandomness.next_u64() >> 2) as i64;
        let started_at = SystemClock.monotonic();
        let end = started_at + MEASURED;
        let mut running = tokio::task::JoinSet::new();
        for caller in 0..callers {
            let account = AccountId(first_account + if is_one_account { 0 } else { caller });
            running.spawn(reserve_and_settle(Arc::clone(&limiter), account, end));
        }
        let done: u64 = running.join_all().await.iter().sum();
        let elapsed = SystemClock.monotonic() - started_at;
        let each_us = elapsed.as_secs_f64() * 1e6 / done as f64;
        println!(
            "{callers:4} callers: {:9.0} requests/s, {each_us:6.2} µs each",
            done as f64 / elapsed.as_secs_f64()
        );
    }
}

/// Returns the number of requests completed by the end.
async fn reserve_and_settle(limiter: Arc<dyn Limiter>, account: AccountId, end: std::time::Instant) -> u64 {
    let limits = RateLimits { requests_per_min: u32::MAX, tokens_per_min: u32::MAX };
    let mut done = 0;
    while SystemClock.monotonic() < end {
        let request_id = RequestId::new(SystemClock.now(), &OsRandomness);
        let reservation =
            Reservation { bucket: Bucket::Generation(account), request_id, limits, key: None, tokens: 400 };
        let Decision::Admitted(_) = limiter.reserve(&reservation).await.unwrap() else { break };
        limiter.settle(&reservation, 40).await.unwrap();
        done += 1;
        // The memory store never waits, so yield to other tasks.
        tokio::task::yield_now().await;
    }
    done
}
