//! A faulty server's effect on a job: it moves to another server before its first token, and fails after it.

use crate::fixtures::{
    SHORT_TIMEOUTS, TIMEOUTS, collect_reply, engine, engine_at, engine_with, generate, instructed_job,
    manual_clock, settings, start, wait_for_state, word_counter,
};
use chancery_engine::{EndpointState, Engine, EngineError, Event, StopReason};
use chancery_engine_upstream::{Timeouts, UpstreamEngine, UpstreamSettings};
use chancery_test_support::faulty_chat_server::{
    FaultyServer, Step, finish, reasoning, reply, text, well_ended,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

fn error_status(status: u16) -> Vec<Step> {
    vec![Step::Answer(status, "", r#"{"error":{"message":"no"}}"#.to_owned())]
}

/// Every failure before the first token, by name.
fn early_faults() -> Vec<(&'static str, Vec<Step>)> {
    vec![
        ("500", error_status(500)),
        ("502", error_status(502)),
        ("wrong key", error_status(401)),
        ("no credit", error_status(402)),
        ("unknown path", error_status(404)),
        ("no head", vec![Step::Cut]),
        ("no text", vec![Step::Stream, Step::Cut]),
        ("a hang before the head", vec![Step::Hang]),
        ("a hang before the text", vec![Step::Stream, Step::Raw(b": keep-alive\n\n".to_vec()), Step::Hang]),
        ("wrong JSON", vec![Step::Stream, Step::Event("{\"choices\": [".to_owned()), Step::Hang]),
        ("JSON of another kind", vec![Step::Stream, Step::Event("[1, 2]".to_owned()), Step::Hang]),
        (
            "an error in the stream",
            vec![Step::Stream, Step::Event(r#"{"error":{"message":"oom"}}"#.to_owned()), Step::Hang],
        ),
        ("an endless line", vec![Step::Stream, Step::Raw(vec![b'x'; 2_000_000]), Step::Hang]),
        ("not UTF-8", vec![Step::Stream, Step::Raw(b"data: \xff\n\n".to_vec()), Step::Hang]),
        ("an end without a reason", vec![Step::Stream, Step::Event("[DONE]".to_owned()), Step::End]),
        ("a page", vec![Step::Answer(200, "content-type: text/html\r\n", "<html>".to_owned())]),
    ]
}

/// Only cases that hang get a short timeout.
fn for_case(name: &str, pool: &[&FaultyServer]) -> UpstreamSettings {
    let hangs = name.starts_with("a hang");
    UpstreamSettings { timeouts: if hangs { SHORT_TIMEOUTS } else { TIMEOUTS }, ..settings(pool) }
}

#[tokio::test]
async fn failure_before_the_first_token_is_retried_on_another_server() {
    let good = FaultyServer::always(reply(&["fine"], 3)).await;
    for (name, steps) in early_faults() {
        let bad = FaultyServer::always(steps).await;
        let engine = engine_at(for_case(name, &[&bad, &good]), &manual_clock()).await;
        for number in 0..6 {
            let (output, ended) = generate(&engine, &format!("{number}"))
                .await
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!((output.as_str(), ended.output_tokens), ("fine", 1), "{name}");
        }
        assert!(
            bad.jobs().len() >= 3,
            "{name}: it is asked until its breaker opens, not {}",
            bad.jobs().len()
        );
        if name.starts_with("a hang") {
            // One account's time-outs need a probe, which also has to time out.
            wait_for_state(&engine, EndpointState::Open).await;
        }
        assert_eq!(engine.endpoints()[0].state, EndpointState::Open, "{name}");
    }
}

#[tokio::test]
async fn each_failure_of_a_single_server_has_its_own_error() {
    for (name, steps) in early_faults() {
        let bad = FaultyServer::always(steps).await;
        let error = generate(&engine_with(for_case(name, &[&bad])).await, "x").await.unwrap_err();
        let is_timeout = name.starts_with("a hang");
        assert_eq!(matches!(error, EngineError::TimedOut), is_timeout, "{name}: {error}");
        assert_eq!(matches!(error, EngineError::Failed(_)), !is_timeout, "{name}: {error}");
        let attempts = if name == "no head" { 2 } else { 1 };
        assert_eq!(bad.jobs().len(), attempts, "{name}: only a lost connection is tried again there");
    }
}

#[tokio::test]
async fn failure_after_the_first_token_is_not_retried() {
    let cut = vec![Step::Stream, text("half"), Step::Cut];
    let hang = vec![Step::Stream, text("half"), Step::Hang];
    let wrong = vec![Step::Stream, text("half"), Step::Event("nonsense".to_owned()), Step::Hang];
    let strange = vec![Step::Stream, text("half"), finish("tool_calls"), Step::End];
    for (timeouts, steps) in [(TIMEOUTS, cut), (SHORT_TIMEOUTS, hang), (TIMEOUTS, wrong), (TIMEOUTS, strange)]
    {
        let servers = [FaultyServer::always(steps.clone()).await, FaultyServer::always(steps).await];
        let pool_settings = settings(&[&servers[0], &servers[1]]);
        let engine = engine_with(UpstreamSettings { timeouts, ..pool_settings }).await;
        assert!(generate(&engine, "x").await.is_err());
        assert_eq!(servers.iter().map(|server| server.jobs().len()).sum::<usize>(), 1);
    }
}

#[tokio::test]
async fn slow_server_is_awaited_while_it_sends_data() {
    let pause = || Step::Pause(Duration::from_millis(400));
    let mut steps = vec![Step::Stream];
    for _ in 0..4 {
        steps.extend([text("a "), pause(), Step::Raw(b": still here\n\n".to_vec()), pause()]);
    }
    steps.extend(well_ended("stop", 1, 4));
    let server = FaultyServer::always(steps).await;
    let timeouts = Timeouts { idle: Duration::from_secs(2), ..TIMEOUTS };
    let engine = engine_with(UpstreamSettings { timeouts, ..settings(&[&server]) }).await;
    assert_eq!(generate(&engine, "x").await.unwrap().0, "a a a a ");
}

#[tokio::test]
async fn text_longer_than_its_tokens_allow_fails_unless_some_was_passed_on() {
    let reply_of = |pieces: usize, bytes: usize| {
        let mut steps = vec![Step::Stream];
        steps.extend((0..pieces).map(|_| text(&"x".repeat(bytes))));
        steps.extend(well_ended("stop", 1, 1));
        FaultyServer::always(steps)
    };
    let server = reply_of(1, 5_000).await;
    assert!(matches!(generate(&engine(&[&server]).await, "x").await, Err(EngineError::Failed(_))));

    let server = reply_of(40, 1_000).await;
    let (output, ended) = generate(&engine(&[&server]).await, "x").await.unwrap();
    assert_eq!((output.len(), ended.output_tokens), (4_000, 4));
    assert_eq!(ended.reason, StopReason::MaxOutputTokens);
}

#[tokio::test]
async fn context_length_error_is_returned_to_the_caller() {
    let body = r#"{"error":{"message":"This model's maximum context length is 4096 tokens."}}"#;
    let server = FaultyServer::always(vec![Step::Answer(400, "", body.to_owned())]).await;
    let other = FaultyServer::always(vec![Step::Answer(400, "", body.to_owned())]).await;
    let engine = engine(&[&server, &other]).await;
    let error = generate(&engine, "x").await.unwrap_err();
    let expected = EngineError::InputTooLong { prompt_tokens: None, context_tokens: 4_096 };
    assert_eq!(error, expected, "an estimate is not reported as a count");
    assert_eq!(server.jobs().len() + other.jobs().len(), 1, "no other server would take it");
}

#[tokio::test]
async fn busy_server_is_avoided_for_its_retry_after() {
    let busy = || vec![Step::Answer(503, "retry-after: 7\r\n", "busy".to_owned())];
    let server = FaultyServer::always(busy()).await;
    let clock = manual_clock();
    let engine = engine_at(settings(&[&server]), &clock).await;
    assert_eq!(generate(&engine, "x").await.unwrap_err(), EngineError::Overloaded { retry_after_s: 7 });
    clock.advance(Duration::from_millis(2_500));
    assert_eq!(generate(&engine, "x").await.unwrap_err(), EngineError::Overloaded { retry_after_s: 5 });
    assert_eq!(server.jobs().len(), 1);
    assert_eq!(engine.endpoints()[0].state, EndpointState::Busy);
    assert_eq!(engine.outage(), None, "it works, and will again");
}

async fn open_breaker(engine: &UpstreamEngine) {
    for _ in 0..3 {
        generate(engine, "x").await.unwrap_err();
    }
}

#[tokio::test]
async fn consecutive_failures_open_the_breaker_and_a_probe_closes_it() {
    let server =
        FaultyServer::start(|number| if number < 3 { error_status(500) } else { reply(&["well"], 1) }).await;
    let clock = manual_clock();
    let engine = engine_at(settings(&[&server]), &clock).await;
    open_breaker(&engine).await;
    assert_eq!(engine.endpoints()[0].state, EndpointState::Open);
    assert!(engine.outage().is_some_and(|last_error| last_error.contains("500")));
    assert!(matches!(generate(&engine, "x").await, Err(EngineError::Failed(_))));
    assert_eq!(server.jobs().len(), 3, "nothing is sent while it is open");
    clock.advance(Duration::from_secs(1));
    assert_eq!(engine.outage(), None, "a job may go there, and must be let in to do so");
    assert_eq!(generate(&engine, "x").await.unwrap().0, "well");
    assert_eq!(engine.endpoints()[0].state, EndpointState::Up);
}

#[tokio::test]
async fn no_other_job_is_sent_during_a_probe() {
    let gate = Arc::new(Notify::new());
    let probing = Arc::clone(&gate);
    let server = FaultyServer::start(move |number| match number {
        0..3 => error_status(500),
        3 => vec![Step::Gate(Arc::clone(&probing)), Step::Answer(500, "", String::new())],
        _ => reply(&["well"], 1),
    })
    .await;
    let clock = manual_clock();
    let engine = engine_at(settings(&[&server]), &clock).await;
    open_breaker(&engine).await;
    clock.advance(Duration::from_secs(1));
    let probe = start(&engine, "probe");
    server.until_jobs(4).await;
    assert!(generate(&engine, "x").await.is_err());
    gate.notify_one();
    assert!(collect_reply(probe).await.is_err());
    clock.advance(Duration::from_millis(1_900));
    assert!(generate(&engine, "x").await.is_err(), "a failed probe opens it again, for longer");
    assert_eq!(server.jobs().len(), 4);
}

#[tokio::test]
async fn first_text_of_a_probe_admits_other_jobs() {
    let gate = Arc::new(Notify::new());
    let probing = Arc::clone(&gate);
    let server = FaultyServer::start(move |number| match number {
        0..3 => error_status(500),
        3 => {
            let mut steps = vec![Step::Stream, text("slowly"), Step::Gate(Arc::clone(&probing))];
            steps.extend(well_ended("stop", 1, 1));
            steps
        }
        _ => reply(&["well"], 1),
    })
    .await;
    let clock = manual_clock();
    let engine = engine_at(settings(&[&server]), &clock).await;
    open_breaker(&engine).await;
    clock.advance(Duration::from_secs(1));
    let mut probe = start(&engine, "probe");
    assert_eq!(probe.next().await.unwrap(), Event::Text("slowly".to_owned()));
    assert_eq!(generate(&engine, "x").await.unwrap().0, "well", "a reply may take minutes");
    gate.notify_one();
    assert!(collect_reply(probe).await.is_ok());
}

#[tokio::test]
async fn job_specific_finish_is_neither_retried_nor_counted_as_a_failure() {
    for reason in ["content_filter", "tool_calls"] {
        let steps = vec![Step::Stream, finish(reason), Step::End];
        let servers = [FaultyServer::always(steps.clone()).await, FaultyServer::always(steps).await];
        let engine = engine(&[&servers[0], &servers[1]]).await;
        for _ in 0..8 {
            assert!(matches!(generate(&engine, "x").await, Err(EngineError::Failed(_))));
        }
        assert_eq!(servers.iter().map(|server| server.jobs().len()).sum::<usize>(), 8);
        assert!(engine.endpoints().iter().all(|status| status.state == EndpointState::Up), "{reason}");
    }
}

#[tokio::test]
async fn job_failing_on_every_server_counts_only_against_the_first() {
    let servers = [
        FaultyServer::always(error_status(500)).await,
        FaultyServer::always(error_status(500)).await,
        FaultyServer::always(error_status(500)).await,
    ];
    let pool_settings = settings(&[&servers[0], &servers[1], &servers[2]]);
    let engine = engine_at(pool_settings, &manual_clock()).await;
    for _ in 0..3 {
        let job = instructed_job(&engine, "Poison.", "x", 16);
        assert!(collect_reply(engine.start(job).unwrap()).await.is_err());
    }
    let states: Vec<EndpointState> = engine.endpoints().iter().map(|status| status.state).collect();
    assert_eq!(states.iter().filter(|state| **state == EndpointState::Open).count(), 1, "{states:?}");
    assert!(servers.iter().all(|server| server.jobs().len() == 3));
}

#[tokio::test]
async fn reasoning_resets_the_timeout_and_rules_out_a_retry() {
    let mut steps =
        vec![Step::Stream, reasoning("Hm"), Step::Pause(Duration::from_millis(2_500)), text("Yes")];
    steps.extend(well_ended("stop", 1, 2));
    let server = FaultyServer::always(steps).await;
    let timeouts = Timeouts { first_token: SHORT_TIMEOUTS.first_token, ..TIMEOUTS };
    let engine = engine_with(UpstreamSettings { timeouts, ..settings(&[&server]) }).await;
    assert_eq!(generate(&engine, "x").await.unwrap().0, "Yes");

    let cut = FaultyServer::always(vec![Step::Stream, reasoning("Hm"), Step::Cut]).await;
    let engine = engine_with(settings(&[&cut])).await;
    let mut generation = start(&engine, "x");
    assert_eq!(generation.next().await.unwrap(), Event::Reasoning("Hm".to_owned()));
    assert!(matches!(generation.next().await, Err(EngineError::Failed(_))));
    assert_eq!(cut.jobs().len(), 1, "reasoning that was passed on cannot be taken back");
}

#[tokio::test]
async fn request_on_a_closing_connection_is_retried() {
    let server =
        FaultyServer::start(|number| if number == 0 { vec![Step::Cut] } else { reply(&["fine"], 1) }).await;
    let engine = engine(&[&server]).await;
    assert_eq!(generate(&engine, "x").await.unwrap().0, "fine");
    assert_eq!(server.jobs().len(), 2);
}

#[tokio::test]
async fn validation_error_of_the_server_is_returned_to_the_caller() {
    let body = r#"{"error":{"message":"temperature must be at most 1.0"}}"#;
    for status in [400, 422] {
        let servers = [
            FaultyServer::always(vec![Step::Answer(status, "", body.to_owned())]).await,
            FaultyServer::always(vec![Step::Answer(status, "", body.to_owned())]).await,
        ];
        let engine = engine(&[&servers[0], &servers[1]]).await;
        let reason = Some("temperature must be at most 1.0".to_owned());
        assert_eq!(generate(&engine, "x").await.unwrap_err(), EngineError::InputRejected { reason });
        assert!(engine.endpoints().iter().all(|status| status.state == EndpointState::Up));
        let jobs = servers.each_ref().map(|server| server.jobs().len());
        assert!(jobs.contains(&0), "no other server is asked: {jobs:?}");
        assert!(jobs.iter().sum::<usize>() <= 3, "each thing that this side can leave out is left out once");
    }
}

#[tokio::test]
async fn error_status_with_an_unfinished_body_is_still_an_error() {
    let head = "HTTP/1.1 503 X\r\nretry-after: 4\r\ncontent-length: 900\r\n\r\n{\"err";
    let server = FaultyServer::always(vec![Step::Bytes(head.as_bytes().to_vec()), Step::Hang]).await;
    let engine = engine(&[&server]).await;
    let outcome = tokio::time::timeout(Duration::from_secs(8), generate(&engine, "x")).await;
    assert_eq!(outcome.unwrap().unwrap_err(), EngineError::Overloaded { retry_after_s: 4 });
    let endless = format!("HTTP/1.1 500 X\r\ncontent-length: 9000000\r\n\r\n{}", "x".repeat(100_000));
    let server = FaultyServer::always(vec![Step::Bytes(endless.into_bytes()), Step::Hang]).await;
    let engine = engine_with(settings(&[&server])).await;
    let outcome = tokio::time::timeout(Duration::from_secs(8), generate(&engine, "x")).await;
    assert!(matches!(outcome.unwrap(), Err(EngineError::Failed(_))));
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let other = FaultyServer::always(reply(&["stolen"], 1)).await;
    let location: &'static str = format!("location: {}/chat/completions\r\n", other.url).leak();
    let server = FaultyServer::always(vec![Step::Answer(307, location, String::new())]).await;
    assert!(matches!(generate(&engine(&[&server]).await, "x").await, Err(EngineError::Failed(_))));
    assert_eq!(other.jobs().len(), 0);
}

#[tokio::test]
async fn empty_reply_is_accepted_and_not_retried() {
    let server = FaultyServer::always(vec![Step::Stream, finish("stop"), Step::Hang]).await;
    let settings = UpstreamSettings { tokenizer: Some(word_counter()), ..settings(&[&server]) };
    let engine = engine_with(settings).await;
    let outcome = tokio::time::timeout(Duration::from_secs(9), generate(&engine, "x")).await.unwrap();
    assert_eq!(outcome.unwrap().1.output_tokens, 0);
    assert_eq!(server.jobs().len(), 1);
}
