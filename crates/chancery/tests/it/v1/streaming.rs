//! `POST /v1/generate` with `stream: true`. `faults` hangs up, kills the server and stops it during streams.

use crate::event_stream::{Event, EventStream};
use crate::server::{Firm, Server, eventually, request};
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

fn total(firm: &Firm) -> Value {
    firm.json(&["usage", "--json"])["total"].clone()
}

fn text_of(events: &[Event]) -> String {
    events.iter().filter_map(|event| event.data["delta"].as_str()).collect()
}

#[tokio::test]
async fn stream_delivers_the_same_reply_in_pieces_and_is_logged_at_its_end() {
    let (firm, key, server) = firm();
    stream_delivers_the_same_reply_in_pieces(&firm, &key, &server).await;
    request_is_logged_when_its_stream_ends(&key, &server).await;
}

async fn stream_delivers_the_same_reply_in_pieces(firm: &Firm, key: &str, server: &Server) {
    for (instructions, input, cap, last_event) in [
        ("Answer with one word.", "What is the capital of France?", 64, "response.completed"),
        (ENDLESS, "", 40, "response.incomplete"),
    ] {
        let body = request(instructions, input, cap);
        let whole = server.generate(key, &body).await;
        let mut stream = EventStream::open(server, key, &body).await;
        assert_eq!(stream.header("x-ratelimit-limit-requests"), "1000000");
        assert!(!stream.header("ratelimit").is_empty());
        let request_id = stream.header("x-request-id").to_owned();
        let events = stream.rest().await;

        let names: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
        assert_eq!(names[0], "response.created");
        assert!(
            names[1..names.len() - 2].iter().all(|name| *name == "response.output_text.delta"),
            "{names:?}"
        );
        assert_eq!(names[names.len() - 2..], ["response.output_text.done", last_event]);
        for (number, event) in events.iter().enumerate() {
            assert_eq!(event.data["sequence_number"], number);
            assert_eq!(event.data["type"], event.name.as_str());
        }
        assert!(names.len() > 4 || cap == 64, "text comes as it is generated: {names:?}");
        assert_eq!(text_of(&events), whole.text());
        assert_eq!(events[events.len() - 2].data["text"], whole.text());
        assert_eq!(events[0].data["response"]["id"], request_id.as_str());
        let last = &events[events.len() - 1].data["response"];
        assert_eq!(last["id"], request_id.as_str());
        for field in ["model", "output_text", "stop_reason"] {
            assert_eq!(last[field], whole.body[field], "{field}");
        }
        for field in ["input_tokens", "output_tokens"] {
            assert_eq!(last["usage"][field], whole.body["usage"][field], "{field}");
        }
    }
    let total = total(firm);
    assert_eq!(total["requests"], 4);
    firm.run(&["verify"]);
}

#[tokio::test]
async fn rejected_stream_gets_a_plain_status_and_error() {
    let (firm, _, server) = firm();
    let key = firm.limited_account_with_key("Small", 1, 100);
    let with_stream = |cap: u64| {
        let mut body = request("", "Say hello.", cap);
        body["stream"] = json!(true);
        body
    };
    let never = server.generate(&key, &with_stream(1000)).await;
    assert_eq!((never.status, never.code()), (400, "invalid_value"));
    let mut first = EventStream::open(&server, &key, &request("", "Say hello.", 2)).await;
    assert_eq!(first.rest().await.last().unwrap().name, "response.incomplete");
    let second = server.generate(&key, &with_stream(2)).await;
    assert_eq!((second.status, second.code()), (429, "rate_limited"));
    assert_eq!(server.generate("wrong", &with_stream(2)).await.status, 401);
}

#[tokio::test]
async fn slow_reader_delays_neither_generation_nor_billing() {
    let (firm, key, server) = firm();
    let mut stream = EventStream::open(&server, &key, &request(ENDLESS, "", 200)).await;
    eventually("it is billed unread", Duration::from_secs(60), async || total(&firm)["requests"] == 1).await;
    let events = stream.rest().await;
    let usage = &events.last().unwrap().data["response"]["usage"];
    assert_eq!((&usage["output_tokens"], &total(&firm)["output_tokens"]), (&json!(200), &json!(200)));
}

async fn request_is_logged_when_its_stream_ends(key: &str, server: &Server) {
    let mut stream = EventStream::open(server, key, &request(ENDLESS, "", 60)).await;
    let id = stream.header("x-request-id").to_owned();
    stream.first_text().await;
    let line =
        |server: &Server| server.logged_requests().into_iter().find(|line| line["request_id"] == id.as_str());
    stream.rest().await;
    eventually("it is logged", Duration::from_secs(5), async || line(server).is_some()).await;
    let line = line(server).unwrap();
    assert_eq!((&line["status"], &line["code"]), (&json!(200), &json!("")));
}
