//! The limits, from reservation to settlement, around an engine that does what each test needs.

use crate::protocol::{end, one_word_then_wait};
use crate::{Firm, call};
use chancery_domain::{Amount, RateLimits, WINDOW};
use chancery_engine::{Ended, EngineError, GenerationSink, StopReason};
use chancery_metering::{Caller, GenerateRequest, MeterError};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

async fn used(firm: &Firm) -> Amount {
    firm.meter.rate_limit_status(firm.caller).await.unwrap().used
}

/// The same caller with other limits, as after `account limits`.
fn limited(firm: &Firm, requests_per_min: u32, tokens_per_min: u32) -> Caller {
    Caller { limits: RateLimits { requests_per_min, tokens_per_min }, ..firm.caller }
}

#[tokio::test]
async fn a_running_request_counts_in_full_and_a_settled_one_with_what_it_used() {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let firm = Firm::with(move |_, sink| {
        wait.lock().unwrap().recv().unwrap();
        end(sink, StopReason::Complete, 5);
    })
    .await;
    let call = firm.spawn_request();
    while firm.meter.running_requests() == 0 {
        tokio::task::yield_now().await;
    }
    // Six words in, up to fifty out.
    assert_eq!(used(&firm).await, Amount { requests: 1, tokens: 56 });
    go.send(()).unwrap();
    let reply = call.await.unwrap().unwrap();
    let status = reply.rate_limit_status.unwrap();
    assert_eq!(status.used, Amount { requests: 1, tokens: 11 });
    assert_eq!(status.limits, firm.caller.limits);
    assert_eq!(used(&firm).await, status.used);
}

#[tokio::test]
async fn a_request_past_a_limit_is_refused_until_the_wait_is_over() {
    let firm = Firm::with(|_, sink| end(sink, StopReason::Complete, 4)).await;
    for (caller, by_requests) in [(limited(&firm, 2, 1_000), true), (limited(&firm, 100, 70), false)] {
        for _ in 0..2 {
            let (id, request) = firm.new_request();
            firm.meter.generate(call(caller, id, request)).await.unwrap();
        }
        let (id, request) = firm.new_request();
        let refused = firm.meter.generate(call(caller, id, request.clone())).await.unwrap_err();
        let MeterError::RateLimited { refusal, tokens: 56 } = refused else { panic!("{refused}") };
        assert_eq!((refusal.requests_wait > refusal.tokens_wait), by_requests);
        assert_eq!(refusal.retry_after_s(), 60);
        assert_eq!(used(&firm).await, Amount { requests: 2, tokens: 20 }, "a refused request does not count");
        firm.clock.advance(WINDOW);
        firm.meter.generate(call(caller, firm.meter.new_request_id(), request)).await.unwrap();
        firm.clock.advance(WINDOW);
    }
}

#[tokio::test]
async fn what_can_never_fit_is_told_so_instead_of_being_told_to_wait() {
    let firm = Firm::with(|_, sink| end(sink, StopReason::Complete, 1)).await;
    let (id, request) = firm.new_request();
    let caller = limited(&firm, 1, 55);
    let refused = firm.meter.generate(call(caller, id, request.clone())).await.unwrap_err();
    assert!(
        matches!(refused, MeterError::NeverFits { input_tokens: 6, max_output_tokens: 50, .. }),
        "{refused}"
    );
    assert_eq!(used(&firm).await, Amount::default());
    let smaller = GenerateRequest { max_output_tokens: Some(49), ..request };
    assert!(firm.meter.generate(call(caller, firm.meter.new_request_id(), smaller)).await.is_ok());
}

#[tokio::test]
async fn a_request_without_a_cap_takes_what_context_and_minute_leave_room_for() {
    let firm = Firm::with(|job, sink| {
        let output_tokens = job.max_output_tokens;
        sink.end(Ended {
            reason: StopReason::MaxOutputTokens,
            output_tokens,
            cached_tokens: 0,
            input_tokens: None,
        });
    })
    .await;
    // The context holds 100, and the prompt has 6.
    for (tokens_per_min, room) in [(1_000, 94), (50, 44), (7, 1)] {
        let (id, request) = firm.new_request();
        let request = GenerateRequest { max_output_tokens: None, ..request };
        let caller = limited(&firm, 1, tokens_per_min);
        let reply = firm.meter.generate(call(caller, id, request)).await.unwrap();
        assert_eq!(reply.output_tokens, room);
        firm.clock.advance(WINDOW);
    }
    let (id, request) = firm.new_request();
    let request = GenerateRequest { max_output_tokens: None, ..request };
    let refused = firm.meter.generate(call(limited(&firm, 1, 6), id, request)).await.unwrap_err();
    assert!(matches!(refused, MeterError::NeverFits { max_output_tokens: 1, .. }), "{refused}");
}

#[tokio::test]
async fn failed_work_does_not_count() {
    let failures: [fn(GenerationSink); 4] = [
        |sink| sink.fail(EngineError::Failed("broken".to_owned())),
        |sink| sink.fail(EngineError::Overloaded { retry_after_s: 1 }),
        |sink| drop(sink),
        |_| panic!("the engine's thread dies"),
    ];
    for failure in failures {
        let firm = Firm::with(move |_, sink| failure(sink)).await;
        let (id, request) = firm.new_request();
        firm.meter.generate(call(firm.caller, id, request)).await.unwrap_err();
        assert_eq!(used(&firm).await, Amount::default());
    }
}

#[tokio::test]
async fn counting_a_request_does_not_count() {
    let firm = Firm::with(|_, _| panic!("the engine was asked")).await;
    let (_, request) = firm.new_request();
    firm.meter.count(firm.caller, &request).await.unwrap();
    assert_eq!(used(&firm).await, Amount::default());
}

#[tokio::test]
async fn a_caller_who_hangs_up_counts_with_exactly_what_was_generated() {
    let nothing = |sink: GenerationSink| {
        while !sink.is_cancelled() {
            std::thread::sleep(Duration::from_millis(1));
        }
        end(sink, StopReason::Cancelled, 0);
    };
    let scripts: [(fn(GenerationSink), u64); 2] = [(one_word_then_wait, 7), (nothing, 0)];
    for (script, tokens) in scripts {
        let firm = Firm::with(move |_, sink| script(sink)).await;
        let call = firm.spawn_request();
        while firm.meter.running_requests() == 0 {
            tokio::task::yield_now().await;
        }
        call.abort();
        firm.settled().await;
        // It was admitted, so it is one of the requests of its minute, whatever it came to.
        assert_eq!(used(&firm).await, Amount { requests: 1, tokens });
    }
}

#[tokio::test]
async fn a_request_whose_row_could_not_be_written_still_counts_with_what_it_used() {
    let firm = Firm::with(|_, sink| end(sink, StopReason::Complete, 3)).await;
    firm.store.close().await;
    let (id, request) = firm.new_request();
    firm.meter.generate(call(firm.caller, id, request)).await.unwrap_err();
    assert_eq!(used(&firm).await, Amount { requests: 1, tokens: 9 });
}
