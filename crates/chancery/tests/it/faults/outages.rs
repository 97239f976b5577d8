//! The database, or the limits' store, is gone for a while in the middle of everything: cut off, or silent. Requests are
//! refused meanwhile, served again afterwards, and nobody gets a reply that is not in the ledger or past its limit.

use super::asks::{Ask, Call, Outcome, Wanted, in_peace};
use super::clients::{Clients, Manner, RATE_LIMITED, REPLIES_WITHIN, Target, UNAVAILABLE};
use super::ledger::{Delivered, assert_explained, assert_verified, deliver, rows, undelivered};
use super::proxy::{Mode, Proxy};
use super::rounds::{Counts, Draw, rounds};
use super::windows::{Admitted, fullest};
use crate::server::{Firm, client};
use chancery_domain::{Clock, SystemClock};
use chancery_test_support::{PostgresDatabase, RedisServer};
use std::time::Duration;

const OUTAGES_A_ROUND: u64 = 3;

/// Longer than the store waits for a silent database, and time to get a connection.
const BACK_WITHIN: Duration = Duration::from_secs(40);

const MANNER: Manner = Manner {
    clients: 5,
    pause_ms: 0..=60,
    may_be_refused: &[UNAVAILABLE, RATE_LIMITED],
    with_keys: false,
    may_be_cut: false,
};

/// Mostly a moment; now and then longer than anybody waits for an answer.
fn outage(draw: &Draw) -> (Mode, Duration) {
    let mode = *draw.one_of(&[Mode::Gone, Mode::Gone, Mode::Silent]);
    let pause = if draw.number(1..=10) == 1 { draw.pause(10_500..=13_000) } else { draw.pause(20..=2_500) };
    (mode, pause)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_database_is_gone_nothing_is_delivered_unbilled_and_afterwards_all_is_well() {
    rounds("database gone", 1, async |draw, counts| without_the_database(draw, counts).await).await;
}

async fn without_the_database(draw: Draw, counts: &mut Counts) {
    let database = PostgresDatabase::create("outages");
    let (proxy, url) = Proxy::before(&database.url()).await;
    let firm = Firm::new().with("CHANCERY_DATABASE__URL", &url);
    let key = firm.account_with_key("Hale & Ward");
    let mut server = firm.start();
    let (asks, received) = in_peace(&server, &key).await;
    let mut delivered: Delivered = received.into_iter().collect();
    let target = Target { apis: vec![server.api.clone()], key, asks };
    let clients = Clients::start(&target, &MANNER, &draw);
    for _ in 0..OUTAGES_A_ROUND {
        clients.more_replies(draw.number(1..=20) as usize, REPLIES_WITHIN).await;
        tokio::time::sleep(draw.pause(0..=30)).await;
        let (mode, pause) = outage(&draw);
        proxy.set(mode);
        tokio::time::sleep(pause).await;
        proxy.set(Mode::Through);
        clients.more_replies(5, BACK_WITHIN).await;
        counts.add("outages", 1);
    }
    let record = clients.stop().await;
    server.end();
    counts.add("replies compared", record.replies.len());
    counts.add("refused with 503", record.refusals.len());
    deliver(&mut delivered, &record.replies);
    assert_verified(&firm, &[]);
    let left = undelivered(&rows(&database.url()).await, &delivered);
    assert_explained(&left, &record.unanswered);
    counts.add("refused, and in the ledger", left.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_redis_is_gone_nothing_is_admitted_and_no_limit_is_passed() {
    rounds("Redis gone", 1, async |draw, counts| without_redis(draw, counts).await).await;
}

async fn without_redis(draw: Draw, counts: &mut Counts) {
    let redis = RedisServer::start();
    let (proxy, url) = Proxy::before(&redis.url()).await;
    let firm = Firm::new().with("CHANCERY_LIMITS__STORE", &url);
    let peaceful = firm.account_with_key("Peace & Quiet");
    let rpm = draw.number(100..=300) as u32;
    let key = firm.limited_account_with_key("Hale & Ward", rpm, 1_000_000);
    let mut server = firm.start();
    let (asks, received) = in_peace(&server, &peaceful).await;
    let mut delivered: Delivered = received.into_iter().collect();
    let asks: Vec<Ask> = asks.iter().filter(|ask| ask.right.output_tokens <= 2).cloned().collect();
    let target = Target { apis: vec![server.api.clone()], key, asks: asks.into() };
    let clients = Clients::start(&target, &MANNER, &draw);
    let (mut times, prober) = (Vec::new(), client());
    let Target { apis, key, asks } = &target;
    let (body, wanted) = (&asks[0].body, Wanted::Whole);
    let probe = Call { api: &apis[0], key, body, wanted, idempotency_key: None };
    for _ in 0..OUTAGES_A_ROUND {
        tokio::time::sleep(draw.pause(100..=1_500)).await;
        let (mode, pause) = outage(&draw);
        proxy.set(mode);
        let from = SystemClock.monotonic();
        // It lasts until somebody has been told, at least.
        let (told, ()) = tokio::join!(probe.send(&prober), tokio::time::sleep(pause));
        assert!(
            matches!(&told, Outcome::Refused { status: 503, code, .. } if code == "unavailable"),
            "{told:?}"
        );
        times.push((from, SystemClock.monotonic()));
        proxy.set(Mode::Through);
        counts.add("outages", 1);
    }
    // Time to go as far as the limit allows.
    tokio::time::sleep(draw.pause(3_000..=5_000)).await;
    let record = clients.stop().await;
    server.end();
    for reply in &record.replies {
        let is_within = times.iter().any(|(from, to)| *from <= reply.sent_at && reply.received_at <= *to);
        assert!(!is_within, "admitted while nobody could know whether it may be: {reply:?}");
    }
    let admitted: Vec<Admitted> = record.replies.iter().map(Admitted::from).collect();
    let (requests, _) = fullest(&admitted);
    assert!(requests <= u64::from(rpm), "{requests} requests within a minute, and {rpm} are allowed");
    counts.add("replies compared", record.replies.len());
    counts.add("refused", record.refusals.len());
    deliver(&mut delivered, &record.replies);
    let left = undelivered(&rows(&firm.database_url()).await, &delivered);
    assert!(left.is_empty(), "where the limits' store cannot be asked, nothing is billed: {left:?}");
    // The ledger's; that Redis still counts the last minute may be unsure after what happened to it.
    assert_verified(&firm, &[]);
}
