//! The limits per minute, over HTTP: what is refused and how, what the headers say, and that no race passes a limit; on one
//! node. `nodes::limits` has three.

use crate::server::{Firm, Reply, Server, client, eventually, request};
use chancery_test_support::RedisServer;
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

const NAME: &str = "Hale & Ward";

fn firm(rpm: u32, tpm: u32) -> (Firm, String, Server) {
    let firm = Firm::new();
    let key = firm.limited_account_with_key(NAME, rpm, tpm);
    let server = firm.start();
    (firm, key, server)
}

/// Three tokens in, and the one that it may use out.
pub fn four_tokens() -> Value {
    request("", "Say hello.", 1)
}

pub fn number(reply: &Reply, header: &str) -> u64 {
    reply.header(header).parse().unwrap_or_else(|_| panic!("{header}: {:?}", reply.headers))
}

#[tokio::test]
async fn every_reply_to_a_valid_key_tells_where_its_account_stands() {
    let (_firm, key, server) = firm(10, 1_000);
    let policy = r#""requests";q=10;w=60, "tokens";q=1000;qu="tokens";w=60"#;
    let fresh = server.get("/v1/models", &key).await;
    assert_eq!(fresh.header("ratelimit-policy"), policy);
    assert_eq!(fresh.header("ratelimit"), r#""requests";r=10;t=0, "tokens";r=1000;t=0"#);
    assert_eq!(fresh.header("x-ratelimit-reset-tokens"), "0s");

    // 11 tokens in, of 16 that may come out all do.
    let body = request("Answer in one short sentence.", "What is a ledger?", 16);
    let first = server.generate(&key, &body).await;
    assert_eq!(first.tokens(), (11, 16));
    assert_eq!(number(&first, "x-ratelimit-remaining-requests"), 9);
    assert_eq!(number(&first, "x-ratelimit-remaining-tokens"), 1_000 - 27);
    assert!(first.header("ratelimit").starts_with(r#""requests";r=9;t="#), "{}", first.header("ratelimit"));
    assert!(["1m0s", "59s"].contains(&first.header("x-ratelimit-reset-requests")), "{:?}", first.headers);

    let others = [
        server.get("/v1/models", &key).await,
        server.get("/v1/usage", &key).await,
        server.post("/v1/tokens", &key, &body).await,
        server.generate(&key, &json!({"model": "none"})).await,
        server.generate(&key, &request("", "x", 10_000_000)).await,
    ];
    let statuses = others.each_ref().map(|reply| reply.status);
    assert_eq!(statuses, [200, 200, 200, 400, 400]);
    for reply in &others {
        assert_eq!(reply.header("ratelimit-policy"), policy, "{}", reply.body);
        assert_eq!(number(reply, "x-ratelimit-limit-requests"), 10);
        assert_eq!(number(reply, "x-ratelimit-limit-tokens"), 1_000);
        assert_eq!(number(reply, "x-ratelimit-remaining-requests"), 9, "only what is admitted counts");
        assert_eq!(number(reply, "x-ratelimit-remaining-tokens"), 1_000 - 27);
    }
    let stranger = server.get("/v1/models", "nobody").await;
    assert_eq!((stranger.status, stranger.header("ratelimit-policy")), (401, ""));
}

#[tokio::test]
async fn past_a_limit_the_refusal_names_it_and_says_when_to_come_back() {
    let (firm, key, server) = firm(2, 100);
    let body = request("", "Say hello.", 90);
    assert_eq!(server.generate(&key, &four_tokens()).await.status, 200);
    assert_eq!(server.generate(&key, &four_tokens()).await.status, 200);
    let by_requests = server.generate(&key, &four_tokens()).await;
    firm.run(&["account", "limits", NAME, "--rpm", "100"]);
    eventually("the new limit holds", Duration::from_secs(1), async || {
        number(&server.get("/v1/models", &key).await, "x-ratelimit-limit-requests") == 100
    })
    .await;
    let by_tokens = server.generate(&key, &body).await;
    for (refused, words, left) in [
        (&by_requests, "limit of 2 requests per minute is reached", 0),
        (
            &by_tokens,
            "this request may use 93 tokens, and 92 of this account's 100 tokens per minute are left",
            98,
        ),
    ] {
        assert_eq!((refused.status, refused.code()), (429, "rate_limited"), "{}", refused.body);
        let reason = refused.body["error"]["reason"].as_str().unwrap();
        assert!(reason.contains(words), "{reason}");
        assert!((1..=60).contains(&number(refused, "retry-after")), "{:?}", refused.headers);
        assert_eq!(number(refused, "x-ratelimit-remaining-requests"), left);
        assert_eq!(number(refused, "x-ratelimit-remaining-tokens"), 92);
    }
    assert_eq!(firm.json(&["usage", "--json"])["total"]["requests"], 2);
}

#[tokio::test]
async fn what_can_never_fit_is_a_bad_value_and_not_an_endless_refusal() {
    let (_firm, key, server) = firm(10, 50);
    let long = "What is a ledger? ".repeat(20);
    for (body, field, words) in [
        (
            request("", "Say hello.", 48),
            "max_output_tokens",
            "50 tokens per minute; set `max_output_tokens` to 47 or less",
        ),
        (request("", &long, 1), "input", "limit is 50 tokens per minute"),
    ] {
        let refused = server.generate(&key, &body).await;
        assert_eq!((refused.status, refused.code()), (400, "invalid_value"), "{}", refused.body);
        assert_eq!(refused.body["error"]["field"], field);
        assert!(refused.body["error"]["reason"].as_str().unwrap().contains(words), "{}", refused.body);
        assert_eq!(refused.header("retry-after"), "");
    }
    assert_eq!(server.generate(&key, &request("", "Say hello.", 47)).await.status, 200);
}

#[tokio::test]
async fn a_caller_who_hangs_up_counts_with_the_tokens_that_were_generated() {
    let (firm, key, server) = firm(10, 20_000);
    let body = request("Translate to French.", "", 6_000).to_string();
    let mut stream = TcpStream::connect(server.api_address()).unwrap();
    write!(
        stream,
        "POST /v1/generate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    server.generating().await;
    let running = server.get("/v1/models", &key).await;
    let reserved = 20_000 - number(&running, "x-ratelimit-remaining-tokens");
    assert!(reserved > 6_000, "{reserved} are reserved while it runs");
    drop(stream);
    eventually("the work stops", Duration::from_secs(5), async || {
        server.metric("chancery_running_requests").await == 0
    })
    .await;
    let total = firm.json(&["usage", "--json"])["total"].clone();
    let billed = total["input_tokens"].as_u64().unwrap() + total["output_tokens"].as_u64().unwrap();
    let settled = server.get("/v1/models", &key).await;
    assert_eq!(20_000 - number(&settled, "x-ratelimit-remaining-tokens"), billed);
    assert_eq!(number(&settled, "x-ratelimit-remaining-requests"), 9);
}

/// Sends the same request many times at once, in turns to each of the servers.
pub async fn race(servers: &[&Server], key: &str, body: &Value, times: usize) -> Vec<Reply> {
    let client = client();
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..times {
        let url = format!("{}/v1/generate", servers[number % servers.len()].api);
        let call = client.post(url).bearer_auth(key).json(body);
        calls.spawn(async move { Reply::read(call.send().await.unwrap()).await });
    }
    calls.join_all().await
}

/// Splits replies into how many were served and how long the refused ones were told to wait, in seconds.
pub fn served_and_waits(replies: &[Reply]) -> (usize, Vec<u64>) {
    let other = replies.iter().find(|reply| ![200, 429].contains(&reply.status));
    assert!(other.is_none(), "{other:?}");
    let served = replies.iter().filter(|reply| reply.status == 200).count();
    let waits: Vec<u64> = replies
        .iter()
        .filter(|reply| reply.status == 429)
        .map(|reply| number(reply, "retry-after"))
        .collect();
    assert!(waits.iter().all(|wait| (1..=60).contains(wait)), "{waits:?}");
    (served, waits)
}

#[tokio::test]
async fn racing_requests_are_admitted_up_to_each_limit_and_no_further() {
    let (firm, key, server) = firm(20, 1_000_000);
    let replies = race(&[&server], &key, &four_tokens(), 90).await;
    assert_eq!(served_and_waits(&replies).0, 20);
    assert_eq!(firm.json(&["usage", "--json"])["total"]["requests"], 20);

    // Each uses all that it reserves, four tokens, so the limit is met to the token.
    let key = firm.limited_account_with_key("Ito & Sons", 1_000, 4 * 15 + 3);
    let replies = race(&[&server], &key, &four_tokens(), 90).await;
    assert_eq!(served_and_waits(&replies).0, 15);
    let used = firm.json(&["usage", "--account", "Ito & Sons", "--json"])["total"].clone();
    assert_eq!((&used["input_tokens"], &used["output_tokens"]), (&json!(45), &json!(15)));
}

/// What any reply tells, once the limits' store has told it in time: a loaded Redis may be too slow for a header.
pub async fn standing(server: &Server, key: &str) -> Reply {
    let mut reply = server.get("/v1/models", key).await;
    eventually("a reply tells where the account stands", Duration::from_secs(30), async || {
        reply = server.get("/v1/models", key).await;
        !reply.header("ratelimit").is_empty()
    })
    .await;
    reply
}

#[tokio::test]
async fn without_redis_nothing_is_served_and_everything_is_again_when_it_is_back() {
    let mut redis = RedisServer::start();
    let firm = Firm::new().with("CHANCERY_LIMITS__STORE", &redis.url());
    let key = firm.limited_account_with_key(NAME, 100, 10_000);
    let server = firm.start();
    assert_eq!(server.generate(&key, &four_tokens()).await.status, 200);
    type Act = fn(&mut RedisServer);
    let ways: [(Act, Act); 2] =
        [(RedisServer::hold, RedisServer::go_on), (RedisServer::kill, RedisServer::start_again)];
    for (go, come_back) in ways {
        go(&mut redis);
        let refused = server.generate(&key, &four_tokens()).await;
        assert_eq!((refused.status, refused.code()), (503, "unavailable"), "{}", refused.body);
        assert!(number(&refused, "retry-after") >= 1);
        assert_eq!((refused.header("ratelimit-policy").is_empty(), refused.header("ratelimit")), (false, ""));
        assert_eq!(server.get("/v1/models", &key).await.status, 200, "what costs nothing needs no limits");
        let ready = Reply::read(client().get(format!("{}/readyz", server.ops)).send().await.unwrap()).await;
        assert_eq!(ready.status, 503);
        assert!(ready.body["reason"].as_str().unwrap().contains("the limits' store"), "{}", ready.body);
        come_back(&mut redis);
        eventually("requests are served again", Duration::from_secs(10), async || {
            server.generate(&key, &four_tokens()).await.status == 200
        })
        .await;
    }
    assert_eq!(firm.json(&["usage", "--json"])["total"]["requests"], 3);
    // A question that Redis got and did not answer in time may count until it leaves: too much rather than too little.
    let standing = standing(&server, &key).await;
    assert!(
        (96..=97).contains(&number(&standing, "x-ratelimit-remaining-requests")),
        "{:?}",
        standing.headers
    );
}

#[tokio::test]
async fn verify_finds_what_redis_has_forgotten() {
    let redis = RedisServer::start();
    let firm = Firm::new().with("CHANCERY_LIMITS__STORE", &redis.url());
    let key = firm.account_with_key(NAME);
    let server = firm.start();
    assert_eq!(server.generate(&key, &four_tokens()).await.status, 200);
    assert!(firm.run(&["verify"]).contains("limits: the last minute of 1 accounts: all counted"));
    redis.command(&["flushall"]);
    assert_eq!(server.generate(&key, &four_tokens()).await.status, 200);
    let output = firm.output(&["verify"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("DIFFERS limits: account Hale & Ward: the ledger has 2 requests with 8 tokens of the last minute, and the limits' store counts 1 with 4"),
        "{text}"
    );
    assert!(text.contains("ledger: 2 rows") && text.contains("all agree"), "{text}");
}

#[tokio::test]
async fn a_redis_that_is_set_up_as_a_cache_is_warned_about() {
    let redis = RedisServer::start();
    redis.command(&["config", "set", "maxmemory", "100mb"]);
    let firm = Firm::new().with("CHANCERY_LIMITS__STORE", &redis.url());
    assert!(!firm.start().log().contains("maxmemory-policy"));
    redis.command(&["config", "set", "maxmemory-policy", "allkeys-lru"]);
    assert!(firm.start().log().contains("set its maxmemory-policy to noeviction"));
}

#[test]
fn a_redis_that_cannot_be_reached_at_the_start_is_named_with_its_setting() {
    let firm = Firm::new().with("CHANCERY_LIMITS__STORE", "redis://:hunter2@127.0.0.1:1");
    let text = firm.fail(&["serve"]);
    assert!(text.contains("limits.store: redis://127.0.0.1:1/0 cannot be used"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}
