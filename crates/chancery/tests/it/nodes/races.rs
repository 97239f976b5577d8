//! What callers and the firm race for on three nodes at once has one outcome: a month's budget, an idempotency key, and the secret of
//! an API key. `limits` races for the limits per minute, and for budgets during longer.

use super::cluster::Cluster;
use crate::faults::clients::{ClientBehavior, Clients, REPLIES_WITHIN, Record, Target, UNAVAILABLE};
use crate::faults::duplicates::race_for_keys;
use crate::faults::ledger::{assert_explained, assert_verified, deliver, rows, undelivered};
use crate::faults::races::CappedRace;
use crate::faults::rounds::{Draw, rounds};
use crate::server::{Firm, eventually};
use crate::test_backends::PostgresAndRedis;
use std::time::Duration;

const UNDISTURBED: ClientBehavior = ClientBehavior {
    clients: 3,
    pause_ms: 0..=40,
    allowed_errors: &[UNAVAILABLE],
    with_keys: false,
    may_be_cut: false,
};

/// A node asks for a key again every second; the rest is headroom for a busy machine.
const ROTATED_WITHIN: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn race_on_three_nodes_for_budget_key_or_secret_has_one_outcome() {
    rounds("three nodes: races for budgets, keys and secrets", async |draw, counts| {
        let shared = PostgresAndRedis::start("races_of_nodes");
        let mut cluster = tokio::task::block_in_place(|| Cluster::over(&shared));
        let key = cluster.firm().account_with_key("Hale & Ward");
        let (prompts, mut delivered) = cluster.baseline_replies(&key).await;
        let apis = cluster.apis();
        let capped = CappedRace::start(cluster.firm(), &apis, &prompts, &draw);
        let (by_key, mut record) = tokio::join!(race_for_keys(&apis, &key, &draw, counts), async {
            let rotated = cluster.firm().run(&["key", "create", "--account", "Hale & Ward"]);
            let (apis, key, prompts) = (apis.clone(), rotated.trim().to_owned(), prompts.clone());
            race_for_the_secret(&cluster, &Target { apis, key, prompts }, &draw).await
        });
        delivered.extend(by_key);
        record.join(capped.finish(counts).await);
        counts.callers_saw(&record.statuses);
        tokio::task::block_in_place(|| cluster.end());
        deliver(&mut delivered, &record.replies);
        tokio::task::block_in_place(|| assert_verified(cluster.firm(), &[]));
        let left = undelivered(&rows(&cluster.firm().database_url()).await, &delivered);
        assert_explained(&left, &record.unanswered);
    })
    .await;
}

/// The secret of a key is replaced on three nodes at once, under load.
async fn race_for_the_secret(cluster: &Cluster, target: &Target, draw: &Draw) -> Record {
    let prefix = &target.key[..11];
    let with_old = Clients::start(target, &UNDISTURBED, draw);
    with_old.more_replies(3, REPLIES_WITHIN).await;
    let rotate = |firm: &Firm| firm.output(&["key", "rotate", prefix, "--overlap", "1h"]);
    let outputs: Vec<_> = tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            let rotating: Vec<_> =
                cluster.nodes.iter().map(|node| scope.spawn(|| rotate(&node.firm))).collect();
            rotating.into_iter().map(|rotated| rotated.join().unwrap()).collect()
        })
    });
    let [won] = &*outputs.iter().filter(|output| output.status.success()).collect::<Vec<_>>() else {
        panic!("one replaces the secret: {outputs:?}");
    };
    let key = String::from_utf8_lossy(&won.stdout).trim().to_owned();
    until_each_node_says(cluster, &key, 200).await;
    let with_new = Clients::start(&Target { key: key.clone(), ..target.clone() }, &UNDISTURBED, draw);
    with_old.more_replies(5, REPLIES_WITHIN).await;
    with_new.more_replies(5, REPLIES_WITHIN).await;
    let (mut record, of_new) = (with_old.stop().await, with_new.stop().await);
    record.join(of_new);
    let last = cluster.nodes[1].firm.run(&["key", "rotate", prefix, "--overlap", "0", "--end-overlap"]);
    until_each_node_says(cluster, last.trim(), 200).await;
    for ended in [&target.key, &key] {
        until_each_node_says(cluster, ended, 401).await;
    }
    record
}

async fn until_each_node_says(cluster: &Cluster, key: &str, status: u16) {
    for node in &cluster.nodes {
        eventually("the node knows of the rotation", ROTATED_WITHIN, async || {
            node.server.get("/v1/models", key).await.status == status
        })
        .await;
    }
}
