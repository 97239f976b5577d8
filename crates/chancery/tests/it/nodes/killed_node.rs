//! `kill -9` of one of three nodes under load. Its own clients lose their connections; those of the other nodes notice
//! nothing. Every delivered reply is in the ledger once. Requests that its callers had in progress under an
//! `Idempotency-Key` run once on another node. What it had reserved stays reserved; the tests of `chancery-metering` show that it
//! expires within a minute.

use super::cluster::Cluster;
use crate::event_stream::EventStream;
use crate::faults::clients::{ClientBehavior, Clients, REPLIES_WITHIN, Target};
use crate::faults::ledger::{assert_explained, assert_verified, deliver, rows, undelivered};
use crate::faults::retries::{Calls, callers, finish};
use crate::faults::rounds::{Counts, Draw, rounds};
use crate::limits::number;
use crate::server::request;
use crate::test_backends::PostgresAndRedis;
use chancery_domain::{Clock, SystemClock, WINDOW};
use std::time::Duration;

/// Clients of the other nodes: never rejected, never cut off.
const STAYING: ClientBehavior =
    ClientBehavior { clients: 4, pause_ms: 0..=40, allowed_errors: &[], with_keys: false, may_be_cut: false };

const DOOMED: ClientBehavior = ClientBehavior { clients: 3, may_be_cut: true, ..STAYING };

/// The long reply that dies with its node, and its account's limit, which leaves no room for a second one.
const RESERVED_TOKENS: u64 = 3_000;
const TOKENS_PER_MIN: u32 = 4_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn killed_node_fails_only_its_connections_and_loses_or_doubles_no_bill() {
    rounds("three nodes: kill -9 of one", async |draw, counts| round(draw, counts).await).await;
}

async fn round(draw: Draw, counts: &mut Counts) {
    let shared = PostgresAndRedis::start("killed_node");
    let mut cluster = Cluster::over(&shared);
    let key = cluster.firm().account_with_key("Hale & Ward");
    let waiting = cluster.firm().limited_account_with_key("Waiting", 1_000, TOKENS_PER_MIN);
    let (prompts, mut delivered) = cluster.baseline_replies(&key).await;
    let apis = cluster.apis();
    let (others, [victim]) = apis.split_at(2) else { panic!("three nodes") };
    let target = |apis: &[String]| Target { apis: apis.to_vec(), key: key.clone(), prompts: prompts.clone() };
    let victim = std::slice::from_ref(victim);

    let staying = Clients::start(&target(others), &STAYING, &draw);
    let doomed = Clients::start(&target(victim), &DOOMED, &draw);
    let calls = Calls::start(callers(&key, &prompts, &draw), victim);
    doomed.more_replies(draw.number(1..=15) as usize, REPLIES_WITHIN).await;
    calls.more_replies(draw.number(1..=15) as usize).await;
    let long = request("Translate to French.", "", RESERVED_TOKENS);
    let mut stream = EventStream::open(&cluster.nodes[2].server, &waiting, &long).await;
    stream.first_text().await;
    let reserved_by = SystemClock.monotonic();
    cluster.nodes[2].server.signal(rustix::process::Signal::KILL);
    cluster.nodes[2].server.wait();
    counts.add("kills", 1);

    // The other nodes see what the dead node reserved.
    let first = &cluster.nodes[0].server;
    let rejected = first.generate(&waiting, &request("", "Say hello.", RESERVED_TOKENS)).await;
    assert_eq!((rejected.status, rejected.code()), (429, "rate_limited"), "{}", rejected.body);
    let retry_at = SystemClock.monotonic() + Duration::from_secs(number(&rejected, "retry-after"));
    assert!(retry_at <= reserved_by + WINDOW + Duration::from_secs(5), "it expires within its minute");

    let (cut, callers) = (doomed.until_cut().await, calls.until_cut().await);
    drop(stream);
    staying.more_replies(20, REPLIES_WITHIN).await;

    // Meanwhile its clients retry on the other nodes.
    finish(callers, others, &mut delivered, counts).await;

    // The killed node restarts and works like the others.
    cluster.nodes[2].start_again();
    cluster.nodes[2].until_ready().await;
    let (_, again) = crate::faults::client_requests::baseline_replies(&cluster.nodes[2].server, &key).await;
    delivered.extend(again);
    let stayed = staying.stop().await;
    assert!(stayed.rejections.is_empty() && stayed.unanswered.is_empty());
    cluster.end();
    counts.add("replies of the other nodes compared, none failed", stayed.replies.len());
    counts.add("replies of the killed node compared", cut.replies.len());
    counts.add("connections that the kill cut", cut.unanswered.len());
    deliver(&mut delivered, &stayed.replies);
    deliver(&mut delivered, &cut.replies);
    assert_verified(cluster.firm(), &[]);
    let left = undelivered(&rows(&cluster.firm().database_url()).await, &delivered);
    assert_explained(&left, &cut.unanswered);
    counts.add("rows of replies that the kill cut off", left.len());
}
