//! The limits of a key, as its callers see them.

use crate::test_server::{MODEL, TestServer};
use chancery_domain::{ApiKey, Clock, KeyLimits, Nanos, OsRandomness, SystemClock, UnixMillis};
use chancery_engine::{Finished, GenerationSink, Job, ScriptedEngine, StopReason};
use chancery_store::KeyRotation;
use reqwest::Response;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

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

async fn server(limits: KeyLimits) -> TestServer {
    let server = TestServer::start_with(Arc::new(ScriptedEngine::new(4_096, reply)), 100).await;
    server.with_limited_key(limits).await
}

async fn json_of(response: Response) -> Value {
    response.json().await.unwrap()
}

/// Status, code, scope and limit.
async fn rejection(response: Response) -> (u16, String, Value, Value) {
    let status = response.status().as_u16();
    let body = json_of(response).await;
    let error = &body["error"];
    (status, error["code"].as_str().unwrap().to_owned(), error["scope"].clone(), error["limit"].clone())
}

fn rejected(status: u16, code: &str, scope: &str, limit: &str) -> (u16, String, Value, Value) {
    (status, code.to_owned(), json!(scope), json!(limit))
}

async fn generate(server: &TestServer, fields: &Value) -> Response {
    server.generate(fields).send().await.unwrap()
}

#[tokio::test]
async fn key_over_its_requests_per_minute_is_rejected_and_other_keys_are_not() {
    let server = server(KeyLimits { requests_per_min: Some(1), ..KeyLimits::default() }).await;
    assert_eq!(generate(&server, &json!({})).await.status(), 200);
    let response = generate(&server, &json!({})).await;
    let wait: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(response.headers()["x-ratelimit-limit-requests"], "100", "the headers are about the account");
    assert_eq!(rejection(response).await, rejected(429, "rate_limited", "key", "requests_per_minute"));
    let server = server.with_limited_key(KeyLimits::default()).await;
    assert_eq!(generate(&server, &json!({})).await.status(), 200);
}

#[tokio::test]
async fn rejections_name_the_scope_and_the_limit() {
    let server = server(KeyLimits { tokens_per_min: Some(40), ..KeyLimits::default() }).await;
    let never = generate(&server, &json!({"max_output_tokens": 41})).await;
    assert_eq!(rejection(never).await, rejected(400, "invalid_value", "key", "tokens_per_minute"));
    assert_eq!(generate(&server, &json!({"max_output_tokens": 20})).await.status(), 200);
    let later = generate(&server, &json!({"max_output_tokens": 37})).await;
    assert_eq!(rejection(later).await, rejected(429, "rate_limited", "key", "tokens_per_minute"));

    let server =
        server.with_limited_key(KeyLimits { spend_per_month: Some(Nanos(1)), ..KeyLimits::default() }).await;
    let capped = generate(&server, &json!({})).await;
    assert_eq!(rejection(capped).await, rejected(402, "spending_cap_reached", "key", "spend_per_month"));

    let server = TestServer::start_with(Arc::new(ScriptedEngine::new(4_096, reply)), 1).await;
    assert_eq!(generate(&server, &json!({})).await.status(), 200);
    let response = generate(&server, &json!({})).await;
    assert_eq!(rejection(response).await, rejected(429, "rate_limited", "account", "requests_per_minute"));
    assert_eq!(server.get("/v1/models").send().await.unwrap().status(), 200);
    let read = server.get("/v1/models").send().await.unwrap();
    assert_eq!(rejection(read).await, rejected(429, "rate_limited", "account", "requests_per_minute"));
}

#[tokio::test]
async fn rejections_of_openai_paths_name_the_scope_and_the_limit() {
    let chat = json!({"model": MODEL, "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4});
    let responses = json!({"model": MODEL, "input": "Hello.", "max_output_tokens": 16});
    for (path, body) in [("/v1/chat/completions", chat), ("/v1/responses", responses)] {
        let server = server(KeyLimits { requests_per_min: Some(1), ..KeyLimits::default() }).await;
        assert_eq!(server.post(path, &body).send().await.unwrap().status(), 200, "{path}");
        let response = server.post(path, &body).send().await.unwrap();
        let expected = rejected(429, "rate_limit_exceeded", "key", "requests_per_minute");
        assert_eq!(rejection(response).await, expected, "{path}");

        let server = server
            .with_limited_key(KeyLimits { spend_per_month: Some(Nanos(1)), ..KeyLimits::default() })
            .await;
        let response = server.post(path, &body).send().await.unwrap();
        let expected = rejected(402, "spending_cap_reached", "key", "spend_per_month");
        assert_eq!(rejection(response).await, expected, "{path}");
    }
}

#[tokio::test]
async fn reads_of_a_key_with_a_request_limit_are_limited_too() {
    let server = server(KeyLimits { requests_per_min: Some(1), ..KeyLimits::default() }).await;
    assert_eq!(server.get("/v1/key").send().await.unwrap().status(), 200);
    let read = server.get("/v1/key").send().await.unwrap();
    assert_eq!(rejection(read).await, rejected(429, "rate_limited", "key", "requests_per_minute"));
    assert_eq!(generate(&server, &json!({})).await.status(), 200);
}

#[tokio::test]
async fn model_that_a_key_may_not_use_is_403_and_not_listed() {
    let server = server(KeyLimits { models: Some("other".parse().unwrap()), ..KeyLimits::default() }).await;
    let counted = json!({"model": MODEL, "instructions": "", "input": "Hello.", "max_output_tokens": 4});
    for request in
        [server.generate(&json!({})), server.post("/v1/tokens", &counted), server.get("/v1/models/m")]
    {
        let (status, code, scope, limit) = rejection(request.send().await.unwrap()).await;
        assert_eq!((status, code.as_str()), (403, "model_not_allowed"));
        assert_eq!((scope, limit), (Value::Null, Value::Null));
    }
    let chat = json!({"model": MODEL, "messages": [{"role": "user", "content": "Hello."}]});
    let response = server.post("/v1/chat/completions", &chat).send().await.unwrap();
    assert_eq!(response.status(), 403);
    let error = json_of(response).await;
    assert_eq!(
        (&error["error"]["code"], &error["error"]["type"]),
        (&json!("model_not_allowed"), &json!("permission_error"))
    );
    let unknown = generate(&server, &json!({"model": "none"})).await;
    assert_eq!(rejection(unknown).await.1, "unknown_model");
    let models = json_of(server.get("/v1/models").send().await.unwrap()).await;
    assert_eq!(models["data"], json!([]));

    let server = server
        .with_limited_key(KeyLimits { models: Some("m".parse().unwrap()), ..KeyLimits::default() })
        .await;
    assert_eq!(generate(&server, &json!({})).await.status(), 200);
    let models = json_of(server.get("/v1/models").send().await.unwrap()).await;
    assert_eq!(models["data"][0]["id"], "m");
}

#[tokio::test]
async fn stored_reply_of_another_key_is_not_replayed_for_a_model_that_is_not_allowed() {
    let server = server(KeyLimits::default()).await;
    let send = async |server: &TestServer| {
        let request = server.generate(&json!({})).header("Idempotency-Key", "order-17");
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(send(&server).await, 200);
    let server = server
        .with_limited_key(KeyLimits { models: Some("other".parse().unwrap()), ..KeyLimits::default() })
        .await;
    assert_eq!(send(&server).await, 403);
}

#[tokio::test]
async fn expired_key_is_invalid() {
    let now = SystemClock.now();
    let expires_at = Some(UnixMillis(now.0 - 1));
    let server = server(KeyLimits { expires_at, ..KeyLimits::default() }).await;
    let response = generate(&server, &json!({})).await;
    assert_eq!(rejection(response).await.1, "invalid_api_key");
    let expires_at = Some(now.after(Duration::from_secs(3_600)));
    let server = server.with_limited_key(KeyLimits { expires_at, ..KeyLimits::default() }).await;
    assert_eq!(generate(&server, &json!({})).await.status(), 200);
}

#[tokio::test]
async fn rotated_key_has_two_secrets_with_one_limit() {
    let server = server(KeyLimits { requests_per_min: Some(2), ..KeyLimits::default() }).await;
    let old = ApiKey::parse(server.key()).unwrap();
    let new = ApiKey::with_new_secret(&old.prefix(), &OsRandomness);
    let overlap_ends_at = SystemClock.now().after(Duration::from_secs(3_600));
    let rotation = KeyRotation {
        key: old.prefix(),
        replaces: old.hash(),
        hash: new.hash(),
        overlap_ends_at,
        ends_running_overlap: false,
    };
    server.store().rotate_key(rotation).await.unwrap();
    assert_eq!(generate(&server, &json!({})).await.status(), 200);
    let server = server.with_key(new.reveal().to_owned());
    assert_eq!(generate(&server, &json!({})).await.status(), 200);
    assert_eq!(generate(&server, &json!({})).await.status(), 429, "the limit is the key's, not the secret's");
}

#[tokio::test]
async fn key_endpoint_reports_limits_and_what_is_left() {
    let limits = KeyLimits {
        requests_per_min: Some(5),
        spend_per_month: Some(Nanos(1_000_000_000)),
        models: Some("other,m".parse().unwrap()),
        expires_at: Some(UnixMillis(4_102_444_800_000)),
        ..KeyLimits::default()
    };
    let server = server(limits).await;
    let prefix = ApiKey::parse(server.key()).unwrap().prefix().to_string();
    let before = json_of(server.get("/v1/key").send().await.unwrap()).await;
    assert_eq!(
        before,
        json!({
            "prefix": prefix,
            "label": "backend",
            "account": "Hale & Ward",
            "expires_at": "2100-01-01T00:00:00.000Z",
            "last_used_at": null,
            "models": ["m", "other"],
            "limits": {
                "key": {"requests_per_minute": 5, "tokens_per_minute": null, "spend_per_month": "1.00"},
                "account": {"requests_per_minute": 100, "tokens_per_minute": 600_000, "spend_per_month": null},
            },
            "remaining": {
                "key": {"requests_per_minute": 5, "tokens_per_minute": null, "spend_per_month": "1.00"},
                "account": {"requests_per_minute": 100, "tokens_per_minute": 600_000, "spend_per_month": null},
            },
        })
    );
    assert_eq!(generate(&server, &json!({})).await.status(), 200);
    let after = json_of(server.get("/v1/key").send().await.unwrap()).await;
    assert_eq!(after["limits"], before["limits"]);
    assert_eq!(after["remaining"]["key"]["requests_per_minute"], 4);
    assert_eq!(after["remaining"]["account"]["requests_per_minute"], 99);
    assert!(after["remaining"]["account"]["tokens_per_minute"].as_u64().unwrap() < 600_000);
    let left: f64 = after["remaining"]["key"]["spend_per_month"].as_str().unwrap().parse().unwrap();
    assert!(left < 1.0, "{left}");
    assert!(after["last_used_at"].is_string());
}
