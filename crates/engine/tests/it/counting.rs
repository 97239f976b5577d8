//! What is counted, and who is believed.

use crate::server::{FaultyServer, Step, finish, reply, text, usage, well_ended};
use crate::set_up::{ask, engine, engine_with, job, settings, start, whole, word_counter};
use chancery_engine::upstream::{UpstreamEngine, UpstreamSettings};
use chancery_engine::{Engine, EngineError, Event, StopReason, Turn};

async fn counting_engine(server: &FaultyServer) -> UpstreamEngine {
    engine_with(UpstreamSettings { tokenizer: Some(word_counter()), ..settings(&[server]) }).await
}

#[tokio::test]
async fn without_a_tokenizer_the_servers_counts_are_taken_within_what_was_reserved() {
    let server = FaultyServer::always(reply(&["one", " two"], 7)).await;
    let engine = engine(&[&server]).await;
    let turns = Turn::instructions_and_input("Answer.", "Now.");
    assert_eq!(engine.prepare(&turns).unwrap().input_tokens, 8 + 5, "a token has a byte or more");
    let (said, ended) = ask(&engine, "Now.").await.unwrap();
    assert_eq!((said.as_str(), ended.output_tokens, ended.input_tokens), ("one two", 2, Some(7)));
    assert_eq!(ended.reason, StopReason::Complete);
}

#[tokio::test]
async fn with_a_tokenizer_lying_or_missing_usage_changes_nothing() {
    let honest = reply(&["one", " two", " three"], 3);
    let mut silent = vec![Step::Stream, text("one two three"), finish("stop"), Step::End];
    let mut lying = vec![Step::Stream, text("one two three")];
    lying.extend(well_ended("stop", 4_000_000_000, 4_000_000_000));
    for steps in [honest, lying, std::mem::take(&mut silent)] {
        let server = FaultyServer::always(steps).await;
        let engine = counting_engine(&server).await;
        let (_, ended) = ask(&engine, "Two words.").await.unwrap();
        assert_eq!((ended.output_tokens, ended.input_tokens), (3, None));
        let turns = Turn::instructions_and_input("One two", "three a<end>b");
        assert_eq!(engine.prepare(&turns).unwrap().input_tokens, 4, "nothing in a text is a special token");
    }
}

#[tokio::test]
async fn a_reply_that_nobody_counted_fails_instead_of_being_given_away() {
    let server = FaultyServer::always(vec![Step::Stream, text("one"), finish("stop"), Step::End]).await;
    assert!(matches!(ask(&engine(&[&server]).await, "x").await, Err(EngineError::Failed(_))));
}

#[tokio::test]
async fn no_reply_counts_more_than_its_cap() {
    let many = "word ".repeat(60);
    let mut steps = vec![Step::Stream, text(&many)];
    steps.extend(well_ended("length", 3, 60));
    let server = FaultyServer::always(steps).await;
    for engine in [engine(&[&server]).await, counting_engine(&server).await] {
        let (_, ended) = ask(&engine, "x").await.unwrap();
        assert_eq!((ended.output_tokens, ended.reason), (16, StopReason::MaxOutputTokens));
    }
}

#[tokio::test]
async fn tokens_of_a_character_that_the_cap_cut_off_count_and_nothing_else_that_is_in_no_text() {
    for (words, claimed, expected) in [(14, 16, 16), (13, 16, 16), (12, 16, 12), (14, 17, 14), (16, 12, 16)] {
        let mut steps = vec![Step::Stream, text(&"word ".repeat(words))];
        steps.extend(well_ended("length", 3, claimed));
        let server = FaultyServer::always(steps).await;
        let (_, ended) = ask(&counting_engine(&server).await, "x").await.unwrap();
        assert_eq!(ended.output_tokens, expected, "{words} words, {claimed} claimed");
    }
}

#[tokio::test]
async fn why_a_reply_ended_is_told_in_our_words() {
    let by_stop = |field: &str| {
        let end =
            format!(r#"{{"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop","{field}":"END"}}]}}"#);
        vec![
            Step::Stream,
            text("a b"),
            Step::Event(end),
            usage(3, 2),
            Step::Event("[DONE]".to_owned()),
            Step::End,
        ]
    };
    let mut cut = vec![Step::Stream, text("a b")];
    cut.extend(well_ended("length", 4_094, 2));
    for (steps, expected) in [
        (by_stop("stop_reason"), StopReason::StopSequence),
        (by_stop("matched_stop"), StopReason::StopSequence),
        (cut, StopReason::ContextLength),
    ] {
        let server = FaultyServer::always(steps).await;
        assert_eq!(ask(&engine(&[&server]).await, "x").await.unwrap().1.reason, expected);
    }
}

#[tokio::test]
async fn a_server_is_asked_for_no_more_than_the_context_has_room_for() {
    let mut steps = vec![Step::Stream, text("a b")];
    steps.extend(well_ended("length", 4_000, 2));
    let server = FaultyServer::always(steps).await;
    let engine = counting_engine(&server).await;
    let long = "word ".repeat(4_000);
    let (_, ended) = whole(engine.start(job(&engine, &long, 1_000)).unwrap()).await.unwrap();
    assert_eq!(ended.reason, StopReason::ContextLength);
    let sent: serde_json::Value = serde_json::from_str(&server.jobs()[0]).unwrap();
    assert!(sent["max_tokens"].as_u64().unwrap() < 96, "{}", sent["max_tokens"]);
    let too_long = Turn::instructions_and_input("", "word ".repeat(4_096));
    assert!(matches!(engine.prepare(&too_long), Err(EngineError::InputTooLong { .. })));
}

#[tokio::test]
async fn a_job_says_what_it_is_and_carries_the_key() {
    let server = FaultyServer::always(reply(&["x"], 1)).await;
    ask(&engine(&[&server]).await, "Say \"x\".").await.unwrap();
    let sent: serde_json::Value = serde_json::from_str(&server.jobs()[0]).unwrap();
    let expected = serde_json::json!({
        "model": "their-m", "max_tokens": 16, "temperature": 0.0, "stream": true,
        "stream_options": {"include_usage": true},
        "messages": [{"role": "system", "content": ""}, {"role": "user", "content": "Say \"x\"."}],
    });
    assert_eq!(sent, expected);
    assert!(server.heads()[0].to_ascii_lowercase().contains("authorization: bearer secret"));
}

#[tokio::test]
async fn a_hang_up_closes_the_connection_and_counts_what_was_handed_on() {
    for counts in [false, true] {
        let server = FaultyServer::always(vec![Step::Stream, text("one"), text(" two"), Step::Hang]).await;
        let engine = if counts { counting_engine(&server).await } else { engine(&[&server]).await };
        let mut generation = start(&engine, "x");
        let mut said = String::new();
        while said != "one two" {
            let Event::Text(text) = generation.next().await.unwrap() else { panic!("it ended") };
            said += &text;
        }
        generation.cancel();
        let Event::Ended(ended) = generation.next().await.unwrap() else { panic!("more text") };
        assert_eq!((ended.reason, ended.output_tokens), (StopReason::Cancelled, 2));
        assert_eq!(ended.input_tokens, if counts { None } else { Some(0) });
        server.until_hang_ups(1).await;
    }
}

#[tokio::test]
async fn a_hang_up_before_the_first_token_closes_the_connection_too() {
    let server = FaultyServer::always(vec![Step::Hang]).await;
    let engine = engine(&[&server]).await;
    let generation = start(&engine, "x");
    server.until_jobs(1).await;
    drop(generation);
    server.until_hang_ups(1).await;
}
