//! Fuzz targets of the request bodies. An accepted body is still accepted in its canonical form, which idempotency compares; a
//! rejected one gets a 400 that names the field.

use crate::error::ApiError;
use crate::generation_request::GenerationRequest;
use crate::json::Json;
use crate::openai::chat_request::ChatRequest;
use crate::openai::responses_request::{InputTokensRequest, ResponsesRequest};
use crate::request::{self, RequestBody};
use chancery_test_support::Fuzz;
use serde_json::Value;

/// Longer than the longest list of known fields.
const MAX_REASON_BYTES: usize = 2_000;
const FIELD_CODES: [&str; 3] = ["malformed_request", "missing_field", "invalid_value"];

const TOKENS: &[&str] = &[
    "\"model\":",
    "\"instructions\":",
    "\"input\":",
    "\"max_output_tokens\":",
    "\"stream\":",
    "\"receipt\":",
    "\"temperature\":",
    "\"top_k\":",
    "\"top_p\":",
    "\"min_p\":",
    "\"seed\":",
    "\"stop\":",
    "\"frequency_penalty\":",
    "\"presence_penalty\":",
    "\"repetition_penalty\":",
    "\"dry_multiplier\":",
    "\"dry_base\":",
    "\"dry_allowed_length\":",
    "\"stop_on_repetition\":",
    "\"logprobs\":",
    "\"top_logprobs\":",
    "\"message.output_text.logprobs\"",
    "\"messages\":",
    "\"role\":",
    "\"content\":",
    "\"type\":",
    "\"text\":",
    "\"max_tokens\":",
    "\"max_completion_tokens\":",
    "\"stream_options\":",
    "\"metadata\":",
    "\"tools\":",
    "\"include\":",
    "\"reasoning\":",
    "\"item_reference\"",
    "\"input_text\"",
    "\"system\"",
    "\"assistant\"",
    "[[",
    "]]",
    "{\"a\":",
    "true",
    "false",
    "1.5",
    "-0.0",
    "5e-324",
    "9007199254740993",
];

fn run<Body: RequestBody>(name: &str, seeds: &[&str]) {
    let mut seeds: Vec<Vec<u8>> = seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
    seeds.push(Body::example().to_string().into_bytes());
    let crate_folder = env!("CARGO_MANIFEST_DIR");
    Fuzz { name, crate_folder, seeds, tokens: TOKENS, iterations: 1_000 }.run(check::<Body>);
}

fn check<Body: RequestBody>(bytes: &[u8]) {
    let json = Json::parse(bytes);
    match request::parse::<Body>(bytes) {
        Ok(_) => {
            let canonical = json.unwrap().canonical();
            let accepted = request::parse::<Body>(&canonical).map(drop);
            assert!(accepted.is_ok(), "{accepted:?} for {}", canonical.escape_ascii());
        }
        Err(error) => {
            check_rejection(&error);
            let is_object = matches!(json, Ok(Json::Object(_)));
            assert_eq!(
                error.field.is_some(),
                is_object,
                "only a body without fields has an error without one: {error:?}"
            );
        }
    }
}

fn check_rejection(error: &ApiError) {
    assert_eq!(error.status.as_u16(), 400, "{error:?}");
    assert!(FIELD_CODES.contains(&error.code), "{error:?}");
    assert!(!error.reason.is_empty() && error.reason.len() <= MAX_REASON_BYTES, "{error:?}");
    let body: Value = serde_json::from_slice(&error.body("req_1")).unwrap();
    assert_eq!(body["error"]["code"], error.code);
    assert_eq!(body["error"]["field"].as_str(), error.field.as_deref());
}

#[test]
fn generate_bodies() {
    run::<GenerationRequest>(
        "generate_bodies",
        &[
            r#"{"model":"m","instructions":"i","input":"x","max_output_tokens":8,"stream":true,"temperature":0.5,"top_k":40,
            "top_p":0.9,"min_p":0.05,"seed":7,"stop":["a","b"]}"#,
            r#"{"model":"m","instructions":"i","input":"x","max_output_tokens":8,"frequency_penalty":0.5,"presence_penalty":-1,
            "repetition_penalty":1.1,"dry_multiplier":0.8,"dry_base":1.75,"dry_allowed_length":3,"stop_on_repetition":true,
            "logprobs":true,"top_logprobs":5}"#,
        ],
    );
}

#[test]
fn chat_completion_bodies() {
    run::<ChatRequest>(
        "chat_completion_bodies",
        &[
            r#"{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"u"}]},
            {"role":"assistant","content":"a"},{"role":"user","content":"u"}],"max_completion_tokens":8,"stream":true,
            "stream_options":{"include_usage":true},"temperature":1,"seed":-7,"stop":"x","metadata":{"a":"b"},"n":1,"tools":[]}"#,
            r#"{"model":"m","messages":[{"role":"user","content":"u"}],"frequency_penalty":0.5,"presence_penalty":-1,
            "dry_multiplier":0.8,"stop_on_repetition":true,"logprobs":true,"top_logprobs":5}"#,
        ],
    );
}

#[test]
fn responses_bodies() {
    run::<ResponsesRequest>(
        "responses_bodies",
        &[
            r#"{"model":"m","instructions":"i","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"u"}]},
            {"type":"reasoning","id":"r","summary":[]},{"role":"assistant","content":"a"},{"role":"user","content":"u"}],
            "max_output_tokens":16,"stream":true,"store":false,"temperature":1,"top_p":1,"metadata":{"a":"b"},"tools":[]}"#,
            r#"{"model":"m","input":[{"role":"assistant","content":[{"type":"output_text","text":"a","logprobs":[{"token":"a"}]}]},
            {"role":"user","content":"u"}],"include":["message.output_text.logprobs"],"top_logprobs":3,
            "repetition_penalty":1.1,"frequency_penalty":0.5}"#,
        ],
    );
}

#[test]
fn input_tokens_bodies() {
    run::<InputTokensRequest>(
        "input_tokens_bodies",
        &[r#"{"model":"m","input":[{"role":"user","content":"u"},{"role":"assistant","content":"a"}]}"#],
    );
}
