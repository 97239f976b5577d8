//! The database or the limit store is unavailable for a while under load: disconnected or unresponsive. Requests are
//! rejected meanwhile and served again afterwards. No reply is missing from the ledger or exceeds its limit.

use super::admission_windows::{Admitted, fullest};
use super::client_requests::{Call, Outcome, Prompt, ReplyMode, baseline_replies};
use super::clients::{ClientBehavior, Clients, RATE_LIMITED, REPLIES_WITHIN, Target, UNAVAILABLE};
use super::ledger::{Delivered, assert_explained, assert_verified, deliver, rows, undelivered};
use super::proxy::{Mode, Proxy};
use super::rounds::{Counts, Draw, rounds};
use crate::server::{Firm, client};
use chancery_domain::{Clock, SystemClock};
use chancery_test_support::{PostgresDatabase, RedisServer};
use std::time::Duration;

const OUTAGES_A_ROUND: u64 = 2;

/// Longer than the store waits for an unresponsive database, plus time to reconnect.
const BACK_WITHIN: Duration = Duration::from_secs(40);

const BEHAVIOR: ClientBehavior = ClientBehavior {
    clients: 5,
    pause_ms: 0..=60,
    allowed_errors: &[UNAVAILABLE, RATE_LIMITED],
    with_keys: false,
    may_be_cut: false,
};

/// Mostly a moment; occasionally longer than any client waits for an answer.
fn outage(draw: &Draw) -> (Mode, Duration) {
    let mode = *draw.one_of(&[Mode::Gone, Mode::Gone, Mode::Silent]);
    let pause = if draw.number(1..=10) == 1 { draw.pause(10_500..=13_000) } else { draw.pause(20..=2_500) };
    (mode, pause)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_outage_delivers_nothing_unbilled_and_recovers() {
    rounds("database gone", async |draw, counts| without_the_database(draw, counts).await).await;
}

async fn without_the_database(draw: Draw, counts: &mut Counts) {
    let database = PostgresDatabase::create("outages");
    let (proxy, url) = Proxy::before(&database.url()).await;
    let firm = Firm::new().with("CHANCERY_DATABASE__URL", &url);
    let key = firm.account_with_key("Hale & Ward");
    let mut server = firm.start();
    let (prompts, received) = baseline_replies(&server, &key).await;
    let mut delivered: Delivered = received.into_iter().collect();
    let target = Target { apis: vec![server.api.clone()], key, prompts };
    let clients = Clients::start(&target, &BEHAVIOR, &draw);
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
    counts.add("refused with 503", record.rejections.len());
    deliver(&mut delivered, &record.replies);
    assert_verified(&firm, &[]);
    let left = undelivered(&rows(&database.url()).await, &delivered);
    assert_explained(&left, &record.unanswered);
    counts.add("rejected, and in the ledger", left.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_outage_admits_nothing_and_exceeds_no_limit() {
    rounds("Redis gone", async |draw, counts| without_redis(draw, counts).await).await;
}

async fn without_redis(draw: Draw, counts: &mut Counts) {
    let redis = RedisServer::start();
    let (proxy, url) = Proxy::before(&redis.url()).await;
    let firm = Firm::new().with("CHANCERY_LIMITS__STORE", &url);
    let peaceful = firm.account_with_key("Peace & Quiet");
    let rpm = draw.number(100..=300) as u32;
    let key = firm.limited_account_with_key("Hale & Ward", rpm, 1_000_000);
    let mut server = firm.start();
    let (prompts, received) = baseline_replies(&server, &peaceful).await;
    let mut delivered: Delivered = received.into_iter().collect();
    let prompts: Vec<Prompt> =
        prompts.iter().filter(|prompt| prompt.expected.output_tokens <= 2).cloned().collect();
    let target = Target { apis: vec![server.api.clone()], key, prompts: prompts.into() };
    let clients = Clients::start(&target, &BEHAVIOR, &draw);
    let (mut times, prober) = (Vec::new(), client());
    let Target { apis, key, prompts } = &target;
    let (body, reply_mode) = (&prompts[0].body, ReplyMode::Whole);
    let probe = Call { api: &apis[0], key, body, reply_mode, idempotency_key: None };
    for _ in 0..OUTAGES_A_ROUND {
        tokio::time::sleep(draw.pause(100..=1_500)).await;
        let (mode, pause) = outage(&draw);
        proxy.set(mode);
        let from = SystemClock.monotonic();
        // The outage lasts at least until one request has failed.
        let (outcome, ()) = tokio::join!(probe.send(&prober), tokio::time::sleep(pause));
        assert!(
            matches!(&outcome, Outcome::Rejected { status: 503, code, .. } if code == "unavailable"),
            "{outcome:?}"
        );
        times.push((from, SystemClock.monotonic()));
        proxy.set(Mode::Through);
        counts.add("outages", 1);
    }
    // Time to use up the limit.
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
    counts.add("refused", record.rejections.len());
    deliver(&mut delivered, &record.replies);
    let left = undelivered(&rows(&firm.database_url()).await, &delivered);
    assert!(left.is_empty(), "where the limits' store cannot be asked, nothing is billed: {left:?}");
    // Checks only the ledger; Redis may have lost its count of the last minute.
    assert_verified(&firm, &[]);
}
