//! One limit for all nodes: no race passes it on whichever of them, a wait as told is long enough, and every node knows
//! what the others have admitted.

use super::cluster::Cluster;
use crate::backing::PostgresAndRedis;
use crate::faults::races;
use crate::faults::rounds::rounds;
use crate::limits::{four_tokens, number, race, served_and_waits, standing};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_race_on_three_nodes_passes_a_limit_and_every_retry_after_is_true() {
    rounds("three nodes: races at the limits", 1, async |draw, counts| {
        let shared = PostgresAndRedis::start("races");
        let cluster = Cluster::over(&shared);
        let servers: Vec<_> = cluster.nodes.iter().map(|node| &node.server).collect();
        races::race(cluster.firm(), &servers, &draw, counts).await;
    })
    .await;
}

#[tokio::test]
async fn what_one_node_admits_counts_on_all() {
    let shared = PostgresAndRedis::start("limits");
    let cluster = Cluster::over(&shared);
    let servers: Vec<_> = cluster.nodes.iter().map(|node| &node.server).collect();
    for (name, rpm, tpm, fits) in [("By tokens", 30, 4 * 25, 25), ("By requests", 10, 1_000, 10)] {
        let key = cluster.firm().limited_account_with_key(name, rpm, tpm);
        let mut replies = race(&servers, &key, &four_tokens(), 60).await;
        // A Redis that takes too long on a loaded machine is a 503. Its request may count or not, but passes no limit.
        let sent = replies.len();
        replies.retain(|reply| (reply.status, reply.code()) != (503, "unavailable"));
        let unanswered = sent - replies.len();
        let served = served_and_waits(&replies).0;
        assert!(served <= fits && served + unanswered >= fits, "{served} served, {unanswered} unanswered");
        let usage = cluster.firm().json(&["usage", "--account", name, "--json"]);
        assert_eq!(usage["total"]["requests"], served);
        if unanswered > 0 {
            continue;
        }
        for server in &servers {
            let standing = standing(server, &key).await;
            let left = |what| number(&standing, what);
            assert_eq!(
                left("x-ratelimit-remaining-requests"),
                u64::from(rpm) - fits as u64,
                "every node knows"
            );
            assert_eq!(left("x-ratelimit-remaining-tokens"), u64::from(tpm) - 4 * fits as u64);
        }
    }
}
