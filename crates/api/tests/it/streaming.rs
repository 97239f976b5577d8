//! Streams of an engine that stalls and fails when told to.

use crate::served::Served;
use chancery_engine::{Ended, EngineError, GenerationSink, Job, ScriptedEngine, StopReason};
use std::sync::Arc;
use std::time::Duration;

/// A little longer than the pause after which a comment is due.
const STALL: Duration = Duration::from_millis(10_500);

async fn served(script: impl Fn(Job, GenerationSink) + Send + Sync + 'static) -> Served {
    Served::start(Arc::new(ScriptedEngine::new(1_000, script))).await
}

fn end(sink: GenerationSink, output_tokens: u32) {
    sink.end(Ended { reason: StopReason::Complete, output_tokens, cached_tokens: 0, input_tokens: None });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_stalls_is_kept_alive_by_comments() {
    let firm = served(|_, sink| {
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
async fn an_engine_that_fails_in_the_middle_fails_the_stream_and_bills_nothing() {
    let firm = served(|_, sink| {
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
async fn a_reader_slower_than_the_engine_finds_all_the_text_once_and_in_order() {
    let words: Vec<String> = (0..500).map(|number| format!("{number} ")).collect();
    let said = words.clone();
    let firm = served(move |_, sink| {
        said.iter().for_each(|word| sink.text(word));
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
