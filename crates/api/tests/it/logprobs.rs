//! Log probabilities, penalties and ended loops in the replies of every path, whole, streamed and replayed.

use crate::test_server::{MODEL, TestServer};
use chancery_engine::{
    Dry, Finished, GenerationSink, Job, Penalties, ScriptedEngine, StopReason, TokenLogprob, TokenLogprobs,
};
use chancery_metering::limits::MAX_REPLY_LOGPROBS;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// The tokens of `Dear é`: a character is spread over two of them.
const TOKENS: [&[u8]; 3] = [b"Dear", b" \xc3", b"\xa9"];
const TEXTS: [&str; 3] = ["Dear", " ", "é"];

fn end(sink: GenerationSink, reason: StopReason) {
    sink.end(Finished {
        reason,
        output_tokens: 3,
        reasoning_tokens: 0,
        cached_tokens: 0,
        billed_cached_tokens: 0,
        prefilled_tokens: 0,
        input_tokens: None,
    });
}

fn send_tokens(job: &Job, sink: GenerationSink) {
    for (bytes, text) in TOKENS.into_iter().zip(TEXTS) {
        sink.text(text);
        let token = |logprob| TokenLogprob { bytes: bytes.to_vec(), logprob };
        let top = vec![token(-0.5); job.top_logprobs.unwrap_or(0).into()];
        sink.logprobs(job.top_logprobs.map(|_| TokenLogprobs { token: token(-0.5), top }));
    }
    end(sink, StopReason::Complete);
}

async fn server() -> TestServer {
    TestServer::start(Arc::new(ScriptedEngine::new(100, |job, sink| send_tokens(&job, sink)))).await
}

/// What every reply must have with `top_logprobs: 1`.
fn expected() -> Value {
    let token = |token: &str, bytes: Value| {
        let top = json!([{"token": token, "bytes": bytes, "logprob": -0.5}]);
        json!({"token": token, "bytes": bytes, "logprob": -0.5, "top_logprobs": top})
    };
    json!([
        token("Dear", json!([68, 101, 97, 114])),
        token(" \u{fffd}", json!([32, 195])),
        token("\u{fffd}", json!([169])),
    ])
}

async fn post(server: &TestServer, path: &str, body: &Value) -> Value {
    server.post(path, body).send().await.unwrap().json().await.unwrap()
}

/// The data of every event.
async fn stream(server: &TestServer, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let text = server.post(path, &body).send().await.unwrap().text().await.unwrap();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn generate_body() -> Value {
    json!({"model": MODEL, "instructions": "", "input": "Say hello.", "max_output_tokens": 4,
           "logprobs": true, "top_logprobs": 1})
}

fn chat_body() -> Value {
    json!({"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}],
           "logprobs": true, "top_logprobs": 1})
}

fn responses_body() -> Value {
    json!({"model": MODEL, "input": "Say hello.", "include": ["message.output_text.logprobs"], "top_logprobs": 1})
}

/// All lists at `pointer`, one after another.
fn joined(events: &[Value], pointer: &str) -> Value {
    let lists = events.iter().filter_map(|event| event.pointer(pointer)?.as_array());
    lists.flatten().cloned().collect()
}

#[tokio::test]
async fn generated_reply_has_logprobs_whole_and_streamed() {
    let server = server().await;
    let whole = post(&server, "/v1/generate", &generate_body()).await;
    assert_eq!((&whole["output_text"], &whole["logprobs"]), (&json!("Dear é"), &expected()));
    let events = stream(&server, "/v1/generate", &generate_body()).await;
    let deltas: Vec<Value> =
        events.iter().filter(|event| event["type"] == "response.output_text.delta").cloned().collect();
    assert_eq!(joined(&deltas, "/logprobs"), expected());
    let [.., done, last] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((&done["text"], &done["logprobs"]), (&json!("Dear é"), &expected()));
    assert_eq!(last["response"]["logprobs"], expected());
}

#[tokio::test]
async fn chat_completion_has_logprobs_whole_and_streamed() {
    let server = server().await;
    let whole = post(&server, "/v1/chat/completions", &chat_body()).await;
    assert_eq!(whole["choices"][0]["logprobs"], json!({"content": expected(), "refusal": null}));
    let events = stream(&server, "/v1/chat/completions", &chat_body()).await;
    assert_eq!(joined(&events, "/choices/0/logprobs/content"), expected());
    let (first, last) = (events.first().unwrap(), events.last().unwrap());
    assert!(first["choices"][0]["logprobs"].is_null() && last["choices"][0]["logprobs"].is_null());
    let text: String =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "Dear é");
}

#[tokio::test]
async fn response_has_included_logprobs_whole_and_streamed() {
    let server = server().await;
    let whole = post(&server, "/v1/responses", &responses_body()).await;
    assert_eq!(whole["output"][0]["content"][0]["logprobs"], expected());
    assert_eq!(whole["top_logprobs"], 1);
    let events = stream(&server, "/v1/responses", &responses_body()).await;
    let deltas: Vec<Value> =
        events.iter().filter(|event| event["type"] == "response.output_text.delta").cloned().collect();
    assert_eq!(joined(&deltas, "/logprobs"), expected());
    let named = |name: &str| events.iter().find(|event| event["type"] == name).unwrap();
    assert_eq!(named("response.output_text.done")["logprobs"], expected());
    assert_eq!(named("response.content_part.done")["part"]["logprobs"], expected());
    let last = named("response.completed");
    assert_eq!(last["response"]["output"][0]["content"][0]["logprobs"], expected());

    // The client's next request has the whole output, log probabilities included.
    let mut input = whole["output"].as_array().unwrap().clone();
    input.push(json!({"role": "user", "content": "Go on."}));
    let next = json!({"model": MODEL, "input": input});
    assert_eq!(server.post("/v1/responses", &next).send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn replies_have_no_logprobs_unless_asked() {
    let server = server().await;
    let mut body = generate_body();
    body["logprobs"] = json!(false);
    body["top_logprobs"] = json!(0);
    let whole = post(&server, "/v1/generate", &body).await;
    assert!(whole.get("logprobs").is_none(), "{whole}");
    let events = stream(&server, "/v1/generate", &body).await;
    assert!(events.iter().all(|event| event.get("logprobs").is_none()), "{events:?}");
    let mut body = chat_body();
    body["logprobs"] = json!(false);
    body["top_logprobs"] = json!(0);
    assert!(post(&server, "/v1/chat/completions", &body).await["choices"][0]["logprobs"].is_null());
    let body = json!({"model": MODEL, "input": "Say hello."});
    let whole = post(&server, "/v1/responses", &body).await;
    assert_eq!(whole["output"][0]["content"][0]["logprobs"], json!([]));
}

#[tokio::test]
async fn replayed_reply_has_the_same_logprobs() {
    let server = server().await;
    for (path, body) in [
        ("/v1/generate", generate_body()),
        ("/v1/chat/completions", chat_body()),
        ("/v1/responses", responses_body()),
    ] {
        let mut replies = Vec::new();
        for is_replay in [false, true] {
            let request = server.post(path, &body).header("idempotency-key", path.replace('/', "-"));
            let reply = request.send().await.unwrap();
            assert_eq!(reply.headers().contains_key("idempotent-replayed"), is_replay, "{path}");
            replies.push(reply.json::<Value>().await.unwrap());
        }
        assert_eq!(replies[0], replies[1], "{path}");
        assert!(replies[1].to_string().contains("-0.5"), "{path}: {}", replies[1]);
    }
    assert_eq!(server.billed_requests().await, 3);
}

#[tokio::test]
async fn top_logprobs_without_logprobs_is_rejected_in_the_shape_of_each_path() {
    let server = server().await;
    let mut generate = generate_body();
    let mut chat = chat_body();
    let mut responses = responses_body();
    generate.as_object_mut().unwrap().remove("logprobs");
    chat.as_object_mut().unwrap().remove("logprobs");
    responses.as_object_mut().unwrap().remove("include");
    for (path, body, field, message) in [
        ("/v1/generate", &generate, "field", "reason"),
        ("/v1/tokens", &generate, "field", "reason"),
        ("/v1/chat/completions", &chat, "param", "message"),
        ("/v1/responses", &responses, "param", "message"),
    ] {
        let error = &post(&server, path, body).await["error"];
        assert_eq!((&error["code"], &error[field]), (&json!("invalid_value"), &json!("top_logprobs")));
        assert!(error[message].as_str().unwrap().contains("logprobs"), "{path}: {error}");
    }
}

#[tokio::test]
async fn reply_has_a_bounded_number_of_logprobs() {
    let caps: Arc<Mutex<Vec<u32>>> = Arc::default();
    let seen = Arc::clone(&caps);
    let engine = ScriptedEngine::new(100_000, move |job, sink| {
        seen.lock().unwrap().push(job.max_output_tokens);
        send_tokens(&job, sink);
    });
    let server = TestServer::start(Arc::new(engine)).await;
    let max_tokens = MAX_REPLY_LOGPROBS / 21;
    let with_cap = |mut body: Value, field: &str, cap: u32| {
        body["top_logprobs"] = json!(20);
        body[field] = json!(cap);
        body
    };
    for (path, body, field, name) in [
        ("/v1/generate", generate_body(), "max_output_tokens", "field"),
        ("/v1/chat/completions", chat_body(), "max_completion_tokens", "param"),
        ("/v1/responses", responses_body(), "max_output_tokens", "param"),
    ] {
        let rejected = post(&server, path, &with_cap(body.clone(), field, max_tokens + 1)).await;
        assert_eq!(
            (&rejected["error"]["code"], &rejected["error"][name]),
            (&json!("invalid_value"), &json!(field))
        );
        let accepted = server.post(path, &with_cap(body, field, max_tokens)).send().await.unwrap();
        assert_eq!(accepted.status(), 200, "{path}");
    }
    // Without a cap, the reply is as long as its log probabilities allow.
    let mut uncapped = chat_body();
    uncapped["top_logprobs"] = json!(20);
    post(&server, "/v1/chat/completions", &uncapped).await;
    assert_eq!(*caps.lock().unwrap(), [max_tokens; 4]);
}

#[tokio::test]
async fn penalties_reach_the_engine_from_every_path() {
    let jobs: Arc<Mutex<Vec<(Penalties, bool)>>> = Arc::default();
    let seen = Arc::clone(&jobs);
    let engine = ScriptedEngine::new(100, move |job, sink| {
        seen.lock().unwrap().push((job.sampling.penalties, job.stop_on_repetition));
        send_tokens(&job, sink);
    });
    let server = TestServer::start(Arc::new(engine)).await;
    let penalties = json!({
        "frequency_penalty": 0.5, "presence_penalty": -1, "repetition_penalty": 1.25, "dry_multiplier": 0.75,
        "dry_base": 2, "dry_allowed_length": 3, "stop_on_repetition": true,
    });
    for (path, mut body) in [
        ("/v1/generate", generate_body()),
        ("/v1/chat/completions", chat_body()),
        ("/v1/responses", responses_body()),
    ] {
        body.as_object_mut().unwrap().extend(penalties.as_object().unwrap().clone());
        let reply = post(&server, path, &body).await;
        if path == "/v1/responses" {
            assert_eq!(
                (&reply["frequency_penalty"], &reply["presence_penalty"]),
                (&json!(0.5), &json!(-1.0))
            );
        }
    }
    let dry = Dry { multiplier: 0.75, base: 2.0, allowed_length: 3 };
    let expected = Penalties { repetition: 1.25, frequency: 0.5, presence: -1.0, dry };
    assert_eq!(*jobs.lock().unwrap(), [(expected, true); 3]);
}

#[tokio::test]
async fn ended_loop_is_incomplete_on_every_path() {
    let engine = ScriptedEngine::new(100, |_, sink| {
        sink.text("who is who is who is");
        end(sink, StopReason::Repetition);
    });
    let server = TestServer::start(Arc::new(engine)).await;
    let body = json!({"stop_on_repetition": true});
    let whole: Value = server.generate(&body).send().await.unwrap().json().await.unwrap();
    assert_eq!(whole["stop_reason"], "repetition");
    let streamed = stream(&server, "/v1/generate", &generate_body()).await;
    assert_eq!(streamed.last().unwrap()["type"], "response.incomplete");
    let chat = post(&server, "/v1/chat/completions", &chat_body()).await;
    assert_eq!(chat["choices"][0]["finish_reason"], "length");
    let response = post(&server, "/v1/responses", &responses_body()).await;
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["incomplete_details"], json!({"reason": "max_output_tokens"}));
}
