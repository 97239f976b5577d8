//! A Redis that is killed, that hangs, that forgets its scripts and closes its connections: nothing is admitted without
//! it, and everything goes on when it is back.

use crate::protocol::end;
use crate::{Firm, LIMITS, call};
use chancery_domain::{AccountId, Amount, Clock, OsRandomness, RequestId, SystemClock};
use chancery_engine::StopReason;
use chancery_metering::limits::{REDIS_RECONNECT_PAUSE, REDIS_RESPONSE_TIMEOUT};
use chancery_metering::{Decision, Limiter, MeterError, Reservation, open_limiter};
use chancery_test_support::RedisServer;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const ACCOUNT: AccountId = AccountId(7);

async fn limiter(redis: &RedisServer) -> Arc<dyn Limiter> {
    open_limiter(&redis.url().parse().unwrap(), Arc::new(SystemClock)).await.unwrap()
}

fn reservation(tokens: u64) -> Reservation {
    let request_id = RequestId::new(SystemClock.now(), &OsRandomness);
    Reservation { account: ACCOUNT, request_id, limits: LIMITS, tokens }
}

async fn used(limiter: &dyn Limiter) -> Amount {
    limiter.status(ACCOUNT, LIMITS).await.unwrap().used
}

/// Asks again until the limiter answers, as the next callers do.
async fn back(limiter: &dyn Limiter) {
    for _ in 0..200 {
        if limiter.ping().await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it is not back");
}

#[tokio::test]
async fn a_killed_redis_admits_nothing_and_has_forgotten_nothing_when_it_is_back() {
    let mut redis = RedisServer::start();
    let limiter = limiter(&redis).await;
    let before = reservation(100);
    assert!(matches!(limiter.reserve(&before).await.unwrap(), Decision::Admitted(_)));
    redis.kill();
    let started_at = SystemClock.monotonic();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let limiter = Arc::clone(&limiter);
        callers.spawn(async move { limiter.reserve(&reservation(1)).await.is_err() });
    }
    assert!(callers.join_all().await.into_iter().all(|is_refused| is_refused));
    let elapsed = SystemClock.monotonic() - started_at;
    assert!(elapsed < Duration::from_secs(5), "callers waited in line: {elapsed:?}");
    redis.start_again();
    back(limiter.as_ref()).await;
    assert_eq!(used(limiter.as_ref()).await, Amount { requests: 1, tokens: 100 });
    let status = limiter.settle(&before, 40).await.unwrap();
    assert_eq!(status.used, Amount { requests: 1, tokens: 40 });
}

#[tokio::test]
async fn a_redis_that_hangs_is_given_up_soon_and_used_again_when_it_answers() {
    let mut redis = RedisServer::start();
    let limiter = limiter(&redis).await;
    redis.hold();
    let started_at = SystemClock.monotonic();
    assert!(limiter.reserve(&reservation(1)).await.is_err());
    let elapsed = SystemClock.monotonic() - started_at;
    assert!(elapsed < 2 * REDIS_RESPONSE_TIMEOUT, "{elapsed:?}");
    redis.go_on();
    back(limiter.as_ref()).await;
    assert!(matches!(limiter.reserve(&reservation(1)).await.unwrap(), Decision::Admitted(_)));
}

#[tokio::test]
async fn closed_connections_and_forgotten_scripts_cost_no_request() {
    let redis = RedisServer::start();
    let limiter = limiter(&redis).await;
    for round in 1..=3 {
        redis.command(&["client", "kill", "type", "normal"]);
        redis.command(&["script", "flush"]);
        let reservation = reservation(10);
        assert!(matches!(limiter.reserve(&reservation).await.unwrap(), Decision::Admitted(_)));
        redis.command(&["client", "kill", "type", "normal"]);
        let status = limiter.settle(&reservation, 1).await.unwrap();
        assert_eq!(status.used, Amount { requests: round, tokens: round });
    }
}

#[tokio::test]
async fn without_redis_the_engine_is_not_asked() {
    let mut redis = RedisServer::start();
    let firm = Firm::with_limits_in(&redis.url(), |_, _| panic!("the engine was asked")).await;
    redis.kill();
    let (id, request) = firm.new_request();
    let refused = firm.meter.generate(call(firm.caller, id, request)).await.unwrap_err();
    assert!(matches!(refused, MeterError::Limiter(_)), "{refused}");
    assert!(firm.meter.rate_limit_status(firm.caller).await.is_none());
}

#[tokio::test]
async fn a_reply_is_given_though_redis_is_gone_when_it_is_ready() {
    let mut redis = RedisServer::start();
    let ((begun, is_begun), (go, wait)) = (channel::<()>(), channel::<()>());
    let ends = Mutex::new((begun, wait));
    let firm = Firm::with_limits_in(&redis.url(), move |_, sink| {
        let (begun, wait) = &*ends.lock().unwrap();
        begun.send(()).unwrap();
        wait.recv().unwrap();
        end(sink, StopReason::Complete, 5);
    })
    .await;
    let call = firm.spawn_request();
    tokio::task::spawn_blocking(move || is_begun.recv()).await.unwrap().unwrap();
    redis.kill();
    go.send(()).unwrap();
    let reply = call.await.unwrap().unwrap();
    assert_eq!((reply.output_tokens, reply.rate_limit_status), (5, None));
    assert_eq!(firm.rows().await, [(6, 5, "complete")]);
    // Nobody could say that it used less, so it counts with all that it might have used.
    redis.start_again();
    let mut status = None;
    while status.is_none() {
        // The limiter waits a moment, by the firm's clock, before it connects again.
        firm.clock.advance(REDIS_RECONNECT_PAUSE);
        status = firm.meter.rate_limit_status(firm.caller).await;
    }
    assert_eq!(status.unwrap().used, Amount { requests: 1, tokens: 56 });
}

/// How many scripts have run.
fn scripts_run(redis: &RedisServer) -> u32 {
    let statistics = redis.command(&["info", "commandstats"]);
    let calls = statistics.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap();
    calls.split(',').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_caller_who_hangs_up_while_redis_is_asked_leaves_nothing_reserved() {
    let mut redis = RedisServer::start();
    let firm = Firm::with_limits_in(&redis.url(), |_, sink| end(sink, StopReason::Complete, 5)).await;
    firm.spawn_request().await.unwrap().unwrap();
    let before = scripts_run(&redis);
    redis.hold();
    let call = firm.spawn_request();
    // Long enough that the question is on its way, and shorter than the time-out.
    tokio::time::sleep(Duration::from_millis(300)).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    redis.go_on();
    // The reservation was made, and then taken back.
    while scripts_run(&redis) < before + 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(
        firm.meter.rate_limit_status(firm.caller).await.unwrap().used,
        Amount { requests: 1, tokens: 11 }
    );
}
