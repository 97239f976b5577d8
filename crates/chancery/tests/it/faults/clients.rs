//! Clients that send one request after another, beside whatever happens to the server, and keep what they saw.

use super::asks::{Answer, Ask, Call, Outcome, Wanted};
use super::rounds::Draw;
use crate::server::client;
use chancery_domain::{Clock, SystemClock};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How soon the replies that a case waits for come where nothing is in the way, on a loaded machine.
pub const REPLIES_WITHIN: Duration = Duration::from_secs(60);

/// A client sends at most so many requests, should nobody stop it.
const MAX_TURNS: usize = 100_000;

/// Whom the clients ask, and what they ask.
#[derive(Clone)]
pub struct Target {
    /// They take turns with the servers, where there are several.
    pub apis: Vec<String>,
    pub key: String,
    pub asks: Arc<[Ask]>,
}

/// How the clients behave and what they put up with.
#[derive(Clone)]
pub struct Manner {
    pub clients: usize,
    pub pause_ms: RangeInclusive<u64>,
    /// Statuses and codes of refusals; any other fails the test.
    pub may_be_refused: &'static [(u16, &'static str)],
    /// Whether each request has an `Idempotency-Key`, which is never used again.
    pub with_keys: bool,
    /// Whether the server may go away; a client that finds it gone is done.
    pub may_be_cut: bool,
}

pub const UNAVAILABLE: (u16, &str) = (503, "unavailable");
pub const CAP_REACHED: (u16, &str) = (402, "spending_cap_reached");
pub const RATE_LIMITED: (u16, &str) = (429, "rate_limited");

#[derive(Clone, Debug)]
pub struct Seen {
    pub id: String,
    pub answer: Answer,
    pub sent_at: Instant,
    pub received_at: Instant,
}

#[derive(Clone, Debug)]
pub struct Refused {
    pub status: u16,
    pub retry_after_s: u64,
    pub received_at: Instant,
}

#[derive(Default)]
pub struct Record {
    pub replies: Vec<Seen>,
    pub refusals: Vec<Refused>,
    /// What requests would have been answered of which nobody can tell the client whether they were billed: those
    /// that were cut off, and those refused because the database could not be used.
    pub unanswered: Vec<Answer>,
}

impl Record {
    pub fn join(&mut self, other: Self) {
        self.replies.extend(other.replies);
        self.refusals.extend(other.refusals);
        self.unanswered.extend(other.unanswered);
    }
}

pub struct Clients {
    tasks: Vec<JoinHandle<Record>>,
    is_over: Arc<AtomicBool>,
    arrived: Arc<watch::Sender<usize>>,
}

impl Clients {
    pub fn start(target: &Target, manner: &Manner, draw: &Draw) -> Self {
        let (is_over, arrived) = (Arc::new(AtomicBool::new(false)), Arc::new(watch::Sender::new(0)));
        let tasks = (0..manner.clients)
            .map(|number| {
                let client = OneClient {
                    number,
                    target: target.clone(),
                    manner: manner.clone(),
                    draw: draw.apart(),
                    is_over: Arc::clone(&is_over),
                    arrived: Arc::clone(&arrived),
                };
                tokio::spawn(client.run())
            })
            .collect();
        Self { tasks, is_over, arrived }
    }

    /// Each sends one request, all at the same time.
    pub async fn once(target: &Target, manner: &Manner, draw: &Draw) -> Record {
        Self::start(target, manner, draw).stop().await
    }

    /// Waits until so many more replies have come to all of them together. It returns at that moment, when others of
    /// the same commit may be on their way.
    pub async fn more_replies(&self, count: usize, timeout: Duration) {
        let mut arrived = self.arrived.subscribe();
        let enough = *arrived.borrow() + count;
        let waiting = arrived.wait_for(|arrived| *arrived >= enough);
        let outcome = tokio::time::timeout(timeout, waiting).await.map(drop);
        assert!(outcome.is_ok(), "not {count} replies within {timeout:?}");
    }

    /// Lets each finish the request it has under way.
    pub async fn stop(self) -> Record {
        self.is_over.store(true, Ordering::SeqCst);
        self.until_cut().await
    }

    /// Waits until each has found its server gone.
    pub async fn until_cut(self) -> Record {
        let mut all = Record::default();
        for task in self.tasks {
            all.join(task.await.unwrap());
        }
        all
    }
}

struct OneClient {
    number: usize,
    target: Target,
    manner: Manner,
    draw: Draw,
    is_over: Arc<AtomicBool>,
    arrived: Arc<watch::Sender<usize>>,
}

impl OneClient {
    async fn run(self) -> Record {
        let Target { apis, key, asks } = &self.target;
        let client = client();
        let mut record = Record::default();
        for turn in 0..MAX_TURNS {
            let ask = self.draw.one_of(asks);
            let api = &apis[(self.number + turn) % apis.len()];
            let sent_at = SystemClock.monotonic();
            let wanted = Wanted::drawn(&self.draw);
            let name = format!("{}-{turn}-{}", self.number, self.draw.number(0..=u64::MAX - 1));
            let idempotency_key = self.manner.with_keys.then_some(name.as_str());
            let call = Call { api, key, body: &ask.body, wanted, idempotency_key };
            let outcome = call.send(&client).await;
            let received_at = SystemClock.monotonic();
            match outcome {
                Outcome::Received { id, answer, .. } => {
                    assert_eq!(answer, ask.right, "a reply is as it is in peace");
                    record.replies.push(Seen { id, answer, sent_at, received_at });
                    self.arrived.send_modify(|arrived| *arrived += 1);
                }
                Outcome::Refused { status, code, retry_after_s } => {
                    let is_allowed = self.manner.may_be_refused.contains(&(status, &code));
                    assert!(is_allowed, "{status} {code}");
                    assert!(status != 429 || retry_after_s.is_some(), "it says when to come back");
                    let retry_after_s = retry_after_s.unwrap_or_default();
                    record.refusals.push(Refused { status, retry_after_s, received_at });
                    if (status, code.as_str()) == UNAVAILABLE {
                        record.unanswered.push(ask.right.clone());
                    }
                }
                Outcome::Failed { code } => {
                    let is_allowed = self.manner.may_be_refused.iter().any(|(_, allowed)| code == *allowed);
                    assert!(is_allowed, "a stream failed with {code}");
                    record.unanswered.push(ask.right.clone());
                }
                Outcome::Cut(why) => {
                    assert!(self.manner.may_be_cut, "a request was cut off: {why}");
                    record.unanswered.push(ask.right.clone());
                    return record;
                }
            }
            if self.is_over.load(Ordering::SeqCst) {
                return record;
            }
            tokio::time::sleep(self.draw.pause(self.manner.pause_ms.clone())).await;
        }
        panic!("nobody stopped this client")
    }
}
