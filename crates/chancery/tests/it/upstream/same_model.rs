//! A node in front of another with the same weights gives the same texts, counts and costs as the embedded engine.

use super::{UpstreamModel, endpoints, firm_with, tokenizer_file};
use crate::faults::ledger;
use crate::server::{Firm, MODEL, model_file, request};
use serde_json::json;

/// Instructions, input, output cap.
const PROMPTS: [(&str, &str, u64); 8] = [
    ("You are a helpful assistant.", "Say hello.", 24),
    ("", "What is the capital of France?", 48),
    ("Answer in one word.", "Is the sky blue? Über ça, naïve — 1234567 €.", 16),
    ("Write a letter.", "Dear Ruth,\n\n\tthe invoice 2026-114 of £1,204.50 is due.\r\n   Kind regards", 64),
    ("Du antwortest auf Deutsch.", "Was ist ein Vertrag? 日本語も少し。", 40),
    ("Repeat what you are told.", "<|im_start|> is not a marker <|im_end|>", 12),
    ("Instructions only.", "", 8),
    ("List three fruits.", "fruits", 1),
];

#[tokio::test]
async fn upstream_text_counts_and_bills_equal_the_embedded_engine() {
    let back = Firm::new();
    let back_key = back.account_with_key("Front");
    let embedded = back.start();
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = tokenizer_file::write(&model_file(), folder.path());
    let address = format!("{}/v1", embedded.api);
    for tokenizer in [Some(tokenizer.as_path()), None] {
        let front = firm_with(&UpstreamModel {
            endpoints: &[&address],
            api_key: Some(&back_key),
            tokenizer,
            more: "",
        });
        let key = front.account_with_key("Caller");
        let server = front.start();
        let mut tokens = (0, 0);
        for (instructions, input, cap) in PROMPTS {
            let body = request(instructions, input, cap);
            let (own, through) =
                (embedded.generate(&back_key, &body).await, server.generate(&key, &body).await);
            let case = format!("{input:?}, tokenizer {}: {}", tokenizer.is_some(), through.body);
            assert_eq!(own.text(), through.text(), "{case}");
            assert_eq!(own.tokens(), through.tokens(), "{case}");
            assert_eq!(own.body["stop_reason"], through.body["stop_reason"], "{case}");
            if tokenizer.is_some() {
                let count = server.post("/v1/tokens", &key, &body).await;
                assert_eq!(count.body["input_tokens"], own.body["usage"]["input_tokens"], "{case}");
            }
            tokens = (tokens.0 + own.tokens().0, tokens.1 + own.tokens().1);
        }
        let usage = server.get("/v1/usage", &key).await;
        let total = &usage.body["total"];
        assert_eq!(total["requests"], PROMPTS.len());
        assert_eq!((&total["input_tokens"], &total["output_tokens"]), (&json!(tokens.0), &json!(tokens.1)));
        assert_eq!(total["cost_nanos"], tokens.0 * 100 + tokens.1 * 400);
        ledger::assert_verified(&front, &[]);
        assert_eq!(endpoints(&server).await, [(address.clone(), "up".to_owned())]);
    }
}

#[tokio::test]
async fn upstream_penalties_and_logprobs_equal_the_embedded_engine() {
    let back = Firm::new();
    let back_key = back.account_with_key("Front");
    let embedded = back.start();
    let address = format!("{}/v1", embedded.api);
    let model = UpstreamModel { endpoints: &[&address], api_key: Some(&back_key), tokenizer: None, more: "" };
    let front = firm_with(&model);
    let key = front.account_with_key("Caller");
    let server = front.start();
    let plain = request("Translate to French.", "", 200);
    let unpenalized = embedded.generate(&back_key, &plain).await;
    for (fields, changes_the_text) in [
        (json!({"repetition_penalty": 1.3}), true),
        (json!({"frequency_penalty": 1.0, "presence_penalty": 0.5}), true),
        (json!({"dry_multiplier": 0.8, "dry_allowed_length": 3}), true),
        (json!({"logprobs": true, "top_logprobs": 2}), false),
    ] {
        let mut body = plain.clone();
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let (own, through) = (embedded.generate(&back_key, &body).await, server.generate(&key, &body).await);
        let case = format!("{fields}: {}", through.body);
        assert_eq!(own.text(), through.text(), "{case}");
        assert_eq!(own.tokens(), through.tokens(), "{case}");
        assert_eq!(own.body["logprobs"], through.body["logprobs"], "{case}");
        assert_eq!(own.text() != unpenalized.text(), changes_the_text, "{case}");
    }
}

#[tokio::test]
async fn context_length_comes_from_the_upstream() {
    let back = Firm::new().with("CHANCERY_MODELS__0__CONTEXT_TOKENS", "1024");
    let back_key = back.account_with_key("Front");
    let embedded = back.start();
    let address = format!("{}/v1", embedded.api);
    let model = UpstreamModel { endpoints: &[&address], api_key: Some(&back_key), tokenizer: None, more: "" };
    let front = firm_with(&model);
    let key = front.account_with_key("Caller");
    let server = front.start();
    let listed = server.get(&format!("/v1/models/{MODEL}"), &key).await;
    assert_eq!(listed.body["context_tokens"], 1024);
    let above = server.generate(&key, &request("", "x", 1025)).await;
    assert_eq!((above.status, above.code()), (400, "invalid_value"));
    let long = server.generate(&key, &request("", &"word ".repeat(2_000), 8)).await;
    assert_eq!((long.status, long.code()), (400, "input_too_long"), "{}", long.body);
    let usage = server.get("/v1/usage", &key).await;
    assert_eq!(usage.body["total"]["requests"], 0);
}

#[tokio::test]
async fn startup_fails_with_a_hint_if_the_context_length_is_unknown() {
    let model =
        UpstreamModel { endpoints: &["http://127.0.0.1:9/v1"], api_key: None, tokenizer: None, more: "" };
    let text = firm_with(&model).fail(&["serve"]);
    assert!(text.contains("set `context_tokens`") && text.contains("127.0.0.1:9"), "{text}");
    let model = UpstreamModel { tokenizer: Some("/nowhere/tokenizer.json".as_ref()), ..model };
    let text = firm_with(&model).fail(&["config", "check"]);
    assert!(text.contains("/nowhere/tokenizer.json") && text.contains("tokenizer"), "{text}");
}

#[test]
fn total_timeout_is_bounded_and_hedging_defaults_to_off() {
    let model =
        |more| UpstreamModel { endpoints: &["http://127.0.0.1:9/v1"], api_key: None, tokenizer: None, more };
    let text = firm_with(&model("total_timeout_s = 600")).fail(&["config", "check"]);
    assert!(text.contains("total_timeout_s") && text.contains("590"), "{text}");
    let shown = |more| firm_with(&model(more)).json(&["config", "show", "--json"]);
    let value = |settings: &serde_json::Value, key: &str| {
        let setting = settings.as_array().unwrap().iter().find(|setting| setting["key"] == key).cloned();
        setting.map(|setting| setting["value"].clone())
    };
    assert_eq!(value(&shown(""), "models.0.hedge_after_s"), None);
    assert_eq!(value(&shown("hedge_after_s = 5"), "models.0.hedge_after_s"), Some(json!("5")));
    assert_eq!(value(&shown(""), "models.0.total_timeout_s"), Some(json!("590")));
}
