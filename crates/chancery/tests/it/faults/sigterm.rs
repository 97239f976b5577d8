//! SIGTERM during replies, whole and streamed, once or twice. Each reply either arrives, complete or cut off with
//! `deadline`, and is in the ledger, or is reported as failed and is not. The process exits in time.

use super::client_requests::{Call, Outcome, ReplyMode};
use super::ledger::{Delivered, assert_verified, rows, undelivered};
use super::rounds::{Counts, Draw, rounds};
use crate::server::{Firm, client, eventually, request};
use rustix::process::Signal;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const STOPS_A_ROUND: u64 = 2;

/// Time to drain, to abandon the rest and to send the last replies, plus headroom for a busy machine.
const ENDS_WITHIN: Duration = Duration::from_secs(25 + 4 + 3 + 10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn torture_reply_during_sigterm_is_either_delivered_and_billed_or_neither() {
    rounds("SIGTERM on SQLite", async |draw, counts| round(Firm::new(), draw, counts).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reply_during_sigterm_is_billed_iff_delivered_on_postgresql_and_redis() {
    rounds("SIGTERM on PostgreSQL and Redis", async |draw, counts| {
        round(Firm::on_postgres_and_redis("sigterm"), draw, counts).await;
    })
    .await;
}

async fn round(firm: Firm, draw: Draw, counts: &mut Counts) {
    let key = firm.account_with_key("Hale & Ward");
    let mut delivered = Delivered::new();
    for _ in 0..STOPS_A_ROUND {
        stop(&firm, &key, &draw, &mut delivered, counts).await;
    }
    assert_verified(&firm, &[]);
}

async fn stop(firm: &Firm, key: &str, draw: &Draw, delivered: &mut Delivered, counts: &mut Counts) {
    let mut server = firm.start();
    let clients = draw.number(1..=8) as usize;
    let ended = Arc::new(AtomicUsize::new(0));
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..clients {
        let body = request("Translate to French.", "", draw.number(1..=120));
        let (api, key, reply_mode, ended) =
            (server.api.clone(), key.to_owned(), ReplyMode::random(draw), Arc::clone(&ended));
        running.spawn(async move {
            let call = Call { api: &api, key: &key, body: &body, reply_mode, idempotency_key: None };
            let outcome = call.send(&client()).await;
            ended.fetch_add(1, Ordering::SeqCst);
            outcome
        });
    }
    eventually("all are under way", Duration::from_secs(30), async || {
        server.metric("chancery_running_requests").await as usize + ended.load(Ordering::SeqCst) >= clients
    })
    .await;
    tokio::time::sleep(draw.pause(0..=300)).await;
    server.signal(Signal::TERM);
    counts.add("signals", 1);
    if draw.number(0..=2) == 0 {
        tokio::time::sleep(draw.pause(0..=300)).await;
        // It may have exited already.
        server.signal_if_running(Signal::TERM);
        counts.add("second signals", 1);
    }
    let code = tokio::time::timeout(ENDS_WITHIN, tokio::task::spawn_blocking(move || server.wait())).await;
    assert_eq!(code.expect("it ends within its time").unwrap(), Some(0));
    for outcome in running.join_all().await {
        match outcome {
            Outcome::Received { id, content, .. } => {
                assert_eq!(delivered.insert(id, content), None, "two replies with one id");
                counts.add("replies compared", 1);
            }
            Outcome::Failed { code } | Outcome::Rejected { code, .. } => {
                assert_eq!(code, "shutting_down");
                counts.add("failed and not billed", 1);
            }
            Outcome::Cut(why) => panic!("a reply was cut off without a word: {why}"),
        }
    }
    let left = undelivered(&rows(&firm.database_url()).await, delivered);
    assert!(left.is_empty(), "billed, and failed: {left:?}");
}
