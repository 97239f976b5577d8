//! `kill -9` at random moments, under load and during startup. Every reply that a client received is in the ledger
//! once, with its tokens and their cost. A row without a reply belongs to a request that was in progress. The key has a
//! spending cap: what is left of it after all kills is the cap less the key's rows.

use super::client_requests::{ReplyContent, baseline_replies};
use super::clients::{ClientBehavior, Clients, REPLIES_WITHIN, Target};
use super::ledger::{Delivered, assert_explained, assert_verified, deliver, rows, undelivered};
use super::rounds::{Counts, Draw, rounds};
use crate::server::{Firm, eventually};
use chancery_domain::Nanos;
use std::time::Duration;

const KILLS_A_ROUND: u64 = 3;

/// More than a round can spend, in the currency and in nano-units.
const KEY_CAP: &str = "1";
const KEY_CAP_NANOS: i64 = 1_000_000_000;

/// The reservations of a killed process expire with its lease, and are deleted by the next maintenance run.
const REAPED_WITHIN: Duration = Duration::from_secs(60);

const BEHAVIOR: ClientBehavior =
    ClientBehavior { clients: 6, pause_ms: 0..=0, allowed_errors: &[], with_keys: false, may_be_cut: true };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_has_billed_every_delivered_reply_once() {
    rounds("kill -9 on SQLite", async |draw, counts| round(Firm::new(), draw, counts).await).await;
}

/// In `make test`, `nodes::killed_node` shows the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn torture_killed_server_has_billed_every_reply_once_on_postgresql_and_redis() {
    rounds("kill -9 on PostgreSQL and Redis", async |draw, counts| {
        round(Firm::on_postgres_and_redis("kills"), draw, counts).await;
    })
    .await;
}

async fn round(firm: Firm, draw: Draw, counts: &mut Counts) {
    let key = firm.account_with_limited_key("Hale & Ward", &["--spend-per-month", KEY_CAP]);
    let mut server = firm.start();
    let (prompts, received) = baseline_replies(&server, &key).await;
    let mut target = Target { apis: Vec::new(), key, prompts };
    let mut delivered: Delivered = received.into_iter().collect();
    let mut unanswered: Vec<ReplyContent> = Vec::new();
    for kill in 1..=KILLS_A_ROUND {
        target.apis = vec![server.api.clone()];
        let clients = Clients::start(&target, &BEHAVIOR, &draw);
        // Sometimes before any reply; often right after one has arrived while others are still in flight.
        clients.more_replies(draw.number(0..=40) as usize, REPLIES_WITHIN).await;
        if draw.number(0..=1) == 0 {
            tokio::time::sleep(draw.pause(0..=20)).await;
        }
        server.signal(rustix::process::Signal::KILL);
        server.wait();
        let record = clients.until_cut().await;
        counts.add("replies compared", record.replies.len());
        deliver(&mut delivered, &record.replies);
        unanswered.extend(record.unanswered);
        if draw.number(0..=1) == 0 {
            firm.start_and_kill_after(draw.pause(0..=600)).await;
            counts.add("kills while starting", 1);
        }
        assert_verified(&firm, &[]);
        let left = undelivered(&rows(&firm.database_url()).await, &delivered);
        assert_explained(&left, &unanswered);
        counts.add("kills under load", 1);
        server = firm.start();
        if kill == KILLS_A_ROUND {
            counts.add("rows of replies that were cut off", left.len());
        }
    }
    let spent: i64 = rows(&firm.database_url()).await.values().map(|row| row.cost.0).sum();
    let left = Nanos(KEY_CAP_NANOS - spent).to_string();
    eventually("the budget is the cap less the key's rows", REAPED_WITHIN, async || {
        let status = server.get("/v1/key", &target.key).await.body;
        status["remaining"]["key"]["spend_per_month"] == left.as_str()
    })
    .await;
}
