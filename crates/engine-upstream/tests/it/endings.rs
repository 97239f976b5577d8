//! Ends that are neither complete nor failed: text that was passed on is billed, whatever ended it.

use crate::fixtures::{TIMEOUTS, engine_with, generate, read_until, settings, start, word_counter};
use chancery_engine::{EndpointState, Engine, EngineError, Event, StopReason};
use chancery_engine_upstream::{Timeouts, UpstreamSettings};
use chancery_test_support::faulty_chat_server::{FaultyServer, Step, finish, text, well_ended};
use std::time::Duration;

#[tokio::test]
async fn reply_cut_by_a_content_filter_is_counted() {
    let mut with_usage = vec![Step::Stream, text("one"), text(" two")];
    with_usage.extend(well_ended("content_filter", 7, 2));
    let without_usage = vec![
        Step::Stream,
        text("one"),
        text(" two"),
        finish("content_filter"),
        Step::Event("[DONE]".to_owned()),
        Step::End,
    ];
    for (steps, is_counted, input_tokens) in [
        (with_usage.clone(), true, None),
        (with_usage, false, Some(7)),
        (without_usage.clone(), true, None),
        (without_usage, false, Some(0)),
    ] {
        let server = FaultyServer::always(steps).await;
        let tokenizer = is_counted.then(word_counter);
        let engine = engine_with(UpstreamSettings { tokenizer, ..settings(&[&server]) }).await;
        let (output, ended) = generate(&engine, "x").await.unwrap();
        assert_eq!((output.as_str(), ended.reason), ("one two", StopReason::ContentFilter));
        assert_eq!((ended.input_tokens, ended.output_tokens), (input_tokens, 2));
        assert_eq!(engine.endpoints()[0].state, EndpointState::Up);
    }
}

#[tokio::test]
async fn content_filter_before_any_text_fails_without_a_retry() {
    let steps: Vec<Step> = [vec![Step::Stream], well_ended("content_filter", 7, 0).to_vec()].concat();
    let servers = [FaultyServer::always(steps.clone()).await, FaultyServer::always(steps).await];
    let engine = engine_with(settings(&[&servers[0], &servers[1]])).await;
    assert!(matches!(generate(&engine, "x").await, Err(EngineError::Failed(_))));
    assert_eq!(servers.iter().map(|server| server.jobs().len()).sum::<usize>(), 1);
}

/// The idle time-out does not pass first.
fn short_total() -> Timeouts {
    Timeouts { total: Duration::from_millis(1_500), ..TIMEOUTS }
}

#[tokio::test]
async fn text_passed_on_before_the_total_timeout_is_counted() {
    for is_counted in [true, false] {
        let server = FaultyServer::always(vec![Step::Stream, text("one"), text(" two"), Step::Hang]).await;
        let tokenizer = is_counted.then(word_counter);
        let engine =
            engine_with(UpstreamSettings { tokenizer, timeouts: short_total(), ..settings(&[&server]) })
                .await;
        let mut generation = start(&engine, "Three words here");
        read_until(&mut generation, "one two").await;
        let Event::Finished(ended) = generation.next().await.unwrap() else { panic!("more text") };
        assert_eq!((ended.reason, ended.output_tokens), (StopReason::Deadline, 2));
        assert_eq!(ended.input_tokens, if is_counted { None } else { Some(0) });
        assert_eq!(ended.prefilled_tokens, if is_counted { 3 } else { 17 });
        server.until_hang_ups(1).await;
    }
}

#[tokio::test]
async fn long_streams_do_not_open_the_breaker() {
    let server = FaultyServer::always(vec![Step::Stream, text("one"), Step::Hang]).await;
    let timeouts = Timeouts { total: Duration::from_millis(300), ..TIMEOUTS };
    let engine = engine_with(UpstreamSettings { timeouts, ..settings(&[&server]) }).await;
    for _ in 0..4 {
        let ended = generate(&engine, "x").await.unwrap().1;
        assert_eq!(ended.reason, StopReason::Deadline);
    }
    assert_eq!(engine.endpoints()[0].state, EndpointState::Up);
}

#[tokio::test]
async fn total_timeout_before_any_text_fails() {
    let server = FaultyServer::always(vec![Step::Stream, Step::Hang]).await;
    let timeouts = Timeouts { total: Duration::from_millis(300), ..TIMEOUTS };
    let engine = engine_with(UpstreamSettings { timeouts, ..settings(&[&server]) }).await;
    assert_eq!(generate(&engine, "x").await.unwrap_err(), EngineError::TimedOut);
}

#[tokio::test]
async fn failure_after_text_still_fails() {
    let idle = Timeouts { idle: Duration::from_millis(500), ..TIMEOUTS };
    for (timeouts, steps) in [
        (TIMEOUTS, vec![Step::Stream, text("half"), Step::Cut]),
        (idle, vec![Step::Stream, text("half"), Step::Hang]),
    ] {
        let server = FaultyServer::always(steps).await;
        let engine = engine_with(UpstreamSettings { timeouts, ..settings(&[&server]) }).await;
        assert!(generate(&engine, "x").await.is_err());
    }
}
