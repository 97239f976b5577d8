//! Measures what rate limits cost Redis: memory per active account, and commands, bytes and CPU time per request.

use crate::Options;
use chancery_bench::watch::{Watch, crowd, us_each};
use chancery_domain::{AccountId, Clock, OsRandomness, Randomness, RateLimits, RequestId, SystemClock};
use chancery_metering::{Bucket, Decision, Limiter, Reservation, open_limiter};
use redis::aio::MultiplexedConnection;
use std::sync::Arc;
use std::time::Duration;

const CROWDS: [usize; 3] = [1, 32, 256];
const ACTIVE_ACCOUNTS: i64 = 10_000;
/// Requests per account in the last minute when its memory is measured.
const REQUESTS_EACH: [i64; 4] = [1, 10, 60, 300];

pub struct Redis(MultiplexedConnection);

/// The server's counters so far.
#[derive(Clone, Copy)]
pub struct Counted {
    pub cpu: Duration,
    commands: f64,
    calls: f64,
    bytes_in: f64,
    bytes_out: f64,
}

impl Redis {
    pub async fn connect(url: &str) -> Self {
        let client = redis::Client::open(url).unwrap();
        Self(client.get_multiplexed_async_connection().await.unwrap())
    }

    async fn info(&mut self) -> String {
        redis::cmd("INFO").arg("everything").query_async(&mut self.0).await.unwrap()
    }

    async fn used_memory(&mut self) -> f64 {
        figure(&self.info().await, "used_memory:")
    }

    pub async fn counted(&mut self) -> Counted {
        let info = self.info().await;
        let script_calls = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        let calls = script_calls.map_or(0.0, |rest| rest.split(',').next().unwrap().parse().unwrap());
        let seconds = figure(&info, "used_cpu_sys:") + figure(&info, "used_cpu_user:");
        Counted {
            cpu: Duration::from_secs_f64(seconds),
            commands: figure(&info, "total_commands_processed:"),
            calls,
            bytes_in: figure(&info, "total_net_input_bytes:"),
            bytes_out: figure(&info, "total_net_output_bytes:"),
        }
    }
}

fn figure(info: &str, name: &str) -> f64 {
    info.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse().unwrap()
}

pub async fn measure(options: &Options) {
    let mut redis = Redis::connect(&options.redis).await;
    let limiter = open_limiter(&options.redis.parse().unwrap(), Arc::new(SystemClock)).await.unwrap();
    println!(
        "\n## Limits in Redis\n\n| Callers | Accounts | requests/s | median µs | 99 % µs | node CPU µs | Redis CPU µs | scripts | commands in all | \
         bytes in | bytes out | others' share of the machine |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
    );
    for callers in CROWDS {
        let kinds = if callers == 1 { vec![1] } else { vec![1, callers] };
        for accounts in kinds {
            let first = first_account();
            let before = redis.counted().await;
            let watch = Watch::start();
            let done = crowd(callers, options.measured(), {
                let limiter = Arc::clone(&limiter);
                move |caller| {
                    let account = AccountId(first + (caller % accounts) as i64);
                    let limiter = Arc::clone(&limiter);
                    async move { request(&*limiter, account).await }
                }
            })
            .await;
            let watched = watch.stop();
            let after = redis.counted().await;
            let each = |now: f64, then: f64| (now - then) / done.count() as f64;
            println!(
                "| {callers} | {accounts} | {:.0} | {} | {} | {:.1} | {:.1} | {:.2} | {:.1} | {:.0} | {:.0} | {:.0} % |",
                done.per_second(watched.elapsed),
                done.us(50),
                done.us(99),
                us_each(watched.own, done.count()),
                us_each(after.cpu - before.cpu, done.count()),
                each(after.calls, before.calls),
                each(after.commands, before.commands),
                each(after.bytes_in, before.bytes_in),
                each(after.bytes_out, before.bytes_out),
                watched.others_percent(after.cpu - before.cpu),
            );
        }
    }
    println!(
        "\n| Requests of an account in the last minute | bytes for each active account, of {ACTIVE_ACCOUNTS} | with a request under way besides |\n|---|---|---|"
    );
    for requests in REQUESTS_EACH {
        // The more requests each account has, the fewer accounts, so that all of them fit in one minute.
        let accounts = ACTIVE_ACCOUNTS.min(150_000 / requests);
        redis::cmd("FLUSHDB").query_async::<()>(&mut redis.0).await.unwrap();
        let empty = redis.used_memory().await;
        let first = first_account();
        for account in first..first + accounts {
            for _ in 0..requests {
                request(&*limiter, AccountId(account)).await;
            }
        }
        let settled = redis.used_memory().await;
        for account in first..first + accounts {
            admit(&*limiter, AccountId(account)).await;
        }
        let under_way = redis.used_memory().await;
        let keys: i64 = redis::cmd("DBSIZE").query_async(&mut redis.0).await.unwrap();
        let all_are_there = keys >= 2 * accounts;
        let note = if all_are_there { "" } else { " (some had left by then)" };
        println!(
            "| {requests} | {:.0} | {:.0}{note} |",
            (settled - empty) / accounts as f64,
            (under_way - empty) / accounts as f64
        );
        redis::cmd("FLUSHDB").query_async::<()>(&mut redis.0).await.unwrap();
    }
}

fn first_account() -> i64 {
    (OsRandomness.next_u64() >> 2).cast_signed()
}

async fn admit(limiter: &dyn Limiter, account: AccountId) -> Reservation {
    let limits = RateLimits { requests_per_min: u32::MAX, tokens_per_min: u32::MAX };
    let request_id = RequestId::new(SystemClock.now(), &OsRandomness);
    let reservation =
        Reservation { bucket: Bucket::Generation(account), request_id, limits, key: None, tokens: 400 };
    let Decision::Admitted(_) = limiter.reserve(&reservation).await.unwrap() else {
        unreachable!("there is no limit to speak of")
    };
    reservation
}

/// The limiter calls of every generated reply.
pub async fn request(limiter: &dyn Limiter, account: AccountId) {
    let reservation = admit(limiter, account).await;
    limiter.settle(&reservation, 40).await.unwrap();
}
