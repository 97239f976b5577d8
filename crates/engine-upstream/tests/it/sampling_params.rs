//! Penalties, DRY and log probabilities in requests: each server gets the names it knows, and what a server does not know
//! is rejected, never ignored.

use crate::fixtures::{collect_reply, engine, engine_with, generate, job, settings, settings_for};
use chancery_engine::{Dry, Engine, EngineError, Finished, Job, Penalties, Sampling};
use chancery_engine_upstream::{Servers, UpstreamEngine};
use chancery_test_support::faulty_chat_server::{
    FaultyServer, OtherRoutes, Step, reply, text_with_logprobs, well_ended,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const REPETITION: Penalties = Penalties { repetition: 1.25, ..Penalties::NONE };
const DRY: Penalties =
    Penalties { dry: Dry { multiplier: 0.5, base: 1.75, allowed_length: 3 }, ..Penalties::NONE };
/// OpenAI's, which every server knows.
const OPENAI: Penalties = Penalties { frequency: 0.5, presence: -1.5, ..Penalties::NONE };

async fn run(engine: &UpstreamEngine, penalties: Penalties) -> Result<(String, Finished), EngineError> {
    let sampling = Sampling { penalties, ..Sampling::GREEDY };
    collect_reply(engine.start(Job { sampling, ..job(engine, "x", 16) }).unwrap()).await
}

async fn server(routes: OtherRoutes) -> FaultyServer {
    FaultyServer::start_with(routes, |_| reply(&["fine"], 1)).await
}

/// The fields of the last request that one without penalties does not have.
fn extra_fields(server: &FaultyServer) -> Value {
    let mut body: Value = serde_json::from_str(server.jobs().last().unwrap()).unwrap();
    let body = body.as_object_mut().unwrap();
    for name in ["model", "messages", "max_tokens", "temperature", "stream", "stream_options", "cache_salt"] {
        body.remove(name).unwrap();
    }
    Value::Object(std::mem::take(body))
}

fn rejection_of(outcome: Result<(String, Finished), EngineError>) -> String {
    match outcome.unwrap_err() {
        EngineError::InputRejected { reason: Some(reason) } => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn request_without_penalties_is_byte_for_byte_as_before() {
    for routes in [OtherRoutes::default(), OtherRoutes::llama_server(), OtherRoutes::vllm()] {
        let server = server(routes).await;
        let engine = engine(&[&server]).await;
        generate(&engine, "x").await.unwrap();
        // The detector runs in this process, and DRY does nothing without a multiplier.
        let penalties = Penalties { dry: Dry { base: 3.0, ..Dry::NONE }, ..Penalties::NONE };
        let sampling = Sampling { penalties, ..Sampling::GREEDY };
        let watched = Job { sampling, stop_on_repetition: true, ..job(&engine, "x", 16) };
        collect_reply(engine.start(watched).unwrap()).await.unwrap();
        for body in server.jobs() {
            let parsed: Value = serde_json::from_str(&body).unwrap();
            let salt = parsed["cache_salt"].as_str().unwrap();
            let messages = r#"[{"role":"system","content":""},{"role":"user","content":"x"}]"#;
            let options = r#"{"include_usage":true,"continuous_usage_stats":true}"#;
            let expected = format!(
                r#"{{"model":"their-m","messages":{messages},"max_tokens":16,"temperature":0.0,"stream":true,"stream_options":{options},"cache_salt":"{salt}"}}"#
            );
            assert_eq!(body, expected);
        }
    }
}

#[tokio::test]
async fn penalties_are_sent_under_the_names_that_each_server_knows() {
    let repeat = json!({"repeat_penalty": 1.25, "repeat_last_n": -1});
    let repetition = json!({"repetition_penalty": 1.25});
    let dry = json!({"dry_multiplier": 0.5, "dry_base": 1.75, "dry_allowed_length": 3});
    let llama_dry =
        json!({"dry_multiplier": 0.5, "dry_base": 1.75, "dry_allowed_length": 3, "dry_penalty_last_n": -1});
    let openai = json!({"frequency_penalty": 0.5, "presence_penalty": -1.5});
    for (routes, penalties, expected) in [
        (OtherRoutes::llama_server(), REPETITION, &repeat),
        (OtherRoutes::llama_server(), DRY, &llama_dry),
        (OtherRoutes::llama_server(), OPENAI, &openai),
        (OtherRoutes::vllm(), REPETITION, &repetition),
        (OtherRoutes::vllm(), OPENAI, &openai),
        (OtherRoutes::owned_by("sglang"), REPETITION, &repetition),
        (OtherRoutes::owned_by("library"), OPENAI, &openai),
        (OtherRoutes::owned_by("chancery"), REPETITION, &repetition),
        (OtherRoutes::owned_by("chancery"), DRY, &dry),
        (OtherRoutes::default(), DRY, &dry),
    ] {
        let server = server(routes).await;
        run(&engine(&[&server]).await, penalties).await.unwrap();
        assert_eq!(extra_fields(&server), *expected);
    }
}

#[tokio::test]
async fn logprobs_are_requested_so_that_each_server_sends_them() {
    for (routes, top_logprobs, sent) in [
        (OtherRoutes::default(), 0, 0),
        (OtherRoutes::vllm(), 5, 5),
        (OtherRoutes::llama_server(), 5, 5),
        // For 0 it would send none at all.
        (OtherRoutes::llama_server(), 0, 1),
    ] {
        let steps =
            [vec![Step::Stream, text_with_logprobs("fine", &["fine"])], well_ended("stop", 1, 1).to_vec()];
        let server = FaultyServer::start_with(routes, move |_| steps.concat()).await;
        let engine = engine(&[&server]).await;
        let job = Job { top_logprobs: Some(top_logprobs), ..job(&engine, "x", 16) };
        collect_reply(engine.start(job).unwrap()).await.unwrap();
        assert_eq!(extra_fields(&server), json!({"logprobs": true, "top_logprobs": sent}));
    }
}

#[tokio::test]
async fn field_that_a_server_would_ignore_is_rejected_without_asking_it() {
    for (owner, penalties, field) in [
        ("vllm", DRY, "`dry_multiplier`"),
        ("sglang", DRY, "`dry_multiplier`"),
        ("library", DRY, "`dry_multiplier`"),
        ("library", REPETITION, "`repetition_penalty`"),
    ] {
        let server = server(OtherRoutes::owned_by(owner)).await;
        let engine = engine(&[&server]).await;
        let reason = rejection_of(run(&engine, penalties).await);
        assert!(reason.contains(field) && reason.contains("`frequency_penalty`"), "{reason}");
        assert_eq!(server.jobs().len(), 0);
        assert_eq!(run(&engine, OPENAI).await.unwrap().0, "fine", "its other jobs run");
    }
}

#[tokio::test]
async fn job_goes_to_the_server_of_the_pool_that_knows_its_fields() {
    // As many as a job has attempts.
    let vllm = [
        server(OtherRoutes::vllm()).await,
        server(OtherRoutes::vllm()).await,
        server(OtherRoutes::vllm()).await,
    ];
    let llama = server(OtherRoutes::llama_server()).await;
    let engine = engine(&[&vllm[0], &vllm[1], &vllm[2], &llama]).await;
    for _ in 0..4 {
        assert_eq!(run(&engine, DRY).await.unwrap().0, "fine");
    }
    assert!(vllm.iter().all(|server| server.jobs().is_empty()) && llama.jobs().len() == 4);
}

#[tokio::test]
async fn job_is_not_rejected_while_the_server_that_knows_its_fields_is_busy() {
    let vllm = server(OtherRoutes::vllm()).await;
    let llama = FaultyServer::start_with(OtherRoutes::llama_server(), |_| {
        vec![Step::Answer(503, "", r#"{"error":{"message":"busy"}}"#.to_owned())]
    })
    .await;
    let engine = engine(&[&vllm, &llama]).await;
    for _ in 0..2 {
        let error = run(&engine, DRY).await.unwrap_err();
        assert!(!matches!(error, EngineError::InputRejected { .. }), "{error:?}");
    }
    assert!(vllm.jobs().is_empty());
}

#[tokio::test]
async fn server_that_starts_later_is_asked_what_it_is_first() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let servers = Servers { endpoints: vec![format!("http://{address}/v1")], api_key: None };
    // Nothing answers while the engine starts.
    drop(listener);
    let engine = engine_with(settings_for(servers)).await;
    let late = FaultyServer::start_at(address, OtherRoutes::llama_server(), |_| reply(&["fine"], 1)).await;
    run(&engine, REPETITION).await.unwrap();
    assert_eq!(extra_fields(&late), json!({"repeat_penalty": 1.25, "repeat_last_n": -1}));
}

#[tokio::test]
async fn rejection_of_a_field_reaches_the_caller_under_the_callers_name() {
    let plain = r#"{"error":{"message":"Unrecognized request argument supplied: repeat_penalty"}}"#;
    let internal = r#"{"detail":[{"loc":["body","repetition_penalty"],"msg":"see http://10.0.0.7"}]}"#;
    for (routes, body, expected) in [
        (
            OtherRoutes::llama_server(),
            plain,
            "`repetition_penalty`: Unrecognized request argument supplied: repeat_penalty",
        ),
        (OtherRoutes::default(), internal, "`repetition_penalty`: not supported; leave it out"),
    ] {
        let steps = vec![Step::Answer(400, "", body.to_owned())];
        let server = FaultyServer::start_with(routes, move |_| steps.clone()).await;
        let engine = engine(&[&server]).await;
        assert_eq!(rejection_of(run(&engine, REPETITION).await), expected);
        assert_eq!(server.jobs().len(), 1, "leaving out something else would not help");
    }
}

#[tokio::test]
async fn server_that_rejects_an_option_of_this_side_still_gets_the_penalty() {
    let server = FaultyServer::start(|number| match number {
        0 => vec![Step::Answer(400, "", r#"{"error":{"message":"unknown field cache_salt"}}"#.to_owned())],
        _ => reply(&["fine"], 1),
    })
    .await;
    run(&engine_with(settings(&[&server])).await, REPETITION).await.unwrap();
    let fields = |body: &String| -> BTreeSet<String> {
        serde_json::from_str::<serde_json::Map<String, Value>>(body)
            .unwrap()
            .into_iter()
            .map(|(name, _)| name)
            .collect()
    };
    let [first, second] = [&server.jobs()[0], &server.jobs()[1]].map(fields);
    assert!(first.contains("cache_salt") && !second.contains("cache_salt"));
    assert!(first.contains("repetition_penalty") && second.contains("repetition_penalty"));
}
