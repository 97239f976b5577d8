//! One of two generation servers is killed under load, behind three nodes that stay up. Replies that it had started fail with
//! an error and are not billed. All other requests run on the second server, and the first is used again once it is back.

use super::cluster::{Cluster, Parts, Plan};
use crate::faults::clients::{ClientBehavior, Clients, REPLIES_WITHIN, Target};
use crate::faults::ledger::{assert_verified, deliver, rows, undelivered};
use crate::faults::rounds::{Counts, Draw, rounds};
use crate::server::eventually;
use crate::test_backends::PostgresAndRedis;
use std::time::Duration;

/// Health checks are a few seconds apart; the rest is headroom for a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(60);

const BEHAVIOR: ClientBehavior = ClientBehavior {
    clients: 5,
    pause_ms: 0..=20,
    allowed_errors: &[(502, "engine_failed")],
    with_keys: false,
    may_be_cut: false,
};

/// In `make test`, `upstream::billing` shows the same on one node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn torture_killed_generation_server_fails_running_requests_unbilled() {
    rounds("three nodes: kill -9 of a generation server", async |draw, counts| {
        round(draw, counts).await;
    })
    .await;
}

async fn round(draw: Draw, counts: &mut Counts) {
    let shared = PostgresAndRedis::start("killed_generation");
    let (database_url, redis_url) = (&shared.database.url(), &shared.redis.url());
    let plan = Plan { database_url, redis_url, generation: 2, settings: &[], parts: Parts::ApiAlone };
    let mut cluster = Cluster::start(&plan);
    let key = cluster.firm().account_with_key("Hale & Ward");
    let (prompts, mut delivered) = cluster.baseline_replies(&key).await;
    let clients = Clients::start(&Target { apis: cluster.apis(), key, prompts }, &BEHAVIOR, &draw);
    clients.more_replies(draw.number(5..=20) as usize, REPLIES_WITHIN).await;
    cluster.generation[0].server.signal(rustix::process::Signal::KILL);
    cluster.generation[0].server.wait();
    counts.add("kills", 1);
    clients.more_replies(40, REPLIES_WITHIN).await;
    cluster.until_ready().await;
    cluster.generation[0].start_again();
    eventually("it is used again", BACK_WITHIN, async || {
        cluster.generation[0].server.metric("chancery_engine_steps_total").await > 0
    })
    .await;
    clients.more_replies(10, REPLIES_WITHIN).await;
    let record = clients.stop().await;
    cluster.end();
    counts.add("replies compared", record.replies.len());
    let failed = record.unanswered.len() + record.rejections.len();
    // Each client has one request in progress when the server is killed.
    assert!(
        failed <= BEHAVIOR.clients,
        "{failed} requests failed, and what had not begun could have run elsewhere"
    );
    counts.add("failed by name and not billed", failed);
    deliver(&mut delivered, &record.replies);
    assert_verified(cluster.firm(), &[]);
    let left = undelivered(&rows(&cluster.firm().database_url()).await, &delivered);
    assert!(left.is_empty(), "billed, and failed: {left:?}");
}
