//! PostgreSQL restarts under the load of three nodes, cleanly and as after a crash, or fails over to a synchronous standby. The
//! nodes recover by themselves and take their serving locks again. Nothing is lost or duplicated, with or without idempotency
//! keys.

use super::cluster::{Cluster, Parts, Plan};
use super::postgres_server::PostgresServer;
use crate::faults::clients::{ClientBehavior, Clients, REPLIES_WITHIN, Target, UNAVAILABLE};
use crate::faults::ledger::{assert_explained, assert_verified, deliver, rows, undelivered};
use crate::faults::proxy::Proxy;
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
    rounds("three nodes: PostgreSQL restarted", async |draw, counts| {
        let postgres = tokio::task::block_in_place(PostgresServer::start);
        disturb(&postgres, ["fast", "immediate"].map(|how| (how, &postgres)), &draw, counts).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn torture_postgresql_failover_to_a_standby_loses_and_doubles_no_bill() {
    rounds("three nodes: PostgreSQL failed over", async |draw, counts| {
        let postgres = tokio::task::block_in_place(PostgresServer::start);
        let standby = tokio::task::block_in_place(|| postgres.standby());
        disturb(&postgres, [(FAILOVER, &standby)], &draw, counts).await;
    })
    .await;
}

const FAILOVER: &str = "failover";

/// Each disturbance is how the server restarts, or `FAILOVER`, and the server that the nodes have afterwards.
async fn disturb<const COUNT: usize>(
    postgres: &PostgresServer,
    disturbances: [(&str, &PostgresServer); COUNT],
    draw: &Draw,
    counts: &mut Counts,
) {
    let redis = tokio::task::block_in_place(RedisServer::start);
    let (proxy, database_url) = &Proxy::before(&postgres.url()).await;
    let redis_url = &redis.url();
    let plan = Plan { database_url, redis_url, generation: 1, settings: &[], parts: Parts::ApiAlone };
    let mut cluster = tokio::task::block_in_place(|| Cluster::start(&plan));
    let key = tokio::task::block_in_place(|| cluster.firm().account_with_key("Hale & Ward"));
    let (prompts, mut delivered) = cluster.baseline_replies(&key).await;
    let apis = cluster.apis();
    let target = Target { apis: apis.clone(), key: key.clone(), prompts: prompts.clone() };
    let clients = Clients::start(&target, &BEHAVIOR, draw);
    let calls = Calls::start(callers(&key, &prompts, draw), &apis);
    for (how, after) in disturbances {
        clients.more_replies(draw.number(5..=20) as usize, REPLIES_WITHIN).await;
        calls.more_replies(draw.number(5..=10) as usize).await;
        if how == FAILOVER {
            tokio::task::block_in_place(|| postgres.fail_over_to(after));
            proxy.lead_to(&after.url());
            counts.add("failovers", 1);
        } else {
            tokio::task::block_in_place(|| after.restart(how));
            counts.add("restarts", 1);
        }
        cluster.until_ready().await;
        eventually("every node has its place again", SLOTS_WITHIN, async || after.serving_nodes() == 3).await;
        clients.more_replies(10, REPLIES_WITHIN).await;
        calls.more_replies(5).await;
    }
    let (record, callers) = (clients.stop().await, calls.stop().await);
    finish(callers, &apis, &mut delivered, counts).await;
    tokio::task::block_in_place(|| cluster.end());
    counts.callers_saw(&record.statuses);
    counts.add("replies compared", record.replies.len());
    counts.add("refused with 503", record.rejections.len());
    deliver(&mut delivered, &record.replies);
    tokio::task::block_in_place(|| assert_verified(cluster.firm(), &[]));
    let left = undelivered(&rows(database_url).await, &delivered);
    assert_explained(&left, &record.unanswered);
    counts.add("rejected, and in the ledger", left.len());
}
