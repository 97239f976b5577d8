//! The same request under the same `Idempotency-Key` from many callers at once, on one node and on two, while some of them
//! hang up: it runs once, one row is billed, and whoever stays gets the one reply or is told that it is under way.

use super::asks::{Answer, Call, Outcome, Wanted};
use super::ledger::{Delivered, assert_verified, rows, undelivered};
use super::rounds::{Counts, Draw, rounds};
use crate::server::{Firm, client, request};
use chancery_test_support::{PostgresDatabase, RedisServer};
use serde_json::json;
use std::time::Duration;

const KEYS: u64 = 12;
/// Keys that are raced for side by side.
const AT_ONCE: usize = 3;
/// A caller asks again at most so often while its request is under way.
const MAX_TRIES: u32 = 2_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_duplicates_run_once_whoever_hangs_up() {
    rounds("racing duplicates", 1, async |draw, counts| {
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
    let mut delivered = Delivered::new();
    let mut racing = tokio::task::JoinSet::new();
    for number in 0..KEYS {
        let duplicates = Duplicates {
            apis: apis.clone(),
            key: key.clone(),
            name: format!("order-{number}"),
            draw: draw.apart(),
        };
        racing.spawn(duplicates.race());
        if racing.len() >= AT_ONCE {
            note(racing.join_next().await.unwrap().unwrap(), &mut delivered, counts);
        }
    }
    for raced in racing.join_all().await {
        note(raced, &mut delivered, counts);
    }
    servers.iter_mut().for_each(crate::server::Server::end);
    assert_verified(&firms[0], &[]);
    let left = undelivered(&rows(&firms[0].database_url()).await, &delivered);
    assert!(left.is_empty(), "rows that no key leads to: {left:?}");
}

fn note(raced: Raced, delivered: &mut Delivered, counts: &mut Counts) {
    assert_eq!(delivered.insert(raced.id, raced.answer), None, "one row for two keys");
    counts.add("keys", 1);
    counts.add("replies compared", raced.replies);
    counts.add("hung up", raced.hung_up);
    counts.add("told that it is under way", raced.in_flight);
}

/// One key that many race for.
struct Duplicates {
    apis: Vec<String>,
    key: String,
    name: String,
    draw: Draw,
}

/// What all who stayed have got.
struct Raced {
    id: String,
    answer: Answer,
    replies: usize,
    hung_up: usize,
    in_flight: usize,
}

impl Duplicates {
    async fn race(self) -> Raced {
        // Its text is drawn, so that a second run would give another one.
        let mut body = request("Tell a story about a lighthouse.", "", self.draw.number(1..=24));
        body["temperature"] = json!(1.5);
        let wanted = Wanted::drawn(&self.draw);
        let (staying, leaving) = (self.draw.number(1..=6) as usize, self.draw.number(0..=4) as usize);
        let mut calls = tokio::task::JoinSet::new();
        for number in 0..staying + leaving {
            let api = self.apis[number % self.apis.len()].clone();
            let (key, name, body) = (self.key.clone(), self.name.clone(), body.clone());
            let (start, pause) = (self.draw.pause(0..=40), self.draw.pause(20..=80));
            let leaves_after = (number < leaving).then(|| self.draw.pause(0..=400));
            calls.spawn(async move {
                tokio::time::sleep(start).await;
                let call = Call { api: &api, key: &key, body: &body, wanted, idempotency_key: Some(&name) };
                match leaves_after {
                    Some(patience) => tokio::time::timeout(patience, until_answered(call, pause)).await.ok(),
                    None => Some(until_answered(call, pause).await),
                }
            });
        }
        let mut raced: Option<Raced> = None;
        let (mut first_runs, mut hung_up) = (0, 0);
        for answered in calls.join_all().await {
            let Some((id, answer, is_replay, in_flight)) = answered else {
                hung_up += 1;
                continue;
            };
            first_runs += usize::from(!is_replay);
            let raced = raced.get_or_insert_with(|| Raced {
                id: id.clone(),
                answer: answer.clone(),
                replies: 0,
                hung_up: 0,
                in_flight: 0,
            });
            assert_eq!((&id, &answer), (&raced.id, &raced.answer), "two replies under one key");
            raced.replies += 1;
            raced.in_flight += in_flight;
        }
        assert!(first_runs <= 1, "{first_runs} runs under one key");
        Raced { hung_up, ..raced.expect("somebody stayed") }
    }
}

/// Sends it until there is a reply; gives that, whether it was replayed, and how often it was told to wait.
async fn until_answered(call: Call<'_>, pause: Duration) -> (String, Answer, bool, usize) {
    let client = client();
    let mut in_flight = 0;
    for _ in 0..MAX_TRIES {
        match call.send(&client).await {
            Outcome::Received { id, answer, is_replay } => return (id, answer, is_replay, in_flight),
            Outcome::Refused { status: 409, code, .. } if code == "idempotency_in_flight" => in_flight += 1,
            // A Redis that takes too long on a loaded machine.
            Outcome::Refused { status: 503, code, .. } if code == "unavailable" => {}
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(pause).await;
    }
    panic!("it is under way for ever")
}
