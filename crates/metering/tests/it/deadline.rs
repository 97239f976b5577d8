//! Text that was passed on is paid for, whatever ends its stream: the deadline, a shutdown, or an engine that does not stop. Only
//! a failure of ours is free, and even then the tokens count against the minute.

use crate::protocol::{end, send_one_word_then_wait};
use crate::{Fixture, call};
use chancery_domain::{Fingerprint, LimitUsage, StopReason};
use chancery_engine::{EngineError, GenerationSink};
use chancery_metering::limits::{CANCEL_TIMEOUT, GENERATION_TIMEOUT};
use chancery_metering::{Call, GenerationStream, Idempotency, MeterError, Reply, StreamEvent};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Lets this much time pass at once for everything that waits.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

async fn start_and_read_a_word(fixture: &Fixture) -> GenerationStream {
    let (id, request) = fixture.new_request();
    let mut running = fixture.meter.stream(call(&fixture.caller, id, request)).await.unwrap();
    assert!(matches!(running.next().await, StreamEvent::Text { text, .. } if text == "Dear"));
    running
}

async fn outcome(mut running: GenerationStream) -> Result<Reply, MeterError> {
    loop {
        if let StreamEvent::Ended(outcome) = running.next().await {
            return outcome;
        }
    }
}

#[tokio::test]
async fn stream_at_the_deadline_is_billed_for_what_was_passed_on() {
    let fixture = Fixture::with(|_, sink| send_one_word_then_wait(sink)).await;
    let running = start_and_read_a_word(&fixture).await;
    pass(GENERATION_TIMEOUT).await;
    let reply = outcome(running).await.unwrap();
    assert_eq!((reply.output_text.as_str(), reply.stop_reason), ("Dear", StopReason::Deadline));
    assert_eq!(fixture.rows().await, [(6, 1, "deadline")]);
    assert_eq!(fixture.used().await, LimitUsage { requests: 1, tokens: 7 });
}

#[tokio::test]
async fn whole_reply_at_the_deadline_is_billed_and_stored_for_replay() {
    let has_started = Arc::new(AtomicBool::new(false));
    let started = Arc::clone(&has_started);
    let fixture = Fixture::with(move |_, sink| {
        started.store(true, Ordering::SeqCst);
        send_one_word_then_wait(sink);
    })
    .await;
    let (id, request) = fixture.new_request();
    let idempotency =
        Idempotency { key: "order-17".parse().unwrap(), fingerprint: Fingerprint::of("/v1/generate", b"{}") };
    let call = Call { idempotency: Some(idempotency), ..call(&fixture.caller, id, request) };
    let (meter, first) = (Arc::clone(&fixture.meter), call.clone());
    let whole = tokio::spawn(async move { meter.generate(first).await });
    while !has_started.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    pass(GENERATION_TIMEOUT).await;
    let reply = whole.await.unwrap().unwrap();
    assert_eq!((reply.output_text.as_str(), reply.stop_reason), ("Dear", StopReason::Deadline));
    assert_eq!(fixture.rows().await, [(6, 1, "deadline")]);
    let replay = fixture.meter.generate(call).await.unwrap();
    assert_eq!((replay.output_text.as_str(), replay.stop_reason), ("Dear", StopReason::Deadline));
    assert!(replay.is_replay);
}

#[tokio::test]
async fn deadline_without_a_token_is_an_unbilled_timeout() {
    let fixture = Fixture::with(|_, sink| {
        while !sink.is_cancelled() {
            std::thread::sleep(Duration::from_millis(1));
        }
        end(sink, StopReason::Cancelled, 0);
    })
    .await;
    let (id, request) = fixture.new_request();
    let running = fixture.meter.stream(call(&fixture.caller, id, request)).await.unwrap();
    pass(GENERATION_TIMEOUT).await;
    let error = outcome(running).await.unwrap_err();
    // The engine may report the cancellation itself.
    assert!(matches!(error, MeterError::Engine(EngineError::TimedOut)), "{error}");
    assert_eq!(fixture.rows().await, []);
    assert_eq!(fixture.used().await, LimitUsage::default());
}

/// Sends two words in one piece and ignores cancellation until the test ends.
fn stubborn(has_ended: &Arc<AtomicBool>) -> impl Fn(GenerationSink) + Send + Sync + 'static + use<> {
    let has_ended = Arc::clone(has_ended);
    move |sink| {
        sink.text("Dear Ruth");
        while !has_ended.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[tokio::test]
async fn text_of_an_engine_that_ignores_the_deadline_is_counted_and_billed() {
    let has_ended = Arc::new(AtomicBool::new(false));
    let script = stubborn(&has_ended);
    let fixture = Fixture::with(move |_, sink| script(sink)).await;
    let (id, request) = fixture.new_request();
    let mut running = fixture.meter.stream(call(&fixture.caller, id, request)).await.unwrap();
    assert!(matches!(running.next().await, StreamEvent::Text { .. }));
    pass(GENERATION_TIMEOUT).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(fixture.rows().await, [], "it waits for the engine's count");
    pass(CANCEL_TIMEOUT).await;
    let reply = outcome(running).await.unwrap();
    assert_eq!((reply.output_tokens, reply.stop_reason), (2, StopReason::Deadline));
    assert_eq!(fixture.rows().await, [(6, 2, "deadline")]);
    has_ended.store(true, Ordering::SeqCst);
}

#[tokio::test]
async fn stream_cut_off_by_shutdown_is_billed_for_what_was_passed_on() {
    let fixture = Fixture::with(|_, sink| send_one_word_then_wait(sink)).await;
    let running = start_and_read_a_word(&fixture).await;
    fixture.meter.stop_admitting();
    fixture.meter.abandon_running();
    let reply = outcome(running).await.unwrap();
    assert_eq!((reply.output_text.as_str(), reply.stop_reason), ("Dear", StopReason::Deadline));
    assert_eq!(fixture.rows().await, [(6, 1, "deadline")]);
}

#[tokio::test]
async fn failed_stream_is_not_billed_but_its_tokens_count_against_the_minute() {
    let fixture = Fixture::with(|_, sink| {
        sink.text("Dear");
        std::thread::sleep(Duration::from_millis(20));
        sink.text(" Ruth");
        sink.fail(EngineError::Failed("broken".to_owned()));
    })
    .await;
    let running = start_and_read_a_word(&fixture).await;
    assert!(matches!(outcome(running).await, Err(MeterError::Engine(EngineError::Failed(_)))));
    assert_eq!(fixture.rows().await, []);
    assert_eq!(fixture.used().await, LimitUsage { requests: 1, tokens: 6 + 2 });
    // Nobody has read a whole reply that failed.
    let (id, request) = fixture.new_request();
    assert!(fixture.meter.generate(call(&fixture.caller, id, request)).await.is_err());
    assert_eq!(fixture.used().await, LimitUsage { requests: 1, tokens: 6 + 2 });
}
