//! The system clock jumps forward and back under a running server, by minutes and by years. Rate limits hold in real
//! time, no month's spending exceeds its cap, every reply is in the ledger, and nothing panics.

use super::admission_windows::{Admitted, fullest};
use super::client_requests::baseline_replies;
use super::clients::{CAP_REACHED, ClientBehavior, Clients, RATE_LIMITED, REPLIES_WITHIN, Target};
use super::ledger::{Delivered, assert_verified, deliver, rows, undelivered};
use super::rounds::{Counts, Draw, rounds};
use crate::fake_clock::FakeClock;
use crate::server::Firm;
use std::collections::{BTreeMap, BTreeSet};

const JUMPS_A_ROUND: u64 = 8;

const DAY_S: u64 = 24 * 3_600;

const LONGEST_JUMP_S: u64 = 3 * 366 * DAY_S;

/// Enough for a few replies per month.
const CAP: &str = "0.00002";
const CAP_NANOS: i64 = 20_000;

const BEHAVIOR: ClientBehavior = ClientBehavior {
    clients: 2,
    pause_ms: 0..=30,
    allowed_errors: &[RATE_LIMITED, CAP_REACHED],
    with_keys: true,
    may_be_cut: false,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn torture_clock_jumps_loosen_no_limit_and_keep_the_ledger_valid() {
    rounds("clock jumps on SQLite", async |draw, counts| round(Firm::new(), draw, counts).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_jumps_loosen_no_limit_on_postgresql_and_redis() {
    rounds("clock jumps on PostgreSQL and Redis", async |draw, counts| {
        round(Firm::on_postgres_and_redis("clocks"), draw, counts).await;
    })
    .await;
}

async fn round(firm: Firm, draw: Draw, counts: &mut Counts) {
    let (firm, clock) = FakeClock::of(firm);
    let free = firm.account_with_key("Free");
    let rpm = draw.number(2..=12) as u32;
    let limited = firm.limited_account_with_key("Limited", rpm, 1_000_000);
    let capped = firm.account_with_key("Capped");
    firm.run(&["account", "limits", "Capped", "--spend-per-month", CAP]);
    let mut server = firm.start();
    let (prompts, received) = baseline_replies(&server, &free).await;
    let mut delivered: Delivered = received.into_iter().collect();
    let target = |key: String| Target { apis: vec![server.api.clone()], key, prompts: prompts.clone() };
    let [free, limited, capped] =
        [free, limited, capped].map(|key| Clients::start(&target(key), &BEHAVIOR, &draw));
    // One jump past midnight lasts until a whole request falls in it, however slow the machine is.
    clock.set(2 * DAY_S as i64);
    free.more_replies(BEHAVIOR.clients + 1, REPLIES_WITHIN).await;
    for _ in 0..JUMPS_A_ROUND {
        let far = *draw.one_of(&[120, 7_200, 40 * DAY_S, LONGEST_JUMP_S]);
        let offset_s = draw.number(0..=2 * far) as i64 - far as i64;
        println!("the clock is {offset_s} s off");
        clock.set(offset_s);
        tokio::time::sleep(draw.pause(50..=700)).await;
        counts.add("jumps", 1);
    }
    let (free, limited, capped) = (free.stop().await, limited.stop().await, capped.stop().await);
    assert_eq!(server.metric("chancery_engine_panics_total").await, 0);
    server.end();
    assert!(!server.log().contains("panicked"), "{}", server.log());

    let admitted: Vec<Admitted> = limited.replies.iter().map(Admitted::from).collect();
    let (requests, _) = fullest(&admitted);
    assert!(requests <= u64::from(rpm), "{requests} requests within a minute, where {rpm} are allowed");
    counts.add("overshoot", requests.saturating_sub(rpm.into()) as usize);
    let waits = limited.rejections.iter().map(|rejected| rejected.retry_after_s);
    assert!(waits.clone().all(|wait| (1..=60).contains(&wait)), "{:?}", waits.collect::<Vec<_>>());
    assert!(free.rejections.is_empty());
    for record in [&free, &limited, &capped] {
        counts.add("replies compared", record.replies.len());
        counts.add("refused by a limit or a cap", record.rejections.len());
        deliver(&mut delivered, &record.replies);
    }
    // Later than every row: after a jump back, old rows would be in the ledger's last minute, but not in that of the limits,
    // which hold in real time.
    clock.set(2 * LONGEST_JUMP_S as i64);
    assert_verified(&firm, &[]);
    let rows = rows(&firm.database_url()).await;
    let left = undelivered(&rows, &delivered);
    assert!(left.is_empty(), "{left:?}");
    let days: BTreeSet<String> = rows.values().map(|row| row.at.to_iso()[..10].to_owned()).collect();
    assert!(days.len() > 1, "the clock did not jump for the server: {days:?}");
    let mut spent: BTreeMap<String, i64> = BTreeMap::new();
    for reply in &capped.replies {
        let row = &rows[&reply.id];
        let month = row.at.to_iso()[..7].to_owned();
        *spent.entry(month).or_default() += row.cost.0;
    }
    assert!(spent.values().all(|nanos| *nanos <= CAP_NANOS), "{spent:?}, where {CAP_NANOS} are allowed");
}
