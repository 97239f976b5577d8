//! The `Idempotency-Key` header: one run and one bill, no matter how often a request is sent. `faults::duplicates` races,
//! and `faults::retries` kills the server.

use crate::event_stream::{Event, EventStream};
use crate::server::{Firm, Reply, Server, client, eventually, request};
use serde_json::{Value, json};
use std::time::Duration;

/// The model repeats itself endlessly on this prompt, so that the reply lasts until its cap.
const ENDLESS: &str = "Translate to French.";

fn firm() -> (Firm, String, Server) {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    (firm, key, server)
}

/// Samples at a high temperature, so that a second run would give a different text.
fn sampled(cap: u64) -> Value {
    let mut body = request("Tell a story about a lighthouse.", "", cap);
    body["temperature"] = json!(1.5);
    body
}

fn streamed(mut body: Value) -> Value {
    body["stream"] = json!(true);
    body
}

fn call(server: &Server, key: &str, name: &str, body: &Value) -> reqwest::RequestBuilder {
    let post = client().post(format!("{}/v1/generate", server.api)).bearer_auth(key);
    post.header("Idempotency-Key", name).json(body)
}

async fn send(server: &Server, key: &str, name: &str, body: &Value) -> Reply {
    Reply::read(call(server, key, name, body).send().await.unwrap()).await
}

fn billed(firm: &Firm) -> u64 {
    firm.json(&["usage", "--json"])["total"]["requests"].as_u64().unwrap()
}

fn text_of(events: &[Event]) -> String {
    events.iter().filter_map(|event| event.data["delta"].as_str()).collect()
}

#[tokio::test]
async fn repeated_request_gets_the_same_reply_and_one_bill() {
    let (firm, key, server) = firm();
    let body = sampled(24);
    let first = send(&server, &key, "order-17", &body).await;
    assert_eq!((first.status, first.header("idempotent-replayed")), (200, ""), "{}", first.body);
    assert_eq!(first.body["id"], first.header("x-request-id"));
    let steps = server.metric("chancery_engine_steps_total").await;
    for _ in 0..3 {
        let again = send(&server, &key, "order-17", &body).await;
        assert_eq!((again.status, again.header("idempotent-replayed")), (200, "true"));
        assert_eq!(again.body, first.body);
        assert_ne!(again.header("x-request-id"), first.header("x-request-id"), "each request has its own");
        assert_eq!(
            again.header("x-ratelimit-remaining-requests"),
            first.header("x-ratelimit-remaining-requests"),
            "it counts nothing"
        );
    }
    assert_eq!(server.metric("chancery_engine_steps_total").await, steps, "nothing ran");
    // Field order and whitespace do not matter.
    let text = format!(
        "{{ \"temperature\" : 1.50, \"max_output_tokens\": 24, \"input\":\"\",\n \"instructions\": {}, \"model\": {} }}",
        body["instructions"], body["model"]
    );
    let post = call(&server, &key, "order-17", &json!(null)).body(text);
    assert_eq!(Reply::read(post.send().await.unwrap()).await.body, first.body);
    assert_eq!(billed(&firm), 1);

    // A different key means a different request, and so does no key.
    let other = send(&server, &key, "order-18", &body).await;
    assert_ne!(other.body["id"], first.body["id"]);
    assert_ne!(server.generate(&key, &body).await.body["id"], first.body["id"]);
    assert_eq!(billed(&firm), 3);
    assert!(firm.run(&["verify"]).contains(": OK"));
}

#[tokio::test]
async fn replayed_stream_has_the_same_events() {
    let (firm, key, server) = firm();
    let body = streamed(sampled(40));
    let mut stream = EventStream::send(call(&server, &key, "story", &body)).await;
    assert_eq!(stream.header("idempotent-replayed"), "");
    let first = stream.rest().await;
    let mut stream = EventStream::send(call(&server, &key, "story", &body)).await;
    assert_eq!(stream.header("idempotent-replayed"), "true");
    assert!(!stream.header("x-ratelimit-remaining-tokens").is_empty());
    let again = stream.rest().await;

    let names = |events: &[Event]| {
        let mut names: Vec<String> = events.iter().map(|event| event.name.clone()).collect();
        names.dedup();
        names
    };
    assert_eq!(names(&again), names(&first));
    assert_eq!(text_of(&again), text_of(&first));
    assert_eq!(again[0].data, first[0].data);
    assert!(again.iter().enumerate().all(|(number, event)| event.data["sequence_number"] == number));
    assert_eq!(again.last().unwrap().data["response"], first.last().unwrap().data["response"]);
    assert_eq!(billed(&firm), 1);
    // Without `stream` it is a different request.
    let whole = send(&server, &key, "story", &sampled(40)).await;
    assert_eq!((whole.status, whole.code()), (422, "idempotency_mismatch"));
}

#[tokio::test]
async fn idempotency_key_conflict_is_rejected_and_unbilled() {
    let (firm, key, server) = firm();
    let body = streamed(request(ENDLESS, "", 300));
    let mut running = EventStream::send(call(&server, &key, "long", &body)).await;
    running.first_text().await;
    let in_flight = send(&server, &key, "long", &body).await;
    assert_eq!((in_flight.status, in_flight.code()), (409, "idempotency_in_flight"), "{}", in_flight.body);
    assert_eq!(in_flight.header("retry-after"), "3");
    assert_eq!(in_flight.body["error"]["field"], "Idempotency-Key");
    let other = send(&server, &key, "long", &request(ENDLESS, "", 300)).await;
    assert_eq!((other.status, other.code()), (422, "idempotency_mismatch"), "{}", other.body);
    let events = running.rest().await;
    let mut replayed = EventStream::send(call(&server, &key, "long", &body)).await;
    let last = replayed.rest().await.pop().unwrap();
    assert_eq!(last.data["response"], events.last().unwrap().data["response"]);
    for changed in [request(ENDLESS, "", 301), request(ENDLESS, "x", 300)] {
        let rejected = send(&server, &key, "long", &streamed(changed)).await;
        assert_eq!((rejected.status, rejected.code()), (422, "idempotency_mismatch"));
    }
    assert_eq!(billed(&firm), 1);
}

#[tokio::test]
async fn idempotency_key_is_one_header_of_visible_ascii() {
    let (firm, key, server) = firm();
    let body = request("", "Say hello.", 1);
    let post = || client().post(format!("{}/v1/generate", server.api)).bearer_auth(&key).json(&body);
    let too_long = "k".repeat(256);
    let bad = [
        post().header("idempotency-key", ""),
        post().header("idempotency-key", "two words"),
        post().header("idempotency-key", "schlüssel"),
        post().header("idempotency-key", too_long.as_str()),
        post().header("idempotency-key", "a").header("idempotency-key", "a"),
    ];
    for call in bad {
        let rejected = Reply::read(call.send().await.unwrap()).await;
        assert_eq!((rejected.status, rejected.code()), (400, "invalid_value"), "{}", rejected.body);
        assert_eq!(rejected.body["error"]["field"], "Idempotency-Key");
    }
    assert_eq!(send(&server, &key, &"k".repeat(255), &body).await.status, 200);
    assert_eq!(billed(&firm), 1);
    // Keys are scoped to an account, and a rejected request does not use one up.
    let other_key = firm.account_with_key("Another firm");
    let other = send(&server, &other_key, &"k".repeat(255), &body).await;
    assert_eq!((other.status, other.header("idempotent-replayed")), (200, ""));
    let rejected = send(&server, &key, "later", &request("", "Say hello.", 100_000_000)).await;
    assert_eq!(rejected.status, 400);
    assert_eq!(send(&server, &key, "later", &body).await.status, 200);
}

#[tokio::test]
async fn retry_after_hang_up_replays_what_was_billed() {
    let (firm, key, server) = firm();
    let body = streamed(request(ENDLESS, "", 4000));
    let mut stream = EventStream::send(call(&server, &key, "cut", &body)).await;
    let seen = stream.first_text().await;
    drop(stream);
    eventually("it is billed", Duration::from_secs(20), async || billed(&firm) == 1).await;
    let mut stream = EventStream::send(call(&server, &key, "cut", &body)).await;
    assert_eq!(stream.header("idempotent-replayed"), "true");
    let events = stream.rest().await;
    let last = events.last().unwrap();
    assert_eq!(
        (last.name.as_str(), &last.data["response"]["stop_reason"]),
        ("response.incomplete", &json!("cancelled"))
    );
    assert!(text_of(&events).starts_with(&seen));
    let total = &firm.json(&["usage", "--json"])["total"];
    assert_eq!(last.data["response"]["usage"]["output_tokens"], total["output_tokens"]);
    assert_eq!(billed(&firm), 1);
}
