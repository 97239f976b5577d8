//! Redis is killed and started again under the load of three nodes: 503 meanwhile on each, never past a limit, all well
//! afterwards, and the ledger is what the clients got.

use super::cluster::Cluster;
use crate::backing::PostgresAndRedis;
use crate::faults::clients::{Clients, Manner, RATE_LIMITED, REPLIES_WITHIN, Target, UNAVAILABLE};
use crate::faults::ledger::{assert_verified, deliver, rows, undelivered};
use crate::faults::rounds::{Counts, Draw, rounds};
use crate::faults::windows::{Admitted, fullest};
use crate::server::request;

const RESTARTS_A_ROUND: u64 = 2;

const MANNER: Manner = Manner {
    clients: 4,
    pause_ms: 0..=60,
    may_be_refused: &[UNAVAILABLE, RATE_LIMITED],
    with_keys: false,
    may_be_cut: false,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_restart_of_redis_refuses_meanwhile_and_passes_no_limit() {
    rounds("three nodes: Redis restarted", 1, async |draw, counts| round(draw, counts).await).await;
}

async fn round(draw: Draw, counts: &mut Counts) {
    let mut shared = PostgresAndRedis::start("restarted_redis");
    let mut cluster = Cluster::over(&shared);
    let key = cluster.firm().account_with_key("Hale & Ward");
    let rpm = draw.number(30..=80) as u32;
    let limited = cluster.firm().limited_account_with_key("Limited", rpm, 1_000_000);
    let (asks, mut delivered) = cluster.in_peace(&key).await;
    let target = |key: &str| Target { apis: cluster.apis(), key: key.to_owned(), asks: asks.clone() };
    let pushing = Clients::start(&target(&limited), &MANNER, &draw);
    let others = Clients::start(&target(&key), &MANNER, &draw);
    for _ in 0..RESTARTS_A_ROUND {
        others.more_replies(draw.number(5..=20) as usize, REPLIES_WITHIN).await;
        shared.redis.kill();
        for node in &cluster.nodes {
            let refused = node.server.generate(&key, &request("", "Say hello.", 1)).await;
            assert_eq!((refused.status, refused.code()), (503, "unavailable"), "{}", refused.body);
            let readiness = node.readiness().await;
            assert_eq!(readiness.status, 503, "{}", readiness.body);
        }
        tokio::time::sleep(draw.pause(0..=1_000)).await;
        tokio::task::block_in_place(|| shared.redis.start_again());
        cluster.until_ready().await;
        others.more_replies(10, REPLIES_WITHIN).await;
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
        let told = |status| record.refusals.iter().filter(|refused| refused.status == status).count();
        counts.add("refused with 503", told(503));
        counts.add("refused with 429", told(429));
        deliver(&mut delivered, &record.replies);
    }
    assert_verified(cluster.firm(), &[]);
    let left = undelivered(&rows(&cluster.firm().database_url()).await, &delivered);
    assert!(left.is_empty(), "where the limits' store cannot be asked, nothing is billed: {left:?}");
}
