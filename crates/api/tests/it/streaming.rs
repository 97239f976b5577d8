//! Streams from an engine that stalls and fails on demand.

use crate::test_server::TestServer;
use chancery_engine::{EngineError, Finished, GenerationSink, Job, ScriptedEngine, StopReason};
use std::sync::Arc;
use std::time::Duration;

/// Slightly longer than the keep-alive interval.
const STALL: Duration = Duration::from_millis(10_500);

async fn test_server(script: impl Fn(Job, GenerationSink) + Send + Sync + 'static) -> TestServer {
    TestServer::start(Arc::new(ScriptedEngine::new(1_000, script))).await
}

fn end(sink: GenerationSink, output_tokens: u32) {
    sink.end(Finished {
        reason: StopReason::Complete,
        output_tokens,
        cached_tokens: 0,
        billed_cached_tokens: 0,
        reasoning_tokens: 0,
        prefilled_tokens: 0,
        input_tokens: None,
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_stream_sends_keep_alive_comments() {
    let firm = test_server(|_, sink| {
        sink.text("Dear");
        std::thread::sleep(STALL);
        sink.text(" Ruth");
        end(sink, 2);
    })
    .await;
    let text = firm.stream(4).await;
    let (before, after) = text.split_once(": keep-alive\n\n").expect("a comment in the stall");
    assert!(before.contains(r#""delta":"Dear""#) && after.contains(r#""delta":" Ruth""#), "{text}");
    assert!(after.contains("event: response.completed\n"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reasoning_is_not_shown_as_text_and_keep_alive_comments_continue() {
    let firm = test_server(|_, sink| {
        const PIECES: u32 = 100;
        for _ in 0..PIECES {
            sink.reasoning("hm ");
            std::thread::sleep(STALL / PIECES);
        }
        sink.text("Dear");
        end(sink, 2);
    })
    .await;
    let text = firm.stream(4).await;
    let (before, after) = text.split_once(": keep-alive\n\n").expect("a comment during the reasoning");
    assert!(!text.contains("hm ") && !before.contains("delta"), "{text}");
    assert!(after.contains(r#""delta":"Dear""#) && after.contains("event: response.completed\n"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_failure_midway_fails_the_stream_and_bills_nothing() {
    let firm = test_server(|_, sink| {
        sink.text("Dear");
        sink.fail(EngineError::Failed("out of ink".to_owned()));
    })
    .await;
    let text = firm.stream(4).await;
    let last = text.trim_end().rsplit("\n\n").next().unwrap();
    assert!(last.starts_with("event: response.failed\n"), "{text}");
    assert!(last.contains(r#""code":"engine_failed""#) && !text.contains("out of ink"), "{text}");
    assert_eq!(firm.billed_requests().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_reader_gets_all_text_once_and_in_order() {
    let words: Vec<String> = (0..500).map(|number| format!("{number} ")).collect();
    let scripted = words.clone();
    let firm = test_server(move |_, sink| {
        scripted.iter().for_each(|word| sink.text(word));
        end(sink, 500);
    })
    .await;
    let text = firm.stream(500).await;
    let deltas = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let deltas = deltas.map(|data| serde_json::from_str::<serde_json::Value>(data).unwrap());
    let joined: String = deltas.filter_map(|data| data["delta"].as_str().map(str::to_owned)).collect();
    assert_eq!(joined, words.concat());
    assert_eq!(firm.billed_requests().await, 1);
}
