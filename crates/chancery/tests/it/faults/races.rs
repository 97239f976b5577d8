//! Many requests at the edge of both rate limits, on one node with its limits in memory; `nodes::limits` does the same on three
//! nodes with one Redis. There are two kinds of accounts. Clients of the first never stop trying, and no 60 seconds may contain
//! more than the limit. A rejected client of the second retries after exactly its `Retry-After` and must be served. A 503 is
//! allowed if Redis is too slow on a busy machine; exceeding a limit never is.

use super::admission_windows::{Admitted, fullest};
use super::client_requests::{Prompt, baseline_replies};
use super::clients::{ClientBehavior, Clients, RATE_LIMITED, Record, Target, UNAVAILABLE};
use super::ledger::{Delivered, assert_explained, assert_verified, deliver, rows, undelivered};
use super::rounds::{Counts, Draw, rounds};
use crate::server::{Firm, Server};
use std::time::Duration;

/// Accounts of each kind.
const PUSHING: usize = 3;
const PATIENT: usize = 8;

/// Longer than a window, so that the first admitted requests leave it while everyone competes for the capacity.
const PUSH_FOR: Duration = Duration::from_secs(66);

const BEHAVIOR: ClientBehavior = ClientBehavior {
    clients: 4,
    pause_ms: 0..=500,
    allowed_errors: &[RATE_LIMITED, UNAVAILABLE],
    with_keys: false,
    may_be_cut: false,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn race_never_exceeds_a_limit_and_retry_after_is_accurate() {
    rounds("races at the limits", 1, async |draw, counts| {
        let firm = Firm::new();
        let server = firm.start();
        race(&firm, &[&server], &draw, counts).await;
    })
    .await;
}

/// An account with limits that a few requests reach, and its only request.
struct Account {
    target: Target,
    rpm: u32,
    tpm: u32,
    /// How many of its requests fit in an empty window.
    fits: usize,
}

fn account(firm: &Firm, apis: &[String], prompts: &[Prompt], draw: &Draw, name: &str) -> Account {
    // These requests use all that they reserve, so the number that fits is known.
    let exact: Vec<Prompt> =
        prompts.iter().filter(|prompt| prompt.expected.stop_reason == "max_output_tokens").cloned().collect();
    let prompt = draw.one_of(&exact).clone();
    let tokens = u64::from(prompt.expected.input_tokens) + u64::from(prompt.expected.output_tokens);
    let fits = draw.number(1..=8);
    let (rpm, tpm) = match draw.number(0..=1) {
        0 => (fits, tokens * fits + draw.number(0..=1_000)),
        _ => (fits + draw.number(0..=100), tokens * fits + draw.number(0..=tokens - 1)),
    };
    let (rpm, tpm) = (u32::try_from(rpm).unwrap(), u32::try_from(tpm).unwrap());
    let key = firm.limited_account_with_key(name, rpm, tpm);
    let target = Target { apis: apis.to_vec(), key, prompts: [prompt].into() };
    Account { target, rpm, tpm, fits: fits as usize }
}

/// Runs the race on these servers; all of them use the firm's database.
pub async fn race(firm: &Firm, servers: &[&Server], draw: &Draw, counts: &mut Counts) {
    let peaceful = firm.account_with_key("Peace & Quiet");
    let (prompts, received) = baseline_replies(servers[0], &peaceful).await;
    let apis: Vec<String> = servers.iter().map(|server| server.api.clone()).collect();
    let new_account = |name: String| account(firm, &apis, &prompts, draw, &name);
    let pushing: Vec<_> = (0..PUSHING).map(|number| new_account(format!("Pushing {number}"))).collect();
    let patient: Vec<_> = (0..PATIENT).map(|number| new_account(format!("Patient {number}"))).collect();

    let patient: Vec<_> =
        patient.into_iter().map(|account| tokio::spawn(retry_after_wait(account, draw.apart()))).collect();
    let clients: Vec<_> =
        pushing.iter().map(|account| Clients::start(&account.target, &BEHAVIOR, draw)).collect();
    tokio::time::sleep(PUSH_FOR).await;
    let mut delivered: Delivered = received.into_iter().collect();
    let mut unanswered = Vec::new();
    for (account, clients) in pushing.iter().zip(clients) {
        let record = clients.stop().await;
        counts.add("overshoot", overshoot(account, &record));
        let (served, rejected) = (record.replies.len(), record.rejections.len());
        if record.unanswered.is_empty() {
            assert!(served > account.fits, "{served} in more than a minute, where {} fit", account.fits);
        }
        counts.add("admitted at the edge", served);
        counts.add("refused at the edge", rejected);
        deliver(&mut delivered, &record.replies);
        unanswered.extend(record.unanswered);
    }
    for patient in patient {
        let (record, served_count) = patient.await.unwrap();
        counts.add("came back after Retry-After and were served", served_count);
        counts.add("admitted at the edge", record.replies.len());
        counts.add("refused at the edge", record.rejections.len());
        deliver(&mut delivered, &record.replies);
        unanswered.extend(record.unanswered);
    }
    counts.add("refused with 503", unanswered.len());
    counts.add("accounts", PUSHING + PATIENT);
    let left = undelivered(&rows(&firm.database_url()).await, &delivered);
    assert_explained(&left, &unanswered);
    assert_verified(firm, &[]);
}

/// Returns how much more was admitted within a minute than is allowed; anything but zero fails the test.
fn overshoot(account: &Account, record: &Record) -> usize {
    let admitted: Vec<Admitted> = record.replies.iter().map(Admitted::from).collect();
    let (requests, tokens) = fullest(&admitted);
    let Account { rpm, tpm, .. } = *account;
    assert!(requests <= u64::from(rpm), "{requests} requests within a minute, where {rpm} are allowed");
    assert!(tokens <= u64::from(tpm), "{tokens} tokens within a minute, where {tpm} are allowed");
    let rate_limited = record.rejections.iter().filter(|rejected| rejected.status == 429);
    let waits = rate_limited.map(|rejected| rejected.retry_after_s);
    assert!(waits.clone().all(|wait| (1..=60).contains(&wait)), "{:?}", waits.collect::<Vec<_>>());
    (requests.saturating_sub(rpm.into()) + tokens.saturating_sub(tpm.into())) as usize
}

/// Sends more requests at once than fit; one of the rejected ones retries when it was told to.
async fn retry_after_wait(account: Account, draw: Draw) -> (Record, usize) {
    let Account { target, fits, .. } = &account;
    tokio::time::sleep(draw.pause(0..=2_000)).await;
    let at_once = fits + draw.number(1..=6) as usize;
    let behavior = ClientBehavior { clients: at_once, pause_ms: 0..=0, ..BEHAVIOR };
    let mut record = Clients::once(target, &behavior, &draw).await;
    overshoot(&account, &record);
    let is_sure = record.unanswered.is_empty();
    if is_sure {
        assert_eq!(record.replies.len(), *fits, "of {at_once}");
    }
    let Some(rejected) = record.rejections.iter().rfind(|rejected| rejected.status == 429).cloned() else {
        return (record, 0);
    };
    let retry_at = rejected.received_at + Duration::from_secs(rejected.retry_after_s);
    tokio::time::sleep_until(retry_at.into()).await;
    let again = Clients::once(target, &ClientBehavior { clients: 1, ..behavior }, &draw).await;
    let is_served = again.replies.len() == 1;
    // If Redis did not answer in time, a rejected request may still have used up the capacity.
    assert!(
        is_served || !is_sure || !again.unanswered.is_empty(),
        "told to wait {} s",
        rejected.retry_after_s
    );
    record.join(again);
    (record, usize::from(is_served))
}
