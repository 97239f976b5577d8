//! Invalid requests: each gets a status, a code, a reason and the field, and nothing is billed.

use crate::server::{Firm, Reply, client, eventually, request};
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn invalid_request_gets_a_specific_error_and_bills_nothing() {
    let firm = Firm::new().with("CHANCERY_API__MAX_BODY_BYTES", "20000");
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    let good = request("Answer.", "What is a ledger?", 8);
    let without = |field: &str| {
        let mut body = good.clone();
        body.as_object_mut().unwrap().remove(field);
        body.to_string().into_bytes()
    };
    let with = |field: &str, value: serde_json::Value| {
        let mut body = good.clone();
        body[field] = value;
        body.to_string().into_bytes()
    };
    let twice =
        br#"{"model":"smollm2-135m","model":"x","instructions":"a","input":"b","max_output_tokens":1}"#;
    let cases: Vec<(Vec<u8>, u16, &str, Option<&str>)> = vec![
        (b"".into(), 400, "malformed_request", None),
        (b"{".into(), 400, "malformed_request", None),
        (b"[]".into(), 400, "malformed_request", None),
        (b"\"text\"".into(), 400, "malformed_request", None),
        (b"{} {}".into(), 400, "malformed_request", None),
        (b"{\"model\":\"\xff\"}".into(), 400, "malformed_request", None),
        (br#"{"model":"\ud800"}"#.into(), 400, "malformed_request", None),
        ("[".repeat(10_000).into(), 400, "malformed_request", None),
        (twice.into(), 400, "malformed_request", None),
        (without("model"), 400, "missing_field", Some("model")),
        (without("instructions"), 400, "missing_field", Some("instructions")),
        (without("input"), 400, "missing_field", Some("input")),
        (without("max_output_tokens"), 400, "missing_field", Some("max_output_tokens")),
        (with("model", json!("m".repeat(10_000))), 404, "unknown_model", Some("model")),
        (with("input", json!(null)), 400, "missing_field", Some("input")),
        (with("input", json!(5)), 400, "malformed_request", Some("input")),
        (with("max_output_tokens", json!("8")), 400, "malformed_request", Some("max_output_tokens")),
        (with("max_output_tokens", json!(0)), 400, "invalid_value", Some("max_output_tokens")),
        (
            with("max_output_tokens", json!(1_000_000_000_000_u64)),
            400,
            "invalid_value",
            Some("max_output_tokens"),
        ),
        (with("max_tokens", json!(8)), 400, "malformed_request", Some("max_tokens")),
        (with("temperature", json!(3)), 400, "invalid_value", Some("temperature")),
        (with("model", json!("gpt")), 404, "unknown_model", Some("model")),
        (with("input", json!("x ".repeat(20_000))), 413, "request_too_large", None),
    ];
    for path in ["/v1/generate", "/v1/tokens"] {
        for (body, status, code, field) in &cases {
            let shown = String::from_utf8_lossy(&body[..body.len().min(100)]).into_owned();
            let call = client().post(format!("{}{path}", server.api)).bearer_auth(&key);
            let call = call.header("content-type", "application/json").body(body.clone());
            let reply = Reply::read(call.send().await.unwrap()).await;
            let error = &reply.body["error"];
            assert_eq!((reply.status, reply.code()), (*status, *code), "{path} {shown}: {error}");
            assert_eq!(error["field"].as_str(), *field, "{path} {shown}: {error}");
            assert!((1..500).contains(&error["reason"].as_str().unwrap().len()), "{error}");
            assert_eq!(error["request_id"], reply.header("x-request-id"));
        }
    }
    assert_eq!(firm.json(&["usage", "--json"])["total"]["requests"], 0);
}

#[tokio::test]
async fn wrong_path_method_and_media_type_have_their_own_error_codes() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    let body = request("", "x", 1).to_string();
    let post =
        |path: &str| client().post(format!("{}{path}", server.api)).bearer_auth(&key).body(body.clone());

    let lost = Reply::read(post("/v1/generates").send().await.unwrap()).await;
    assert_eq!((lost.status, lost.code()), (404, "not_found"));
    assert_eq!(lost.header("x-ratelimit-limit-requests"), "1000000", "every reply to a valid key tells");
    assert!(lost.body["error"]["reason"].as_str().unwrap().contains("did you mean `/v1/generate`?"));

    let wrong = server.get("/v1/generate", &key).await;
    assert_eq!((wrong.status, wrong.code(), wrong.header("allow")), (405, "method_not_allowed", "POST"));

    for media_type in
        ["", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1"]
    {
        let call = post("/v1/generate").header("content-type", media_type);
        let reply = Reply::read(call.send().await.unwrap()).await;
        assert_eq!((reply.status, reply.code()), (415, "unsupported_media_type"), "{media_type:?}");
    }
    let packed =
        post("/v1/generate").header("content-type", "application/json").header("content-encoding", "gzip");
    assert_eq!(Reply::read(packed.send().await.unwrap()).await.status, 415);
    let fine = post("/v1/generate").header("content-type", "Application/JSON; charset=UTF-8");
    assert_eq!(Reply::read(fine.send().await.unwrap()).await.status, 200);
}

#[tokio::test]
async fn logs_have_request_ids_and_no_keys_prompts_or_replies() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    let reply =
        server.generate(&key, &request("Answer in one short sentence.", "What is a ledger?", 12)).await;
    assert!(reply.text().contains("ledger"));
    let _ = server.generate("ck_notakey", &request("Answer.", "What is a ledger?", 12)).await;
    let _ = server.generate(&key, &json!({"model": "ledger-model", "secret-ledger": 1})).await;
    eventually("three lines are logged", Duration::from_secs(5), async || {
        server.logged_requests().len() == 3
    })
    .await;
    let log = server.log();
    assert!(log.contains(reply.header("x-request-id")), "{log}");
    for secret in ["ledger", "Answer", &key[12..], "ck_notakey"] {
        assert!(!log.contains(secret), "{secret:?} is in the log: {log}");
    }
}
