//! Redis is killed and restarted under the load of three nodes, with its data or without. Each returns 503 meanwhile, no limit is
//! exceeded, everything recovers, and the ledger matches what the clients received.

use super::cluster::Cluster;
use crate::faults::admission_windows::{Admitted, fullest};
use crate::faults::clients::{ClientBehavior, Clients, RATE_LIMITED, REPLIES_WITHIN, Target, UNAVAILABLE};
use crate::faults::ledger::{assert_verified, deliver, rows, undelivered};
use crate::faults::rounds::{Counts, Draw, rounds};
use crate::server::request;
use crate::test_backends::PostgresAndRedis;
use chancery_test_support::RedisServer;
use std::time::Duration;

const RESTARTS_A_ROUND: usize = 2;

/// After Redis came back empty, nothing is admitted for a minute; the rest is headroom for a busy machine.
const REPLIES_AFTER_LOSS_WITHIN: Duration = Duration::from_secs(120);

const BEHAVIOR: ClientBehavior = ClientBehavior {
    clients: 4,
    pause_ms: 0..=60,
    allowed_errors: &[UNAVAILABLE, RATE_LIMITED],
    with_keys: false,
    may_be_cut: false,
};

/// In `make test`, `faults::outages` and `limits` show the same on one node.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn torture_redis_restart_rejects_requests_and_exceeds_no_limit() {
    rounds("three nodes: Redis restarted", async |draw, counts| {
        round(draw, counts, &[RedisServer::start_again as fn(&mut RedisServer); RESTARTS_A_ROUND]).await;
    })
    .await;
}

/// In `make test`, a test of `chancery-metering` with a fake clock shows the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn torture_redis_that_comes_back_empty_exceeds_no_limit() {
    rounds("three nodes: Redis came back empty", async |draw, counts| {
        round(draw, counts, &[RedisServer::start_again_empty as fn(&mut RedisServer)]).await;
    })
    .await;
}

async fn round(draw: Draw, counts: &mut Counts, restarts: &[fn(&mut RedisServer)]) {
    let mut shared = PostgresAndRedis::start("restarted_redis");
    let mut cluster = Cluster::over(&shared);
    let key = cluster.firm().account_with_key("Hale & Ward");
    let rpm = draw.number(30..=80) as u32;
    let limited = cluster.firm().limited_account_with_key("Limited", rpm, 1_000_000);
    let (prompts, mut delivered) = cluster.baseline_replies(&key).await;
    let target = |key: &str| Target { apis: cluster.apis(), key: key.to_owned(), prompts: prompts.clone() };
    let pushing = Clients::start(&target(&limited), &BEHAVIOR, &draw);
    let others = Clients::start(&target(&key), &BEHAVIOR, &draw);
    for come_back in restarts {
        others.more_replies(draw.number(5..=20) as usize, REPLIES_WITHIN).await;
        shared.redis.kill();
        for node in &cluster.nodes {
            let rejected = node.server.generate(&key, &request("", "Say hello.", 1)).await;
            assert_eq!((rejected.status, rejected.code()), (503, "unavailable"), "{}", rejected.body);
            let readiness = node.readiness().await;
            assert_eq!(readiness.status, 503, "{}", readiness.body);
        }
        tokio::time::sleep(draw.pause(0..=1_000)).await;
        tokio::task::block_in_place(|| come_back(&mut shared.redis));
        cluster.until_ready().await;
        others.more_replies(10, REPLIES_AFTER_LOSS_WITHIN).await;
        pushing.more_replies(5, REPLIES_WITHIN).await;
        counts.add("restarts", 1);
    }
    let (pushed, other) = (pushing.stop().await, others.stop().await);
    cluster.end();
    let admitted: Vec<Admitted> = pushed.replies.iter().map(Admitted::from).collect();
    let (requests, _) = fullest(&admitted);
    assert!(requests <= u64::from(rpm), "{requests} requests within a minute, where {rpm} are allowed");
    counts.add("overshoot", requests.saturating_sub(rpm.into()) as usize);
    for record in [&pushed, &other] {
        counts.add("replies compared", record.replies.len());
        counts.callers_saw(&record.statuses);
        let rejections_with =
            |status| record.rejections.iter().filter(|rejected| rejected.status == status).count();
        counts.add("refused with 503", rejections_with(503));
        counts.add("refused with 429", rejections_with(429));
        deliver(&mut delivered, &record.replies);
    }
    assert_verified(cluster.firm(), &[]);
    let left = undelivered(&rows(&cluster.firm().database_url()).await, &delivered);
    assert!(left.is_empty(), "where the limits' store cannot be asked, nothing is billed: {left:?}");
}
