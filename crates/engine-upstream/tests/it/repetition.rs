//! `stop_on_repetition`: a reply that loops is ended by this side, and billed like a reply that the caller cut off.

use crate::fixtures::{
    collect_reply, collect_with_reasoning, engine, engine_with, job, settings, word_counter,
};
use chancery_engine::{EndpointState, Engine, Job, StopReason};
use chancery_engine_upstream::{UpstreamEngine, UpstreamSettings};
use chancery_test_support::faulty_chat_server::{
    FaultyServer, OtherRoutes, Step, counted_text, reasoning, reply, text, well_ended,
};
use std::time::Duration;

/// Never reached: the loop ends the reply long before.
const CAP: u32 = 3_900;
const ROUNDS: u32 = 600;
/// What a small model wrote in a letter.
const ROUND: [&str; 3] = ["who is a con", "tractor who has", " a client "];
const WORDS_PER_ROUND: u32 = 8;

fn watched(engine: &UpstreamEngine) -> Job {
    Job { stop_on_repetition: true, ..job(engine, "x", CAP) }
}

/// A loop that would go on past the cap, sent slowly enough to be stopped in between.
fn looping(piece: impl Fn(&str) -> Step) -> Vec<Step> {
    let mut steps = vec![Step::Stream, piece("Dear Ruth, ")];
    for _ in 0..ROUNDS {
        steps.extend(ROUND.map(&piece));
        steps.push(Step::Pause(Duration::from_millis(2)));
    }
    steps.extend(well_ended("stop", 3, ROUNDS * WORDS_PER_ROUND));
    steps
}

fn words(text: &str) -> u32 {
    u32::try_from(text.split_whitespace().count()).unwrap()
}

#[tokio::test]
async fn loop_ends_the_reply_and_closes_the_connection() {
    let server = FaultyServer::always(looping(text)).await;
    let tokenizer = Some(word_counter());
    let engine = engine_with(UpstreamSettings { tokenizer, ..settings(&[&server]) }).await;
    let (output, ended) = collect_reply(engine.start(watched(&engine)).unwrap()).await.unwrap();
    assert_eq!(ended.reason, StopReason::Repetition);
    assert!(words(&output) < ROUNDS * WORDS_PER_ROUND / 2, "{output}");
    assert_eq!(ended.output_tokens, words(&output), "what was passed on is billed, and no more");
    assert_eq!((ended.input_tokens, ended.prefilled_tokens), (None, 1));
    server.until_hang_ups(1).await;
    assert_eq!(engine.endpoints()[0].state, EndpointState::Up, "the server is not to blame");
}

#[tokio::test]
async fn looping_reply_without_a_tokenizer_is_billed_like_one_that_was_cut_off() {
    let tokenizing = FaultyServer::start_with(OtherRoutes::vllm(), |_| looping(text)).await;
    let uncounted = FaultyServer::always(looping(text)).await;
    let counted = FaultyServer::always(looping(|piece| counted_text(piece, 7, 1))).await;
    for (server, input_tokens) in [(&tokenizing, 1), (&uncounted, 0), (&counted, 7)] {
        let engine = engine(&[server]).await;
        let (output, ended) = collect_reply(engine.start(watched(&engine)).unwrap()).await.unwrap();
        assert_eq!((ended.reason, ended.input_tokens), (StopReason::Repetition, Some(input_tokens)));
        let output_tokens = if input_tokens == 1 { words(&output) } else { pieces(&output) };
        assert_eq!(ended.output_tokens, output_tokens, "{output}");
        server.until_hang_ups(1).await;
    }
}

/// How many pieces of `looping` this text is made of.
fn pieces(text: &str) -> u32 {
    let mut rest = text.strip_prefix("Dear Ruth, ").unwrap();
    let mut pieces = 1;
    for piece in ROUND.iter().cycle() {
        match rest.strip_prefix(piece) {
            Some(after) => (rest, pieces) = (after, pieces + 1),
            None => break,
        }
    }
    assert_eq!(rest, "");
    pieces
}

#[tokio::test]
async fn looping_reasoning_ends_the_reply_too() {
    let server = FaultyServer::always(looping(reasoning)).await;
    let tokenizer = Some(word_counter());
    let engine = engine_with(UpstreamSettings { tokenizer, ..settings(&[&server]) }).await;
    let (reasoning, output, ended) =
        collect_with_reasoning(engine.start(watched(&engine)).unwrap()).await.unwrap();
    assert_eq!((output.as_str(), ended.reason), ("", StopReason::Repetition));
    assert_eq!((ended.output_tokens, ended.reasoning_tokens), (words(&reasoning), words(&reasoning)));
}

#[tokio::test]
async fn reply_loops_on_where_nobody_asked_to_end_it() {
    let mut steps = vec![Step::Stream];
    steps.extend((0..200).map(|_| text("again ")));
    steps.extend(well_ended("stop", 3, 200));
    let server = FaultyServer::always(steps).await;
    let engine = engine(&[&server]).await;
    let (output, ended) = collect_reply(engine.start(job(&engine, "x", CAP)).unwrap()).await.unwrap();
    assert_eq!((words(&output), ended.reason), (200, StopReason::Complete));
}

#[tokio::test]
async fn watched_reply_without_a_loop_is_complete() {
    let all: Vec<String> = (0..400).map(|number| format!("word{number} ")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let server = FaultyServer::always(reply(&all, 3)).await;
    let engine = engine(&[&server]).await;
    let (output, ended) = collect_reply(engine.start(watched(&engine)).unwrap()).await.unwrap();
    assert_eq!((output, ended.reason), (all.concat(), StopReason::Complete));
    assert_eq!((ended.input_tokens, ended.output_tokens), (Some(3), 400));
}
