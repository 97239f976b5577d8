//! Streams of the paths that OpenAI's clients call, on an engine that fails in the middle.

use crate::served::{MODEL, Served};
use chancery_engine::{EngineError, ScriptedEngine};
use serde_json::{Value, json};
use std::sync::Arc;

async fn broken_off(path: &str, body: Value) -> (String, usize) {
    let engine = ScriptedEngine::new(100, |_, sink| {
        sink.text("Dear");
        sink.fail(EngineError::Failed("a secret".to_owned()));
    });
    let served = Served::start(Arc::new(engine)).await;
    let text = served.post(path, &body).send().await.unwrap().text().await.unwrap();
    assert!(!text.contains("a secret"), "{text}");
    (text, served.billed_requests().await)
}

fn last_data(stream: &str) -> Value {
    let line = stream.lines().rev().find_map(|line| line.strip_prefix("data: ")).unwrap();
    serde_json::from_str(line).unwrap()
}

#[tokio::test]
async fn a_response_that_fails_in_the_middle_says_so_in_its_last_event_and_bills_nothing() {
    let body = json!({"model": MODEL, "input": "Say hello.", "stream": true});
    let (stream, billed) = broken_off("/v1/responses", body).await;
    let last = last_data(&stream);
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    let error = &last["response"]["error"];
    assert_eq!(error["code"], "server_error", "one of the few that the clients' types know");
    assert!(error["message"].as_str().unwrap().starts_with("engine_failed: "), "{error}");
    assert!(last["response"]["usage"].is_null());
    assert_eq!(billed, 0);
}

#[tokio::test]
async fn chunks_that_fail_in_the_middle_end_with_the_error_and_not_as_if_they_were_done() {
    let messages = json!([{"role": "user", "content": "Say hello."}]);
    let body = json!({"model": MODEL, "messages": messages, "stream": true});
    let (stream, billed) = broken_off("/v1/chat/completions", body).await;
    let last = last_data(&stream);
    assert_eq!(
        (&last["error"]["code"], &last["error"]["type"]),
        (&json!("engine_failed"), &json!("server_error"))
    );
    assert!(!stream.contains("[DONE]") && stream.contains("Dear"), "{stream}");
    assert_eq!(billed, 0);
}
