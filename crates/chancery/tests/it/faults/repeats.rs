//! `kill -9`, and a database that is gone for a moment, under clients who repeat what was cut off or left unsure with the
//! same `Idempotency-Key` until they have a reply. Then every row of the ledger is of a reply that somebody has, every key
//! has one row, and a key that is repeated later, on whatever process, gives the very reply that it gave at first.

use super::asks::{Ask, Call, Outcome, Wanted, in_peace};
use super::ledger::{Delivered, assert_verified, rows, undelivered};
use super::proxy::{Mode, Proxy};
use super::rounds::{Counts, Draw, rounds};
use crate::server::{Firm, client};
use chancery_test_support::PostgresDatabase;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

const KILLS_A_ROUND: u64 = 3;
const OUTAGES_A_ROUND: u64 = 4;
const CLIENTS: usize = 5;
/// A client sends at most so many requests, should nobody stop it.
const MAX_TURNS: usize = 100_000;
/// What a dead process had under way can be run again after 15 seconds; the rest is for a loaded machine.
const FREE_WITHIN: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_kill_cut_off_is_repeated_by_its_key_and_billed_once() {
    rounds("repeats after kill -9", 1, async |draw, counts| {
        // Both at once, for much of the time is waiting; as tasks, for starting servers holds up the one that does it.
        let on_sqlite = tokio::spawn(round(Firm::new(), draw.apart()));
        let on_postgresql = tokio::spawn(round(Firm::on_postgres_and_redis("repeats"), draw.apart()));
        counts.join(on_sqlite.await.unwrap());
        counts.join(on_postgresql.await.unwrap());
    })
    .await;
}

async fn round(firm: Firm, draw: Draw) -> Counts {
    let mut counts = Counts::default();
    let key = firm.account_with_key("Hale & Ward");
    let mut server = firm.start();
    let (asks, received) = in_peace(&server, &key).await;
    let mut delivered: Delivered = received.into_iter().collect();
    let mut callers = callers(&key, &asks, &draw);
    for _ in 0..KILLS_A_ROUND {
        let calls = Calls::start(callers, &[server.api.clone()]);
        calls.more_replies(draw.number(0..=30) as usize).await;
        server.signal(rustix::process::Signal::KILL);
        server.wait();
        callers = calls.until_cut().await;
        counts.add("kills", 1);
        server = firm.start();
    }
    finish(callers, &[server.api.clone()], &mut delivered, &mut counts).await;
    server.end();
    compare(&firm, &firm.database_url(), &delivered).await;
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_outage_left_unsure_is_repeated_by_its_key_and_billed_once() {
    rounds("repeats after outages", 1, async |draw, counts| {
        let database = PostgresDatabase::create("unsure");
        let (proxy, url) = Proxy::before(&database.url()).await;
        let firm = Firm::new().with("CHANCERY_DATABASE__URL", &url);
        let key = firm.account_with_key("Hale & Ward");
        let mut server = firm.start();
        let (asks, received) = in_peace(&server, &key).await;
        let mut delivered: Delivered = received.into_iter().collect();
        let calls = Calls::start(callers(&key, &asks, &draw), &[server.api.clone()]);
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

/// Lets the callers finish, on servers that nothing disturbs any more, and notes what they got.
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
        for Answered { sending, id } in caller.answered {
            let answer = caller.asks[sending.ask].right.clone();
            assert_eq!(delivered.insert(id, answer), None, "one row for two keys");
        }
    }
}

/// Holds what was delivered against the ledger.
async fn compare(firm: &Firm, database_url: &str, delivered: &Delivered) {
    assert_verified(firm, &[]);
    let left = undelivered(&rows(database_url).await, delivered);
    assert!(left.is_empty(), "rows that no key leads to: {left:?}");
}

pub fn callers(key: &str, asks: &Arc<[Ask]>, draw: &Draw) -> Vec<Caller> {
    let caller = |number| Caller {
        number,
        key: key.to_owned(),
        asks: Arc::clone(asks),
        draw: draw.apart(),
        open: Vec::new(),
        answered: Vec::new(),
        replays: 0,
    };
    (0..CLIENTS).map(caller).collect()
}

/// Callers at work.
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

/// A request under its key.
#[derive(Clone)]
struct Sending {
    idempotency_key: String,
    /// Which of the asks.
    ask: usize,
    wanted: Wanted,
}

struct Answered {
    sending: Sending,
    id: String,
}

pub struct Caller {
    number: usize,
    key: String,
    asks: Arc<[Ask]>,
    draw: Draw,
    /// Sent, and without a reply so far.
    open: Vec<Sending>,
    answered: Vec<Answered>,
    replays: usize,
}

/// What a try came to.
enum Tried {
    Answered,
    /// It may or may not have run; to be sent again later.
    Unsure,
    /// The server is gone.
    Cut,
}

impl Caller {
    /// Calls, one of the servers at a time, until one is gone or it is over.
    async fn call(
        mut self,
        apis: Vec<String>,
        arrived: Arc<watch::Sender<usize>>,
        is_over: Arc<AtomicBool>,
    ) -> Self {
        let client = client();
        for turn in 0..MAX_TURNS {
            let api = self.draw.one_of(&apis).clone();
            // Something new, something that is open, or something that has its reply already.
            let tried = match self.draw.number(0..=5) {
                0 if !self.open.is_empty() => self.try_open(&client, &api).await,
                1 if !self.answered.is_empty() => {
                    let place = self.draw.number(0..=self.answered.len() as u64 - 1) as usize;
                    self.repeat(&client, &api, place).await
                }
                _ => {
                    let salt = self.draw.number(0..=u64::MAX - 1);
                    let idempotency_key = format!("{}-{turn}-{salt}", self.number);
                    let ask = self.draw.number(0..=self.asks.len() as u64 - 1) as usize;
                    let wanted = Wanted::drawn(&self.draw);
                    self.open.push(Sending { idempotency_key, ask, wanted });
                    self.try_open(&client, &api).await
                }
            };
            match tried {
                Tried::Answered => arrived.send_modify(|arrived| *arrived += 1),
                Tried::Unsure => tokio::time::sleep(self.draw.pause(10..=100)).await,
                Tried::Cut => return self,
            }
            if is_over.load(Ordering::SeqCst) {
                return self;
            }
        }
        panic!("nobody stopped this client")
    }

    /// Repeats what is open until all of it has a reply, and then everything once more.
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
        for place in 0..self.answered.len() {
            let api = self.draw.one_of(&apis);
            let tried = self.repeat(&client, api, place).await;
            assert!(matches!(tried, Tried::Answered), "nothing disturbs the server any more");
        }
        self
    }

    async fn send(&self, client: &reqwest::Client, api: &str, sending: &Sending) -> Outcome {
        let Sending { idempotency_key, ask, wanted } = sending;
        let (body, idempotency_key) = (&self.asks[*ask].body, Some(idempotency_key.as_str()));
        Call { api, key: &self.key, body, wanted: *wanted, idempotency_key }.send(client).await
    }

    /// Sends the last of what is open; where it stays open, the others come first the next time.
    async fn try_open(&mut self, client: &reqwest::Client, api: &str) -> Tried {
        let Some(sending) = self.open.pop() else { return Tried::Answered };
        match self.send(client, api, &sending).await {
            Outcome::Received { id, answer, .. } => {
                assert_eq!(answer, self.asks[sending.ask].right, "a reply is as it is in peace");
                self.answered.push(Answered { sending, id });
                Tried::Answered
            }
            unanswered => {
                self.open.insert(0, sending);
                unsure_or_cut(unanswered)
            }
        }
    }

    /// What has its reply gets the same again.
    async fn repeat(&mut self, client: &reqwest::Client, api: &str, place: usize) -> Tried {
        let Answered { sending, id } = &self.answered[place];
        match self.send(client, api, sending).await {
            Outcome::Received { id: again, answer, is_replay } => {
                assert!(is_replay, "it ran again");
                assert_eq!((&again, &answer), (id, &self.asks[sending.ask].right));
                self.replays += 1;
                Tried::Answered
            }
            unanswered => unsure_or_cut(unanswered),
        }
    }
}

fn unsure_or_cut(outcome: Outcome) -> Tried {
    match outcome {
        Outcome::Cut(_) => Tried::Cut,
        Outcome::Refused { status: 409, code, .. } if code == "idempotency_in_flight" => Tried::Unsure,
        Outcome::Refused { status: 503, code, .. } | Outcome::Failed { code } if code == "unavailable" => {
            Tried::Unsure
        }
        other => panic!("{other:?}"),
    }
}
