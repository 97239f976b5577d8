//! Reasoning before the answer is passed on, counted and held to the cap like the answer itself.

use crate::fixtures::{collect_with_reasoning, engine, engine_with, settings, start, word_counter};
use chancery_engine::{Event, Finished, StopReason};
use chancery_engine_upstream::{UpstreamEngine, UpstreamSettings};
use chancery_test_support::faulty_chat_server::{
    FaultyServer, Step, finish, reasoning, text, usage, well_ended,
};
use std::time::Duration;

/// The cap of `start`.
const CAP: u32 = 16;

async fn counting_engine(server: &FaultyServer) -> UpstreamEngine {
    engine_with(UpstreamSettings { tokenizer: Some(word_counter()), ..settings(&[server]) }).await
}

async fn reply(engine: &UpstreamEngine) -> (String, String, Finished) {
    collect_with_reasoning(start(engine, "x")).await.unwrap()
}

fn details(reasoning_tokens: u32) -> Step {
    let details = serde_json::json!({"reasoning_tokens": reasoning_tokens});
    let usage =
        serde_json::json!({"prompt_tokens": 3, "completion_tokens": 9, "completion_tokens_details": details});
    Step::Event(serde_json::json!({"choices": [], "usage": usage}).to_string())
}

#[tokio::test]
async fn reasoning_is_counted_and_billed_as_output_with_a_tokenizer() {
    let mut steps =
        vec![Step::Stream, reasoning("They ask"), reasoning(" for one word."), text("Yes"), text(" sir")];
    steps.extend(well_ended("stop", 3, 1));
    let server = FaultyServer::always(steps).await;
    let (reasoning, text, ended) = reply(&counting_engine(&server).await).await;
    assert_eq!((reasoning.as_str(), text.as_str()), ("They ask for one word.", "Yes sir"));
    assert_eq!((ended.output_tokens, ended.reasoning_tokens), (7, 5));
    assert_eq!(ended.reason, StopReason::Complete);
}

#[tokio::test]
async fn reasoning_is_billed_by_server_usage_without_a_tokenizer() {
    let pieces = || vec![Step::Stream, reasoning("They"), reasoning(" ask."), text("Yes"), finish("stop")];
    let done = || vec![Step::Event("[DONE]".to_owned()), Step::End];
    for (report, expected) in
        [(usage(3, 9), (9, 2)), (details(7), (9, 7)), (details(70), (9, 9)), (usage(3, 1), (3, 2))]
    {
        let steps = [pieces(), vec![report], done()].concat();
        let server = FaultyServer::always(steps).await;
        let (reasoning, text, ended) = reply(&engine(&[&server]).await).await;
        assert_eq!((reasoning.as_str(), text.as_str()), ("They ask.", "Yes"));
        assert_eq!((ended.output_tokens, ended.reasoning_tokens), expected);
    }
}

#[tokio::test]
async fn reply_whose_cap_went_to_reasoning_has_no_text_and_is_billed() {
    let mut steps = vec![Step::Stream];
    steps.extend((0..CAP).map(|_| reasoning("hm ")));
    steps.extend(well_ended("length", 3, CAP));
    let server = FaultyServer::always(steps).await;
    for engine in [engine(&[&server]).await, counting_engine(&server).await] {
        let (_, text, ended) = reply(&engine).await;
        assert_eq!((text.as_str(), ended.reason), ("", StopReason::MaxOutputTokens));
        assert_eq!((ended.output_tokens, ended.reasoning_tokens), (CAP, CAP));
    }
}

#[tokio::test]
async fn server_that_ignores_the_cap_is_stopped_there() {
    for piece in [reasoning("hm "), text("word ")] {
        let mut steps = vec![Step::Stream];
        // Slowly, so that the job is stopped long before the server would end.
        steps.extend((0..500).flat_map(|_| [piece.clone(), Step::Pause(Duration::from_millis(5))]));
        steps.extend(well_ended("stop", 3, 500));
        let server = FaultyServer::always(steps).await;
        // Several pieces may arrive at once.
        let engines = [(engine(&[&server]).await, 2 * CAP), (counting_engine(&server).await, CAP + CAP / 2)];
        for (engine, max_words) in engines {
            let (reasoning, text, ended) = reply(&engine).await;
            let words = (reasoning + &text).split_whitespace().count();
            assert!((CAP as usize..max_words as usize).contains(&words), "{words}");
            assert_eq!((ended.output_tokens, ended.reason), (CAP, StopReason::MaxOutputTokens));
        }
        server.until_hang_ups(2).await;
    }
}

#[tokio::test]
async fn reasoning_and_answer_share_one_cap() {
    let mut steps = vec![Step::Stream];
    steps.extend((0..CAP - 2).map(|_| reasoning("reason ")));
    steps.extend((0..200).flat_map(|_| [text("word "), Step::Pause(Duration::from_millis(5))]));
    steps.extend(well_ended("stop", 3, CAP));
    let server = FaultyServer::always(steps).await;
    for engine in [engine(&[&server]).await, counting_engine(&server).await] {
        let (_, text, ended) = reply(&engine).await;
        assert!(text.split_whitespace().count() < CAP as usize, "{text}");
        assert_eq!((ended.output_tokens, ended.reasoning_tokens), (CAP, CAP - 2));
        assert_eq!(ended.reason, StopReason::MaxOutputTokens);
    }
}

#[tokio::test]
async fn reasoning_past_the_byte_bound_is_dropped_and_what_came_before_is_billed() {
    let mut steps = vec![Step::Stream];
    steps.extend((0..100).map(|_| reasoning(&"x".repeat(1_000))));
    steps.extend(well_ended("stop", 3, 1));
    let server = FaultyServer::always(steps).await;
    // One word of any length, so the count never reaches the cap.
    let engine = counting_engine(&server).await;
    let (reasoning, _, ended) = reply(&engine).await;
    assert_eq!((reasoning.len(), ended.reason), (4_000, StopReason::MaxOutputTokens));
    assert_eq!((ended.output_tokens, ended.reasoning_tokens), (1, 1));
}

#[tokio::test]
async fn hang_up_during_reasoning_bills_what_was_passed_on() {
    for counts in [false, true] {
        let steps = vec![Step::Stream, reasoning("They"), reasoning(" ask"), Step::Hang];
        let server = FaultyServer::always(steps).await;
        let engine = if counts { counting_engine(&server).await } else { engine(&[&server]).await };
        let mut generation = start(&engine, "x");
        let mut passed_on = String::new();
        while passed_on != "They ask" {
            let Event::Reasoning(more) = generation.next().await.unwrap() else { panic!("no reasoning") };
            passed_on += &more;
        }
        generation.cancel();
        let Event::Finished(ended) = generation.next().await.unwrap() else { panic!("more text") };
        assert_eq!((ended.reason, ended.output_tokens), (StopReason::Cancelled, 2));
        assert_eq!(ended.reasoning_tokens, 2);
        server.until_hang_ups(1).await;
    }
}

#[tokio::test]
async fn interleaved_reasoning_and_text_keep_their_order() {
    let both = r#"{"choices":[{"delta":{"reasoning":" c","content":"d"}}]}"#;
    let mut steps = vec![Step::Stream, reasoning("a"), text("b "), Step::Event(both.to_owned())];
    steps.extend(well_ended("stop", 3, 4));
    let server = FaultyServer::always(steps).await;
    let mut generation = start(&engine(&[&server]).await, "x");
    let mut events: Vec<Event> = Vec::new();
    let ended = loop {
        let event = generation.next().await.unwrap();
        if let Event::Finished(ended) = event {
            break ended;
        }
        match (&event, events.last_mut()) {
            (Event::Text(more), Some(Event::Text(earlier)))
            | (Event::Reasoning(more), Some(Event::Reasoning(earlier))) => earlier.push_str(more),
            _ => events.push(event),
        }
    };
    let expected = [
        Event::Reasoning("a".to_owned()),
        Event::Text("b ".to_owned()),
        Event::Reasoning(" c".to_owned()),
        Event::Text("d".to_owned()),
    ];
    assert_eq!(events, expected);
    assert_eq!((ended.output_tokens, ended.reasoning_tokens), (4, 1));
}
