//! Streams on the OpenAI-compatible paths, with an engine that fails midway.

use crate::test_server::{MODEL, TestServer};
use chancery_engine::{EngineError, ScriptedEngine};
use serde_json::{Value, json};
use std::sync::Arc;

async fn truncated_stream(path: &str, body: Value) -> (String, usize) {
    let engine = ScriptedEngine::new(100, |_, sink| {
        sink.text("Dear");
        sink.fail(EngineError::Failed("a secret".to_owned()));
    });
    let test_server = TestServer::start(Arc::new(engine)).await;
    let text = test_server.post(path, &body).send().await.unwrap().text().await.unwrap();
    assert!(!text.contains("a secret"), "{text}");
    (text, test_server.billed_requests().await)
}

fn last_data(stream: &str) -> Value {
    let line = stream.lines().rev().find_map(|line| line.strip_prefix("data: ")).unwrap();
    serde_json::from_str(line).unwrap()
}

#[tokio::test]
async fn responses_stream_failing_midway_ends_with_response_failed_unbilled() {
    let body = json!({"model": MODEL, "input": "Say hello.", "stream": true});
    let (stream, billed) = truncated_stream("/v1/responses", body).await;
    let last = last_data(&stream);
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    let error = &last["response"]["error"];
    assert_eq!(error["code"], "server_error", "one of the few that the clients' types know");
    assert!(error["message"].as_str().unwrap().starts_with("engine_failed: "), "{error}");
    assert!(last["response"]["usage"].is_null());
    assert_eq!(billed, 0);
}

#[tokio::test]
async fn chat_stream_failing_midway_ends_with_an_error_and_no_done() {
    let messages = json!([{"role": "user", "content": "Say hello."}]);
    let body = json!({"model": MODEL, "messages": messages, "stream": true});
    let (stream, billed) = truncated_stream("/v1/chat/completions", body).await;
    let last = last_data(&stream);
    assert_eq!(
        (&last["error"]["code"], &last["error"]["type"]),
        (&json!("engine_failed"), &json!("server_error"))
    );
    assert!(!stream.contains("[DONE]") && stream.contains("Dear"), "{stream}");
    assert_eq!(billed, 0);
}
