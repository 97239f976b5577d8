//! One of three nodes is suspended under load, as by a virtual machine that is moved, and goes on later. Meanwhile others take it
//! for dead: what it had reserved is free, and its callers' requests run again elsewhere under their `Idempotency-Key`. When it
//! goes on, it bills nothing that another node has billed, and its own callers get the one reply or an error.

use super::cluster::Cluster;
use crate::faults::client_requests::{Call, Outcome, ReplyMode};
use crate::faults::clients::{ClientBehavior, Clients, ENGINE_TIMEOUT, REPLIES_WITHIN, Target, UNAVAILABLE};
use crate::faults::duplicates::until_answered;
use crate::faults::ledger::{assert_explained, assert_verified, deliver, rows, undelivered};
use crate::faults::retries::{Calls, callers, finish};
use crate::faults::rounds::{Counts, Draw, rounds};
use crate::server::{client, request};
use crate::test_backends::PostgresAndRedis;
use rustix::process::Signal;
use std::time::Duration;

/// Clients of the other nodes: never rejected, never cut off.
const STAYING: ClientBehavior =
    ClientBehavior { clients: 3, pause_ms: 0..=40, allowed_errors: &[], with_keys: false, may_be_cut: false };

/// A node that was suspended may find that its statements took too long.
const SUSPENDED: ClientBehavior = ClientBehavior { allowed_errors: &[UNAVAILABLE], ..STAYING };

/// After a long suspension it may also find that the generation server was silent for longer than its timeout.
const SUSPENDED_FOR_LONG: ClientBehavior =
    ClientBehavior { allowed_errors: &[UNAVAILABLE, ENGINE_TIMEOUT], ..STAYING };

/// Requests under a key that the suspended node has begun, and other nodes repeat.
const TAKEN_OVER: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn suspended_node_bills_nothing_twice_when_it_goes_on() {
    rounds("three nodes: one suspended for 5 s", async |draw, counts| round(draw, counts, 5..=5).await).await;
}

/// Longer than a lease, and than a window.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn torture_node_suspended_for_up_to_a_minute_bills_nothing_twice() {
    rounds("three nodes: one suspended for up to 60 s", async |draw, counts| {
        round(draw, counts, 16..=60).await;
    })
    .await;
}

async fn round(draw: Draw, counts: &mut Counts, pause_s: std::ops::RangeInclusive<u64>) {
    let shared = PostgresAndRedis::start("paused_node");
    let mut cluster = Cluster::over(&shared);
    let key = cluster.firm().account_with_key("Hale & Ward");
    // With a cap, each request has a reservation that other nodes may take for a dead one's.
    cluster.firm().run(&["account", "limits", "Hale & Ward", "--spend-per-month", "1000"]);
    let (prompts, mut delivered) = cluster.baseline_replies(&key).await;
    let apis = cluster.apis();
    let (others, [victim]) = apis.split_at(2) else { panic!("three nodes") };
    let target = |apis: &[String]| Target { apis: apis.to_vec(), key: key.clone(), prompts: prompts.clone() };
    let staying = Clients::start(&target(others), &STAYING, &draw);
    let is_long = *pause_s.end() > 5;
    let behavior = if is_long { &SUSPENDED_FOR_LONG } else { &SUSPENDED };
    let suspended = Clients::start(&target(std::slice::from_ref(victim)), behavior, &draw);
    let mut callers = callers(&key, &prompts, &draw);
    callers.iter_mut().for_each(|caller| caller.may_time_out = is_long);
    let calls = Calls::start(callers, &apis);
    suspended.more_replies(draw.number(1..=10) as usize, REPLIES_WITHIN).await;
    calls.more_replies(5).await;

    let body = request("Tell a story about a lighthouse.", "", 120);
    let reply_mode = ReplyMode::random(&draw);
    let (victim, key) = (victim.clone(), key.clone());
    let begin = |number: usize| {
        let (api, key, body) = (victim.clone(), key.clone(), body.clone());
        tokio::spawn(async move {
            let idempotency_key = Some(&*format!("taken-over-{number}"));
            Call { api: &api, key: &key, body: &body, reply_mode, idempotency_key }.send(&client()).await
        })
    };
    let begun: Vec<_> = (0..TAKEN_OVER).map(begin).collect();
    cluster.generation[0].server.generating().await;
    cluster.nodes[2].server.signal(Signal::STOP);
    let repeat = |number: usize| {
        let (api, key, body) = (others[number % 2].clone(), key.clone(), body.clone());
        tokio::spawn(async move {
            let idempotency_key = Some(&*format!("taken-over-{number}"));
            let call = Call { api: &api, key: &key, body: &body, reply_mode, idempotency_key };
            until_answered(call, Duration::from_millis(100)).await
        })
    };
    let repeated: Vec<_> = (0..TAKEN_OVER).map(repeat).collect();
    tokio::time::sleep(Duration::from_secs(draw.number(pause_s))).await;
    staying.more_replies(10, REPLIES_WITHIN).await;
    cluster.nodes[2].server.signal(Signal::CONT);
    counts.add("suspensions", 1);
    suspended.more_replies(5, REPLIES_WITHIN).await;

    for (begun, repeated) in begun.into_iter().zip(repeated) {
        let (begun, (id, content, _, in_flight)) = (begun.await.unwrap(), repeated.await.unwrap());
        counts.callers_saw(&[(begun.status(), 1), ("409".to_owned(), in_flight)].into());
        if let Outcome::Received { id: own, content: own_content, .. } = begun {
            assert_eq!((&own, &own_content), (&id, &content), "two replies under one key");
        } else {
            counts.add("taken over by another node", 1);
        }
        assert_eq!(delivered.insert(id, content), None, "one row for two keys");
    }
    let (stayed, slow, callers) = (staying.stop().await, suspended.stop().await, calls.stop().await);
    finish(callers, &apis, &mut delivered, counts).await;
    cluster.end();
    for record in [&stayed, &slow] {
        counts.callers_saw(&record.statuses);
        counts.add("replies compared", record.replies.len());
        deliver(&mut delivered, &record.replies);
    }
    assert_verified(cluster.firm(), &[]);
    let left = undelivered(&rows(&cluster.firm().database_url()).await, &delivered);
    assert_explained(&left, &slow.unanswered);
    counts.add("rejected, and in the ledger", left.len());
}
