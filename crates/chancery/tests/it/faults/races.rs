//! Many requests at the edge of every limit, of an account or of a key, on one node with its limits in memory; `nodes::limits`
//! does the same on three nodes with one Redis. There are three kinds of accounts. Clients of the first never stop trying, and no 60 seconds may contain
//! more than the limit. A rejected client of the second retries after exactly its `Retry-After` and must be served. Those of the
//! third reach a spending cap, and no more than the cap may be billed. A 503 is allowed if Redis is too slow on a busy machine; exceeding a limit never is.

use super::admission_windows::{Admitted, fullest};
use super::client_requests::{Prompt, baseline_replies};
use super::clients::{CAP_REACHED, ClientBehavior, Clients, RATE_LIMITED, Record, Target, UNAVAILABLE};
use super::ledger::{Delivered, assert_explained, assert_verified, cost_nanos, deliver, rows, undelivered};
use super::rounds::{Counts, Draw, rounds};
use crate::server::{Firm, Server};
use std::time::Duration;

/// Accounts of each kind.
const PUSHING: usize = 3;
const PATIENT: usize = 8;
const CAPPED: usize = 4;

/// Longer than a window, so that the first admitted requests leave it while everyone competes for the capacity.
const PUSH_FOR: Duration = Duration::from_secs(66);

/// How long the clients go on after that until every limit and cap was reached: a busy machine answers slowly.
const REACHED_WITHIN: Duration = Duration::from_secs(240);

const BEHAVIOR: ClientBehavior = ClientBehavior {
    clients: 4,
    pause_ms: 0..=500,
    allowed_errors: &[RATE_LIMITED, UNAVAILABLE],
    with_keys: false,
    may_be_cut: false,
};

/// In `make test`, `nodes::limits` shows the same. The limits in memory have tests with a fake clock in `chancery-metering`.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn torture_race_never_exceeds_a_limit_and_retry_after_is_accurate() {
    rounds("races at the limits", async |draw, counts| {
        let firm = Firm::new();
        let server = firm.start();
        race(&firm, &[&server], &draw, counts).await;
    })
    .await;
}

const CAPPED_BEHAVIOR: ClientBehavior =
    ClientBehavior { allowed_errors: &[CAP_REACHED, UNAVAILABLE], pause_ms: 0..=50, ..BEHAVIOR };

/// What has the limit.
#[derive(Clone, Copy)]
enum Limited {
    Account,
    Key,
}

const LIMITED: [Limited; 2] = [Limited::Account, Limited::Key];

/// An account, or a key of one, with limits that a few requests reach, and its only request.
struct Account {
    target: Target,
    rpm: u32,
    tpm: u32,
    /// How many of its requests fit in an empty window.
    fits: usize,
}

/// A request that uses all that it reserves, so that the number that fits a limit is known.
fn exact_prompt(prompts: &[Prompt], draw: &Draw) -> Prompt {
    let exact: Vec<Prompt> =
        prompts.iter().filter(|prompt| prompt.expected.stop_reason == "max_output_tokens").cloned().collect();
    draw.one_of(&exact).clone()
}

fn account(firm: &Firm, apis: &[String], prompts: &[Prompt], draw: &Draw, name: &str) -> Account {
    let prompt = exact_prompt(prompts, draw);
    let tokens = u64::from(prompt.expected.input_tokens) + u64::from(prompt.expected.output_tokens);
    let fits = draw.number(1..=8);
    let (rpm, tpm) = match draw.number(0..=1) {
        0 => (fits, tokens * fits + draw.number(0..=1_000)),
        _ => (fits + draw.number(0..=100), tokens * fits + draw.number(0..=tokens - 1)),
    };
    let (rpm, tpm) = (u32::try_from(rpm).unwrap(), u32::try_from(tpm).unwrap());
    let key = match draw.one_of(&LIMITED) {
        Limited::Account => firm.limited_account_with_key(name, rpm, tpm),
        Limited::Key => {
            let options = ["--rpm", &rpm.to_string(), "--tpm", &tpm.to_string()];
            firm.account_with_limited_key(name, &options)
        }
    };
    let target = Target { apis: apis.to_vec(), key, prompts: [prompt].into() };
    Account { target, rpm, tpm, fits: fits as usize }
}

/// An account, or a key of one, with a spending cap that a few requests reach.
struct Capped {
    target: Target,
    request_nanos: i64,
    cap_nanos: i64,
}

fn capped_account(
    firm: &Firm,
    apis: &[String],
    prompts: &[Prompt],
    draw: &Draw,
    (name, limited): (&str, Limited),
) -> Capped {
    let prompt = exact_prompt(prompts, draw);
    let request_nanos = cost_nanos(prompt.expected.input_tokens, prompt.expected.output_tokens);
    let fits = draw.number(1..=8) as i64;
    let cap_nanos = request_nanos * fits + draw.number(0..=request_nanos as u64 - 1) as i64;
    let cap = format!("0.{cap_nanos:09}");
    let key = match limited {
        Limited::Account => {
            let key = firm.account_with_limited_key(name, &[]);
            firm.run(&["account", "limits", name, "--spend-per-month", &cap]);
            key
        }
        Limited::Key => firm.account_with_limited_key(name, &["--spend-per-month", &cap]),
    };
    let target = Target { apis: apis.to_vec(), key, prompts: [prompt].into() };
    Capped { target, request_nanos, cap_nanos }
}

/// Clients of accounts and keys with spending caps.
pub struct CappedRace(Vec<(Capped, Clients)>);

impl CappedRace {
    pub fn start(firm: &Firm, apis: &[String], prompts: &[Prompt], draw: &Draw) -> Self {
        let start = |number: usize| {
            let name = (&*format!("Capped {number}"), LIMITED[number % LIMITED.len()]);
            let account = capped_account(firm, apis, prompts, draw, name);
            let clients = Clients::start(&account.target, &CAPPED_BEHAVIOR, draw);
            (account, clients)
        };
        Self((0..CAPPED).map(start).collect())
    }

    /// Waits until each has reached its cap.
    pub async fn finish(self, counts: &mut Counts) -> Record {
        let mut all = Record::default();
        for (account, clients) in self.0 {
            let is_reached = clients.wait_until(|arrived| arrived.rejections > 0, REACHED_WITHIN).await;
            assert!(is_reached, "no cap was reached");
            let record = clients.stop().await;
            counts.add("overshoot", overspent(&account, &record));
            counts.add("admitted under a spending cap", record.replies.len());
            counts.add("refused at a spending cap", record.rejections.len());
            all.join(record);
        }
        all
    }
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
    let capped = CappedRace::start(firm, &apis, &prompts, draw);
    tokio::time::sleep(PUSH_FOR).await;
    for (account, clients) in pushing.iter().zip(&clients) {
        let is_reached = clients.wait_until(|arrived| arrived.replies > account.fits, REACHED_WITHIN).await;
        assert!(is_reached, "not more than the {} replies that fit a minute", account.fits);
    }
    let mut delivered: Delivered = received.into_iter().collect();
    let capped = capped.finish(counts).await;
    deliver(&mut delivered, &capped.replies);
    let mut unanswered = capped.unanswered;
    for (account, clients) in pushing.iter().zip(clients) {
        let record = clients.stop().await;
        counts.add("overshoot", overshoot(account, &record));
        let (served, rejected) = (record.replies.len(), record.rejections.len());
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
    counts.add("accounts", PUSHING + PATIENT + CAPPED);
    let left = undelivered(&rows(&firm.database_url()).await, &delivered);
    assert_explained(&left, &unanswered);
    assert_verified(firm, &[]);
}

/// Returns how much more was billed than the cap; anything but zero fails the test.
fn overspent(account: &Capped, record: &Record) -> usize {
    let Capped { request_nanos, cap_nanos, .. } = *account;
    let billed = record.replies.len() as i64 * request_nanos;
    assert!(billed <= cap_nanos, "{billed} of {cap_nanos} nano-units");
    // A client has been rejected by now, and all that was reserved then is billed in full.
    if record.unanswered.is_empty() {
        assert!(billed + request_nanos > cap_nanos, "only {billed} of {cap_nanos} nano-units were billed");
    }
    (billed - cap_nanos).max(0) as usize
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
