//! One limit for all nodes: no race on any of them exceeds it, the `Retry-After` time is long enough, and every node
//! sees what the others have admitted.

use super::cluster::Cluster;
use crate::faults::races;
use crate::faults::rounds::rounds;
use crate::limits::{four_tokens, number, race, rate_limit_status, served_and_waits};
use crate::test_backends::PostgresAndRedis;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn race_on_three_nodes_never_exceeds_a_limit() {
    rounds("three nodes: races at the limits", async |draw, counts| {
        let shared = PostgresAndRedis::start("races");
        let cluster = Cluster::over(&shared);
        let servers: Vec<_> = cluster.nodes.iter().map(|node| &node.server).collect();
        races::race(cluster.firm(), &servers, &draw, counts).await;
    })
    .await;
}

#[tokio::test]
async fn request_admitted_on_one_node_counts_on_all_nodes() {
    let shared = PostgresAndRedis::start("limits");
    let cluster = Cluster::over(&shared);
    let servers: Vec<_> = cluster.nodes.iter().map(|node| &node.server).collect();
    for (name, rpm, tpm, fits) in [("By tokens", 30, 4 * 25, 25), ("By requests", 10, 1_000, 10)] {
        let key = cluster.firm().limited_account_with_key(name, rpm, tpm);
        let mut replies = race(&servers, &key, &four_tokens(), 60).await;
        // A Redis that is too slow on a busy machine causes a 503. That request may or may not count, but exceeds no limit.
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
            let rate_limit_status = rate_limit_status(server, &key).await;
            let left = |what| number(&rate_limit_status, what);
            assert_eq!(
                left("x-ratelimit-remaining-requests"),
                u64::from(rpm) - fits as u64,
                "every node knows"
            );
            assert_eq!(left("x-ratelimit-remaining-tokens"), u64::from(tpm) - 4 * fits as u64);
        }
    }
}
