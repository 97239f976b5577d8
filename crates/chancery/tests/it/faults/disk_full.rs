//! The disk is full for a while. Requests are rejected with 503, after a few without reaching the model, and no reply is
//! delivered without its ledger row. A caller who hung up meanwhile is billed once there is space again. The server recovers
//! without a restart.

use super::client_requests::{Call, Outcome, ReplyContent, ReplyMode, baseline_replies};
use super::clients::{ClientBehavior, Clients, REPLIES_WITHIN, Target, UNAVAILABLE};
use super::hang_ups::{When, endless, hang_up};
use super::ledger::{Delivered, assert_explained, assert_verified, deliver, undelivered};
use super::rounds::{Counts, Draw, rounds};
use super::small_disk::SmallDisk;
use crate::server::{Firm, Server, client, eventually, request};
use crate::upstream::{UpstreamModel, firm_with};
use chancery_domain::{StopReason, UsageRow};
use chancery_test_support::faulty_chat_server::{FaultyServer, reply};
use std::time::Duration;
use tokio::task::JoinSet;

const FILLS_A_ROUND: u64 = 2;

/// The remaining space may still take some replies, and the first failed write is reported only after seconds.
const FULL_WITHIN: Duration = Duration::from_secs(60);

/// Probes are 2 seconds apart, and streams are settled again after up to 5.
const RECOVERED_WITHIN: Duration = Duration::from_secs(10);

const BEHAVIOR: ClientBehavior = ClientBehavior {
    clients: 4,
    pause_ms: 0..=20,
    allowed_errors: &[UNAVAILABLE],
    with_keys: false,
    may_be_cut: false,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_delivers_nothing_unbilled_and_recovers() {
    rounds("disk full", async |draw, counts| round(draw, counts).await).await;
}

async fn round(draw: Draw, counts: &mut Counts) {
    let disk = SmallDisk::of(Firm::new());
    let key = disk.firm.account_with_key("Hale & Ward");
    // A separate account distinguishes the rows of callers who hang up.
    let key_of_cut = disk.firm.account_with_key("Cutler & Sons");
    let mut server = disk.start();
    let (prompts, received) = baseline_replies(&server, &key).await;
    let mut delivered: Delivered = received.into_iter().collect();
    let target = Target { apis: vec![server.api.clone()], key: key.clone(), prompts };
    let clients = Clients::start(&target, &BEHAVIOR, &draw);
    let (mut unanswered, mut cut_amid_text) = (Vec::new(), 0);
    for _ in 0..FILLS_A_ROUND {
        clients.more_replies(draw.number(1..=20) as usize, REPLIES_WITHIN).await;
        let reply_mode = ReplyMode::random(&draw);
        let when = match reply_mode {
            ReplyMode::Whole => When::After(draw.pause(1_500..=3_000)),
            ReplyMode::Streamed => When::AfterSomeText(draw.number(40..=80)),
        };
        let (api, key_of_cut) = (server.api.clone(), key_of_cut.clone());
        let hanging_up =
            tokio::spawn(async move { hang_up(&api, &key_of_cut, &endless(), when, reply_mode).await });
        // By then it is admitted: a full disk soon stops that.
        clients.more_replies(3, REPLIES_WITHIN).await;
        disk.fill(&server, &draw);
        let probing = until_rejected(&target, &mut delivered, &mut unanswered);
        tokio::time::timeout(FULL_WITHIN, probing).await.expect("somebody is refused while the disk is full");
        cut_amid_text += usize::from(hanging_up.await.unwrap() > 0);
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
        cut.iter().all(|row| row.stop_reason == StopReason::Cancelled && row.output_tokens > 0),
        "who hangs up pays for what was generated until then: {cut:?}"
    );
    // If a caller abandons a whole reply, it is unknown whether generation had started.
    assert!(
        (cut_amid_text..=FILLS_A_ROUND as usize).contains(&cut.len()),
        "{FILLS_A_ROUND} hung up, {cut_amid_text} of them amid the text: {cut:?}"
    );
    assert_explained(&left, &unanswered);
    counts.add("hung up while it was full, and billed later", cut.len());
    counts.add("rejected, and in the ledger", left.len());
}

/// Requests whole replies until one is rejected: the remaining space may still take some rows.
async fn until_rejected(target: &Target, delivered: &mut Delivered, unanswered: &mut Vec<ReplyContent>) {
    let (client, prompt) = (client(), &target.prompts[0]);
    let call = Call {
        api: &target.apis[0],
        key: &target.key,
        body: &prompt.body,
        reply_mode: ReplyMode::Whole,
        idempotency_key: None,
    };
    loop {
        match call.send(&client).await {
            Outcome::Received { id, content, .. } => {
                assert_eq!(delivered.insert(id, content), None, "two replies with one id");
            }
            Outcome::Rejected { status, code, .. } => {
                assert_eq!((status, code.as_str()), UNAVAILABLE);
                unanswered.push(prompt.expected.clone());
                return;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_stops_admission_until_a_write_succeeds() {
    rounds("full disk stops admission", async |draw, counts| {
        for reply_mode in [ReplyMode::Whole, ReplyMode::Streamed] {
            admission_round(&draw, reply_mode, counts).await;
        }
    })
    .await;
}

async fn admission_round(draw: &Draw, reply_mode: ReplyMode, counts: &mut Counts) {
    let upstream = FaultyServer::always(reply(&["Good", " morning"], 3)).await;
    let disk = SmallDisk::of(firm_with(&UpstreamModel {
        endpoints: &[upstream.url.as_str()],
        api_key: None,
        tokenizer: None,
        more: "context_tokens = 4096",
    }));
    let key = disk.firm.account_with_key("Hale & Ward");
    let mut server = disk.start();
    let send = |reply_mode| {
        let (api, key) = (server.api.clone(), key.clone());
        async move {
            let body = request("", "Say hello.", 5);
            let call = Call { api: &api, key: &key, body: &body, reply_mode, idempotency_key: None };
            call.send(&client()).await
        }
    };
    let mut outcomes = vec![send(reply_mode).await];
    assert!(matches!(outcomes[0], Outcome::Received { .. }), "{outcomes:?}");

    disk.fill(&server, draw);
    let mut calls = JoinSet::new();
    let stopping = async {
        while is_ready(&server).await {
            let jobs = upstream.jobs().len();
            calls.spawn(send(reply_mode));
            // On a full disk, a whole reply fails after seconds. A stream does not end, so it is enough that it reaches the model.
            tokio::select! {
                () = upstream.until_jobs(jobs + 1), if reply_mode == ReplyMode::Streamed => {}
                Some(outcome) = calls.join_next() => outcomes.push(outcome.unwrap()),
            }
        }
    };
    tokio::time::timeout(FULL_WITHIN, stopping).await.expect("a full disk makes the server not ready");
    let jobs = upstream.jobs().len();
    for reply_mode in [ReplyMode::Whole, ReplyMode::Streamed].repeat(3) {
        let outcome = send(reply_mode).await;
        let is_unavailable = |status, code: &str| (status, code) == UNAVAILABLE;
        assert!(
            matches!(&outcome, Outcome::Rejected { status, code, .. } if is_unavailable(*status, code)),
            "{outcome:?}"
        );
    }
    assert_eq!(upstream.jobs().len(), jobs, "no request reaches the model");
    assert!(!is_ready(&server).await);

    disk.make_room(&server);
    eventually("the server is ready again", RECOVERED_WITHIN, async || is_ready(&server).await).await;
    outcomes.extend(calls.join_all().await);
    outcomes.extend([send(ReplyMode::Whole).await, send(ReplyMode::Streamed).await]);
    server.end();
    assert_verified(&disk.firm, &[]);
    let (mut delivered, mut unanswered, mut expected) = (Delivered::new(), 0, None);
    for outcome in outcomes {
        match outcome {
            Outcome::Received { id, content, .. } => {
                expected = Some(content.clone());
                assert_eq!(delivered.insert(id, content), None, "two replies with one id");
            }
            Outcome::Rejected { .. } => unanswered += 1,
            other => panic!("{other:?}"),
        }
    }
    let left = undelivered(&disk.rows().await, &delivered);
    assert_explained(&left, &vec![expected.unwrap(); unanswered]);
    counts.add("times full", 1);
    counts.add("jobs on the model's server while it was full", jobs - 1);
    counts.add("replies compared", delivered.len());
}

async fn is_ready(server: &Server) -> bool {
    client().get(format!("{}/readyz", server.ops)).send().await.unwrap().status().is_success()
}
