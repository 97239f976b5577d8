//! Replies on the OpenAI-compatible paths, with an engine that fails midway or reasons first.

use crate::test_server::{MODEL, TestServer};
use chancery_engine::{EngineError, Finished, GenerationSink, ScriptedEngine, StopReason};
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

fn end(sink: GenerationSink, reason: StopReason, output_tokens: u32, reasoning_tokens: u32) {
    sink.end(Finished {
        reason,
        output_tokens,
        reasoning_tokens,
        cached_tokens: 0,
        billed_cached_tokens: 0,
        prefilled_tokens: 0,
        input_tokens: None,
    });
}

/// Reasons before and, as some servers do, after the beginning of its answer.
async fn reasoning_server() -> TestServer {
    let engine = ScriptedEngine::new(100, |_, sink| {
        sink.reasoning("They greet");
        sink.reasoning(" me.");
        sink.text("Dear");
        sink.reasoning(" Whom?");
        sink.text(" Ruth");
        end(sink, StopReason::Complete, 5, 3);
    });
    TestServer::start(Arc::new(engine)).await
}

/// Spends its whole cap on reasoning.
async fn only_reasoning_server() -> TestServer {
    let engine = ScriptedEngine::new(100, |_, sink| {
        sink.reasoning("They greet me.");
        end(sink, StopReason::MaxOutputTokens, 4, 4);
    });
    TestServer::start(Arc::new(engine)).await
}

fn events(stream: &str) -> Vec<Value> {
    let data = stream.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn chat_body(stream: bool) -> Value {
    let messages = json!([{"role": "user", "content": "Say hello."}]);
    let mut body = json!({"model": MODEL, "messages": messages, "max_tokens": 8, "stream": stream});
    if stream {
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

#[tokio::test]
async fn chat_completion_has_reasoning_content_only_if_there_is_any() {
    let server = reasoning_server().await;
    let reply: Value =
        server.post("/v1/chat/completions", &chat_body(false)).send().await.unwrap().json().await.unwrap();
    let message = &reply["choices"][0]["message"];
    assert_eq!(
        (&message["content"], &message["reasoning_content"]),
        (&json!("Dear Ruth"), &json!("They greet me. Whom?"))
    );
    assert_eq!(reply["usage"]["completion_tokens"], 5);
    assert_eq!(reply["usage"]["completion_tokens_details"], json!({"reasoning_tokens": 3}));
    assert_eq!(server.billed_requests().await, 1);

    let plain = ScriptedEngine::new(100, |_, sink| {
        sink.text("Dear");
        end(sink, StopReason::Complete, 1, 0);
    });
    let server = TestServer::start(Arc::new(plain)).await;
    let reply: Value =
        server.post("/v1/chat/completions", &chat_body(false)).send().await.unwrap().json().await.unwrap();
    assert!(reply["choices"][0]["message"].get("reasoning_content").is_none(), "{reply}");
}

#[tokio::test]
async fn chat_stream_sends_reasoning_before_the_answer() {
    let server = reasoning_server().await;
    let stream =
        server.post("/v1/chat/completions", &chat_body(true)).send().await.unwrap().text().await.unwrap();
    let events = events(&stream);
    let all = |field: &str| -> String {
        events.iter().filter_map(|event| event["choices"][0]["delta"][field].as_str()).collect()
    };
    assert_eq!(
        (all("reasoning_content").as_str(), all("content").as_str()),
        ("They greet me. Whom?", "Dear Ruth")
    );
    let position = |field: &str, part: &str| {
        let has = |event: &Value| {
            event["choices"][0]["delta"][field].as_str().is_some_and(|text| text.contains(part))
        };
        events.iter().position(has).unwrap()
    };
    assert!(position("reasoning_content", "They") < position("content", "Dear"), "{stream}");
    let usage = &events.last().unwrap()["usage"];
    assert_eq!(usage["completion_tokens_details"], json!({"reasoning_tokens": 3}), "{stream}");
}

#[tokio::test]
async fn response_has_a_reasoning_item_before_its_message() {
    let server = reasoning_server().await;
    let body = json!({"model": MODEL, "input": "Say hello.", "max_output_tokens": 8});
    let reply: Value = server.post("/v1/responses", &body).send().await.unwrap().json().await.unwrap();
    let id = reply["id"].as_str().unwrap();
    let expected = json!({
        "type": "reasoning", "id": id.replace("resp_", "rs_"), "summary": [], "status": "completed",
        "content": [{"type": "reasoning_text", "text": "They greet me. Whom?"}],
    });
    assert_eq!(reply["output"][0], expected);
    assert_eq!(reply["output"][1]["type"], "message");
    assert_eq!(reply["output"][1]["content"][0]["text"], "Dear Ruth");
    assert_eq!(reply["usage"]["output_tokens_details"], json!({"reasoning_tokens": 3}));

    // The client's next request has the whole output.
    let mut input = reply["output"].as_array().unwrap().clone();
    input.push(json!({"role": "user", "content": "Go on."}));
    let next = json!({"model": MODEL, "input": input, "max_output_tokens": 8});
    assert_eq!(server.post("/v1/responses", &next).send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn responses_stream_ends_its_reasoning_item_before_the_message() {
    let server = reasoning_server().await;
    let body = json!({"model": MODEL, "input": "Say hello.", "max_output_tokens": 8, "stream": true});
    let stream = server.post("/v1/responses", &body).send().await.unwrap().text().await.unwrap();
    let events = events(&stream);
    let mut steps: Vec<(&str, Option<u64>)> = events
        .iter()
        .map(|event| (event["type"].as_str().unwrap(), event["output_index"].as_u64()))
        .collect();
    steps.dedup();
    let expected = [
        ("response.created", None),
        ("response.in_progress", None),
        ("response.output_item.added", Some(0)),
        ("response.content_part.added", Some(0)),
        ("response.reasoning_text.delta", Some(0)),
        ("response.reasoning_text.done", Some(0)),
        ("response.content_part.done", Some(0)),
        ("response.output_item.done", Some(0)),
        ("response.output_item.added", Some(1)),
        ("response.content_part.added", Some(1)),
        ("response.output_text.delta", Some(1)),
        ("response.output_text.done", Some(1)),
        ("response.content_part.done", Some(1)),
        ("response.output_item.done", Some(1)),
        ("response.completed", None),
    ];
    assert_eq!(steps, expected, "{stream}");
    assert!(events.iter().enumerate().all(|(number, event)| event["sequence_number"] == number), "{stream}");
    let id = events[0]["response"]["id"].as_str().unwrap().replace("resp_", "rs_");
    let named = |name: &str| events.iter().find(|event| event["type"] == name).unwrap();
    let done = named("response.reasoning_text.done");
    assert_eq!(
        (&done["item_id"], &done["text"], &done["content_index"]),
        (&json!(id), &json!("They greet me."), &json!(0))
    );
    let item = &named("response.output_item.done")["item"];
    let text = json!([{"type": "reasoning_text", "text": "They greet me."}]);
    assert_eq!((&item["id"], &item["status"], &item["content"]), (&json!(id), &json!("completed"), &text));
    let last = &events.last().unwrap()["response"];
    assert_eq!(last["output"][0]["content"][0]["text"], "They greet me. Whom?", "late reasoning is not lost");
    assert_eq!(last["output"][1]["content"][0]["text"], "Dear Ruth");
    assert_eq!(last["usage"]["output_tokens_details"], json!({"reasoning_tokens": 3}));
}

#[tokio::test]
async fn reply_whose_cap_went_to_reasoning_is_incomplete_and_billed() {
    let server = only_reasoning_server().await;
    let reply: Value = server.generate(&json!({})).send().await.unwrap().json().await.unwrap();
    assert_eq!((&reply["output_text"], &reply["stop_reason"]), (&json!(""), &json!("max_output_tokens")));
    assert_eq!(reply["usage"]["output_tokens"], 4);
    assert_eq!(reply["usage"]["output_tokens_details"], json!({"reasoning_tokens": 4}));

    let body = json!({"model": MODEL, "input": "Say hello.", "max_output_tokens": 4, "stream": true});
    let stream = server.post("/v1/responses", &body).send().await.unwrap().text().await.unwrap();
    let last = last_data(&stream);
    assert_eq!(last["type"], "response.incomplete");
    let output = &last["response"]["output"];
    assert_eq!((&output[0]["status"], &output[1]["status"]), (&json!("incomplete"), &json!("incomplete")));
    assert_eq!(output[1]["content"][0]["text"], "");
    assert_eq!(server.billed_requests().await, 2);
}
