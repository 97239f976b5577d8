//! PostgreSQL is restarted under the load of three nodes, in the orderly way and as if its machine had failed. Nodes come
//! back by themselves, each with its place among those that serve; nothing is lost and nothing doubled, for clients who
//! repeat by a key and for those who do not.

use super::cluster::{Cluster, Parts, Plan};
use super::postgres_server::PostgresServer;
use crate::faults::clients::{Clients, Manner, REPLIES_WITHIN, Target, UNAVAILABLE};
use crate::faults::ledger::{assert_explained, assert_verified, deliver, rows, undelivered};
use crate::faults::repeats::{Calls, callers, finish};
use crate::faults::rounds::{Counts, Draw, rounds};
use crate::server::eventually;
use chancery_test_support::RedisServer;
use std::time::Duration;

const MANNER: Manner = Manner {
    clients: 4,
    pause_ms: 0..=40,
    may_be_refused: &[UNAVAILABLE],
    with_keys: false,
    may_be_cut: false,
};

/// Nodes look after their place every second; the rest is for a loaded machine.
const PLACES_WITHIN: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_restart_of_postgresql_loses_and_doubles_nothing() {
    rounds("three nodes: PostgreSQL restarted", 1, async |draw, counts| round(draw, counts).await).await;
}

async fn round(draw: Draw, counts: &mut Counts) {
    let (postgres, redis) = tokio::task::block_in_place(|| (PostgresServer::start(), RedisServer::start()));
    let (database_url, redis_url) = (&postgres.url(), &redis.url());
    let plan = Plan { database_url, redis_url, generation: 1, settings: &[], parts: Parts::ApiAlone };
    let mut cluster = Cluster::start(&plan);
    let key = cluster.firm().account_with_key("Hale & Ward");
    let (asks, mut delivered) = cluster.in_peace(&key).await;
    let apis = cluster.apis();
    let target = Target { apis: apis.clone(), key: key.clone(), asks: asks.clone() };
    let clients = Clients::start(&target, &MANNER, &draw);
    let calls = Calls::start(callers(&key, &asks, &draw), &apis);
    for how in ["fast", "immediate"] {
        clients.more_replies(draw.number(5..=20) as usize, REPLIES_WITHIN).await;
        calls.more_replies(draw.number(5..=10) as usize).await;
        tokio::task::block_in_place(|| postgres.restart(how));
        cluster.until_ready().await;
        eventually("every node has its place again", PLACES_WITHIN, async || postgres.serving_nodes() == 3)
            .await;
        clients.more_replies(10, REPLIES_WITHIN).await;
        calls.more_replies(5).await;
        counts.add("restarts", 1);
    }
    let (record, callers) = (clients.stop().await, calls.stop().await);
    finish(callers, &apis, &mut delivered, counts).await;
    cluster.end();
    counts.add("replies compared", record.replies.len());
    counts.add("refused with 503", record.refusals.len());
    deliver(&mut delivered, &record.replies);
    assert_verified(cluster.firm(), &[]);
    let left = undelivered(&rows(&postgres.url()).await, &delivered);
    assert_explained(&left, &record.unanswered);
    counts.add("refused, and in the ledger", left.len());
}
