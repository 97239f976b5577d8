//! The disk is full for a while: requests are refused with 503, no reply is delivered that is not in the ledger, a caller
//! who hung up meanwhile is billed when there is room again, and everything goes on without a restart.

use super::asks::{Answer, Call, Outcome, Wanted, in_peace};
use super::clients::{Clients, Manner, REPLIES_WITHIN, Target, UNAVAILABLE};
use super::hang_ups::{When, endless, hang_up};
use super::ledger::{Delivered, assert_explained, assert_verified, deliver, undelivered};
use super::rounds::{Counts, Draw, rounds};
use super::small_disk::SmallDisk;
use crate::server::client;
use chancery_domain::{HowEnded, UsageRow};
use std::time::Duration;

const FILLS_A_ROUND: u64 = 3;

/// The last of the room may take some replies yet, and the first that finds none is told after seconds.
const FULL_WITHIN: Duration = Duration::from_secs(60);

const MANNER: Manner = Manner {
    clients: 4,
    pause_ms: 0..=20,
    may_be_refused: &[UNAVAILABLE],
    with_keys: false,
    may_be_cut: false,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_full_disk_nothing_is_delivered_unbilled_and_with_room_again_all_is_well() {
    rounds("disk full", 1, async |draw, counts| round(draw, counts).await).await;
}

async fn round(draw: Draw, counts: &mut Counts) {
    let disk = SmallDisk::new();
    let key = disk.firm.account_with_key("Hale & Ward");
    // An account of their own tells the rows of those who hang up from the others.
    let key_of_cut = disk.firm.account_with_key("Cutler & Sons");
    let mut server = disk.start();
    let (asks, received) = in_peace(&server, &key).await;
    let mut delivered: Delivered = received.into_iter().collect();
    let target = Target { apis: vec![server.api.clone()], key: key.clone(), asks };
    let clients = Clients::start(&target, &MANNER, &draw);
    let (mut unanswered, mut cut_amid_text) = (Vec::new(), 0);
    for _ in 0..FILLS_A_ROUND {
        clients.more_replies(draw.number(1..=20) as usize, REPLIES_WITHIN).await;
        disk.fill(&server, &draw);
        let probing = until_refused(&target, &mut delivered, &mut unanswered);
        tokio::time::timeout(FULL_WITHIN, probing).await.expect("somebody is refused while the disk is full");
        let wanted = Wanted::drawn(&draw);
        let when = match wanted {
            Wanted::Whole => When::After(draw.pause(200..=500)),
            Wanted::Streamed => When::AfterSomeText(draw.number(1..=8)),
        };
        let pieces = hang_up(&server.api, &key_of_cut, &endless(), when, wanted).await;
        cut_amid_text += usize::from(pieces > 0);
        disk.make_room(&server);
        clients.more_replies(5, REPLIES_WITHIN).await;
        counts.add("times full", 1);
    }
    let record = clients.stop().await;
    server.end();
    counts.add("replies compared", record.replies.len());
    unanswered.extend(record.unanswered);
    counts.add("refused with 503", unanswered.len());
    deliver(&mut delivered, &record.replies);
    assert_verified(&disk.firm, &[]);
    let rows = disk.rows().await;
    let left = undelivered(&rows, &delivered);
    let staying = delivered.keys().next().map(|id| rows[id].account).unwrap();
    let (left, cut): (Vec<UsageRow>, Vec<UsageRow>) =
        left.into_iter().partition(|row| row.account == staying);
    assert!(
        cut.iter().all(|row| row.ended == HowEnded::Cancelled && row.output_tokens > 0),
        "who hangs up pays for what was generated until then: {cut:?}"
    );
    // Of a whole reply that was given up nobody knows whether it had begun.
    assert!(
        (cut_amid_text..=FILLS_A_ROUND as usize).contains(&cut.len()),
        "{FILLS_A_ROUND} hung up, {cut_amid_text} of them amid the text: {cut:?}"
    );
    assert_explained(&left, &unanswered);
    counts.add("hung up while it was full, and billed later", cut.len());
    counts.add("refused, and in the ledger", left.len());
}

/// Asks for whole replies until one is refused: the last of the room may take some rows yet.
async fn until_refused(target: &Target, delivered: &mut Delivered, unanswered: &mut Vec<Answer>) {
    let (client, ask) = (client(), &target.asks[0]);
    let call = Call {
        api: &target.apis[0],
        key: &target.key,
        body: &ask.body,
        wanted: Wanted::Whole,
        idempotency_key: None,
    };
    loop {
        match call.send(&client).await {
            Outcome::Received { id, answer, .. } => {
                assert_eq!(delivered.insert(id, answer), None, "two replies with one id");
            }
            Outcome::Refused { status, code, .. } => {
                assert_eq!((status, code.as_str()), UNAVAILABLE);
                unanswered.push(ask.right.clone());
                return;
            }
            other => panic!("{other:?}"),
        }
    }
}
