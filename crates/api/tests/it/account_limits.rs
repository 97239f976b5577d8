//! What one account may take from the server besides generating: reads per minute, and bytes of bodies in flight.

use crate::test_server::{MODEL, TestServer};
use chancery_engine::{Finished, GenerationSink, Job, ScriptedEngine, StopReason};
use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

fn reply(_: Job, sink: GenerationSink) {
    sink.text("Hello.");
    sink.end(Finished {
        reason: StopReason::Complete,
        output_tokens: 1,
        cached_tokens: 0,
        billed_cached_tokens: 0,
        reasoning_tokens: 0,
        prefilled_tokens: 0,
        input_tokens: None,
    });
}

fn engine() -> Arc<ScriptedEngine> {
    Arc::new(ScriptedEngine::new(4_096, reply))
}

/// One request of each kind that reads.
fn reads(server: &TestServer) -> Vec<RequestBuilder> {
    let counted = json!({"model": MODEL, "instructions": "", "input": "Hello.", "max_output_tokens": 4});
    vec![
        server.get("/v1/models"),
        server.get("/v1/models/m"),
        server.get("/v1/models/none"),
        server.get("/v1/key"),
        server.get("/v1/usage"),
        server.get("/v1/usage?by=week"),
        server.post("/v1/tokens", &counted),
        server.post("/v1/responses/input_tokens", &json!({"model": MODEL, "input": "Hello."})),
    ]
}

async fn error_code(response: Response) -> String {
    let body: Value = response.json().await.unwrap();
    body["error"]["code"].as_str().unwrap().to_owned()
}

fn header(response: &Response, name: &str) -> u64 {
    response.headers()[name].to_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn reads_share_one_limit_beside_generation() {
    let server = TestServer::start_with(engine(), 8).await;
    for read in reads(&server) {
        assert_ne!(read.send().await.unwrap().status(), 429);
    }
    for read in reads(&server) {
        let rejected = read.send().await.unwrap();
        assert_eq!(rejected.status(), 429, "{}", rejected.url());
        assert!((1..=60).contains(&header(&rejected, "retry-after")));
        assert_eq!(
            header(&rejected, "x-ratelimit-remaining-requests"),
            8,
            "the headers are about generation"
        );
        let code = if rejected.url().path().ends_with("/input_tokens") {
            "rate_limit_exceeded"
        } else {
            "rate_limited"
        };
        assert_eq!(error_code(rejected).await, code);
    }
    assert_eq!(server.generate(&json!({})).send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn replays_are_limited_as_reads() {
    let server = TestServer::start_with(engine(), 3).await;
    let send = || server.generate(&json!({})).header("Idempotency-Key", "order-17").send();
    assert_eq!(send().await.unwrap().status(), 200);
    for _ in 0..3 {
        let replayed = send().await.unwrap();
        assert_eq!(replayed.status(), 200);
        assert_eq!(replayed.headers()["idempotent-replayed"], "true");
    }
    let rejected = send().await.unwrap();
    assert_eq!(rejected.status(), 429);
    assert!((1..=60).contains(&header(&rejected, "retry-after")));
    assert_eq!(error_code(rejected).await, "rate_limited");
    assert_eq!(server.billed_requests().await, 1);
}

/// All but the last byte of a body of the largest size.
async fn upload_most_of_a_body(server: &TestServer) -> TcpStream {
    let mut stream = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.unwrap();
    let head = format!(
        "POST /v1/generate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        server.key(),
        1 << 20
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b' '; (1 << 20) - 1]).await.unwrap();
    stream
}

/// Counts tokens until the status is this one.
async fn until_status(server: &TestServer, status: u16) -> Response {
    let counted =
        json!({"model": MODEL, "instructions": "", "input": "Hello.".repeat(20), "max_output_tokens": 4});
    for _ in 0..400 {
        let response = server.post("/v1/tokens", &counted).send().await.unwrap();
        if response.status() == status {
            return response;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("never {status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_bytes_in_flight_are_bounded_per_account() {
    let server = TestServer::start_with(engine(), 10_000).await;
    let mut uploads = Vec::new();
    for _ in 0..64 {
        uploads.push(upload_most_of_a_body(&server).await);
    }
    let rejected = until_status(&server, 503).await;
    assert_eq!(header(&rejected, "retry-after"), 1);
    let body: Value = rejected.json().await.unwrap();
    assert_eq!(body["error"]["code"], "overloaded");
    assert!(body["error"]["reason"].as_str().unwrap().contains("67108864 bytes"), "{body}");
    // Requests without a body, and other accounts, are not affected.
    assert_eq!(server.get("/v1/models").send().await.unwrap().status(), 200);
    let first_key = server.key().to_owned();
    let server = server.with_another_account(10_000).await;
    assert_eq!(server.generate(&json!({})).send().await.unwrap().status(), 200);
    let server = server.with_key(first_key);
    drop(uploads);
    until_status(&server, 200).await;
}
