//! What a broken server does to a job: it goes elsewhere before its first token, and fails after it.

use crate::server::{FaultyServer, Step, finish, reply, text};
use crate::set_up::{ask, engine};
use chancery_engine::upstream::{EndpointState, UpstreamEngine};
use chancery_engine::{Engine, EngineError};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

fn answer(status: u16) -> Vec<Step> {
    vec![Step::Answer(status, "", r#"{"error":{"message":"no"}}"#.to_owned())]
}

/// Everything that can go wrong before the first token, by name.
fn early_faults() -> Vec<(&'static str, Vec<Step>)> {
    vec![
        ("500", answer(500)),
        ("502", answer(502)),
        ("wrong key", answer(401)),
        ("unknown path", answer(404)),
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

#[tokio::test]
async fn whatever_fails_before_the_first_token_is_done_by_another_server() {
    let good = FaultyServer::always(reply(&["fine"], 3)).await;
    for (name, steps) in early_faults() {
        let bad = FaultyServer::always(steps).await;
        let engine = engine(&[&bad, &good]).await;
        for number in 0..4 {
            let (said, ended) =
                ask(&engine, &format!("{number}")).await.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!((said.as_str(), ended.output_tokens), ("fine", 1), "{name}");
        }
        assert_eq!(
            bad.jobs().len(),
            3,
            "{name}: it is asked first until its breaker opens, and once for each job"
        );
    }
}

#[tokio::test]
async fn alone_each_fault_has_its_own_error() {
    for (name, steps) in early_faults() {
        let bad = FaultyServer::always(steps).await;
        let error = ask(&engine(&[&bad]).await, "x").await.unwrap_err();
        let is_late = name.starts_with("a hang");
        assert_eq!(matches!(error, EngineError::TimedOut), is_late, "{name}: {error}");
        assert_eq!(matches!(error, EngineError::Failed(_)), !is_late, "{name}: {error}");
        assert_eq!(bad.jobs().len(), 1, "{name}: only another server is tried");
    }
}

#[tokio::test]
async fn after_the_first_token_nothing_is_tried_again() {
    let cut = vec![Step::Stream, text("half"), Step::Cut];
    let hang = vec![Step::Stream, text("half"), Step::Hang];
    let wrong = vec![Step::Stream, text("half"), Step::Event("nonsense".to_owned()), Step::Hang];
    let strange = vec![Step::Stream, text("half"), finish("content_filter"), Step::End];
    for steps in [cut, hang, wrong, strange] {
        let servers = [FaultyServer::always(steps.clone()).await, FaultyServer::always(steps).await];
        let engine = engine(&[&servers[0], &servers[1]]).await;
        assert!(ask(&engine, "x").await.is_err());
        assert_eq!(servers.iter().map(|server| server.jobs().len()).sum::<usize>(), 1);
    }
}

#[tokio::test]
async fn a_slow_server_is_waited_for_as_long_as_it_shows_life() {
    let pause = || Step::Pause(Duration::from_millis(400));
    let mut steps = vec![Step::Stream];
    for _ in 0..4 {
        steps.extend([text("a "), pause(), Step::Raw(b": still here\n\n".to_vec()), pause()]);
    }
    steps.extend(crate::server::well_ended("stop", 1, 4));
    let server = FaultyServer::always(steps).await;
    assert_eq!(ask(&engine(&[&server]).await, "x").await.unwrap().0, "a a a a ");
}

#[tokio::test]
async fn more_text_than_any_tokens_have_is_refused() {
    let mut steps = vec![Step::Stream];
    steps.extend((0..40).map(|_| text(&"x".repeat(1_000))));
    steps.extend(crate::server::well_ended("stop", 1, 1));
    let server = FaultyServer::always(steps).await;
    assert!(matches!(ask(&engine(&[&server]).await, "x").await, Err(EngineError::Failed(_))));
}

#[tokio::test]
async fn a_prompt_that_the_server_finds_too_long_is_the_callers_error() {
    let body = r#"{"error":{"message":"This model's maximum context length is 4096 tokens."}}"#;
    let server = FaultyServer::always(vec![Step::Answer(400, "", body.to_owned())]).await;
    let other = FaultyServer::always(vec![Step::Answer(400, "", body.to_owned())]).await;
    let engine = engine(&[&server, &other]).await;
    assert!(matches!(ask(&engine, "x").await, Err(EngineError::InputTooLong { .. })));
    assert_eq!(server.jobs().len() + other.jobs().len(), 1, "no other server would take it");
}

#[tokio::test]
async fn servers_that_are_busy_are_overload_and_are_left_alone_for_as_long_as_they_say() {
    let busy = || vec![Step::Answer(503, "retry-after: 7\r\n", "busy".to_owned())];
    let server = FaultyServer::always(busy()).await;
    let engine = engine(&[&server]).await;
    assert_eq!(ask(&engine, "x").await.unwrap_err(), EngineError::Overloaded { retry_after_s: 7 });
    assert_eq!(ask(&engine, "x").await.unwrap_err(), EngineError::Overloaded { retry_after_s: 7 });
    assert_eq!(server.jobs().len(), 1);
    assert_eq!(engine.endpoints()[0].state, EndpointState::Busy);
    assert_eq!(engine.outage(), None, "it works, and will again");
}

async fn fail_until_open(engine: &UpstreamEngine) {
    for _ in 0..3 {
        ask(engine, "x").await.unwrap_err();
    }
}

#[tokio::test]
async fn failures_in_a_row_open_the_breaker_and_a_probe_after_the_pause_closes_it() {
    let server =
        FaultyServer::start(|number| if number < 3 { answer(500) } else { reply(&["well"], 1) }).await;
    let engine = engine(&[&server]).await;
    fail_until_open(&engine).await;
    assert_eq!(engine.endpoints()[0].state, EndpointState::Open);
    assert!(engine.outage().is_some_and(|trouble| trouble.contains("500")));
    assert!(matches!(ask(&engine, "x").await, Err(EngineError::Failed(_))));
    assert_eq!(server.jobs().len(), 3, "nothing is sent while it is open");
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(ask(&engine, "x").await.unwrap().0, "well");
    assert_eq!(engine.endpoints()[0].state, EndpointState::Up);
}

#[tokio::test]
async fn while_the_probe_is_under_way_others_are_not_sent() {
    let gate = Arc::new(Notify::new());
    let probing = Arc::clone(&gate);
    let server = FaultyServer::start(move |number| match number {
        0..3 => answer(500),
        3 => vec![Step::Gate(Arc::clone(&probing)), Step::Answer(500, "", String::new())],
        _ => reply(&["well"], 1),
    })
    .await;
    let engine = engine(&[&server]).await;
    fail_until_open(&engine).await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let probe = crate::set_up::start(&engine, "probe");
    server.until_jobs(4).await;
    assert!(ask(&engine, "x").await.is_err());
    gate.notify_one();
    assert!(crate::set_up::whole(probe).await.is_err());
    assert!(ask(&engine, "x").await.is_err(), "a failed probe opens it again, for longer");
    assert_eq!(server.jobs().len(), 4);
}
