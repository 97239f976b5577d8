//! Many requests at the edge of both limits per minute, here on one node with its limits in memory; `nodes::limits` has the
//! same on three nodes over one Redis. Two kinds of accounts: those whose clients never stop trying, where no 60 seconds may hold more than the limit;
//! and those whose refused client comes back after exactly its `Retry-After` and must be served. A 503, from a Redis that
//! took too long on a loaded machine, is allowed; passing a limit never is.

use super::asks::{Ask, in_peace};
use super::clients::{Clients, Manner, RATE_LIMITED, Record, Target, UNAVAILABLE};
use super::ledger::{Delivered, assert_explained, assert_verified, deliver, rows, undelivered};
use super::rounds::{Counts, Draw, rounds};
use super::windows::{Admitted, fullest};
use crate::server::{Firm, Server};
use std::time::Duration;

/// Accounts of each kind.
const PUSHING: usize = 3;
const PATIENT: usize = 8;

/// Longer than a window, so that what was admitted first leaves while everybody tries to take its place.
const PUSH_FOR: Duration = Duration::from_secs(66);

const MANNER: Manner = Manner {
    clients: 4,
    pause_ms: 0..=500,
    may_be_refused: &[RATE_LIMITED, UNAVAILABLE],
    with_keys: false,
    may_be_cut: false,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_race_passes_a_limit_and_every_retry_after_is_true() {
    rounds("races at the limits", 1, async |draw, counts| {
        let firm = Firm::new();
        let server = firm.start();
        race(&firm, &[&server], &draw, counts).await;
    })
    .await;
}

/// An account with limits that a few requests reach, and the one thing that it asks.
struct Account {
    target: Target,
    rpm: u32,
    tpm: u32,
    /// How many of its requests the emptiest window takes.
    fits: usize,
}

fn account(firm: &Firm, apis: &[String], asks: &[Ask], draw: &Draw, name: &str) -> Account {
    // These use all that they reserve, so it is known how many fit.
    let exact: Vec<Ask> =
        asks.iter().filter(|ask| ask.right.stop_reason == "max_output_tokens").cloned().collect();
    let ask = draw.one_of(&exact).clone();
    let tokens = u64::from(ask.right.input_tokens) + u64::from(ask.right.output_tokens);
    let fits = draw.number(1..=8);
    let (rpm, tpm) = match draw.number(0..=1) {
        0 => (fits, tokens * fits + draw.number(0..=1_000)),
        _ => (fits + draw.number(0..=100), tokens * fits + draw.number(0..=tokens - 1)),
    };
    let (rpm, tpm) = (u32::try_from(rpm).unwrap(), u32::try_from(tpm).unwrap());
    let key = firm.limited_account_with_key(name, rpm, tpm);
    let target = Target { apis: apis.to_vec(), key, asks: [ask].into() };
    Account { target, rpm, tpm, fits: fits as usize }
}

/// On servers that the firm's commands lead to.
pub async fn race(firm: &Firm, servers: &[&Server], draw: &Draw, counts: &mut Counts) {
    let peaceful = firm.account_with_key("Peace & Quiet");
    let (asks, received) = in_peace(servers[0], &peaceful).await;
    let apis: Vec<String> = servers.iter().map(|server| server.api.clone()).collect();
    let new_account = |name: String| account(firm, &apis, &asks, draw, &name);
    let pushing: Vec<_> = (0..PUSHING).map(|number| new_account(format!("Pushing {number}"))).collect();
    let patient: Vec<_> = (0..PATIENT).map(|number| new_account(format!("Patient {number}"))).collect();

    let patient: Vec<_> =
        patient.into_iter().map(|account| tokio::spawn(come_back_as_told(account, draw.apart()))).collect();
    let clients: Vec<_> =
        pushing.iter().map(|account| Clients::start(&account.target, &MANNER, draw)).collect();
    tokio::time::sleep(PUSH_FOR).await;
    let mut delivered: Delivered = received.into_iter().collect();
    let mut unanswered = Vec::new();
    for (account, clients) in pushing.iter().zip(clients) {
        let record = clients.stop().await;
        counts.add("overshoot", overshoot(account, &record));
        let (served, refused) = (record.replies.len(), record.refusals.len());
        if record.unanswered.is_empty() {
            assert!(served > account.fits, "{served} in more than a minute, where {} fit", account.fits);
        }
        counts.add("admitted at the edge", served);
        counts.add("refused at the edge", refused);
        deliver(&mut delivered, &record.replies);
        unanswered.extend(record.unanswered);
    }
    for patient in patient {
        let (record, kept) = patient.await.unwrap();
        counts.add("came back after Retry-After and were served", kept);
        counts.add("admitted at the edge", record.replies.len());
        counts.add("refused at the edge", record.refusals.len());
        deliver(&mut delivered, &record.replies);
        unanswered.extend(record.unanswered);
    }
    counts.add("refused with 503", unanswered.len());
    counts.add("accounts", PUSHING + PATIENT);
    let left = undelivered(&rows(&firm.database_url()).await, &delivered);
    assert_explained(&left, &unanswered);
    assert_verified(firm, &[]);
}

/// How much more was admitted within a minute than is allowed: nothing, or the test fails.
fn overshoot(account: &Account, record: &Record) -> usize {
    let admitted: Vec<Admitted> = record.replies.iter().map(Admitted::from).collect();
    let (requests, tokens) = fullest(&admitted);
    let Account { rpm, tpm, .. } = *account;
    assert!(requests <= u64::from(rpm), "{requests} requests within a minute, where {rpm} are allowed");
    assert!(tokens <= u64::from(tpm), "{tokens} tokens within a minute, where {tpm} are allowed");
    let told = record.refusals.iter().filter(|refused| refused.status == 429);
    let waits = told.map(|refused| refused.retry_after_s);
    assert!(waits.clone().all(|wait| (1..=60).contains(&wait)), "{:?}", waits.collect::<Vec<_>>());
    (requests.saturating_sub(rpm.into()) + tokens.saturating_sub(tpm.into())) as usize
}

/// More requests at once than fit; of those that were refused, one comes back when it was told to.
async fn come_back_as_told(account: Account, draw: Draw) -> (Record, usize) {
    let Account { target, fits, .. } = &account;
    tokio::time::sleep(draw.pause(0..=2_000)).await;
    let at_once = fits + draw.number(1..=6) as usize;
    let manner = Manner { clients: at_once, pause_ms: 0..=0, ..MANNER };
    let mut record = Clients::once(target, &manner, &draw).await;
    overshoot(&account, &record);
    let is_sure = record.unanswered.is_empty();
    if is_sure {
        assert_eq!(record.replies.len(), *fits, "of {at_once}");
    }
    let Some(refused) = record.refusals.iter().rfind(|refused| refused.status == 429).cloned() else {
        return (record, 0);
    };
    let told = refused.received_at + Duration::from_secs(refused.retry_after_s);
    tokio::time::sleep_until(told.into()).await;
    let again = Clients::once(target, &Manner { clients: 1, ..manner }, &draw).await;
    let is_served = again.replies.len() == 1;
    // Where Redis did not answer in time, a request that was refused may have taken the room all the same.
    assert!(
        is_served || !is_sure || !again.unanswered.is_empty(),
        "told to wait {} s",
        refused.retry_after_s
    );
    record.join(again);
    (record, usize::from(is_served))
}
