//! Many callers send the same request under the same `Idempotency-Key` at once, on one node and on two, while some hang
//! up. It runs once, one row is billed, and the remaining callers get that reply or a conflict while it is in flight.

use super::client_requests::{Call, Outcome, ReplyContent, ReplyMode};
use super::ledger::{Delivered, assert_verified, rows, undelivered};
use super::rounds::{Counts, Draw, rounds};
use crate::server::{Firm, client, request};
use chancery_test_support::{PostgresDatabase, RedisServer};
use serde_json::json;
use std::time::Duration;

const KEYS: u64 = 6;
/// Keys that are raced for in parallel.
const AT_ONCE: usize = 3;
/// Upper bound on a caller's retries while its request is in flight.
const MAX_ATTEMPTS: u32 = 2_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_duplicates_run_once_despite_hang_ups() {
    rounds("racing duplicates", async |draw, counts| {
        race(&[Firm::new()], &draw, counts).await;
        let (redis, database) = (RedisServer::start(), PostgresDatabase::create("duplicates"));
        let nodes = [(); 2].map(|()| {
            Firm::new()
                .with("CHANCERY_DATABASE__URL", &database.url())
                .with("CHANCERY_LIMITS__STORE", &redis.url())
        });
        race(&nodes, &draw, counts).await;
    })
    .await;
}

async fn race(firms: &[Firm], draw: &Draw, counts: &mut Counts) {
    let key = firms[0].account_with_key("Hale & Ward");
    let mut servers: Vec<_> = firms.iter().map(Firm::start).collect();
    let apis: Vec<String> = servers.iter().map(|server| server.api.clone()).collect();
    let delivered = race_for_keys(&apis, &key, draw, counts).await;
    servers.iter_mut().for_each(crate::server::Server::end);
    assert_verified(&firms[0], &[]);
    let left = undelivered(&rows(&firms[0].database_url()).await, &delivered);
    assert!(left.is_empty(), "rows that no key leads to: {left:?}");
}

/// Returns the one reply of each key.
pub async fn race_for_keys(apis: &[String], key: &str, draw: &Draw, counts: &mut Counts) -> Delivered {
    let mut delivered = Delivered::new();
    let mut racing = tokio::task::JoinSet::new();
    for number in 0..KEYS {
        let duplicates = Duplicates {
            apis: apis.to_vec(),
            key: key.to_owned(),
            name: format!("order-{number}"),
            draw: draw.apart(),
        };
        racing.spawn(duplicates.race());
        if racing.len() >= AT_ONCE {
            record_race(racing.join_next().await.unwrap().unwrap(), &mut delivered, counts);
        }
    }
    for raced in racing.join_all().await {
        record_race(raced, &mut delivered, counts);
    }
    delivered
}

fn record_race(raced: Raced, delivered: &mut Delivered, counts: &mut Counts) {
    assert_eq!(delivered.insert(raced.id, raced.content), None, "one row for two keys");
    counts.add("keys", 1);
    counts.add("replies compared", raced.replies);
    counts.add("hung up", raced.hung_up);
    counts.add("told that it is under way", raced.in_flight);
}

/// One key that many callers race for.
struct Duplicates {
    apis: Vec<String>,
    key: String,
    name: String,
    draw: Draw,
}

/// What the remaining callers received.
struct Raced {
    id: String,
    content: ReplyContent,
    replies: usize,
    hung_up: usize,
    in_flight: usize,
}

impl Duplicates {
    async fn race(self) -> Raced {
        // The text is sampled, so that a second run would give a different one.
        let mut body = request("Tell a story about a lighthouse.", "", self.draw.number(1..=24));
        body["temperature"] = json!(1.5);
        let reply_mode = ReplyMode::random(&self.draw);
        let (staying, leaving) = (self.draw.number(1..=6) as usize, self.draw.number(0..=4) as usize);
        let mut calls = tokio::task::JoinSet::new();
        for number in 0..staying + leaving {
            let api = self.apis[number % self.apis.len()].clone();
            let (key, name, body) = (self.key.clone(), self.name.clone(), body.clone());
            let (start, pause) = (self.draw.pause(0..=40), self.draw.pause(20..=80));
            let leaves_after = (number < leaving).then(|| self.draw.pause(0..=400));
            calls.spawn(async move {
                tokio::time::sleep(start).await;
                let call =
                    Call { api: &api, key: &key, body: &body, reply_mode, idempotency_key: Some(&name) };
                match leaves_after {
                    Some(timeout) => tokio::time::timeout(timeout, until_answered(call, pause)).await.ok(),
                    None => Some(until_answered(call, pause).await),
                }
            });
        }
        let mut raced: Option<Raced> = None;
        let (mut first_runs, mut hung_up) = (0, 0);
        for answered in calls.join_all().await {
            let Some((id, content, is_replay, in_flight)) = answered else {
                hung_up += 1;
                continue;
            };
            first_runs += usize::from(!is_replay);
            let raced = raced.get_or_insert_with(|| Raced {
                id: id.clone(),
                content: content.clone(),
                replies: 0,
                hung_up: 0,
                in_flight: 0,
            });
            assert_eq!((&id, &content), (&raced.id, &raced.content), "two replies under one key");
            raced.replies += 1;
            raced.in_flight += in_flight;
        }
        assert!(first_runs <= 1, "{first_runs} runs under one key");
        Raced { hung_up, ..raced.expect("somebody stayed") }
    }
}

/// Sends the request until it gets a reply. Returns the reply, whether it was replayed, and the number of conflicts.
pub async fn until_answered(call: Call<'_>, pause: Duration) -> (String, ReplyContent, bool, usize) {
    let client = client();
    let mut in_flight = 0;
    for _ in 0..MAX_ATTEMPTS {
        match call.send(&client).await {
            Outcome::Received { id, content, is_replay } => return (id, content, is_replay, in_flight),
            Outcome::Rejected { status: 409, code, .. } if code == "idempotency_in_flight" => in_flight += 1,
            // Redis was too slow on a busy machine.
            Outcome::Rejected { status: 503, code, .. } if code == "unavailable" => {}
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(pause).await;
    }
    panic!("it is under way for ever")
}
