//! Whole replies, from servers that tell their progress: nothing that a stream keeps is lost by them.

use crate::fixtures::{
    SHORT_TIMEOUTS, TIMEOUTS, collect_reply, collect_with_reasoning, engine_at, engine_with, job,
    manual_clock, settings, word_counter,
};
use chancery_engine::{Engine, EngineError, Event, Finished, Generation, Job, Sampling, StopReason};
use chancery_engine_upstream::{Timeouts, UpstreamEngine, UpstreamSettings};
use chancery_test_support::faulty_chat_server::{
    FaultyServer, OtherRoutes, Step, TokenizeRoute, reply, text, well_ended, whole_reply,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// A llama-server that has generated this many tokens of its job, the last one since it was first asked about it.
fn slots(generated_tokens: u32) -> OtherRoutes {
    let queries = AtomicU32::new(0);
    OtherRoutes::llama_server_with_slots(move || match queries.fetch_add(1, Ordering::Relaxed) {
        // The first query only looks for `/slots`.
        0 | 1 => generated_tokens.saturating_sub(1),
        _ => generated_tokens,
    })
}

async fn server(generated_tokens: u32, steps: Vec<Step>) -> FaultyServer {
    FaultyServer::start_with(slots(generated_tokens), move |_| steps.clone()).await
}

async fn counting_engine(pool: &[&FaultyServer], timeouts: Timeouts) -> UpstreamEngine {
    engine_with(UpstreamSettings { tokenizer: Some(word_counter()), timeouts, ..settings(pool) }).await
}

/// A job whose caller needs no text before the end.
fn whole_job(engine: &UpstreamEngine, input: &str) -> Job {
    Job { needs_partial_text: false, ..job(engine, input, 16) }
}

fn start(engine: &UpstreamEngine, input: &str) -> Generation {
    engine.start(whole_job(engine, input)).unwrap().with_work_in_a_task()
}

async fn cancel(mut generation: Generation) -> Finished {
    generation.cancel();
    match generation.next().await.unwrap() {
        Event::Finished(finished) => finished,
        other => panic!("more of the reply: {other:?}"),
    }
}

fn is_streamed(server: &FaultyServer) -> bool {
    let jobs = server.jobs();
    let body: serde_json::Value = serde_json::from_str(jobs.last().unwrap()).unwrap();
    assert_eq!(body["stream"] == true, body["stream_options"].is_object());
    body["stream"] == true
}

#[tokio::test]
async fn caller_who_does_not_stream_gets_a_whole_reply() {
    let steps = vec![whole_reply("one two three", "stop", Some((90, 80)))];
    let server = server(0, steps).await;
    let engine = counting_engine(&[&server], TIMEOUTS).await;
    let (output, ended) = collect_reply(start(&engine, "Four words for you")).await.unwrap();
    assert_eq!((output.as_str(), ended.reason), ("one two three", StopReason::Complete));
    assert_eq!((ended.output_tokens, ended.prefilled_tokens), (3, 4), "counted here, not by the server");
    assert!(!is_streamed(&server));
}

#[tokio::test]
async fn whole_reply_is_counted_with_and_without_the_servers_usage() {
    for (usage, expected) in [(Some((7, 5)), (Some(7), 5)), (None, (Some(4), 3))] {
        let server = server(0, vec![whole_reply("one two three", "length", usage)]).await;
        let engine = engine_with(settings(&[&server])).await;
        let (_, ended) = collect_reply(start(&engine, "Four words for you")).await.unwrap();
        assert_eq!((ended.input_tokens, ended.output_tokens), expected, "{usage:?}");
        assert_eq!(ended.reason, StopReason::MaxOutputTokens);
        assert!(!is_streamed(&server));
    }
}

#[tokio::test]
async fn whole_reply_that_nobody_can_count_is_billed_by_the_last_report_of_progress() {
    let routes = OtherRoutes { tokenize: Some(TokenizeRoute::BreaksAfterTheProbe), ..slots(2) };
    let steps = vec![Step::Pause(Duration::from_millis(1_400)), whole_reply("one two three", "stop", None)];
    let server = FaultyServer::start_with(routes, move |_| steps.clone()).await;
    let settings = UpstreamSettings { timeouts: SHORT_TIMEOUTS, ..settings(&[&server]) };
    let (_, ended) = collect_reply(start(&engine_with(settings).await, "x")).await.unwrap();
    assert_eq!((ended.input_tokens, ended.output_tokens), (Some(0), 2));
    assert!(!is_streamed(&server));
}

#[tokio::test]
async fn reasoning_of_a_whole_reply_precedes_its_text() {
    let body =
        r#"{"choices":[{"message":{"reasoning_content":"Hm hm","content":"Yes"},"finish_reason":"stop"}]}"#;
    let server = server(0, vec![Step::Answer(200, "", body.to_owned())]).await;
    let engine = counting_engine(&[&server], TIMEOUTS).await;
    let (reasoning, text, ended) = collect_with_reasoning(start(&engine, "x")).await.unwrap();
    assert_eq!((reasoning.as_str(), text.as_str()), ("Hm hm", "Yes"));
    assert_eq!((ended.output_tokens, ended.reasoning_tokens), (3, 2));
}

#[tokio::test]
async fn hang_up_during_a_whole_reply_closes_the_connection_and_bills_what_was_generated() {
    let server = server(5, vec![Step::Hang]).await;
    let engine = counting_engine(&[&server], TIMEOUTS).await;
    let generation = start(&engine, "Four words for you");
    server.until_jobs(1).await;
    let ended = cancel(generation).await;
    server.until_hang_ups(1).await;
    assert_eq!((ended.reason, ended.output_tokens), (StopReason::Cancelled, 5));
    assert_eq!((ended.input_tokens, ended.prefilled_tokens), (None, 4));
}

#[tokio::test]
async fn hang_up_without_a_tokenizer_is_billed_by_progress_and_the_servers_tokenize() {
    let server = server(5, vec![Step::Hang]).await;
    let engine = engine_with(settings(&[&server])).await;
    let generation = start(&engine, "Four words for you");
    server.until_jobs(1).await;
    let ended = cancel(generation).await;
    server.until_hang_ups(1).await;
    assert_eq!((ended.input_tokens, ended.output_tokens), (Some(4), 5));
}

#[tokio::test]
async fn hang_up_before_the_first_token_of_a_whole_reply_bills_nothing() {
    let server = server(0, vec![Step::Hang]).await;
    let engine = counting_engine(&[&server], TIMEOUTS).await;
    let generation = start(&engine, "Four words for you");
    server.until_jobs(1).await;
    let ended = cancel(generation).await;
    server.until_hang_ups(1).await;
    assert_eq!((ended.reason, ended.output_tokens), (StopReason::Cancelled, 0));
    assert_eq!(ended.prefilled_tokens, 4, "it counts against the minute");
}

#[tokio::test]
async fn server_that_has_generated_is_not_suspected_to_hang_after_a_late_hang_up() {
    let server = server(5, vec![Step::Hang]).await;
    let clock = manual_clock();
    let settings = UpstreamSettings { tokenizer: Some(word_counter()), ..settings(&[&server]) };
    let engine = engine_at(settings, &clock).await;
    let generation = start(&engine, "x");
    server.until_jobs(1).await;
    clock.advance(Duration::from_secs(11));
    assert_eq!(cancel(generation).await.output_tokens, 5);
    server.until_hang_ups(1).await;
    // Nothing tells that no probe is coming.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(server.jobs().len(), 1);
}

#[tokio::test]
async fn no_more_than_the_cap_is_billed_after_a_hang_up() {
    let server = server(5_000, vec![Step::Hang]).await;
    let engine = counting_engine(&[&server], SHORT_TIMEOUTS).await;
    let generation = start(&engine, "x");
    server.until_jobs(1).await;
    // The server is asked several times before that.
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert_eq!(cancel(generation).await.output_tokens, 16);
    server.until_hang_ups(1).await;
}

#[tokio::test]
async fn job_that_needs_a_stream_gets_one() {
    let server = server(0, reply(&["fine"], 1)).await;
    let engine = counting_engine(&[&server], TIMEOUTS).await;
    let whole = whole_job(&engine, "x");
    let chosen_seed = Sampling { temperature: 1.0, seed: 7, is_seed_chosen: true, ..Sampling::GREEDY };
    for job in [
        // Another node may have sent the same one to the same server.
        Job { sampling: chosen_seed, ..whole.clone() },
        Job { needs_partial_text: true, ..whole.clone() },
        Job { stop_on_repetition: true, ..whole.clone() },
        // At four tokens a second it does not end within the total timeout.
        Job { max_output_tokens: 241, ..whole },
    ] {
        assert_eq!(collect_reply(engine.start(job).unwrap()).await.unwrap().0, "fine");
        assert!(is_streamed(&server));
    }
    let hedged = UpstreamSettings { hedge_after: Some(Duration::from_secs(9)), ..settings(&[&server]) };
    let engine = engine_with(hedged).await;
    assert_eq!(collect_reply(start(&engine, "x")).await.unwrap().0, "fine");
    assert!(is_streamed(&server));
}

#[tokio::test]
async fn server_that_does_not_tell_its_progress_is_asked_for_streams() {
    for routes in [OtherRoutes::llama_server(), OtherRoutes::vllm(), OtherRoutes::default()] {
        let server = FaultyServer::start_with(routes, |_| reply(&["a ", "b ", "c"], 1)).await;
        let engine = counting_engine(&[&server], TIMEOUTS).await;
        let (output, ended) = collect_reply(start(&engine, "x")).await.unwrap();
        assert_eq!((output.as_str(), ended.output_tokens), ("a b c", 3));
        assert!(is_streamed(&server));
    }
}

#[tokio::test]
async fn streamed_text_that_nobody_needs_before_the_end_comes_at_once() {
    let gate = Arc::new(Notify::new());
    let mut steps = vec![Step::Stream, text("a "), text("b "), Step::Gate(Arc::clone(&gate)), text("c")];
    steps.extend(well_ended("stop", 1, 3));
    let server = FaultyServer::always(steps).await;
    let engine = counting_engine(&[&server], TIMEOUTS).await;
    let mut generation = start(&engine, "x");
    let early = tokio::time::timeout(Duration::from_millis(300), generation.next()).await;
    assert!(early.is_err(), "{early:?}");
    gate.notify_one();
    assert_eq!(generation.next().await.unwrap(), Event::Text("a b c".to_owned()));
    assert!(matches!(generation.next().await.unwrap(), Event::Finished(_)));
}

#[tokio::test]
async fn streamed_text_is_passed_on_and_billed_after_a_hang_up() {
    let server = FaultyServer::always(vec![Step::Stream, text("one "), text("two"), Step::Hang]).await;
    let engine = counting_engine(&[&server], TIMEOUTS).await;
    let mut generation = start(&engine, "x");
    // Nothing tells that the text has arrived.
    let early = tokio::time::timeout(Duration::from_millis(500), generation.next()).await;
    assert!(early.is_err(), "{early:?}");
    generation.cancel();
    assert_eq!(generation.next().await.unwrap(), Event::Text("one two".to_owned()));
    let Event::Finished(ended) = generation.next().await.unwrap() else { panic!("it goes on") };
    assert_eq!((ended.reason, ended.output_tokens), (StopReason::Cancelled, 2));
    server.until_hang_ups(1).await;
}

#[tokio::test]
async fn sampled_jobs_with_the_same_seed_are_told_apart() {
    let server = server(5, vec![Step::Hang]).await;
    let engine = counting_engine(&[&server], TIMEOUTS).await;
    let sampling = Sampling { temperature: 1.0, seed: 7, ..Sampling::GREEDY };
    let sampled = || Job { sampling, ..whole_job(&engine, "x") };
    let first = engine.start(sampled()).unwrap().with_work_in_a_task();
    server.until_jobs(1).await;
    assert!(!is_streamed(&server));
    let second = engine.start(sampled()).unwrap().with_work_in_a_task();
    server.until_jobs(2).await;
    assert!(is_streamed(&server), "otherwise its tokens could be those of the first");
    assert_eq!(cancel(second).await.output_tokens, 0);
    assert_eq!(cancel(first).await.output_tokens, 5);
}

#[tokio::test]
async fn job_that_the_server_lists_a_moment_after_the_hang_up_is_billed() {
    let queries = AtomicU32::new(0);
    // The first query looks for `/slots`, and the second for the job.
    let generated_tokens =
        move || queries.fetch_add(1, Ordering::Relaxed).checked_sub(1).filter(|tokens| *tokens > 0);
    let routes =
        OtherRoutes { generated_tokens: Some(Arc::new(generated_tokens)), ..OtherRoutes::llama_server() };
    let server = FaultyServer::start_with(routes, |_| vec![Step::Hang]).await;
    let engine = counting_engine(&[&server], TIMEOUTS).await;
    // Each job is billed by the first answer that differs from the one before.
    for (jobs, tokens) in [(1, 2), (2, 4)] {
        let generation = start(&engine, "x");
        server.until_jobs(jobs).await;
        assert!(!is_streamed(&server), "the server is still believed");
        assert_eq!(cancel(generation).await.output_tokens, tokens);
    }
}

#[tokio::test]
async fn hang_up_during_the_prompt_is_not_billed_by_the_job_before_in_the_same_slot() {
    let routes = OtherRoutes::llama_server_with_slots(|| 9);
    let server = FaultyServer::start_with(routes, |_| vec![Step::Hang]).await;
    let engine = counting_engine(&[&server], TIMEOUTS).await;
    let generation = start(&engine, "x");
    server.until_jobs(1).await;
    assert_eq!(cancel(generation).await.output_tokens, 0);
    server.until_hang_ups(1).await;
    let _second = start(&engine, "x");
    server.until_jobs(2).await;
    assert!(!is_streamed(&server), "the server is still believed");
}

#[tokio::test]
async fn tokens_of_the_job_before_in_the_same_slot_hide_no_progress() {
    let queries = AtomicU32::new(0);
    let routes =
        OtherRoutes::llama_server_with_slots(move || match queries.fetch_add(1, Ordering::Relaxed) {
            // The first query only looks for `/slots`, and the second comes during the prompt.
            0 | 1 => 900,
            later => later - 1,
        });
    let steps = vec![Step::Pause(Duration::from_secs(4)), whole_reply("fine", "stop", Some((1, 1)))];
    let server = FaultyServer::start_with(routes, move |_| steps.clone()).await;
    let engine = counting_engine(&[&server], SHORT_TIMEOUTS).await;
    assert_eq!(collect_reply(start(&engine, "x")).await.unwrap().0, "fine");
    assert_eq!(server.jobs().len(), 1);
}

#[tokio::test]
async fn balancer_that_lists_the_jobs_of_another_server_is_asked_for_streams() {
    let server = || FaultyServer::start_with(OtherRoutes::llama_server_balancer(), |_| vec![Step::Hang]);
    let hung_up = server().await;
    let engine = counting_engine(&[&hung_up], TIMEOUTS).await;
    let first = start(&engine, "x");
    hung_up.until_jobs(1).await;
    assert!(!is_streamed(&hung_up));
    assert_eq!(cancel(first).await.output_tokens, 0);
    let _second = start(&engine, "x");
    hung_up.until_jobs(2).await;
    assert!(is_streamed(&hung_up), "a hang-up has shown it");

    let waiting = server().await;
    let engine = counting_engine(&[&waiting], SHORT_TIMEOUTS).await;
    assert!(collect_reply(start(&engine, "x")).await.is_err());
    let _second = start(&engine, "x");
    waiting.until_jobs_with("\"x\"", 2).await;
    let last = waiting.jobs().into_iter().rfind(|job| job.contains("\"x\"")).unwrap();
    assert!(last.contains("\"stream\":true"), "its answers have shown it: {last}");
}

/// Every failure before the first token of a whole reply.
fn early_faults() -> [(&'static str, Vec<Step>); 6] {
    let cut_off = b"HTTP/1.1 200 X\r\ncontent-length: 100\r\n\r\n{\"choices\":".to_vec();
    [
        ("500", vec![Step::Answer(500, "", r#"{"error":{"message":"no"}}"#.to_owned())]),
        ("a body that is cut off", vec![Step::Bytes(cut_off), Step::Cut]),
        ("a page", vec![Step::Answer(200, "", "<html>".to_owned())]),
        ("no finish reason", vec![Step::Answer(200, "", r#"{"choices":[]}"#.to_owned())]),
        ("not UTF-8", vec![Step::Bytes(b"HTTP/1.1 200 X\r\ncontent-length: 1\r\n\r\n\xff".to_vec())]),
        ("an error", vec![Step::Answer(200, "", r#"{"error":{"message":"oom"}}"#.to_owned())]),
    ]
}

#[tokio::test]
async fn failure_before_the_first_token_of_a_whole_reply_is_retried() {
    let good = server(0, vec![whole_reply("fine", "stop", Some((1, 1)))]).await;
    for (name, steps) in early_faults() {
        let bad = server(0, steps).await;
        let engine = counting_engine(&[&bad, &good], TIMEOUTS).await;
        for _ in 0..4 {
            let outcome = collect_reply(start(&engine, "x")).await;
            let (output, _) = outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(output, "fine", "{name}");
        }
        assert!(!bad.jobs().is_empty(), "{name}");
        let alone = counting_engine(&[&bad], TIMEOUTS).await;
        let error = collect_reply(start(&alone, "x")).await.unwrap_err();
        assert!(matches!(error, EngineError::Failed(_)), "{name}: {error}");
    }
}

#[tokio::test]
async fn failure_after_a_hang_up_is_not_retried() {
    let gate = Arc::new(Notify::new());
    let steps = vec![Step::Gate(Arc::clone(&gate)), Step::Answer(500, "", "no".to_owned())];
    let server = || {
        let steps = steps.clone();
        FaultyServer::start_with(OtherRoutes::llama_server_balancer(), move |_| steps.clone())
    };
    let servers = [server().await, server().await];
    let engine = counting_engine(&[&servers[0], &servers[1]], TIMEOUTS).await;
    let mut generation = start(&engine, "x");
    tokio::select! {
        () = servers[0].until_jobs(1) => {}
        () = servers[1].until_jobs(1) => {}
    }
    generation.cancel();
    gate.notify_one();
    let Event::Finished(ended) = generation.next().await.unwrap() else { panic!("it goes on") };
    assert_eq!((ended.reason, ended.output_tokens), (StopReason::Cancelled, 0));
    let jobs: usize = servers.iter().map(|server| server.jobs().len()).sum();
    assert_eq!(jobs, 1, "nobody waits for the other server");
}

#[tokio::test]
async fn busy_server_and_rejected_job_have_the_same_errors_as_with_streams() {
    let busy = server(0, vec![Step::Answer(503, "retry-after: 7\r\n", "busy".to_owned())]).await;
    let engine = counting_engine(&[&busy], TIMEOUTS).await;
    let error = collect_reply(start(&engine, "x")).await.unwrap_err();
    assert_eq!(error, EngineError::Overloaded { retry_after_s: 7 });
    let body = r#"{"error":{"message":"no such role"}}"#;
    let rejecting = server(0, vec![Step::Answer(400, "", body.to_owned())]).await;
    let engine = counting_engine(&[&rejecting], TIMEOUTS).await;
    let error = collect_reply(start(&engine, "x")).await.unwrap_err();
    assert_eq!(error, EngineError::InputRejected { reason: Some("no such role".to_owned()) });
}

#[tokio::test]
async fn whole_reply_without_a_token_in_time_goes_to_another_server() {
    let silent = server(0, vec![Step::Hang]).await;
    let good = server(0, vec![whole_reply("fine", "stop", Some((1, 1)))]).await;
    let engine = counting_engine(&[&silent, &good], SHORT_TIMEOUTS).await;
    for _ in 0..2 {
        assert_eq!(collect_reply(start(&engine, "x")).await.unwrap().0, "fine");
    }
    assert!(!silent.jobs().is_empty());
    silent.until_hang_ups(1).await;
}

#[tokio::test]
async fn whole_reply_that_stops_making_progress_fails_and_is_not_retried() {
    let servers = [server(3, vec![Step::Hang]).await, server(3, vec![Step::Hang]).await];
    let engine = counting_engine(&[&servers[0], &servers[1]], SHORT_TIMEOUTS).await;
    assert_eq!(collect_reply(start(&engine, "x")).await.unwrap_err(), EngineError::TimedOut);
    let is_job = |job: &String| !job.contains("\"Hi\"");
    let jobs = servers.iter().map(|server| server.jobs().iter().filter(|job| is_job(job)).count());
    assert_eq!(jobs.sum::<usize>(), 1);
}

#[tokio::test]
async fn whole_reply_whose_connection_breaks_is_not_generated_twice() {
    let queries = AtomicU32::new(0);
    let routes = OtherRoutes::llama_server_with_slots(move || queries.fetch_add(1, Ordering::Relaxed));
    let steps = vec![Step::Pause(Duration::from_secs(3)), Step::Cut];
    let server = FaultyServer::start_with(routes, move |_| steps.clone()).await;
    let engine = counting_engine(&[&server], SHORT_TIMEOUTS).await;
    let error = collect_reply(start(&engine, "x")).await.unwrap_err();
    assert!(matches!(error, EngineError::Failed(_)), "{error}");
    assert_eq!(server.jobs().iter().filter(|job| !job.contains("\"Hi\"")).count(), 1);
}

#[tokio::test]
async fn slow_whole_reply_is_awaited_while_it_makes_progress() {
    let timeouts = Timeouts { first_token: Duration::from_secs(2), idle: Duration::from_secs(2), ..TIMEOUTS };
    let queries = AtomicU32::new(0);
    let routes = OtherRoutes::llama_server_with_slots(move || queries.fetch_add(1, Ordering::Relaxed));
    let steps = vec![Step::Pause(Duration::from_secs(5)), whole_reply("fine", "stop", Some((1, 1)))];
    let server = FaultyServer::start_with(routes, move |_| steps.clone()).await;
    let engine = counting_engine(&[&server], timeouts).await;
    assert_eq!(collect_reply(start(&engine, "x")).await.unwrap().0, "fine");
    assert_eq!(server.jobs().len(), 1);
}

#[tokio::test]
async fn whole_reply_that_reaches_the_total_timeout_fails_unbilled() {
    let server = server(3, vec![Step::Hang]).await;
    let timeouts = Timeouts { total: Duration::from_secs(4), ..TIMEOUTS };
    let engine = counting_engine(&[&server], timeouts).await;
    let error = collect_reply(start(&engine, "x")).await.unwrap_err();
    assert_eq!(error, EngineError::TimedOut);
    assert!(!is_streamed(&server));
    server.until_hang_ups(1).await;
}
