//! Rate limits from reservation to settlement, with an engine scripted by each test.

use crate::protocol::{end, send_one_word_then_wait};
use crate::{Fixture, call};
use chancery_domain::{LimitScope, LimitUsage, RateLimits, WINDOW};
use chancery_engine::{EngineError, Finished, GenerationSink, StopReason};
use chancery_metering::{Caller, GenerateRequest, MeterError};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

/// The same caller with other limits, as after `account limits`.
fn limited(fixture: &Fixture, requests_per_min: u32, tokens_per_min: u32) -> Caller {
    Caller { limits: RateLimits { requests_per_min, tokens_per_min }, ..fixture.caller.clone() }
}

#[tokio::test]
async fn running_request_counts_in_full_and_settled_request_by_usage() {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let fixture = Fixture::with(move |_, sink| {
        wait.lock().unwrap().recv().unwrap();
        end(sink, StopReason::Complete, 5);
    })
    .await;
    let call = fixture.spawn_request();
    while fixture.meter.running_requests() == 0 {
        tokio::task::yield_now().await;
    }
    // Six words in, up to fifty out.
    assert_eq!(fixture.used().await, LimitUsage { requests: 1, tokens: 56 });
    go.send(()).unwrap();
    let reply = call.await.unwrap().unwrap();
    let status = reply.rate_limit_status.unwrap();
    assert_eq!(status.used, LimitUsage { requests: 1, tokens: 11 });
    assert_eq!(status.limits, fixture.caller.limits);
    assert_eq!(fixture.used().await, status.used);
}

#[tokio::test]
async fn request_over_a_limit_is_rejected_until_the_wait_ends() {
    let fixture = Fixture::with(|_, sink| end(sink, StopReason::Complete, 4)).await;
    for (caller, by_requests) in [(limited(&fixture, 2, 1_000), true), (limited(&fixture, 100, 70), false)] {
        for _ in 0..2 {
            let (id, request) = fixture.new_request();
            fixture.meter.generate(call(&caller, id, request)).await.unwrap();
        }
        let (id, request) = fixture.new_request();
        let rejected = fixture.meter.generate(call(&caller, id, request.clone())).await.unwrap_err();
        let MeterError::RateLimited { rejection, tokens: 56 } = rejected else { panic!("{rejected}") };
        let exceeded = rejection.exceeded();
        assert_eq!((exceeded.requests_retry_after > exceeded.tokens_retry_after), by_requests);
        assert_eq!(rejection.scope(), LimitScope::Account);
        assert_eq!(rejection.retry_after_s(), 60);
        assert_eq!(
            fixture.used().await,
            LimitUsage { requests: 2, tokens: 20 },
            "a rejected request does not count"
        );
        fixture.clock.advance(WINDOW);
        fixture.meter.generate(call(&caller, fixture.meter.new_request_id(), request)).await.unwrap();
        fixture.clock.advance(WINDOW);
    }
}

#[tokio::test]
async fn request_that_can_never_fit_is_rejected_without_retry_after() {
    let fixture = Fixture::with(|_, sink| end(sink, StopReason::Complete, 1)).await;
    let (id, request) = fixture.new_request();
    let caller = limited(&fixture, 1, 55);
    let rejected = fixture.meter.generate(call(&caller, id, request.clone())).await.unwrap_err();
    assert!(
        matches!(rejected, MeterError::ExceedsTokenLimit { input_tokens: 6, max_output_tokens: 50, .. }),
        "{rejected}"
    );
    assert_eq!(fixture.used().await, LimitUsage::default());
    let smaller = GenerateRequest { max_output_tokens: Some(49), ..request };
    assert!(fixture.meter.generate(call(&caller, fixture.meter.new_request_id(), smaller)).await.is_ok());
}

#[tokio::test]
async fn uncapped_request_gets_what_context_and_token_limit_allow() {
    let fixture = Fixture::with(|job, sink| {
        let output_tokens = job.max_output_tokens;
        sink.end(Finished {
            reason: StopReason::MaxOutputTokens,
            output_tokens,
            cached_tokens: 0,
            billed_cached_tokens: 0,
            reasoning_tokens: 0,
            prefilled_tokens: 0,
            input_tokens: None,
        });
    })
    .await;
    // The context length is 100, and the prompt has 6 tokens.
    for (tokens_per_min, room) in [(1_000, 94), (50, 44), (7, 1)] {
        let (id, request) = fixture.new_request();
        let request = GenerateRequest { max_output_tokens: None, ..request };
        let caller = limited(&fixture, 1, tokens_per_min);
        let reply = fixture.meter.generate(call(&caller, id, request)).await.unwrap();
        assert_eq!(reply.output_tokens, room);
        fixture.clock.advance(WINDOW);
    }
    let (id, request) = fixture.new_request();
    let request = GenerateRequest { max_output_tokens: None, ..request };
    let rejected = fixture.meter.generate(call(&limited(&fixture, 1, 6), id, request)).await.unwrap_err();
    assert!(matches!(rejected, MeterError::ExceedsTokenLimit { max_output_tokens: 1, .. }), "{rejected}");
}

#[tokio::test]
async fn failed_generation_does_not_count_toward_limits() {
    let failures: [fn(GenerationSink); 4] = [
        |sink| sink.fail(EngineError::Failed("broken".to_owned())),
        |sink| sink.fail(EngineError::Overloaded { retry_after_s: 1 }),
        |sink| drop(sink),
        |_| panic!("the engine's thread dies"),
    ];
    for failure in failures {
        let fixture = Fixture::with(move |_, sink| failure(sink)).await;
        let (id, request) = fixture.new_request();
        fixture.meter.generate(call(&fixture.caller, id, request)).await.unwrap_err();
        assert_eq!(fixture.used().await, LimitUsage::default());
    }
}

#[tokio::test]
async fn reads_are_limited_and_take_nothing_from_generation() {
    let fixture = Fixture::with(|_, sink| end(sink, StopReason::Complete, 4)).await;
    let caller = limited(&fixture, 3, 1_000);
    let (id, request) = fixture.new_request();
    fixture.meter.count(&caller, &request).await.unwrap();
    fixture.meter.admit_read(&caller).await.unwrap();
    fixture.clock.advance(Duration::from_secs(10));
    // A request that cannot be counted is a read all the same.
    let unknown = GenerateRequest { model: "none".to_owned(), ..request.clone() };
    assert!(matches!(fixture.meter.count(&caller, &unknown).await, Err(MeterError::UnknownModel(_))));
    for rejected in [
        fixture.meter.count(&caller, &request).await.unwrap_err(),
        fixture.meter.admit_read(&caller).await.unwrap_err(),
    ] {
        let MeterError::ReadsRateLimited(rejection) = rejected else { panic!("{rejected}") };
        assert_eq!(rejection.retry_after_s(), 50);
    }
    assert_eq!(fixture.used().await, LimitUsage::default());
    fixture.meter.generate(call(&caller, id, request.clone())).await.unwrap();
    fixture.clock.advance(Duration::from_secs(50));
    fixture.meter.count(&caller, &request).await.unwrap();
}

#[tokio::test]
async fn hang_up_counts_exactly_the_generated_tokens_toward_limits() {
    let nothing = |sink: GenerationSink| {
        while !sink.is_cancelled() {
            std::thread::sleep(Duration::from_millis(1));
        }
        end(sink, StopReason::Cancelled, 0);
    };
    let scripts: [(fn(GenerationSink), u64); 2] = [(send_one_word_then_wait, 7), (nothing, 0)];
    for (script, tokens) in scripts {
        let fixture = Fixture::with(move |_, sink| script(sink)).await;
        let call = fixture.spawn_request();
        while fixture.meter.running_requests() == 0 {
            tokio::task::yield_now().await;
        }
        call.abort();
        fixture.settled().await;
        // It was admitted, so it counts as one request of its minute, whatever it generated.
        assert_eq!(fixture.used().await, LimitUsage { requests: 1, tokens });
    }
}

#[tokio::test]
async fn unrecorded_request_still_counts_its_usage_toward_limits() {
    let fixture = Fixture::with(|_, sink| end(sink, StopReason::Complete, 3)).await;
    fixture.store.close().await;
    let (id, request) = fixture.new_request();
    fixture.meter.generate(call(&fixture.caller, id, request)).await.unwrap_err();
    assert_eq!(fixture.used().await, LimitUsage { requests: 1, tokens: 9 });
}
