//! Redis failures: it is killed, hangs, loses its scripts or closes its connections. Nothing is admitted without it, and
//! everything resumes when it is back.

use crate::protocol::end;
use crate::{Fixture, LIMITS, call};
use chancery_domain::{
    AccountId, Clock, LimitUsage, ManualClock, OsRandomness, RequestId, SystemClock, WINDOW,
};
use chancery_engine::StopReason;
use chancery_metering::limits::{REDIS_RECONNECT_DELAY, REDIS_RESPONSE_TIMEOUT};
use chancery_metering::{Bucket, Decision, Limiter, MeterError, Reservation, open_limiter};
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
    Reservation { bucket: Bucket::Generation(ACCOUNT), request_id, limits: LIMITS, key: None, tokens }
}

async fn used(limiter: &dyn Limiter) -> LimitUsage {
    limiter.status(Bucket::Generation(ACCOUNT), LIMITS).await.unwrap().used
}

/// Retries until the limiter answers.
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
async fn killed_redis_admits_nothing_and_keeps_its_counts_after_restart() {
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
    assert!(callers.join_all().await.into_iter().all(|is_rejected| is_rejected));
    let elapsed = SystemClock.monotonic() - started_at;
    assert!(elapsed < Duration::from_secs(5), "callers waited in line: {elapsed:?}");
    redis.start_again();
    back(limiter.as_ref()).await;
    assert_eq!(used(limiter.as_ref()).await, LimitUsage { requests: 1, tokens: 100 });
    let status = limiter.settle(&before, 40).await.unwrap();
    assert_eq!(status.used, LimitUsage { requests: 1, tokens: 40 });
}

/// The windows of an empty Redis would have room for as much as was admitted a moment ago.
#[tokio::test]
async fn redis_that_comes_back_empty_admits_nothing_for_a_window() {
    let mut redis = RedisServer::start();
    let clock = Arc::new(ManualClock::at(SystemClock.now()));
    let url = redis.url().parse().unwrap();
    let open = async || open_limiter(&url, Arc::clone(&clock) as Arc<dyn Clock>).await.unwrap();
    let limiter = open().await;
    assert!(matches!(limiter.reserve(&reservation(100)).await.unwrap(), Decision::Admitted(_)));
    redis.kill();
    assert!(limiter.ping().await.is_err());
    redis.start_again_empty();
    clock.advance(REDIS_RECONNECT_DELAY);
    let rejected = limiter.reserve(&reservation(100)).await.unwrap_err();
    assert!(rejected.0.contains("lost its windows"), "{rejected}");
    limiter.ping().await.unwrap();
    let started_later = open().await;
    assert!(started_later.reserve(&reservation(100)).await.is_err(), "it learns of the loss");
    clock.advance(WINDOW - Duration::from_secs(10));
    assert!(limiter.reserve(&reservation(100)).await.is_err());
    clock.advance(Duration::from_secs(10));
    for limiter in [limiter, started_later] {
        assert!(matches!(limiter.reserve(&reservation(100)).await.unwrap(), Decision::Admitted(_)));
    }
}

#[tokio::test]
async fn hanging_redis_times_out_and_is_used_again_after_recovery() {
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
async fn closed_connections_and_flushed_scripts_fail_no_request() {
    let redis = RedisServer::start();
    let limiter = limiter(&redis).await;
    for round in 1..=3 {
        redis.command(&["client", "kill", "type", "normal"]);
        redis.command(&["script", "flush"]);
        let reservation = reservation(10);
        assert!(matches!(limiter.reserve(&reservation).await.unwrap(), Decision::Admitted(_)));
        redis.command(&["client", "kill", "type", "normal"]);
        let status = limiter.settle(&reservation, 1).await.unwrap();
        assert_eq!(status.used, LimitUsage { requests: round, tokens: round });
    }
}

#[tokio::test]
async fn no_request_reaches_the_engine_without_redis() {
    let mut redis = RedisServer::start();
    let fixture = Fixture::with_limits_in(&redis.url(), |_, _| panic!("the engine was asked")).await;
    redis.kill();
    let (id, request) = fixture.new_request();
    let rejected = fixture.meter.generate(call(&fixture.caller, id, request)).await.unwrap_err();
    assert!(matches!(rejected, MeterError::Limiter(_)), "{rejected}");
    assert!(fixture.meter.rate_limit_status(&fixture.caller).await.is_none());
}

#[tokio::test]
async fn reply_is_delivered_if_redis_fails_before_settlement() {
    let mut redis = RedisServer::start();
    let ((begun, is_begun), (go, wait)) = (channel::<()>(), channel::<()>());
    let ends = Mutex::new((begun, wait));
    let fixture = Fixture::with_limits_in(&redis.url(), move |_, sink| {
        let (begun, wait) = &*ends.lock().unwrap();
        begun.send(()).unwrap();
        wait.recv().unwrap();
        end(sink, StopReason::Complete, 5);
    })
    .await;
    let call = fixture.spawn_request();
    tokio::task::spawn_blocking(move || is_begun.recv()).await.unwrap().unwrap();
    redis.kill();
    go.send(()).unwrap();
    let reply = call.await.unwrap().unwrap();
    assert_eq!((reply.output_tokens, reply.rate_limit_status), (5, None));
    assert_eq!(fixture.rows().await, [(6, 5, "complete")]);
    // Its actual usage could not be reported, so the full reservation counts.
    redis.start_again();
    let mut status = None;
    while status.is_none() {
        // The limiter waits a moment, by the fixture's clock, before it reconnects.
        fixture.clock.advance(REDIS_RECONNECT_DELAY);
        status = fixture.meter.rate_limit_status(&fixture.caller).await;
    }
    assert_eq!(status.unwrap().used, LimitUsage { requests: 1, tokens: 56 });
}

/// Number of scripts that Redis has run.
fn scripts_run(redis: &RedisServer) -> u32 {
    let statistics = redis.command(&["info", "commandstats"]);
    let calls = statistics.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap();
    calls.split(',').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn hang_up_during_a_redis_call_leaves_no_reservation() {
    let mut redis = RedisServer::start();
    let fixture = Fixture::with_limits_in(&redis.url(), |_, sink| end(sink, StopReason::Complete, 5)).await;
    fixture.spawn_request().await.unwrap().unwrap();
    let before = scripts_run(&redis);
    redis.hold();
    let call = fixture.spawn_request();
    // Long enough that the command was sent, and shorter than the timeout.
    tokio::time::sleep(Duration::from_millis(300)).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    redis.go_on();
    // The reservation was made, then released.
    while scripts_run(&redis) < before + 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // On a busy machine, Redis may answer later than a status waits.
    let status = loop {
        if let Some(status) = fixture.meter.rate_limit_status(&fixture.caller).await {
            break status;
        }
    };
    assert_eq!(status.used, LimitUsage { requests: 1, tokens: 11 });
}
