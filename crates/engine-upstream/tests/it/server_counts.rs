//! Billing without `tokenizer`: by the server's usage, by its `/tokenize`, or by the pieces that came.

use crate::fixtures::{
    collect_reply, engine, engine_with, generate, instructed_job, job, read_until, settings, start,
    word_counter,
};
use chancery_engine::{Engine, Event, Finished, Generation, Job, StopReason, Turn};
use chancery_engine_upstream::UpstreamSettings;
use chancery_test_support::faulty_chat_server::{
    FaultyServer, OtherRoutes, Step, TokenizeRoute, counted_text, reply, reply_without_usage, text,
};
use std::time::Duration;

async fn server(routes: OtherRoutes, steps: Vec<Step>) -> FaultyServer {
    FaultyServer::start_with(routes, move |_| steps.clone()).await
}

fn both_tokenize_routes() -> [OtherRoutes; 2] {
    [OtherRoutes::vllm(), OtherRoutes::llama_server()]
}

async fn cancel(mut generation: Generation) -> Finished {
    generation.cancel();
    match generation.next().await.unwrap() {
        Event::Finished(finished) => finished,
        other => panic!("more of the reply: {other:?}"),
    }
}

#[tokio::test]
async fn reply_without_usage_is_billed_by_its_pieces() {
    let server = FaultyServer::always(reply_without_usage(&["one", " two and", " three"])).await;
    let engine = engine(&[&server]).await;
    let (output, ended) = generate(&engine, "Four words for you").await.unwrap();
    assert_eq!(output, "one two and three");
    assert_eq!((ended.reason, ended.output_tokens), (StopReason::Complete, 3));
    assert_eq!(ended.input_tokens, Some(0), "an estimate is not billed");
    assert_eq!(ended.prefilled_tokens, 19, "what was reserved counts against the minute");
}

#[tokio::test]
async fn reply_without_usage_is_counted_by_the_servers_tokenize() {
    for routes in both_tokenize_routes() {
        let server = server(routes, reply_without_usage(&["one two", " three four"])).await;
        let engine = engine(&[&server]).await;
        let job = instructed_job(&engine, "Answer now.", "Four words for you", 16);
        let (_, ended) = collect_reply(engine.start(job).unwrap()).await.unwrap();
        assert_eq!((ended.input_tokens, ended.output_tokens, ended.prefilled_tokens), (Some(6), 4, 6));
    }
}

#[tokio::test]
async fn long_conversation_is_counted_in_one_request() {
    let server = server(OtherRoutes::llama_server(), reply_without_usage(&["one"])).await;
    let engine = engine(&[&server]).await;
    let probes = server.tokenized().len();
    let turns: Vec<Turn> = (0..20).map(|number| Turn::user(format!("turn {number} "))).collect();
    let prompt = engine.prepare(&turns).unwrap();
    let job = Job { prompt, ..job(&engine, "x", 16) };
    let (_, ended) = collect_reply(engine.start(job).unwrap()).await.unwrap();
    assert_eq!((ended.input_tokens, server.tokenized().len() - probes), (Some(40), 2));
}

#[tokio::test]
async fn hang_up_is_counted_by_the_servers_tokenize() {
    for routes in both_tokenize_routes() {
        let steps = vec![Step::Stream, text("one two"), text(" three four"), Step::Hang];
        let server = server(routes, steps).await;
        let engine = engine(&[&server]).await;
        let mut generation = start(&engine, "Four words for you");
        read_until(&mut generation, "one two three four").await;
        let ended = cancel(generation).await;
        assert_eq!(ended.reason, StopReason::Cancelled);
        assert_eq!((ended.input_tokens, ended.output_tokens, ended.prefilled_tokens), (Some(4), 4, 4));
    }
}

#[tokio::test]
async fn servers_usage_is_preferred_to_its_tokenize() {
    let server = server(OtherRoutes::vllm(), reply(&["one", " two"], 7)).await;
    let engine = engine(&[&server]).await;
    let probes = server.tokenized().len();
    let (_, ended) = generate(&engine, "Four words for you").await.unwrap();
    assert_eq!((ended.input_tokens, ended.output_tokens, ended.prefilled_tokens), (Some(7), 2, 7));
    assert_eq!(server.tokenized().len(), probes, "nothing is counted twice");
}

#[tokio::test]
async fn prompt_reported_as_empty_is_counted_by_tokenize() {
    let server = server(OtherRoutes::vllm(), reply(&["one", " two"], 0)).await;
    let (_, ended) = generate(&engine(&[&server]).await, "Four words for you").await.unwrap();
    assert_eq!((ended.input_tokens, ended.output_tokens, ended.prefilled_tokens), (Some(4), 2, 4));
}

#[tokio::test]
async fn hedged_reply_is_counted_by_the_server_that_sent_it() {
    let late = vec![Step::Pause(Duration::from_millis(600))];
    let late = [late, reply_without_usage(&["one two"])].concat();
    let late = server(OtherRoutes::vllm(), late).await;
    let silent = FaultyServer::always(vec![Step::Hang]).await;
    let hedge_after = Some(Duration::from_millis(100));
    let engine = engine_with(UpstreamSettings { hedge_after, ..settings(&[&late, &silent]) }).await;
    for _ in 0..4 {
        let (_, ended) = generate(&engine, "Four words for you").await.unwrap();
        assert_eq!((ended.input_tokens, ended.output_tokens), (Some(4), 2));
    }
}

#[tokio::test]
async fn text_after_the_last_usage_report_is_counted_by_tokenize() {
    let steps = vec![Step::Stream, counted_text("one", 7, 1), text(" two three four"), Step::Hang];
    let server = server(OtherRoutes::vllm(), steps).await;
    let engine = engine(&[&server]).await;
    let mut generation = start(&engine, "x");
    read_until(&mut generation, "one two three four").await;
    let ended = cancel(generation).await;
    assert_eq!((ended.input_tokens, ended.output_tokens), (Some(7), 4));
}

#[tokio::test]
async fn failing_tokenize_falls_back_to_the_pieces() {
    let routes = OtherRoutes { tokenize: Some(TokenizeRoute::BreaksAfterTheProbe), ..OtherRoutes::default() };
    let server = server(routes, reply_without_usage(&["one", " two"])).await;
    let engine = engine(&[&server]).await;
    let (_, ended) = generate(&engine, "Four words for you").await.unwrap();
    assert_eq!((ended.input_tokens, ended.output_tokens, ended.prefilled_tokens), (Some(0), 2, 19));
}

#[tokio::test]
async fn tokenize_counts_callers_text_without_special_tokens() {
    let expected = [
        serde_json::json!({"model": "their-m", "prompt": "x", "add_special_tokens": false}),
        serde_json::json!({"model": "their-m", "content": "x", "add_special": false, "parse_special": false}),
    ];
    for (routes, expected) in both_tokenize_routes().into_iter().zip(expected) {
        let server = server(routes, reply_without_usage(&["one"])).await;
        let engine = engine(&[&server]).await;
        let probes = server.tokenized().len();
        generate(&engine, "x").await.unwrap();
        let bodies: Vec<serde_json::Value> =
            server.tokenized()[probes..].iter().map(|body| serde_json::from_str(body).unwrap()).collect();
        assert!(bodies.contains(&expected), "{bodies:?}");
        assert_eq!(bodies.len(), 2, "one for the prompt, one for the reply");
    }
}

#[tokio::test]
async fn configured_tokenizer_makes_tokenize_unnecessary() {
    let server = server(OtherRoutes::vllm(), reply_without_usage(&["one two"])).await;
    let settings = UpstreamSettings { tokenizer: Some(word_counter()), ..settings(&[&server]) };
    let engine = engine_with(settings).await;
    let (_, ended) = generate(&engine, "Four words for you").await.unwrap();
    assert_eq!((ended.input_tokens, ended.output_tokens, ended.prefilled_tokens), (None, 2, 4));
    assert_eq!(server.tokenized().len(), 0);
}

#[tokio::test]
async fn hang_up_before_the_first_token_reports_the_prompt_as_prefilled() {
    for (routes, tokenizer, expected) in [
        (OtherRoutes::default(), None, 19),
        (OtherRoutes::llama_server(), None, 4),
        (OtherRoutes::default(), Some(word_counter()), 4),
    ] {
        let server = server(routes, vec![Step::Hang]).await;
        let engine = engine_with(UpstreamSettings { tokenizer, ..settings(&[&server]) }).await;
        let generation = start(&engine, "Four words for you");
        server.until_jobs(1).await;
        let ended = cancel(generation).await;
        assert_eq!((ended.reason, ended.output_tokens), (StopReason::Cancelled, 0));
        assert_eq!(ended.prefilled_tokens, expected);
    }
}

#[tokio::test]
async fn hang_up_before_the_job_was_sent_prefills_nothing() {
    let server = server(OtherRoutes::default(), vec![Step::Hang]).await;
    let engine = engine(&[&server]).await;
    let ended = cancel(start(&engine, "Four words for you")).await;
    assert_eq!((ended.reason, ended.output_tokens, ended.prefilled_tokens), (StopReason::Cancelled, 0, 0));
    assert_eq!(server.jobs().len(), 0);
}
