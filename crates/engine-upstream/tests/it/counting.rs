//! Token counting, and whose count is used.

use crate::fixtures::{
    collect_reply, counter, engine, engine_with, generate, instructed_job, job, read_until, settings, start,
    word_counter,
};
use chancery_engine::{Engine, EngineError, Event, StopReason, Turn};
use chancery_engine_upstream::{UpstreamEngine, UpstreamSettings};
use chancery_test_support::faulty_chat_server::{
    FaultyServer, Step, counted_text, finish, reply, text, usage, well_ended,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// The body of the job with this number, as received.
fn sent(server: &FaultyServer, number: usize) -> Value {
    serde_json::from_str(&server.jobs()[number]).unwrap()
}

async fn counting_engine(server: &FaultyServer) -> UpstreamEngine {
    engine_with(UpstreamSettings { tokenizer: Some(word_counter()), ..settings(&[server]) }).await
}

#[tokio::test]
async fn server_usage_is_billed_within_the_reservation_without_a_tokenizer() {
    let server = FaultyServer::always(reply(&["one", " two"], 7)).await;
    let engine = engine(&[&server]).await;
    let turns = Turn::from_instructions_and_input("Answer.", "Now.");
    assert_eq!(engine.prepare(&turns).unwrap().input_tokens, 8 + 5, "a token has a byte or more");
    let (output, ended) = generate(&engine, "Now.").await.unwrap();
    assert_eq!((output.as_str(), ended.output_tokens, ended.input_tokens), ("one two", 2, Some(7)));
    assert_eq!(ended.reason, StopReason::Complete);
}

#[tokio::test]
async fn wrong_or_missing_server_usage_is_ignored_with_a_tokenizer() {
    let honest = reply(&["one", " two", " three"], 3);
    let mut silent = vec![Step::Stream, text("one two three"), finish("stop"), Step::End];
    let mut lying = vec![Step::Stream, text("one two three")];
    lying.extend(well_ended("stop", 4_000_000_000, 4_000_000_000));
    for steps in [honest, lying, std::mem::take(&mut silent)] {
        let server = FaultyServer::always(steps).await;
        let engine = counting_engine(&server).await;
        let (_, ended) = generate(&engine, "Two words.").await.unwrap();
        assert_eq!((ended.output_tokens, ended.input_tokens), (3, None));
        let turns = Turn::from_instructions_and_input("One two", "three a<end>b");
        assert_eq!(engine.prepare(&turns).unwrap().input_tokens, 4, "nothing in a text is a special token");
    }
}

#[tokio::test]
async fn reply_never_counts_more_than_its_cap() {
    let many = "word ".repeat(60);
    let mut steps = vec![Step::Stream, text(&many)];
    steps.extend(well_ended("length", 3, 60));
    let server = FaultyServer::always(steps).await;
    for engine in [engine(&[&server]).await, counting_engine(&server).await] {
        let (_, ended) = generate(&engine, "x").await.unwrap();
        assert_eq!((ended.output_tokens, ended.reason), (16, StopReason::MaxOutputTokens));
    }
}

#[tokio::test]
async fn tokens_of_a_character_cut_by_the_cap_are_counted() {
    for (words, claimed, expected) in [(14, 16, 16), (13, 16, 16), (12, 16, 12), (14, 17, 14), (16, 12, 16)] {
        let mut steps = vec![Step::Stream, text(&"word ".repeat(words))];
        steps.extend(well_ended("length", 3, claimed));
        let server = FaultyServer::always(steps).await;
        let (_, ended) = generate(&counting_engine(&server).await, "x").await.unwrap();
        assert_eq!(ended.output_tokens, expected, "{words} words, {claimed} claimed");
    }
}

#[tokio::test]
async fn finish_reason_maps_to_our_stop_reason() {
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
        assert_eq!(generate(&engine(&[&server]).await, "x").await.unwrap().1.reason, expected);
    }
}

#[tokio::test]
async fn requested_max_tokens_fits_the_context() {
    let mut steps = vec![Step::Stream, text(&"word ".repeat(200))];
    steps.extend(well_ended("length", 4_000, 200));
    let server = FaultyServer::always(steps).await;
    let engine = counting_engine(&server).await;
    let long = "word ".repeat(4_000);
    let (_, ended) = collect_reply(engine.start(job(&engine, &long, 1_000)).unwrap()).await.unwrap();
    assert_eq!(ended.reason, StopReason::ContextLength);
    let max_tokens = sent(&server, 0)["max_tokens"].as_u64().unwrap();
    assert!(max_tokens < 96, "{max_tokens}");
    assert_eq!(u64::from(ended.output_tokens), max_tokens, "no more counts than was asked for and set aside");
    let too_long = Turn::from_instructions_and_input("", "word ".repeat(4_096));
    assert!(matches!(engine.prepare(&too_long), Err(EngineError::InputTooLong { .. })));
}

#[tokio::test]
async fn request_body_is_complete_and_carries_the_api_key() {
    let server = FaultyServer::always(reply(&["x"], 1)).await;
    generate(&engine(&[&server]).await, "Say \"x\".").await.unwrap();
    let mut first = sent(&server, 0);
    let salt = first.as_object_mut().unwrap().remove("cache_salt").unwrap();
    assert!(salt.is_string(), "`cache_salt.rs` tests its value");
    let expected = json!({
        "model": "their-m", "max_tokens": 16, "temperature": 0.0, "stream": true,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true},
        "messages": [{"role": "system", "content": ""}, {"role": "user", "content": "Say \"x\"."}],
    });
    assert_eq!(first, expected);
    generate(&counting_engine(&server).await, "x").await.unwrap();
    assert_eq!(
        sent(&server, 1)["stream_options"],
        json!({"include_usage": true}),
        "who counts need not be told"
    );
    assert!(server.heads()[0].to_ascii_lowercase().contains("authorization: bearer secret"));
}

#[tokio::test]
async fn hang_up_closes_the_connection_and_counts_delivered_text() {
    for counts in [false, true] {
        let server = FaultyServer::always(vec![Step::Stream, text("one"), text(" two"), Step::Hang]).await;
        let engine = if counts { counting_engine(&server).await } else { engine(&[&server]).await };
        let mut generation = start(&engine, "x");
        read_until(&mut generation, "one two").await;
        generation.cancel();
        let Event::Finished(ended) = generation.next().await.unwrap() else { panic!("more text") };
        assert_eq!((ended.reason, ended.output_tokens), (StopReason::Cancelled, 2));
        assert_eq!(ended.input_tokens, if counts { None } else { Some(0) });
        server.until_hang_ups(1).await;
    }
}

#[tokio::test]
async fn hang_up_before_the_first_token_closes_the_connection() {
    let server = FaultyServer::always(vec![Step::Hang]).await;
    let engine = engine(&[&server]).await;
    let generation = start(&engine, "x");
    server.until_jobs(1).await;
    drop(generation);
    server.until_hang_ups(1).await;
}

#[tokio::test]
async fn hang_up_bills_the_prompt_if_the_server_reported_usage() {
    let steps = vec![Step::Stream, counted_text("one", 7, 1), counted_text(" two three", 7, 3), Step::Hang];
    let server = FaultyServer::always(steps).await;
    let engine = engine(&[&server]).await;
    let mut generation = start(&engine, "Seven tokens or so.");
    read_until(&mut generation, "one two three").await;
    generation.cancel();
    let Event::Finished(ended) = generation.next().await.unwrap() else { panic!("more text") };
    assert_eq!((ended.reason, ended.input_tokens, ended.output_tokens), (StopReason::Cancelled, Some(7), 3));
}

#[tokio::test]
async fn hang_up_after_the_end_waits_for_the_usage_event() {
    let gate = Arc::new(Notify::new());
    let chunks =
        [r#"{"choices":[{"delta":{"content":"all"}}]}"#, r#"{"choices":[{"finish_reason":"stop"}]}"#];
    let together = chunks.map(|chunk| format!("data: {chunk}\n\n")).concat();
    let steps = vec![
        Step::Stream,
        Step::Raw(together.into_bytes()),
        Step::Gate(Arc::clone(&gate)),
        usage(9, 1),
        Step::Event("[DONE]".to_owned()),
        Step::End,
    ];
    let server = FaultyServer::always(steps).await;
    let engine = engine(&[&server]).await;
    let mut generation = start(&engine, "Nine.");
    read_until(&mut generation, "all").await;
    generation.cancel();
    gate.notify_one();
    let Event::Finished(ended) = generation.next().await.unwrap() else { panic!("more text") };
    assert_eq!((ended.reason, ended.input_tokens, ended.output_tokens), (StopReason::Complete, Some(9), 1));
}

#[tokio::test]
async fn hang_up_after_the_end_does_not_wait_long_for_a_missing_usage_event() {
    let chunks =
        [r#"{"choices":[{"delta":{"content":"all"}}]}"#, r#"{"choices":[{"finish_reason":"stop"}]}"#];
    let together = chunks.map(|chunk| format!("data: {chunk}\n\n")).concat();
    let steps = vec![Step::Stream, Step::Raw(together.into_bytes()), Step::Hang];
    let server = FaultyServer::always(steps).await;
    let engine = engine(&[&server]).await;
    let mut generation = start(&engine, "Nine.");
    read_until(&mut generation, "all").await;
    generation.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(4), generation.next()).await;
    let Event::Finished(ended) = ended.unwrap().unwrap() else { panic!("more text") };
    assert_eq!((ended.reason, ended.output_tokens), (StopReason::Complete, 1));
}

#[tokio::test]
async fn early_usage_event_is_not_final() {
    let mut early = vec![Step::Stream, text("one"), usage(7, 1), text(" two"), text(" three")];
    let never_again =
        [early.clone(), vec![finish("stop"), Step::Event("[DONE]".to_owned()), Step::End]].concat();
    early.extend(well_ended("stop", 7, 4));
    for (steps, expected) in [(early, 4), (never_again, 3)] {
        let server = FaultyServer::always(steps).await;
        let (output, ended) = generate(&engine(&[&server]).await, "Some seven tokens.").await.unwrap();
        assert_eq!(
            (output.as_str(), ended.input_tokens, ended.output_tokens),
            ("one two three", Some(7), expected)
        );
    }
}

#[tokio::test]
async fn option_rejected_by_a_server_is_not_sent_again() {
    let body = r#"{"error":{"message":"unknown field stream_options.continuous_usage_stats"}}"#;
    let server = FaultyServer::start(move |number| match number {
        0 => vec![Step::Answer(400, "", body.to_owned())],
        _ => reply(&["fine"], 1),
    })
    .await;
    let engine = engine(&[&server]).await;
    for _ in 0..2 {
        assert_eq!(generate(&engine, "x").await.unwrap().0, "fine");
    }
    let options: Vec<Value> = (0..3).map(|number| sent(&server, number)["stream_options"].clone()).collect();
    let without = json!({"include_usage": true});
    assert_eq!(
        options,
        [json!({"include_usage": true, "continuous_usage_stats": true}), without.clone(), without]
    );
}

#[tokio::test]
async fn empty_turn_rejected_by_a_server_is_left_out() {
    let body = r#"{"error":{"message":"system turn must not be empty"}}"#;
    let server = FaultyServer::start(move |number| match number {
        0 => vec![Step::Answer(400, "", body.to_owned())],
        _ => reply(&["fine"], 1),
    })
    .await;
    let engine = counting_engine(&server).await;
    assert_eq!(generate(&engine, "x").await.unwrap().0, "fine");
    let roles = |number| {
        let messages = sent(&server, number)["messages"].as_array().unwrap().clone();
        messages.iter().map(|message| message["role"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((roles(0), roles(1)), (vec!["system".to_owned(), "user".to_owned()], vec!["user".to_owned()]));
}

#[tokio::test]
async fn max_tokens_is_lowered_only_after_a_rejection_without_a_tokenizer() {
    let server = FaultyServer::always(reply(&["fine"], 3_000)).await;
    let uncounted = engine(&[&server]).await;
    let long = "word ".repeat(3_000);
    collect_reply(uncounted.start(job(&uncounted, &long, 1_000)).unwrap()).await.unwrap();
    assert_eq!(sent(&server, 0)["max_tokens"], 1_000, "its bytes say little of its tokens");

    let with_count = "This model's maximum context length is 4096 tokens. However, you requested 4300 tokens (3300 in the messages, \
                1000 in the completion).";
    for (message, expected) in [(with_count, 796), ("the maximum context length was exceeded", 0)] {
        let body = json!({"error": {"message": message}}).to_string();
        let server = FaultyServer::start(move |number| match number {
            0 => vec![Step::Answer(400, "", body.clone())],
            _ => reply(&["fine"], 3_300),
        })
        .await;
        let engine = engine_with(settings(&[&server])).await;
        let outcome = collect_reply(engine.start(job(&engine, &long, 1_000)).unwrap()).await;
        if expected > 0 {
            assert_eq!(outcome.unwrap().0, "fine");
            assert_eq!(sent(&server, 1)["max_tokens"], expected, "{message}");
        } else {
            assert!(
                matches!(outcome, Err(EngineError::InputTooLong { .. })),
                "it cannot have room by its bytes"
            );
            assert_eq!(server.jobs().len(), 1);
        }
    }
}

#[tokio::test]
async fn full_context_cap_leaves_room_for_the_estimated_prompt() {
    let server = FaultyServer::always(reply(&["fine"], 10)).await;
    let engine = engine(&[&server]).await;
    collect_reply(engine.start(instructed_job(&engine, "Answer.", "Now, please.", 4_096)).unwrap())
        .await
        .unwrap();
    let max_tokens = sent(&server, 0)["max_tokens"].as_u64().unwrap();
    assert!((3_900..4_096).contains(&max_tokens), "{max_tokens}");
}

/// A byte-level tokenizer without merges: every byte is a token, except in added tokens.
fn byte_level_tokenizer(pre_tokenizer: &Value, normalizer: &Value, added: &[(&str, bool)]) -> Value {
    // GPT-2's characters for bytes.
    let plain = (0_u32..256).filter(|byte| matches!(byte, 33..=126 | 161..=172 | 174..=255));
    let others = (0_u32..256).filter(|byte| !matches!(byte, 33..=126 | 161..=172 | 174..=255));
    let others = others.zip(256_u32..).map(|(_, character)| character);
    let characters = plain.chain(others).map(|character| char::from_u32(character).unwrap().to_string());
    let vocab: serde_json::Map<String, Value> =
        characters.enumerate().map(|(id, character)| (character, json!(id))).collect();
    let added: Vec<Value> = added
        .iter()
        .zip(256..)
        .map(|((content, special), id)| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": !special, "special": special})
        })
        .collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []},
    })
}

/// Qwen's pre-tokenizer: a regular expression, then bytes.
fn qwen_pre_tokenizer() -> Value {
    let pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
    ]})
}

#[test]
fn text_never_becomes_an_added_token() {
    let added = [("<think>", false), ("<|im_start|>", true)];
    let counter = counter(&byte_level_tokenizer(&qwen_pre_tokenizer(), &Value::Null, &added));
    for text in ["<think>", "<|im_start|>", "a<think>b"] {
        assert_eq!(counter.count(text).unwrap() as usize, text.len(), "{text}");
    }
}

#[tokio::test]
async fn byte_bound_of_a_prompt_is_known_only_with_a_tokenizer_that_drops_nothing() {
    let server = FaultyServer::always(reply(&["x"], 1)).await;
    assert_eq!(engine(&[&server]).await.max_prompt_bytes(), usize::MAX);
    assert_eq!(counting_engine(&server).await.max_prompt_bytes(), usize::MAX, "a word has any length");
    let bytes = counter(&byte_level_tokenizer(&qwen_pre_tokenizer(), &Value::Null, &[]));
    let engine = engine_with(UpstreamSettings { tokenizer: Some(bytes), ..settings(&[&server]) }).await;
    // Each token is one byte, which takes up to two in the vocabulary.
    assert_eq!(engine.max_prompt_bytes(), 4_096 * 2);
}

#[test]
fn text_is_normalized_before_counting() {
    let counter = counter(&byte_level_tokenizer(&qwen_pre_tokenizer(), &json!({"type": "NFC"}), &[]));
    assert_eq!(counter.count("e\u{301}").unwrap(), 2, "one character of two bytes");
}

#[test]
fn metaspace_tokenizer_counts_like_its_model() {
    let model = json!({"type": "Unigram", "unk_id": 0, "byte_fallback": false,
        "vocab": [["<unk>", 0.0], ["\u{2581}", -2.0], ["\u{2581}one", -1.0], ["\u{2581}two", -1.0], ["one", -3.0]]});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true},
        "post_processor": null, "decoder": null, "model": model,
    });
    let counter = counter(&tokenizer);
    for (text, expected) in [("one", 1), ("one two", 2), ("one  two", 3), ("", 0)] {
        assert_eq!(counter.count(text).unwrap(), expected, "{text:?}");
    }
}

#[test]
fn text_the_pre_tokenizer_cannot_split_is_rejected() {
    let counter = counter(&byte_level_tokenizer(&qwen_pre_tokenizer(), &Value::Null, &[]));
    let adversarial = format!("{}x", " ".repeat(1_040_000));
    for text in [adversarial, "a".repeat(200_000)] {
        assert!(matches!(counter.count(&text), Err(EngineError::InputRejected { .. })));
    }
    let long = "one two, three.\n".repeat(20_000);
    assert_eq!(counter.count(&long).unwrap() as usize, long.len());
}

#[tokio::test]
async fn reply_the_pre_tokenizer_cannot_split_is_billed_by_server_usage() {
    let mut steps = vec![Step::Stream];
    steps.extend((0..70).map(|_| text(&"a".repeat(1_000))));
    steps.extend(well_ended("stop", 3, 900));
    let server = FaultyServer::always(steps).await;
    let mut tokenizer = byte_level_tokenizer(&qwen_pre_tokenizer(), &Value::Null, &[]);
    // Up to 64 letters are one token, so that the text stays within the cap.
    let runs = (0..6).map(|doublings| "a".repeat(1 << doublings));
    tokenizer["model"]["merges"] = runs.clone().map(|run| json!([run, run])).collect();
    for (run, id) in runs.zip(256..) {
        tokenizer["model"]["vocab"][run.repeat(2)] = json!(id);
    }
    let tokenizer = Some(counter(&tokenizer));
    let engine = engine_with(UpstreamSettings { tokenizer, ..settings(&[&server]) }).await;
    let (output, ended) = collect_reply(engine.start(job(&engine, "x", 3_000)).unwrap()).await.unwrap();
    assert_eq!((output.len(), ended.output_tokens), (70_000, 900), "it has left, so it is not given away");
}

#[test]
fn tokenizer_file_without_added_tokens_is_accepted() {
    let tokenizer =
        json!({"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}});
    assert_eq!(counter(&tokenizer).count("a").unwrap(), 1);
}
