//! Clients that send one request after another while faults happen, and record what they receive.

use super::client_requests::{Call, Outcome, Prompt, ReplyContent, ReplyMode};
use super::rounds::{Draw, Statuses};
use crate::server::client;
use chancery_domain::{Clock, SystemClock};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long replies may take without faults on a busy machine.
pub const REPLIES_WITHIN: Duration = Duration::from_secs(60);

/// Upper bound on requests per client if nothing stops it.
const MAX_TURNS: usize = 100_000;

/// Where the clients send requests, and which.
#[derive(Clone)]
pub struct Target {
    /// The clients rotate among several servers.
    pub apis: Vec<String>,
    pub key: String,
    pub prompts: Arc<[Prompt]>,
}

/// How the clients behave, and which failures they accept.
#[derive(Clone)]
pub struct ClientBehavior {
    pub clients: usize,
    pub pause_ms: RangeInclusive<u64>,
    /// Status and code of accepted rejections; any other fails the test.
    pub allowed_errors: &'static [(u16, &'static str)],
    /// Whether each request has its own `Idempotency-Key`.
    pub with_keys: bool,
    /// Whether the server may disappear; a client stops when that happens.
    pub may_be_cut: bool,
}

pub const UNAVAILABLE: (u16, &str) = (503, "unavailable");
/// Nothing was billed.
pub const ENGINE_TIMEOUT: (u16, &str) = (504, "engine_timeout");
pub const CAP_REACHED: (u16, &str) = (402, "spending_cap_reached");
pub const RATE_LIMITED: (u16, &str) = (429, "rate_limited");

#[derive(Clone, Debug)]
pub struct ReceivedReply {
    pub id: String,
    pub content: ReplyContent,
    pub sent_at: Instant,
    pub received_at: Instant,
}

#[derive(Clone, Debug)]
pub struct Rejected {
    pub status: u16,
    pub retry_after_s: u64,
    pub received_at: Instant,
}

#[derive(Default)]
pub struct Record {
    pub replies: Vec<ReceivedReply>,
    pub rejections: Vec<Rejected>,
    /// Expected answers of requests that may or may not have been billed: those cut off, and those rejected because
    /// the database was unavailable.
    pub unanswered: Vec<ReplyContent>,
    pub statuses: Statuses,
}

impl Record {
    pub fn join(&mut self, other: Self) {
        for (status, count) in other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        self.replies.extend(other.replies);
        self.rejections.extend(other.rejections);
        self.unanswered.extend(other.unanswered);
    }
}

pub struct Clients {
    tasks: Vec<JoinHandle<Record>>,
    is_over: Arc<AtomicBool>,
    arrived: Arc<watch::Sender<Arrived>>,
}

/// What all clients together have received so far.
#[derive(Clone, Copy, Default)]
pub struct Arrived {
    pub replies: usize,
    pub rejections: usize,
}

impl Clients {
    pub fn start(target: &Target, behavior: &ClientBehavior, draw: &Draw) -> Self {
        let (is_over, arrived) =
            (Arc::new(AtomicBool::new(false)), Arc::new(watch::Sender::new(Arrived::default())));
        let tasks = (0..behavior.clients)
            .map(|number| {
                let client = OneClient {
                    number,
                    target: target.clone(),
                    behavior: behavior.clone(),
                    draw: draw.apart(),
                    is_over: Arc::clone(&is_over),
                    arrived: Arc::clone(&arrived),
                };
                tokio::spawn(client.run())
            })
            .collect();
        Self { tasks, is_over, arrived }
    }

    /// Each client sends one request, all at the same time.
    pub async fn once(target: &Target, behavior: &ClientBehavior, draw: &Draw) -> Record {
        Self::start(target, behavior, draw).stop().await
    }

    /// Waits until the clients together have received this many more replies. At that moment, other replies of the
    /// same commit may still be in flight.
    pub async fn more_replies(&self, count: usize, timeout: Duration) {
        let enough = self.arrived.borrow().replies + count;
        let is_in_time = self.wait_until(|arrived| arrived.replies >= enough, timeout).await;
        assert!(is_in_time, "not {count} replies within {timeout:?}");
    }

    /// Returns whether the clients received that much in time.
    pub async fn wait_until(&self, is_enough: impl Fn(Arrived) -> bool, timeout: Duration) -> bool {
        let mut arrived = self.arrived.subscribe();
        let waiting = arrived.wait_for(|arrived| is_enough(*arrived));
        tokio::time::timeout(timeout, waiting).await.is_ok()
    }

    /// Lets each client finish its running request.
    pub async fn stop(self) -> Record {
        self.is_over.store(true, Ordering::SeqCst);
        self.until_cut().await
    }

    /// Waits until each client has lost its server.
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
    behavior: ClientBehavior,
    draw: Draw,
    is_over: Arc<AtomicBool>,
    arrived: Arc<watch::Sender<Arrived>>,
}

impl OneClient {
    async fn run(self) -> Record {
        let Target { apis, key, prompts } = &self.target;
        let client = client();
        let mut record = Record::default();
        for turn in 0..MAX_TURNS {
            let prompt = self.draw.one_of(prompts);
            let api = &apis[(self.number + turn) % apis.len()];
            let sent_at = SystemClock.monotonic();
            let reply_mode = ReplyMode::random(&self.draw);
            let name = format!("{}-{turn}-{}", self.number, self.draw.number(0..=u64::MAX - 1));
            let idempotency_key = self.behavior.with_keys.then_some(name.as_str());
            let call = Call { api, key, body: &prompt.body, reply_mode, idempotency_key };
            let outcome = call.send(&client).await;
            let received_at = SystemClock.monotonic();
            *record.statuses.entry(outcome.status()).or_default() += 1;
            match outcome {
                Outcome::Received { id, content, .. } => {
                    assert_eq!(content, prompt.expected, "a reply is as it is in peace");
                    record.replies.push(ReceivedReply { id, content, sent_at, received_at });
                    self.arrived.send_modify(|arrived| arrived.replies += 1);
                }
                Outcome::Rejected { status, code, retry_after_s } => {
                    let is_allowed = self.behavior.allowed_errors.contains(&(status, &code));
                    assert!(is_allowed, "{status} {code}");
                    assert!(status != 429 || retry_after_s.is_some(), "it says when to come back");
                    let retry_after_s = retry_after_s.unwrap_or_default();
                    record.rejections.push(Rejected { status, retry_after_s, received_at });
                    self.arrived.send_modify(|arrived| arrived.rejections += 1);
                    if (status, code.as_str()) == UNAVAILABLE {
                        record.unanswered.push(prompt.expected.clone());
                    }
                }
                Outcome::Failed { code } => {
                    let is_allowed = self.behavior.allowed_errors.iter().any(|(_, allowed)| code == *allowed);
                    assert!(is_allowed, "a stream failed with {code}");
                    record.unanswered.push(prompt.expected.clone());
                }
                Outcome::Cut(why) => {
                    assert!(self.behavior.may_be_cut, "a request was cut off: {why}");
                    record.unanswered.push(prompt.expected.clone());
                    return record;
                }
            }
            if self.is_over.load(Ordering::SeqCst) {
                return record;
            }
            tokio::time::sleep(self.draw.pause(self.behavior.pause_ms.clone())).await;
        }
        panic!("nobody stopped this client")
    }
}
