//! Log probabilities of a reply: passed on after their text, only for the answer, and never missing without a word.

use crate::fixtures::{collect_with_logprobs, engine, engine_with, generate, job, settings, word_counter};
use chancery_engine::{EndpointState, Engine, EngineError, Event, Finished, Job, StopReason, TokenLogprobs};
use chancery_engine_upstream::{UpstreamEngine, UpstreamSettings};
use chancery_test_support::faulty_chat_server::{
    FaultyServer, Step, delta_with_logprobs, finish, reasoning, text, text_with_logprobs, token_logprobs,
    well_ended,
};
use serde_json::{Value, json};
use std::time::Duration;

const MISSING: &str = "it sends no log probabilities; leave out `logprobs`";

fn asking_job(engine: &UpstreamEngine, top_logprobs: u8, max_output_tokens: u32) -> Job {
    Job { top_logprobs: Some(top_logprobs), ..job(engine, "x", max_output_tokens) }
}

async fn run(
    engine: &UpstreamEngine,
    top_logprobs: u8,
) -> Result<(String, Vec<TokenLogprobs>, Finished), EngineError> {
    collect_with_logprobs(engine.start(asking_job(engine, top_logprobs, 16)).unwrap()).await
}

async fn server_of(pieces: Vec<Step>, reason: &str) -> FaultyServer {
    let steps = [vec![Step::Stream], pieces, well_ended(reason, 3, 2).to_vec()].concat();
    FaultyServer::always(steps).await
}

fn tokens(logprobs: &[TokenLogprobs]) -> Vec<String> {
    logprobs.iter().map(|entry| String::from_utf8(entry.token.bytes.clone()).unwrap()).collect()
}

fn missing() -> EngineError {
    EngineError::InputRejected { reason: Some(MISSING.to_owned()) }
}

#[tokio::test]
async fn logprobs_follow_their_text_and_alternatives_are_sorted() {
    let pieces =
        vec![text_with_logprobs("one", &["one"]), text_with_logprobs(" two three", &[" two", " three"])];
    let server = server_of(pieces, "stop").await;
    let engine = engine(&[&server]).await;
    for (top_logprobs, expected) in [(0, vec![]), (1, vec!["likely"]), (2, vec!["likely", "one"])] {
        let (output, logprobs, ended) = run(&engine, top_logprobs).await.unwrap();
        assert_eq!((output.as_str(), ended.reason), ("one two three", StopReason::Complete));
        assert_eq!(tokens(&logprobs), ["one", " two", " three"]);
        assert!((logprobs[0].token.logprob + 1.5).abs() < 1e-6);
        let top: Vec<&[u8]> = logprobs[0].top.iter().map(|token| token.bytes.as_slice()).collect();
        assert_eq!(top, expected.iter().map(|text: &&str| text.as_bytes()).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn job_that_does_not_ask_gets_no_logprobs() {
    let server = server_of(vec![text_with_logprobs("one", &["one"])], "stop").await;
    let engine = engine(&[&server]).await;
    let (_, logprobs, _) = collect_with_logprobs(engine.start(job(&engine, "x", 16)).unwrap()).await.unwrap();
    assert!(logprobs.is_empty());
}

#[tokio::test]
async fn server_that_sends_none_is_named_in_an_error_before_anything_is_passed_on() {
    for logprobs in [Value::Null, json!({}), json!({"content": null}), json!({"content": []}), json!([])] {
        let server =
            server_of(vec![delta_with_logprobs(&json!({"content": "one"}), &logprobs)], "stop").await;
        let engine = engine(&[&server]).await;
        let mut generation = engine.start(asking_job(&engine, 2, 16)).unwrap();
        assert_eq!(generation.next().await.unwrap_err(), missing(), "{logprobs}");
        assert_eq!(run(&engine, 0).await.unwrap_err(), missing());
        assert_eq!(server.jobs().len(), 1, "it is not sent such a job again");
        assert_eq!(generate(&engine, "x").await.unwrap().0, "one", "its other jobs run");
        assert_eq!(engine.endpoints()[0].state, EndpointState::Up);
    }
}

#[tokio::test]
async fn job_moves_to_a_server_that_sends_logprobs() {
    let without = server_of(vec![text("bad")], "stop").await;
    let with = server_of(vec![text_with_logprobs("good", &["good"])], "stop").await;
    let engine = engine(&[&without, &with]).await;
    for _ in 0..6 {
        let (output, logprobs, _) = run(&engine, 1).await.unwrap();
        assert_eq!((output.as_str(), logprobs.len()), ("good", 1));
    }
    assert!(without.jobs().len() <= 1 && with.jobs().len() == 6);
}

#[tokio::test]
async fn answer_without_logprobs_after_reasoning_fails_unbilled() {
    let server = server_of(vec![reasoning("hm"), text("one")], "stop").await;
    let engine = engine(&[&server]).await;
    let mut generation = engine.start(asking_job(&engine, 1, 16)).unwrap();
    let error = loop {
        match generation.next().await {
            Ok(Event::Reasoning(_) | Event::Text(_)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert_eq!(error, missing());
}

#[tokio::test]
async fn logprobs_may_come_after_their_text() {
    let late = |tokens: &[&str]| delta_with_logprobs(&json!({}), &token_logprobs(tokens));
    let pieces = vec![text("one"), text(" two"), late(&["one", " two"]), text(" three"), late(&[" three"])];
    let server = server_of(pieces, "stop").await;
    let (output, logprobs, _) = run(&engine(&[&server]).await, 0).await.unwrap();
    assert_eq!(output, "one two three");
    assert_eq!(tokens(&logprobs), ["one", " two", " three"]);
}

#[tokio::test]
async fn long_reply_without_logprobs_is_not_awaited_to_its_end() {
    let mut steps = vec![Step::Stream];
    steps.extend((0..8).map(|_| text("word ")));
    steps.push(Step::Hang);
    let server = FaultyServer::always(steps).await;
    let engine = engine(&[&server]).await;
    let mut generation = engine.start(asking_job(&engine, 1, 16)).unwrap();
    assert_eq!(generation.next().await.unwrap_err(), missing());
    server.until_hang_ups(1).await;
}

#[tokio::test]
async fn reasoning_has_no_logprobs() {
    let pieces = vec![
        delta_with_logprobs(&json!({"reasoning_content": "hm"}), &token_logprobs(&["hm"])),
        delta_with_logprobs(&json!({}), &token_logprobs(&["</think>"])),
        text_with_logprobs("Yes", &["Yes"]),
        text_with_logprobs(" sir", &[" sir"]),
    ];
    let server = server_of(pieces, "stop").await;
    let (output, logprobs, ended) = run(&engine(&[&server]).await, 0).await.unwrap();
    assert_eq!(output, "Yes sir");
    assert_eq!(tokens(&logprobs), ["Yes", " sir"]);
    assert_eq!(ended.reasoning_tokens, 1);
}

#[tokio::test]
async fn fewer_or_more_entries_than_text_are_accepted() {
    let end = json!({"choices": [{"index": 0, "delta": {"content": " end"}, "finish_reason": "stop",
        "logprobs": token_logprobs(&[" end", "<|im_end|>"])}]});
    let pieces = vec![
        text_with_logprobs("one", &["one"]),
        text(" without"),
        delta_with_logprobs(&json!({"content": ""}), &token_logprobs(&[" split"])),
        text_with_logprobs(" split up", &[" up"]),
        Step::Event(end.to_string()),
    ];
    let server = server_of(pieces, "stop").await;
    let (output, logprobs, _) = run(&engine(&[&server]).await, 0).await.unwrap();
    assert_eq!(output, "one without split up end");
    assert_eq!(tokens(&logprobs), ["one", " split", " up", " end"]);
}

#[tokio::test]
async fn bytes_may_be_missing() {
    let logprobs = json!({"content": [{"token": "é", "logprob": -0.5, "bytes": null, "top_logprobs": []}]});
    let server = server_of(vec![delta_with_logprobs(&json!({"content": "é"}), &logprobs)], "stop").await;
    let (_, logprobs, _) = run(&engine(&[&server]).await, 3).await.unwrap();
    assert_eq!(tokens(&logprobs), ["é"]);
    assert!(logprobs[0].top.is_empty());
}

#[tokio::test]
async fn reply_stopped_at_its_cap_has_the_logprobs_of_its_text_and_no_more() {
    let mut steps = vec![Step::Stream];
    let piece = || [text_with_logprobs("word ", &["word "]), Step::Pause(Duration::from_millis(5))];
    steps.extend((0..500).flat_map(|_| piece()));
    steps.extend(well_ended("stop", 3, 500));
    let server = FaultyServer::always(steps).await;
    for tokenizer in [None, Some(word_counter())] {
        let engine = engine_with(UpstreamSettings { tokenizer, ..settings(&[&server]) }).await;
        let (output, logprobs, ended) = run(&engine, 1).await.unwrap();
        assert_eq!((ended.reason, ended.output_tokens), (StopReason::MaxOutputTokens, 16));
        assert_eq!(tokens(&logprobs).concat(), output);
    }
}

#[tokio::test]
async fn logprobs_of_a_stop_string_are_left_out() {
    let ended_by =
        |reason: &str| json!({"choices": [{"delta": {}, "finish_reason": reason, "stop_reason": "END"}]});
    let pieces = vec![
        text_with_logprobs("one", &["one"]),
        // The server holds the text back, because it may be the stop string.
        delta_with_logprobs(&json!({"content": ""}), &token_logprobs(&["EN"])),
        delta_with_logprobs(&json!({"content": ""}), &token_logprobs(&["D"])),
        Step::Event(ended_by("stop").to_string()),
    ];
    let server = server_of(pieces, "stop").await;
    let engine = engine(&[&server]).await;
    let job = Job { stop: vec!["END".to_owned()], ..asking_job(&engine, 1, 16) };
    let (output, logprobs, ended) = collect_with_logprobs(engine.start(job).unwrap()).await.unwrap();
    assert_eq!((output.as_str(), ended.reason), ("one", StopReason::StopSequence));
    assert_eq!(tokens(&logprobs), ["one"]);
}

#[tokio::test]
async fn hang_up_leaves_text_and_logprobs_in_step() {
    let steps = vec![
        Step::Stream,
        text_with_logprobs("one", &["one"]),
        text_with_logprobs(" two", &[" two"]),
        Step::Hang,
    ];
    let server = FaultyServer::always(steps).await;
    let engine = engine(&[&server]).await;
    let mut generation = engine.start(asking_job(&engine, 0, 16)).unwrap();
    let (mut output, mut logprobs) = (String::new(), Vec::new());
    while output != "one two" || logprobs.len() < 2 {
        match generation.next().await.unwrap() {
            Event::Text(more) => output += &more,
            Event::Logprobs(more) => logprobs.extend(more),
            other => panic!("{other:?}"),
        }
    }
    generation.cancel();
    let Event::Finished(ended) = generation.next().await.unwrap() else { panic!("more of the reply") };
    assert_eq!((ended.reason, ended.output_tokens), (StopReason::Cancelled, 2));
    assert_eq!(tokens(&logprobs).concat(), output);
}

#[tokio::test]
async fn empty_reply_needs_no_logprobs() {
    let server =
        FaultyServer::always(vec![Step::Stream, finish("stop"), Step::Event("[DONE]".to_owned()), Step::End])
            .await;
    let (output, logprobs, _) = run(&engine(&[&server]).await, 1).await.unwrap();
    assert_eq!((output.as_str(), logprobs.len()), ("", 0));
}
