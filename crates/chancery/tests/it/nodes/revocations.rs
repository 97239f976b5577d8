//! A change made by a command on one node applies on every node within one second: a revoked key, a closed account, a
//! lowered limit. Callers query all nodes continuously, so that their caches are as fresh as possible.

use super::cluster::Cluster;
use crate::faults::rounds::rounds;
use crate::server::{Firm, Reply, client};
use crate::test_backends::PostgresAndRedis;
use chancery_domain::{Clock, SystemClock};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const WITHIN: Duration = Duration::from_secs(1);
/// How long a caller polls before the test fails.
const TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revocation_on_one_node_applies_on_all_within_a_second() {
    rounds("three nodes: revocations", async |_, counts| {
        let shared = PostgresAndRedis::start("revocations");
        let cluster = Cluster::over(&shared);
        let [first, second, third] = [0, 1, 2].map(|number: usize| &cluster.nodes[number].firm);
        let key = first.account_with_key("Hale & Ward");
        let is_lowered: fn(&Reply) -> bool = |reply| reply.header("x-ratelimit-limit-requests") == "70000";
        let lower = ["account", "limits", "Hale & Ward", "--rpm", "70000"];
        counts.peak("slowest change of a limit, ms", change(&cluster, first, &key, &lower, is_lowered).await);
        let prefix = prefix_of(second, "Hale & Ward");
        let revoke = ["key", "revoke", &prefix];
        let is_rejected: fn(&Reply) -> bool =
            |reply| (reply.status, reply.code()) == (401, "invalid_api_key");
        counts.peak("slowest revocation, ms", change(&cluster, second, &key, &revoke, is_rejected).await);
        let key = third.account_with_key("Closing");
        let close = ["account", "close", "Closing"];
        let is_closed: fn(&Reply) -> bool =
            |reply| (reply.status, reply.code()) == (402, "no_billing_account");
        counts.peak("slowest closing, ms", change(&cluster, third, &key, &close, is_closed).await);
        counts.add("changes, each on three nodes", 3);
    })
    .await;
}

fn prefix_of(firm: &Firm, account: &str) -> String {
    let keys = firm.json(&["key", "list", "--json"]);
    let key = keys.as_array().unwrap().iter().find(|key| key["account"] == account).unwrap();
    key["prefix"].as_str().unwrap().to_owned()
}

/// Runs the command while all nodes are queried. Returns how long after its end any node still used the old state, in
/// milliseconds.
async fn change(
    cluster: &Cluster,
    firm: &Firm,
    key: &str,
    command: &[&str],
    is_done: fn(&Reply) -> bool,
) -> usize {
    let mut pollers = JoinSet::new();
    for node in &cluster.nodes {
        // Fill each node's cache first.
        let reply = node.server.get("/v1/models", key).await;
        assert!(reply.status == 200 && !is_done(&reply), "{}", reply.body);
        let (url, key) = (format!("{}/v1/models", node.server.api), key.to_owned());
        pollers.spawn(async move { last_before(&url, &key, is_done).await });
    }
    firm.run(command);
    let ended_at = SystemClock.monotonic();
    let lasts: Vec<Instant> = pollers.join_all().await;
    let slowest = lasts.iter().map(|last| last.saturating_duration_since(ended_at)).max().unwrap();
    assert!(slowest <= WITHIN, "{command:?}: a node went by what was before after {slowest:?}");
    usize::try_from(slowest.as_millis()).unwrap()
}

/// Polls until the change is visible; returns when the last request was sent that still saw the old state.
async fn last_before(url: &str, key: &str, is_done: fn(&Reply) -> bool) -> Instant {
    let client = client();
    let begun_at = SystemClock.monotonic();
    let mut last = begun_at;
    while last - begun_at < TIMEOUT {
        let sent_at = SystemClock.monotonic();
        let reply = Reply::read(client.get(url).bearer_auth(key).send().await.unwrap()).await;
        if is_done(&reply) {
            return last;
        }
        last = sent_at;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{url} never knew");
}
