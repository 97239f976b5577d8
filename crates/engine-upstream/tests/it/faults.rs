//! What a broken server does to a job: it goes elsewhere before its first token, and fails after it.

use crate::set_up::{
    HASTY, TIMEOUTS, ask, engine, engine_at, engine_with, instructed_job, manual_clock, settings, start,
    whole, word_counter,
};
use chancery_engine::{EndpointState, Engine, EngineError, Event};
use chancery_engine_upstream::{Timeouts, UpstreamEngine, UpstreamSettings};
use chancery_test_support::faulty_chat_server::{FaultyServer, Step, finish, reply, text, well_ended};
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
        ("no credit", answer(402)),
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

/// Only a case that hangs is not given much time.
fn for_case(name: &str, at: &[&FaultyServer]) -> UpstreamSettings {
    let hangs = name.starts_with("a hang");
    UpstreamSettings { timeouts: if hangs { HASTY } else { TIMEOUTS }, ..settings(at) }
}

#[tokio::test]
async fn whatever_fails_before_the_first_token_is_done_by_another_server() {
    let good = FaultyServer::always(reply(&["fine"], 3)).await;
    for (name, steps) in early_faults() {
        let bad = FaultyServer::always(steps).await;
        let engine = engine_at(for_case(name, &[&bad, &good]), &manual_clock()).await;
        for number in 0..6 {
            let (said, ended) =
                ask(&engine, &format!("{number}")).await.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!((said.as_str(), ended.output_tokens), ("fine", 1), "{name}");
        }
        assert!(
            bad.jobs().len() >= 3,
            "{name}: it is asked until its breaker opens, not {}",
            bad.jobs().len()
        );
        assert_eq!(engine.endpoints()[0].state, EndpointState::Open, "{name}");
    }
}

#[tokio::test]
async fn alone_each_fault_has_its_own_error() {
    for (name, steps) in early_faults() {
        let bad = FaultyServer::always(steps).await;
        let error = ask(&engine_with(for_case(name, &[&bad])).await, "x").await.unwrap_err();
        let is_late = name.starts_with("a hang");
        assert_eq!(matches!(error, EngineError::TimedOut), is_late, "{name}: {error}");
        assert_eq!(matches!(error, EngineError::Failed(_)), !is_late, "{name}: {error}");
        let tries = if name == "no head" { 2 } else { 1 };
        assert_eq!(bad.jobs().len(), tries, "{name}: only a lost connection is tried again there");
    }
}

#[tokio::test]
async fn after_the_first_token_nothing_is_tried_again() {
    let cut = vec![Step::Stream, text("half"), Step::Cut];
    let hang = vec![Step::Stream, text("half"), Step::Hang];
    let wrong = vec![Step::Stream, text("half"), Step::Event("nonsense".to_owned()), Step::Hang];
    let strange = vec![Step::Stream, text("half"), finish("content_filter"), Step::End];
    for (timeouts, steps) in [(TIMEOUTS, cut), (HASTY, hang), (TIMEOUTS, wrong), (TIMEOUTS, strange)] {
        let servers = [FaultyServer::always(steps.clone()).await, FaultyServer::always(steps).await];
        let at = settings(&[&servers[0], &servers[1]]);
        let engine = engine_with(UpstreamSettings { timeouts, ..at }).await;
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
    steps.extend(well_ended("stop", 1, 4));
    let server = FaultyServer::always(steps).await;
    let timeouts = Timeouts { idle: Duration::from_secs(2), ..TIMEOUTS };
    let engine = engine_with(UpstreamSettings { timeouts, ..settings(&[&server]) }).await;
    assert_eq!(ask(&engine, "x").await.unwrap().0, "a a a a ");
}

#[tokio::test]
async fn more_text_than_any_tokens_have_is_refused() {
    let mut steps = vec![Step::Stream];
    steps.extend((0..40).map(|_| text(&"x".repeat(1_000))));
    steps.extend(well_ended("stop", 1, 1));
    let server = FaultyServer::always(steps).await;
    assert!(matches!(ask(&engine(&[&server]).await, "x").await, Err(EngineError::Failed(_))));
}

#[tokio::test]
async fn a_prompt_that_the_server_finds_too_long_is_the_callers_error() {
    let body = r#"{"error":{"message":"This model's maximum context length is 4096 tokens."}}"#;
    let server = FaultyServer::always(vec![Step::Answer(400, "", body.to_owned())]).await;
    let other = FaultyServer::always(vec![Step::Answer(400, "", body.to_owned())]).await;
    let engine = engine(&[&server, &other]).await;
    let error = ask(&engine, "x").await.unwrap_err();
    let expected = EngineError::InputTooLong { prompt_tokens: None, context_tokens: 4_096 };
    assert_eq!(error, expected, "what nobody counted is not told as a count");
    assert_eq!(server.jobs().len() + other.jobs().len(), 1, "no other server would take it");
}

#[tokio::test]
async fn servers_that_are_busy_are_overload_and_are_left_alone_for_as_long_as_they_say() {
    let busy = || vec![Step::Answer(503, "retry-after: 7\r\n", "busy".to_owned())];
    let server = FaultyServer::always(busy()).await;
    let clock = manual_clock();
    let engine = engine_at(settings(&[&server]), &clock).await;
    assert_eq!(ask(&engine, "x").await.unwrap_err(), EngineError::Overloaded { retry_after_s: 7 });
    clock.advance(Duration::from_millis(2_500));
    assert_eq!(ask(&engine, "x").await.unwrap_err(), EngineError::Overloaded { retry_after_s: 5 });
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
    let clock = manual_clock();
    let engine = engine_at(settings(&[&server]), &clock).await;
    fail_until_open(&engine).await;
    assert_eq!(engine.endpoints()[0].state, EndpointState::Open);
    assert!(engine.outage().is_some_and(|trouble| trouble.contains("500")));
    assert!(matches!(ask(&engine, "x").await, Err(EngineError::Failed(_))));
    assert_eq!(server.jobs().len(), 3, "nothing is sent while it is open");
    clock.advance(Duration::from_secs(1));
    assert_eq!(engine.outage(), None, "a job may go there, and must be let in to do so");
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
    let clock = manual_clock();
    let engine = engine_at(settings(&[&server]), &clock).await;
    fail_until_open(&engine).await;
    clock.advance(Duration::from_secs(1));
    let probe = start(&engine, "probe");
    server.until_jobs(4).await;
    assert!(ask(&engine, "x").await.is_err());
    gate.notify_one();
    assert!(whole(probe).await.is_err());
    clock.advance(Duration::from_millis(1_900));
    assert!(ask(&engine, "x").await.is_err(), "a failed probe opens it again, for longer");
    assert_eq!(server.jobs().len(), 4);
}

#[tokio::test]
async fn others_are_sent_from_the_probes_first_text_on() {
    let gate = Arc::new(Notify::new());
    let probing = Arc::clone(&gate);
    let server = FaultyServer::start(move |number| match number {
        0..3 => answer(500),
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
    fail_until_open(&engine).await;
    clock.advance(Duration::from_secs(1));
    let mut probe = start(&engine, "probe");
    assert_eq!(probe.next().await.unwrap(), Event::Text("slowly".to_owned()));
    assert_eq!(ask(&engine, "x").await.unwrap().0, "well", "a reply may take minutes");
    gate.notify_one();
    assert!(whole(probe).await.is_ok());
}

#[tokio::test]
async fn an_end_that_is_the_jobs_own_is_neither_tried_again_nor_held_against_the_server() {
    for reason in ["content_filter", "tool_calls"] {
        let steps = vec![Step::Stream, finish(reason), Step::End];
        let servers = [FaultyServer::always(steps.clone()).await, FaultyServer::always(steps).await];
        let engine = engine(&[&servers[0], &servers[1]]).await;
        for _ in 0..8 {
            assert!(matches!(ask(&engine, "x").await, Err(EngineError::Failed(_))));
        }
        assert_eq!(servers.iter().map(|server| server.jobs().len()).sum::<usize>(), 8);
        assert!(engine.endpoints().iter().all(|status| status.state == EndpointState::Up), "{reason}");
    }
}

#[tokio::test]
async fn a_job_that_every_server_fails_with_is_held_against_the_first_alone() {
    let servers = [
        FaultyServer::always(answer(500)).await,
        FaultyServer::always(answer(500)).await,
        FaultyServer::always(answer(500)).await,
    ];
    let at = settings(&[&servers[0], &servers[1], &servers[2]]);
    let engine = engine_at(at, &manual_clock()).await;
    for _ in 0..3 {
        let job = instructed_job(&engine, "Poison.", "x", 16);
        assert!(whole(engine.start(job).unwrap()).await.is_err());
    }
    let states: Vec<EndpointState> = engine.endpoints().iter().map(|status| status.state).collect();
    assert_eq!(states.iter().filter(|state| **state == EndpointState::Open).count(), 1, "{states:?}");
    assert!(servers.iter().all(|server| server.jobs().len() == 3));
}

#[tokio::test]
async fn the_time_for_a_whole_job_ends_it_and_speaks_against_the_server() {
    let mut steps = vec![Step::Stream];
    for _ in 0..100 {
        steps.extend([text("a"), Step::Pause(Duration::from_millis(300))]);
    }
    let server = FaultyServer::always(steps).await;
    let timeouts = Timeouts { total: Duration::from_secs(1), ..TIMEOUTS };
    let engine = engine_with(UpstreamSettings { timeouts, ..settings(&[&server]) }).await;
    for _ in 0..3 {
        assert_eq!(ask(&engine, "x").await.unwrap_err(), EngineError::TimedOut);
    }
    let status = engine.endpoints().remove(0);
    assert_eq!((status.state, status.running), (EndpointState::Open, 0));
    assert!(status.trouble.is_some_and(|trouble| trouble.contains("whole job")));
}

/// What the model thinks before it answers.
fn reasoning(text: &str) -> Step {
    let delta = serde_json::json!({"choices": [{"index": 0, "delta": {"reasoning_content": text}}]});
    Step::Event(delta.to_string())
}

#[tokio::test]
async fn a_model_that_thinks_is_waited_for_and_may_still_be_exchanged() {
    let mut steps =
        vec![Step::Stream, reasoning("Hm"), Step::Pause(Duration::from_millis(2_500)), text("Yes")];
    steps.extend(well_ended("stop", 1, 2));
    let server = FaultyServer::always(steps).await;
    let timeouts = Timeouts { first_token: HASTY.first_token, ..TIMEOUTS };
    let engine = engine_with(UpstreamSettings { timeouts, ..settings(&[&server]) }).await;
    assert_eq!(ask(&engine, "x").await.unwrap().0, "Yes");

    let cut = FaultyServer::always(vec![Step::Stream, reasoning("Hm"), Step::Cut]).await;
    let good = FaultyServer::always(reply(&["fine"], 1)).await;
    let engine = engine_with(settings(&[&cut, &good])).await;
    for _ in 0..4 {
        assert_eq!(ask(&engine, "x").await.unwrap().0, "fine");
    }
}

#[tokio::test]
async fn a_connection_that_the_server_was_just_closing_costs_nobody_anything() {
    let server =
        FaultyServer::start(|number| if number == 0 { vec![Step::Cut] } else { reply(&["fine"], 1) }).await;
    let engine = engine(&[&server]).await;
    assert_eq!(ask(&engine, "x").await.unwrap().0, "fine");
    assert_eq!(server.jobs().len(), 2);
}

#[tokio::test]
async fn what_the_server_finds_wrong_with_a_request_is_told_to_the_caller() {
    let body = r#"{"error":{"message":"temperature must be at most 1.0"}}"#;
    for status in [400, 422] {
        let servers = [
            FaultyServer::always(vec![Step::Answer(status, "", body.to_owned())]).await,
            FaultyServer::always(vec![Step::Answer(status, "", body.to_owned())]).await,
        ];
        let engine = engine(&[&servers[0], &servers[1]]).await;
        let reason = Some("temperature must be at most 1.0".to_owned());
        assert_eq!(ask(&engine, "x").await.unwrap_err(), EngineError::InputRefused { reason });
        assert!(engine.endpoints().iter().all(|status| status.state == EndpointState::Up));
        let jobs = servers.each_ref().map(|server| server.jobs().len());
        assert!(jobs.contains(&0), "no other server is asked: {jobs:?}");
        assert!(jobs.iter().sum::<usize>() <= 3, "each thing that this side can leave out is left out once");
    }
}

#[tokio::test]
async fn a_refusal_whose_words_never_come_is_still_one() {
    let head = "HTTP/1.1 503 X\r\nretry-after: 4\r\ncontent-length: 900\r\n\r\n{\"err";
    let server = FaultyServer::always(vec![Step::Bytes(head.as_bytes().to_vec()), Step::Hang]).await;
    let engine = engine(&[&server]).await;
    let asked = tokio::time::timeout(Duration::from_secs(8), ask(&engine, "x")).await;
    assert_eq!(asked.unwrap().unwrap_err(), EngineError::Overloaded { retry_after_s: 4 });
    let endless = format!("HTTP/1.1 500 X\r\ncontent-length: 9000000\r\n\r\n{}", "x".repeat(100_000));
    let server = FaultyServer::always(vec![Step::Bytes(endless.into_bytes()), Step::Hang]).await;
    let engine = engine_with(settings(&[&server])).await;
    let asked = tokio::time::timeout(Duration::from_secs(8), ask(&engine, "x")).await;
    assert!(matches!(asked.unwrap(), Err(EngineError::Failed(_))));
}

#[tokio::test]
async fn a_reply_that_says_to_go_elsewhere_is_not_followed() {
    let other = FaultyServer::always(reply(&["stolen"], 1)).await;
    let location: &'static str = format!("location: {}/chat/completions\r\n", other.url).leak();
    let server = FaultyServer::always(vec![Step::Answer(307, location, String::new())]).await;
    assert!(matches!(ask(&engine(&[&server]).await, "x").await, Err(EngineError::Failed(_))));
    assert_eq!(other.jobs().len(), 0);
}

#[tokio::test]
async fn a_reply_without_text_is_taken_at_once_and_not_run_again() {
    let server = FaultyServer::always(vec![Step::Stream, finish("stop"), Step::Hang]).await;
    let settings = UpstreamSettings { tokenizer: Some(word_counter()), ..settings(&[&server]) };
    let engine = engine_with(settings).await;
    let asked = tokio::time::timeout(Duration::from_secs(9), ask(&engine, "x")).await.unwrap();
    assert_eq!(asked.unwrap().1.output_tokens, 0);
    assert_eq!(server.jobs().len(), 1);
}
