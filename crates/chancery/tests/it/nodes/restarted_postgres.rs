//! PostgreSQL restarts under the load of three nodes, cleanly and as after a crash. The nodes recover by themselves and
//! take their serving locks again. Nothing is lost or duplicated, with or without idempotency keys.

use super::cluster::{Cluster, Parts, Plan};
use super::postgres_server::PostgresServer;
use crate::faults::clients::{ClientBehavior, Clients, REPLIES_WITHIN, Target, UNAVAILABLE};
use crate::faults::ledger::{assert_explained, assert_verified, deliver, rows, undelivered};
use crate::faults::retries::{Calls, callers, finish};
use crate::faults::rounds::{Counts, Draw, rounds};
use crate::server::eventually;
use chancery_test_support::RedisServer;
use std::time::Duration;

const BEHAVIOR: ClientBehavior = ClientBehavior {
    clients: 4,
    pause_ms: 0..=40,
    allowed_errors: &[UNAVAILABLE],
    with_keys: false,
    may_be_cut: false,
};

/// Nodes check their serving lock every second; the rest is headroom for a busy machine.
const SLOTS_WITHIN: Duration = Duration::from_secs(30);

/// In `make test`, `faults::outages`, `faults::retries` and `second_node` show the same on one node.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn torture_postgresql_restart_loses_and_doubles_no_bill() {
    rounds("three nodes: PostgreSQL restarted", async |draw, counts| round(draw, counts).await).await;
}

async fn round(draw: Draw, counts: &mut Counts) {
    let (postgres, redis) = tokio::task::block_in_place(|| (PostgresServer::start(), RedisServer::start()));
    let (database_url, redis_url) = (&postgres.url(), &redis.url());
    let plan = Plan { database_url, redis_url, generation: 1, settings: &[], parts: Parts::ApiAlone };
    let mut cluster = Cluster::start(&plan);
    let key = cluster.firm().account_with_key("Hale & Ward");
    let (prompts, mut delivered) = cluster.baseline_replies(&key).await;
    let apis = cluster.apis();
    let target = Target { apis: apis.clone(), key: key.clone(), prompts: prompts.clone() };
    let clients = Clients::start(&target, &BEHAVIOR, &draw);
    let calls = Calls::start(callers(&key, &prompts, &draw), &apis);
    for how in ["fast", "immediate"] {
        clients.more_replies(draw.number(5..=20) as usize, REPLIES_WITHIN).await;
        calls.more_replies(draw.number(5..=10) as usize).await;
        tokio::task::block_in_place(|| postgres.restart(how));
        cluster.until_ready().await;
        eventually("every node has its place again", SLOTS_WITHIN, async || postgres.serving_nodes() == 3)
            .await;
        clients.more_replies(10, REPLIES_WITHIN).await;
        calls.more_replies(5).await;
        counts.add("restarts", 1);
    }
    let (record, callers) = (clients.stop().await, calls.stop().await);
    finish(callers, &apis, &mut delivered, counts).await;
    cluster.end();
    counts.add("replies compared", record.replies.len());
    counts.add("refused with 503", record.rejections.len());
    deliver(&mut delivered, &record.replies);
    assert_verified(cluster.firm(), &[]);
    let left = undelivered(&rows(&postgres.url()).await, &delivered);
    assert_explained(&left, &record.unanswered);
    counts.add("refused, and in the ledger", left.len());
}
