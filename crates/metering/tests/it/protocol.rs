//! The metering protocol: admit, generate, settle.

use crate::{Fixture, call, unlock};
use chancery_domain::{LimitUsage, Nanos, StopReason};
use chancery_engine::{EngineError, Finished, GenerationSink, Turn};
use chancery_metering::limits::MAX_UNRECORDED_REQUESTS;
use chancery_metering::{GenerateRequest, MeterError, StreamEvent};
use chancery_store::DbError;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;

pub fn finished(reason: StopReason, output_tokens: u32) -> Finished {
    Finished {
        reason,
        output_tokens,
        cached_tokens: 0,
        billed_cached_tokens: 0,
        reasoning_tokens: 0,
        prefilled_tokens: 0,
        input_tokens: None,
    }
}

pub fn end(sink: GenerationSink, reason: StopReason, output_tokens: u32) {
    sink.end(finished(reason, output_tokens));
}

/// Sends one word, then waits until it is cancelled.
pub fn send_one_word_then_wait(sink: GenerationSink) {
    sink.text("Dear");
    while !sink.is_cancelled() {
        std::thread::sleep(Duration::from_millis(1));
    }
    end(sink, StopReason::Cancelled, 1);
}

#[tokio::test]
async fn reply_is_in_the_ledger_before_delivery() {
    let fixture = Fixture::with(|_, sink| {
        sink.text("A ledger ");
        sink.text("is a book.");
        end(sink, StopReason::Complete, 5);
    })
    .await;
    let (id, request) = fixture.new_request();
    let reply = fixture.meter.generate(call(&fixture.caller, id.clone(), request)).await.unwrap();
    assert_eq!(reply.output_text, "A ledger is a book.");
    assert_eq!((reply.input_tokens, reply.output_tokens, reply.stop_reason), (6, 5, StopReason::Complete));
    let rows = fixture.store.ledger_chains.ledger_rows(None, 10).await.unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].request_id.clone(), rows[0].cost), (id, Nanos(6 * 1_000 + 5 * 2_000)));
}

#[tokio::test]
async fn engine_is_told_whether_the_caller_chose_the_seed() {
    let seeds = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&seeds);
    let fixture = Fixture::with(move |job, sink| {
        seen.lock().unwrap().push((job.sampling.is_seed_chosen, job.sampling.seed == 7));
        sink.text("Dear");
        end(sink, StopReason::Complete, 1);
    })
    .await;
    for seed in [None, Some(7)] {
        let (id, request) = fixture.new_request();
        let request = GenerateRequest { seed, ..request };
        fixture.meter.generate(call(&fixture.caller, id, request)).await.unwrap();
    }
    assert_eq!(*seeds.lock().unwrap(), [(false, false), (true, true)]);
}

#[tokio::test]
async fn reasoning_is_billed_as_output_and_reported() {
    // An engine that reports more reasoning than output is not believed.
    for (reasoning_tokens, expected) in [(4, 4), (9, 5)] {
        let fixture = Fixture::with(move |_, sink| {
            sink.reasoning("A book");
            sink.reasoning(" or a ledge?");
            sink.text("A book.");
            sink.end(Finished {
                reason: StopReason::Complete,
                output_tokens: 5,
                cached_tokens: 0,
                billed_cached_tokens: 0,
                reasoning_tokens,
                prefilled_tokens: 0,
                input_tokens: None,
            });
        })
        .await;
        let (id, request) = fixture.new_request();
        let reply = fixture.meter.generate(call(&fixture.caller, id, request)).await.unwrap();
        assert_eq!(
            (reply.reasoning_text.as_str(), reply.output_text.as_str()),
            ("A book or a ledge?", "A book.")
        );
        assert_eq!((reply.output_tokens, reply.reasoning_tokens), (5, expected));
        assert_eq!(fixture.rows().await, [(6, 5, "complete")]);
    }
}

#[tokio::test]
async fn hang_up_during_streamed_reasoning_is_billed() {
    let fixture = Fixture::with(|_, sink| {
        sink.reasoning("Whom");
        while !sink.is_cancelled() {
            std::thread::sleep(Duration::from_millis(1));
        }
        end(sink, StopReason::Cancelled, 1);
    })
    .await;
    let (id, request) = fixture.new_request();
    let mut running = fixture.meter.stream(call(&fixture.caller, id, request)).await.unwrap();
    assert!(matches!(running.next().await, StreamEvent::Reasoning(text) if text == "Whom"));
    drop(running);
    fixture.settled().await;
    assert_eq!(fixture.rows().await, [(6, 1, "cancelled")]);
}

#[tokio::test]
async fn reasoning_and_text_of_a_stream_keep_their_order() {
    let fixture = Fixture::with(|_, sink| {
        for _ in 0..100 {
            sink.reasoning("a");
            sink.text("b");
        }
        end(sink, StopReason::Complete, 3);
    })
    .await;
    let (id, request) = fixture.new_request();
    let mut running = fixture.meter.stream(call(&fixture.caller, id, request)).await.unwrap();
    let mut pieces = String::new();
    let reply = loop {
        match running.next().await {
            StreamEvent::Reasoning(more) | StreamEvent::Text { text: more, .. } => pieces += &more,
            StreamEvent::Ended(outcome) => break outcome.unwrap(),
        }
    };
    assert_eq!(pieces, "ab".repeat(100));
    assert_eq!((reply.reasoning_text, reply.output_text), ("a".repeat(100), "b".repeat(100)));
}

/// A reply of five tokens, with so many prompt tokens reused, and so many of them billed before.
fn end_with_cached(sink: GenerationSink, cached_tokens: u32, billed_cached_tokens: u32) {
    sink.end(Finished { cached_tokens, billed_cached_tokens, ..finished(StopReason::Complete, 5) });
}

/// Generates once, and returns the reported cached tokens, those of the row, and its cost.
async fn billed_cached_tokens(fixture: &Fixture) -> (u32, u32, Nanos) {
    let (id, request) = fixture.new_request();
    let reply = fixture.meter.generate(call(&fixture.caller, id, request)).await.unwrap();
    assert_eq!(reply.input_tokens, 6);
    let rows = fixture.store.ledger_chains.ledger_rows(None, 10).await.unwrap();
    assert_eq!((rows.len(), rows[0].input_tokens), (1, 6));
    (reply.cached_tokens, rows[0].cached_input_tokens, rows[0].cost)
}

#[tokio::test]
async fn cached_tokens_cost_the_same_without_a_price_of_their_own() {
    for (cached_tokens, expected) in [(0, 0), (4, 4), (6, 6)] {
        let fixture = Fixture::with(move |_, sink| end_with_cached(sink, cached_tokens, cached_tokens)).await;
        let cost = Nanos(6 * 1_000 + 5 * 2_000);
        assert_eq!(billed_cached_tokens(&fixture).await, (expected, expected, cost));
    }
}

#[tokio::test]
async fn cached_tokens_are_billed_at_their_own_price() {
    for (cached_tokens, expected) in [(0, 0), (4, 4), (6, 6)] {
        let fixture = Fixture::with_cached_price("0.25", move |_, sink| {
            end_with_cached(sink, cached_tokens, cached_tokens);
        })
        .await;
        let cost = Nanos((6 - i64::from(expected)) * 1_000 + i64::from(expected) * 250 + 5 * 2_000);
        assert_eq!(billed_cached_tokens(&fixture).await, (expected, expected, cost));
    }
}

/// The engine's count includes the chat template, which is not billed. Otherwise each of its tokens would discount a
/// token of text that was never cached.
#[tokio::test]
async fn cached_scaffolding_does_not_discount_new_text() {
    for (cached_tokens, expected) in [(0, 0), (3, 0), (4, 0), (7, 3), (10, 6), (64, 6)] {
        let fixture = Fixture::with_cached_price_and_scaffolding("0.25", 4, move |_, sink| {
            end_with_cached(sink, cached_tokens, cached_tokens);
        })
        .await;
        let cost = Nanos((6 - i64::from(expected)) * 1_000 + i64::from(expected) * 250 + 5 * 2_000);
        assert_eq!(billed_cached_tokens(&fixture).await, (expected, expected, cost));
    }
}

/// Otherwise a caller could have prompts computed, hang up before the first token, and then pay the lower price.
#[tokio::test]
async fn tokens_that_an_unbilled_request_computed_get_no_discount() {
    for (billed, expected) in [(0, 0), (2, 2)] {
        let fixture = Fixture::with_cached_price("0", move |_, sink| end_with_cached(sink, 6, billed)).await;
        let cost = Nanos((6 - i64::from(expected)) * 1_000 + 5 * 2_000);
        assert_eq!(billed_cached_tokens(&fixture).await, (expected, expected, cost));
    }
}

#[tokio::test]
async fn estimates_have_no_discount_for_cached_tokens() {
    let fixture = Fixture::with_cached_price("0.25", |_, sink| end_with_cached(sink, 6, 6)).await;
    let (_, request) = fixture.new_request();
    let estimate = fixture.meter.count(&fixture.caller, &request).await.unwrap();
    assert_eq!((estimate.input_cost, estimate.max_cost), (Nanos(6_000), Nanos(6_000 + 50 * 2_000)));
}

#[tokio::test]
async fn failed_generation_is_not_billed() {
    for panics in [false, true] {
        let fixture = Fixture::with(move |_, sink| {
            sink.text("Dear");
            if panics {
                drop(sink);
            } else {
                sink.fail(EngineError::Failed("broken".to_owned()));
            }
        })
        .await;
        let (id, request) = fixture.new_request();
        let error = fixture.meter.generate(call(&fixture.caller, id, request)).await.unwrap_err();
        assert!(matches!(error, MeterError::Engine(EngineError::Failed(_))), "{error}");
        assert_eq!(fixture.rows().await, []);
    }
}

/// Runs `script` for a caller who disconnects once it has started; returns the rows after everything is settled.
async fn hang_up(script: impl Fn(GenerationSink) + Send + Sync + 'static) -> Vec<(u32, u32, &'static str)> {
    let (start_sender, start_receiver) = channel();
    let start_sender = Mutex::new(start_sender);
    let fixture = Fixture::with(move |_, sink| {
        start_sender.lock().unwrap().send(()).unwrap();
        script(sink);
    })
    .await;
    let call = fixture.spawn_request();
    tokio::task::spawn_blocking(move || start_receiver.recv()).await.unwrap().unwrap();
    call.abort();
    fixture.settled().await;
    fixture.rows().await
}

#[tokio::test]
async fn hang_up_bills_exactly_the_generated_tokens() {
    assert_eq!(hang_up(send_one_word_then_wait).await, [(6, 1, "cancelled")]);
}

#[tokio::test]
async fn hang_up_before_the_first_token_bills_nothing() {
    let nothing = |sink: GenerationSink| {
        while !sink.is_cancelled() {
            std::thread::sleep(Duration::from_millis(1));
        }
        end(sink, StopReason::Cancelled, 0);
    };
    assert_eq!(hang_up(nothing).await, []);
}

#[tokio::test]
async fn prompt_tokens_computed_before_a_hang_up_count_against_the_minute() {
    // The engine's count includes the chat template, so it can exceed the six reserved tokens.
    for (prefilled_tokens, counted) in [(0, 0), (4, 4), (70, 6)] {
        let (start_sender, start_receiver) = channel();
        let start_sender = Mutex::new(start_sender);
        let fixture = Fixture::with(move |_, sink| {
            start_sender.lock().unwrap().send(()).unwrap();
            while !sink.is_cancelled() {
                std::thread::sleep(Duration::from_millis(1));
            }
            sink.end(Finished { prefilled_tokens, ..finished(StopReason::Cancelled, 0) });
        })
        .await;
        let call = fixture.spawn_request();
        tokio::task::spawn_blocking(move || start_receiver.recv()).await.unwrap().unwrap();
        call.abort();
        fixture.settled().await;
        assert_eq!(fixture.rows().await, []);
        assert_eq!(fixture.used().await, LimitUsage { requests: 1, tokens: counted });
    }
}

#[tokio::test]
async fn hang_up_is_billed_once_the_database_recovers() {
    let fixture = Fixture::with(|_, sink| send_one_word_then_wait(sink)).await;
    // Another process locks the database for longer than the store waits.
    let other = fixture.lock_database().await;
    let call = fixture.spawn_request();
    while fixture.meter.running_requests() == 0 {
        tokio::task::yield_now().await;
    }
    call.abort();
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(fixture.meter.running_requests(), 1, "it has not given up");
    unlock(other).await;
    fixture.settled().await;
    assert_eq!(fixture.rows().await, [(6, 1, "cancelled")]);
}

#[tokio::test]
async fn too_many_unrecorded_requests_stop_admission_until_all_are_recorded() {
    let mut fixture = Fixture::with(|_, sink| send_one_word_then_wait(sink)).await;
    fixture.caller.limits.requests_per_min = 1_000;
    let other = fixture.lock_database().await;
    let calls: Vec<_> = (0..MAX_UNRECORDED_REQUESTS).map(|_| fixture.spawn_request()).collect();
    while fixture.meter.running_requests() < MAX_UNRECORDED_REQUESTS {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    calls.iter().for_each(JoinHandle::abort);
    while fixture.meter.can_record().is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (id, request) = fixture.new_request();
    let rejected = fixture.meter.generate(call(&fixture.caller, id, request)).await.unwrap_err();
    assert!(matches!(rejected, MeterError::Database(DbError::Unavailable(_))), "{rejected}");
    assert_eq!(fixture.meter.running_requests(), MAX_UNRECORDED_REQUESTS);
    unlock(other).await;
    fixture.settled().await;
    assert_eq!(fixture.rows().await.len(), MAX_UNRECORDED_REQUESTS);
    fixture.admitting().await;
}

#[tokio::test]
async fn stream_ends_only_once_the_database_recovers_and_it_is_recorded() {
    let fixture = Fixture::with(|_, sink| {
        sink.text("Dear");
        end(sink, StopReason::Complete, 1);
    })
    .await;
    let other = fixture.lock_database().await;
    let (id, request) = fixture.new_request();
    let mut running = fixture.meter.stream(call(&fixture.caller, id, request)).await.unwrap();
    assert!(matches!(running.next().await, StreamEvent::Text { text, .. } if text == "Dear"));
    // Longer than the store waits for a lock.
    assert!(tokio::time::timeout(Duration::from_secs(7), running.next()).await.is_err(), "it has not ended");
    unlock(other).await;
    assert!(matches!(running.next().await, StreamEvent::Ended(Ok(reply)) if reply.output_text == "Dear"));
    assert_eq!(fixture.rows().await, [(6, 1, "complete")]);
}

#[tokio::test]
async fn unrecorded_reply_is_not_delivered() {
    let fixture = Fixture::with(|_, sink| end(sink, StopReason::Complete, 3)).await;
    fixture.store.close().await;
    let (id, request) = fixture.new_request();
    let error = fixture.meter.generate(call(&fixture.caller, id, request)).await.unwrap_err();
    assert!(matches!(error, MeterError::UsageNotRecorded { has_key: false, .. }), "{error}");
}

#[tokio::test]
async fn rejected_request_never_reaches_the_engine() {
    let fixture = Fixture::with(|_, _| panic!("the engine was asked")).await;
    let (_, good) = fixture.new_request();
    let words = |count| Turn::from_instructions_and_input("Answer briefly.", "word ".repeat(count));
    let cases = [
        (GenerateRequest { model: "none".to_owned(), ..good.clone() }, "unknown model"),
        (GenerateRequest { max_output_tokens: Some(101), ..good.clone() }, "context length of 100"),
        (GenerateRequest { max_output_tokens: Some(u64::MAX), ..good.clone() }, "context length of 100"),
        (GenerateRequest { turns: words(100), ..good.clone() }, "102 tokens"),
        (GenerateRequest { turns: words(9_000), ..good }, "9002 tokens"),
    ];
    for (request, expected) in cases {
        let error = fixture
            .meter
            .generate(call(&fixture.caller, fixture.meter.new_request_id(), request))
            .await
            .unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert_eq!(fixture.rows().await, []);
}

#[tokio::test]
async fn draining_rejects_new_requests_and_waits_for_running_ones() {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let fixture = Fixture::with(move |_, sink| {
        wait.lock().unwrap().recv().unwrap();
        end(sink, StopReason::Complete, 2);
    })
    .await;
    let old = fixture.spawn_request();
    while fixture.meter.running_requests() == 0 {
        tokio::task::yield_now().await;
    }
    fixture.meter.stop_admitting();
    let (id, request) = fixture.new_request();
    let rejected = fixture.meter.generate(call(&fixture.caller, id, request)).await.unwrap_err();
    assert!(matches!(rejected, MeterError::ShuttingDown));
    go.send(()).unwrap();
    fixture.meter.wait_until_settled().await;
    assert!(old.await.unwrap().is_ok());
    assert_eq!(fixture.rows().await, [(6, 2, "complete")]);
}

#[tokio::test]
async fn abandoned_request_gets_an_error_and_is_not_billed() {
    let fixture = Fixture::with(|_, sink| send_one_word_then_wait(sink)).await;
    let call = fixture.spawn_request();
    while fixture.meter.running_requests() == 0 {
        tokio::task::yield_now().await;
    }
    fixture.meter.stop_admitting();
    fixture.meter.abandon_running();
    assert!(matches!(call.await.unwrap(), Err(MeterError::ShuttingDown)));
    assert_eq!(fixture.rows().await, []);
}
