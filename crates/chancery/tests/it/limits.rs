//! Rate limits over HTTP on one node: rejections, headers, and races that must not exceed a limit. `nodes::limits` tests
//! three nodes.

use crate::server::{Firm, Reply, Server, client, eventually, request};
use chancery_domain::{Clock, SystemClock};
use chancery_test_support::RedisServer;
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

const NAME: &str = "Hale & Ward";

/// Three input tokens, and one output token at most.
pub fn four_tokens() -> Value {
    request("", "Say hello.", 1)
}

pub fn number(reply: &Reply, header: &str) -> u64 {
    reply.header(header).parse().unwrap_or_else(|_| panic!("{header}: {:?}", reply.headers))
}

/// On one server, because its start takes longer than a step.
#[tokio::test]
async fn limits_of_an_account_are_in_headers_and_errors_and_hold_exactly() {
    let firm = Firm::new();
    let server = firm.start();
    every_reply_to_a_valid_key_has_rate_limit_headers(&firm, &server).await;
    rate_limit_error_names_the_limit_and_has_retry_after(&firm, &server).await;
    request_that_can_never_fit_is_invalid_value_not_rate_limited(&firm, &server).await;
    hang_up_counts_the_generated_tokens_toward_limits(&firm, &server).await;
    racing_requests_are_admitted_exactly_up_to_each_limit(&firm, &server).await;
}

async fn every_reply_to_a_valid_key_has_rate_limit_headers(firm: &Firm, server: &Server) {
    let key = firm.limited_account_with_key("Headers", 10, 1_000);
    let policy = r#""requests";q=10;w=60, "tokens";q=1000;qu="tokens";w=60"#;
    let fresh = server.get("/v1/models", &key).await;
    assert_eq!(fresh.header("ratelimit-policy"), policy);
    assert_eq!(fresh.header("ratelimit"), r#""requests";r=10;t=0, "tokens";r=1000;t=0"#);
    assert_eq!(fresh.header("x-ratelimit-reset-tokens"), "0s");

    // 11 input tokens; all of the 16 allowed output tokens are generated.
    let body = request("Answer in one short sentence.", "What is a ledger?", 16);
    let sent = SystemClock.monotonic();
    let first = server.generate(&key, &body).await;
    let elapsed_s = sent.elapsed().as_secs();
    assert_eq!(first.tokens(), (11, 16));
    assert_eq!(number(&first, "x-ratelimit-remaining-requests"), 9);
    assert_eq!(number(&first, "x-ratelimit-remaining-tokens"), 1_000 - 27);
    assert!(first.header("ratelimit").starts_with(r#""requests";r=9;t="#), "{}", first.header("ratelimit"));
    let reset = first.header("x-ratelimit-reset-requests");
    let possible =
        (60 - elapsed_s.min(59) - 1..=60).map(|s| if s == 60 { "1m0s".to_owned() } else { format!("{s}s") });
    assert!(
        possible.into_iter().any(|possible| possible == reset),
        "{:?} after {elapsed_s} s",
        first.headers
    );

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

async fn rate_limit_error_names_the_limit_and_has_retry_after(firm: &Firm, server: &Server) {
    let key = firm.limited_account_with_key("Errors", 2, 100);
    let body = request("", "Say hello.", 90);
    assert_eq!(server.generate(&key, &four_tokens()).await.status, 200);
    assert_eq!(server.generate(&key, &four_tokens()).await.status, 200);
    let by_requests = server.generate(&key, &four_tokens()).await;
    firm.run(&["account", "limits", "Errors", "--rpm", "100"]);
    eventually("the new limit holds", Duration::from_secs(1), async || {
        number(&server.get("/v1/models", &key).await, "x-ratelimit-limit-requests") == 100
    })
    .await;
    let by_tokens = server.generate(&key, &body).await;
    for (rejected, expected, left) in [
        (&by_requests, "rate limit reached: 2 requests per minute", 0),
        (
            &by_tokens,
            "rate limit reached: this request may use 93 tokens, and 92 of 100 tokens per minute are left",
            98,
        ),
    ] {
        assert_eq!((rejected.status, rejected.code()), (429, "rate_limited"), "{}", rejected.body);
        let reason = rejected.body["error"]["reason"].as_str().unwrap();
        assert!(reason.contains(expected), "{reason}");
        assert!((1..=60).contains(&number(rejected, "retry-after")), "{:?}", rejected.headers);
        assert_eq!(number(rejected, "x-ratelimit-remaining-requests"), left);
        assert_eq!(number(rejected, "x-ratelimit-remaining-tokens"), 92);
    }
    assert_eq!(firm.json(&["usage", "--account", "Errors", "--json"])["total"]["requests"], 2);
}

async fn request_that_can_never_fit_is_invalid_value_not_rate_limited(firm: &Firm, server: &Server) {
    let key = firm.limited_account_with_key("Never", 10, 50);
    let long = "What is a ledger? ".repeat(20);
    for (body, field, expected) in [
        (
            request("", "Say hello.", 48),
            "max_output_tokens",
            "50 tokens per minute; set `max_output_tokens` to 47 or less",
        ),
        (request("", &long, 1), "input", "limit of 50 tokens per minute"),
    ] {
        let rejected = server.generate(&key, &body).await;
        assert_eq!((rejected.status, rejected.code()), (400, "invalid_value"), "{}", rejected.body);
        assert_eq!(rejected.body["error"]["field"], field);
        assert!(rejected.body["error"]["reason"].as_str().unwrap().contains(expected), "{}", rejected.body);
        assert_eq!(rejected.header("retry-after"), "");
    }
    assert_eq!(server.generate(&key, &request("", "Say hello.", 47)).await.status, 200);
}

async fn hang_up_counts_the_generated_tokens_toward_limits(firm: &Firm, server: &Server) {
    let key = firm.limited_account_with_key("Hang-ups", 10, 20_000);
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
    let total = firm.json(&["usage", "--account", "Hang-ups", "--json"])["total"].clone();
    let billed = total["input_tokens"].as_u64().unwrap() + total["output_tokens"].as_u64().unwrap();
    let settled = server.get("/v1/models", &key).await;
    assert_eq!(20_000 - number(&settled, "x-ratelimit-remaining-tokens"), billed);
    assert_eq!(number(&settled, "x-ratelimit-remaining-requests"), 9);
}

/// Sends the same request many times at once, alternating between the servers.
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

/// Returns the number of served replies, and the seconds that each rejected one was told to wait.
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

async fn racing_requests_are_admitted_exactly_up_to_each_limit(firm: &Firm, server: &Server) {
    let key = firm.limited_account_with_key("Races", 20, 1_000_000);
    let replies = race(&[server], &key, &four_tokens(), 90).await;
    assert_eq!(served_and_waits(&replies).0, 20);
    assert_eq!(firm.json(&["usage", "--account", "Races", "--json"])["total"]["requests"], 20);

    // Each request uses all four tokens that it reserves, so the limit is reached to the token.
    let key = firm.limited_account_with_key("Ito & Sons", 1_000, 4 * 15 + 3);
    let replies = race(&[server], &key, &four_tokens(), 90).await;
    assert_eq!(served_and_waits(&replies).0, 15);
    let used = firm.json(&["usage", "--account", "Ito & Sons", "--json"])["total"].clone();
    assert_eq!((&used["input_tokens"], &used["output_tokens"]), (&json!(45), &json!(15)));
}

/// Returns a reply that has rate-limit headers. A busy Redis may be too slow for them, so this retries.
pub async fn rate_limit_status(server: &Server, key: &str) -> Reply {
    let mut reply = server.get("/v1/models", key).await;
    eventually("a reply tells where the account stands", Duration::from_secs(30), async || {
        reply = server.get("/v1/models", key).await;
        !reply.header("ratelimit").is_empty()
    })
    .await;
    reply
}

#[tokio::test]
async fn no_request_is_served_without_redis_until_it_recovers() {
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
        let rejected = server.generate(&key, &four_tokens()).await;
        assert_eq!((rejected.status, rejected.code()), (503, "unavailable"), "{}", rejected.body);
        assert!(number(&rejected, "retry-after") >= 1);
        assert_eq!(
            (rejected.header("ratelimit-policy").is_empty(), rejected.header("ratelimit")),
            (false, "")
        );
        let read = server.get("/v1/models", &key).await;
        assert_eq!((read.status, read.code()), (503, "unavailable"), "reads are limited too: {}", read.body);
        let ready = Reply::read(client().get(format!("{}/readyz", server.ops)).send().await.unwrap()).await;
        assert_eq!(ready.status, 503);
        assert!(ready.body["reason"].as_str().unwrap().contains("limit store unavailable"), "{}", ready.body);
        come_back(&mut redis);
        eventually("requests are served again", Duration::from_secs(10), async || {
            server.generate(&key, &four_tokens()).await.status == 200
        })
        .await;
    }
    assert_eq!(firm.json(&["usage", "--json"])["total"]["requests"], 3);
    // A request that Redis received but did not answer in time may count until it leaves the window: too much, never too little.
    let rate_limit_status = rate_limit_status(&server, &key).await;
    assert!(
        (96..=97).contains(&number(&rate_limit_status, "x-ratelimit-remaining-requests")),
        "{:?}",
        rate_limit_status.headers
    );
}

#[tokio::test]
async fn verify_reports_counts_missing_in_redis() {
    let redis = RedisServer::start();
    let firm = Firm::new().with("CHANCERY_LIMITS__STORE", &redis.url());
    let key = firm.account_with_key(NAME);
    let server = firm.start();
    assert_eq!(server.generate(&key, &four_tokens()).await.status, 200);
    assert!(firm.run(&["verify"]).contains("limits: last minute of 1 accounts: OK"));
    redis.command(&["flushall"]);
    assert_eq!(server.generate(&key, &four_tokens()).await.status, 200);
    let output = firm.output(&["verify"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("DIFFERS limits: account Hale & Ward: the ledger has 2 requests and 8 tokens in the last minute, the limit store 1 and 4"),
        "{text}"
    );
    assert!(text.contains("ledger: 2 rows") && text.contains(": OK"), "{text}");
}

#[tokio::test]
async fn redis_with_an_eviction_policy_logs_a_warning() {
    let redis = RedisServer::start();
    redis.command(&["config", "set", "maxmemory", "100mb"]);
    let firm = Firm::new().with("CHANCERY_LIMITS__STORE", &redis.url());
    assert!(!firm.start().log().contains("maxmemory-policy"));
    redis.command(&["config", "set", "maxmemory-policy", "allkeys-lru"]);
    firm.start().wait_for_log("set maxmemory-policy to noeviction");
}
