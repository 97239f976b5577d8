//! `POST /v1/chat/completions`.

use crate::event_stream::EventStream;
use crate::server::{Firm, MODEL, Reply, Server, client, request};
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

fn firm() -> (Firm, String, Server) {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    (firm, key, server)
}

/// At temperature 0, so that replies can be compared.
fn request_body(more_fields: &Value) -> Value {
    let mut body = json!({"model": MODEL, "temperature": 0, "messages": [
        {"role": "system", "content": "Answer in one short sentence."},
        {"role": "user", "content": "What is a ledger?"},
    ]});
    body.as_object_mut().unwrap().extend(more_fields.as_object().unwrap().clone());
    body
}

fn text(reply: &Reply) -> &str {
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.body["choices"][0]["message"]["content"].as_str().unwrap()
}

/// On one server, because its start takes longer than a step.
#[tokio::test]
async fn chat_completions_equal_generate_and_follow_openai() {
    let (firm, key, server) = firm();
    chat_error_names_the_parameter_as_sent(&firm, &key, &server).await;
    chat_completion_equals_generate_in_text_counts_and_bill(&firm, &key, &server).await;
    stop_string_and_natural_end_both_finish_with_stop(&key, &server).await;
    seed_repeats_a_sample_and_default_temperature_samples(&key, &server).await;
    chunks_have_the_same_text_and_end_with_optional_usage_and_done(&key, &server).await;
    continuous_usage_reports_prompt_tokens_in_the_first_chunk(&key, &server).await;
}

async fn chat_completion_equals_generate_in_text_counts_and_bill(firm: &Firm, key: &str, server: &Server) {
    let reply = server.post(PATH, key, &request_body(&json!({"max_tokens": 16}))).await;
    let generated =
        server.generate(key, &request("Answer in one short sentence.", "What is a ledger?", 16)).await;
    assert_eq!(text(&reply), generated.text());
    assert_eq!(reply.body["choices"][0]["finish_reason"], "length");
    assert_eq!(
        reply.body["usage"],
        json!({"prompt_tokens": 11, "completion_tokens": 16, "total_tokens": 27,
            "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0}})
    );
    let id = reply.body["id"].as_str().unwrap();
    assert_eq!(id.replace("chatcmpl-", "req_"), reply.header("x-request-id"));
    assert_eq!((&reply.body["object"], &reply.body["model"]), (&json!("chat.completion"), &json!(MODEL)));
    assert!(!reply.header("x-ratelimit-remaining-tokens").is_empty());
    assert_eq!(firm.json(&["usage", "--json"])["total"]["input_tokens"], 22);
}

async fn stop_string_and_natural_end_both_finish_with_stop(key: &str, server: &Server) {
    let stopped = server.post(PATH, key, &request_body(&json!({"stop": ["record", "never said"]}))).await;
    assert_eq!(
        (text(&stopped), &stopped.body["choices"][0]["finish_reason"]),
        ("A ledger is a ", &json!("stop"))
    );
    let messages = json!([{"role": "user", "content": "Say hello."}]);
    let ended = server.post(PATH, key, &request_body(&json!({"messages": messages}))).await;
    assert_eq!(ended.body["choices"][0]["finish_reason"], "stop", "{}", ended.body);
}

async fn seed_repeats_a_sample_and_default_temperature_samples(key: &str, server: &Server) {
    let sampled = async |seed: i64| {
        let body = json!({"model": MODEL, "seed": seed, "max_tokens": 24, "temperature": null,
            "messages": [{"role": "user", "content": "Write one sentence about the sea."}]});
        text(&server.post(PATH, key, &body).await).to_owned()
    };
    let first = sampled(-7).await;
    assert_eq!(first, sampled(-7).await);
    let mut others = Vec::new();
    for seed in 1..5 {
        others.push(sampled(seed).await);
    }
    assert!(others.iter().any(|other| *other != first), "four other seeds drew the same text");
}

async fn chunks_have_the_same_text_and_end_with_optional_usage_and_done(key: &str, server: &Server) {
    let whole = server.post(PATH, key, &request_body(&json!({"max_tokens": 12}))).await;
    for with_usage in [true, false] {
        let mut body = request_body(&json!({"max_tokens": 12, "stream": true}));
        if with_usage {
            body["stream_options"] = json!({"include_usage": true});
        }
        let call = client().post(format!("{}{PATH}", server.api)).bearer_auth(key).json(&body);
        let mut stream = EventStream::send(call).await;
        let request_id = stream.header("x-request-id").to_owned();
        let mut chunks: Vec<Value> = stream.rest().await.into_iter().map(|event| event.data).collect();
        assert_eq!(chunks.pop(), Some(json!("[DONE]")));
        assert!(chunks.iter().all(|chunk| {
            chunk["object"] == "chat.completion.chunk"
                && chunk["id"].as_str().unwrap().replace("chatcmpl-", "req_") == request_id
                && chunk.get("usage").is_some() == with_usage
        }));
        if with_usage {
            let last = chunks.pop().unwrap();
            assert_eq!((&last["choices"], &last["usage"]["total_tokens"]), (&json!([]), &json!(23)));
        }
        assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
        let content = |chunk: &Value| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned);
        let streamed_text: String = chunks.iter().filter_map(content).collect();
        assert_eq!(streamed_text, text(&whole));
        let last = &chunks.last().unwrap()["choices"][0];
        assert_eq!((&last["delta"], &last["finish_reason"]), (&json!({}), &json!("length")));
    }
}

async fn continuous_usage_reports_prompt_tokens_in_the_first_chunk(key: &str, server: &Server) {
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let body = request_body(&json!({"max_tokens": 12, "stream": true, "stream_options": options}));
    let call = client().post(format!("{}{PATH}", server.api)).bearer_auth(key).json(&body);
    let chunks: Vec<Value> =
        EventStream::send(call).await.rest().await.into_iter().map(|event| event.data).collect();
    let counts = |chunk: &Value| {
        (chunk["usage"]["prompt_tokens"].clone(), chunk["usage"]["completion_tokens"].clone())
    };
    assert_eq!(counts(&chunks[0]), (json!(11), json!(0)));
    assert_eq!(counts(&chunks[chunks.len() - 2]), (json!(11), json!(12)));
    assert!(chunks[1..chunks.len() - 2].iter().all(|chunk| chunk["usage"].is_null()));
}

async fn chat_error_names_the_parameter_as_sent(firm: &Firm, key: &str, server: &Server) {
    let long = json!([{"role": "user", "content": "word ".repeat(9_000)}]);
    for (fields, code, param) in [
        (json!({"max_tokens": 1_000_000}), "invalid_value", "max_tokens"),
        (json!({"max_completion_tokens": 1_000_000}), "invalid_value", "max_completion_tokens"),
        (json!({"messages": long}), "context_length_exceeded", "messages"),
        (json!({"n": 2}), "invalid_value", "n"),
        (json!({"tools": [{"type": "function"}]}), "invalid_value", "tools"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "invalid_value", "messages[0].role"),
    ] {
        let reply = server.post(PATH, key, &request_body(&fields)).await;
        assert_eq!((reply.status, reply.code()), (400, code), "{}", reply.body);
        assert_eq!(reply.body["error"]["param"], param, "{}", reply.body);
        assert!(
            !reply.body["error"]["message"].as_str().unwrap().contains("max_output_tokens"),
            "{}",
            reply.body
        );
    }
    assert_eq!(firm.json(&["usage", "--json"])["total"]["requests"], 0);
}
