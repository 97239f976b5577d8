//! `kill -9` and brief database outages under clients who retry with the same `Idempotency-Key` until they get a reply.
//! Then every ledger row belongs to a received reply and every key has one row. A later retry of a key, on any process,
//! returns its original reply.

use super::client_requests::{Call, Outcome, Prompt, ReplyMode, baseline_replies};
use super::ledger::{Delivered, assert_verified, rows, undelivered};
use super::proxy::{Mode, Proxy};
use super::rounds::{Counts, Draw, Statuses, rounds};
use crate::server::{Firm, client};
use chancery_test_support::PostgresDatabase;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

const KILLS_A_ROUND: u64 = 2;
const OUTAGES_A_ROUND: u64 = 2;
const CLIENTS: usize = 5;
/// Upper bound on requests per client if nothing stops it.
const MAX_TURNS: usize = 100_000;
/// Requests of a dead process can run again after 15 seconds; the rest is headroom for a busy machine.
const FREE_WITHIN: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_cut_off_by_a_kill_is_retried_by_key_and_billed_once() {
    rounds("repeats after kill -9 on SQLite", async |draw, counts| round(Firm::new(), draw, counts).await)
        .await;
}

/// In `make test`, `nodes::killed_node` shows the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn torture_request_cut_off_by_a_kill_is_retried_by_key_on_postgresql_and_redis() {
    rounds("repeats after kill -9 on PostgreSQL and Redis", async |draw, counts| {
        round(Firm::on_postgres_and_redis("repeats"), draw, counts).await;
    })
    .await;
}

async fn round(firm: Firm, draw: Draw, counts: &mut Counts) {
    let key = firm.account_with_key("Hale & Ward");
    let mut server = firm.start();
    let (prompts, received) = baseline_replies(&server, &key).await;
    let mut delivered: Delivered = received.into_iter().collect();
    let mut callers = callers(&key, &prompts, &draw);
    for _ in 0..KILLS_A_ROUND {
        let calls = Calls::start(callers, &[server.api.clone()]);
        calls.more_replies(draw.number(0..=30) as usize).await;
        server.signal(rustix::process::Signal::KILL);
        server.wait();
        callers = calls.until_cut().await;
        counts.add("kills", 1);
        server = firm.start();
    }
    finish(callers, &[server.api.clone()], &mut delivered, counts).await;
    server.end();
    compare(&firm, &firm.database_url(), &delivered).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_left_unsure_by_an_outage_is_retried_by_key_and_billed_once() {
    rounds("repeats after outages", async |draw, counts| {
        let database = PostgresDatabase::create("unsure");
        let (proxy, url) = Proxy::before(&database.url()).await;
        let firm = Firm::new().with("CHANCERY_DATABASE__URL", &url);
        let key = firm.account_with_key("Hale & Ward");
        let mut server = firm.start();
        let (prompts, received) = baseline_replies(&server, &key).await;
        let mut delivered: Delivered = received.into_iter().collect();
        let calls = Calls::start(callers(&key, &prompts, &draw), &[server.api.clone()]);
        for _ in 0..OUTAGES_A_ROUND {
            calls.more_replies(draw.number(1..=20) as usize).await;
            proxy.set(Mode::Gone);
            tokio::time::sleep(draw.pause(0..=300)).await;
            proxy.set(Mode::Through);
            counts.add("outages", 1);
        }
        calls.more_replies(5).await;
        let callers = calls.stop().await;
        finish(callers, &[server.api.clone()], &mut delivered, counts).await;
        server.end();
        compare(&firm, &database.url(), &delivered).await;
    })
    .await;
}

/// Lets the callers finish on healthy servers, and records what they received.
pub async fn finish(callers: Vec<Caller>, apis: &[String], delivered: &mut Delivered, counts: &mut Counts) {
    let tasks: Vec<JoinHandle<Caller>> = callers
        .into_iter()
        .map(|caller| {
            counts.add("open at the end and repeated", caller.open.len());
            tokio::spawn(caller.finish(apis.to_vec()))
        })
        .collect();
    for task in tasks {
        let finished = tokio::time::timeout(FREE_WITHIN, task).await;
        let finished = finished.expect("no key stays taken");
        let caller = finished.unwrap();
        counts.add("keys compared", caller.answered.len());
        counts.add("replays compared", caller.replays);
        counts.callers_saw(&caller.statuses);
        for Answered { sending, id } in caller.answered {
            let content = caller.prompts[sending.prompt].expected.clone();
            assert_eq!(delivered.insert(id, content), None, "one row for two keys");
        }
    }
}

/// Compares the delivered replies with the ledger.
async fn compare(firm: &Firm, database_url: &str, delivered: &Delivered) {
    assert_verified(firm, &[]);
    let left = undelivered(&rows(database_url).await, delivered);
    assert!(left.is_empty(), "rows that no key leads to: {left:?}");
}

pub fn callers(key: &str, prompts: &Arc<[Prompt]>, draw: &Draw) -> Vec<Caller> {
    let caller = |number| Caller {
        number,
        key: key.to_owned(),
        prompts: Arc::clone(prompts),
        draw: draw.apart(),
        open: Vec::new(),
        answered: Vec::new(),
        replays: 0,
        statuses: Statuses::new(),
        may_time_out: false,
    };
    (0..CLIENTS).map(caller).collect()
}

/// Running callers.
pub struct Calls {
    tasks: Vec<JoinHandle<Caller>>,
    arrived: Arc<watch::Sender<usize>>,
    is_over: Arc<AtomicBool>,
}

impl Calls {
    pub fn start(callers: Vec<Caller>, apis: &[String]) -> Self {
        let (arrived, is_over) = (Arc::new(watch::Sender::new(0)), Arc::new(AtomicBool::new(false)));
        let tasks = callers
            .into_iter()
            .map(|caller| {
                tokio::spawn(caller.call(apis.to_vec(), Arc::clone(&arrived), Arc::clone(&is_over)))
            })
            .collect();
        Self { tasks, arrived, is_over }
    }

    pub async fn more_replies(&self, count: usize) {
        let mut arrived = self.arrived.subscribe();
        let enough = *arrived.borrow() + count;
        let waiting = arrived.wait_for(|arrived| *arrived >= enough);
        tokio::time::timeout(FREE_WITHIN, waiting).await.expect("replies arrive").unwrap();
    }

    pub async fn until_cut(self) -> Vec<Caller> {
        let mut callers = Vec::new();
        for task in self.tasks {
            callers.push(task.await.unwrap());
        }
        callers
    }

    pub async fn stop(self) -> Vec<Caller> {
        self.is_over.store(true, Ordering::SeqCst);
        self.until_cut().await
    }
}

/// A request and its idempotency key.
#[derive(Clone)]
struct Sending {
    idempotency_key: String,
    /// Index of the request.
    prompt: usize,
    reply_mode: ReplyMode,
}

#[derive(Clone)]
struct Answered {
    sending: Sending,
    id: String,
}

pub struct Caller {
    number: usize,
    key: String,
    prompts: Arc<[Prompt]>,
    draw: Draw,
    /// Sent, and not answered yet.
    open: Vec<Sending>,
    answered: Vec<Answered>,
    replays: usize,
    statuses: Statuses,
    /// Whether a node is suspended for longer than a generation server may be silent.
    pub may_time_out: bool,
}

/// The outcome of an attempt.
enum Attempt {
    Answered,
    /// It may or may not have run; send it again later.
    Unsure,
    /// The server is gone.
    Cut,
}

impl Caller {
    /// Sends requests to random servers until one is gone or the round is over.
    async fn call(
        mut self,
        apis: Vec<String>,
        arrived: Arc<watch::Sender<usize>>,
        is_over: Arc<AtomicBool>,
    ) -> Self {
        let client = client();
        for turn in 0..MAX_TURNS {
            let api = self.draw.one_of(&apis).clone();
            // A new request, an unanswered one, or one that already has its reply.
            let attempt = match self.draw.number(0..=5) {
                0 if !self.open.is_empty() => self.try_open(&client, &api).await,
                1 if !self.answered.is_empty() => {
                    let index = self.draw.number(0..=self.answered.len() as u64 - 1) as usize;
                    self.repeat(&client, &api, index).await
                }
                _ => {
                    let salt = self.draw.number(0..=u64::MAX - 1);
                    let idempotency_key = format!("{}-{turn}-{salt}", self.number);
                    let prompt = self.draw.number(0..=self.prompts.len() as u64 - 1) as usize;
                    let reply_mode = ReplyMode::random(&self.draw);
                    self.open.push(Sending { idempotency_key, prompt, reply_mode });
                    self.try_open(&client, &api).await
                }
            };
            match attempt {
                Attempt::Answered => arrived.send_modify(|arrived| *arrived += 1),
                Attempt::Unsure => tokio::time::sleep(self.draw.pause(10..=100)).await,
                Attempt::Cut => return self,
            }
            if is_over.load(Ordering::SeqCst) {
                return self;
            }
        }
        panic!("nobody stopped this client")
    }

    /// Retries unanswered requests until all have a reply, then repeats every request once.
    async fn finish(mut self, apis: Vec<String>) -> Self {
        let client = client();
        for _ in 0..MAX_TURNS {
            if self.open.is_empty() {
                break;
            }
            let api = self.draw.one_of(&apis);
            self.try_open(&client, api).await;
            tokio::time::sleep(self.draw.pause(50..=200)).await;
        }
        for index in 0..self.answered.len() {
            let api = self.draw.one_of(&apis);
            let attempt = self.repeat(&client, api, index).await;
            assert!(matches!(attempt, Attempt::Answered), "nothing disturbs the server any more");
        }
        self
    }

    async fn send(&mut self, client: &reqwest::Client, api: &str, sending: &Sending) -> Outcome {
        let Sending { idempotency_key, prompt, reply_mode } = sending;
        let (body, idempotency_key) = (&self.prompts[*prompt].body, Some(idempotency_key.as_str()));
        let call = Call { api, key: &self.key, body, reply_mode: *reply_mode, idempotency_key };
        let outcome = call.send(client).await;
        *self.statuses.entry(outcome.status()).or_default() += 1;
        outcome
    }

    /// Sends the last unanswered request; if it stays unanswered, the others go first next time.
    async fn try_open(&mut self, client: &reqwest::Client, api: &str) -> Attempt {
        let Some(sending) = self.open.pop() else { return Attempt::Answered };
        match self.send(client, api, &sending).await {
            Outcome::Received { id, content, .. } => {
                assert_eq!(content, self.prompts[sending.prompt].expected, "a reply is as it is in peace");
                self.answered.push(Answered { sending, id });
                Attempt::Answered
            }
            unanswered => {
                self.open.insert(0, sending);
                unsure_or_cut(unanswered, self.may_time_out)
            }
        }
    }

    /// Repeating an answered request must return the same reply.
    async fn repeat(&mut self, client: &reqwest::Client, api: &str, index: usize) -> Attempt {
        let Answered { sending, id } = self.answered[index].clone();
        match self.send(client, api, &sending).await {
            Outcome::Received { id: again, content, is_replay } => {
                assert!(is_replay, "it ran again");
                assert_eq!((&again, &content), (&id, &self.prompts[sending.prompt].expected));
                self.replays += 1;
                Attempt::Answered
            }
            unanswered => unsure_or_cut(unanswered, self.may_time_out),
        }
    }
}

fn unsure_or_cut(outcome: Outcome, may_time_out: bool) -> Attempt {
    match outcome {
        Outcome::Cut(_) => Attempt::Cut,
        Outcome::Rejected { status: 409, code, .. } if code == "idempotency_in_flight" => Attempt::Unsure,
        Outcome::Rejected { status: 503, code, .. } | Outcome::Failed { code } if code == "unavailable" => {
            Attempt::Unsure
        }
        Outcome::Rejected { status: 504, code, .. } | Outcome::Failed { code }
            if may_time_out && code == "engine_timeout" =>
        {
            Attempt::Unsure
        }
        other => panic!("{other:?}"),
    }
}
