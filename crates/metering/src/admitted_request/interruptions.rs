//! Interrupted requests: a future dropped at each await point, a panic around the engine or during settlement, shutdown, a
//! database outage. In every case nothing stays reserved, what was read is billed, and nothing is billed twice.

mod fixture;

use crate::MeterError;
use crate::limits::{FAILED_SETTLEMENTS_WINDOW, MAX_FAILED_SETTLEMENTS};
use chancery_domain::{LimitUsage, WINDOW};
use chancery_engine::EngineError;
use chancery_store::DbError;
use fixture::{Fixture, LimitStore, ResponseMode, send_one_word_then_wait, send_two_words, unlock};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const MAX_REQUEST_BYTES: usize = 16 * 1024;

/// Drops a request at its first await point, then another at its second, and so on until one completes.
async fn drop_at_each_await(limit_store: LimitStore, mode: ResponseMode) {
    let fixture = Fixture::new(limit_store, send_two_words).await;
    let (mut billed, mut unbilled) = (0, 0);
    for waits in 0.. {
        fixture.clock.clock.advance(WINDOW);
        let (mut interrupted, outcome) = fixture.drop_after(waits, mode).await;
        match (fixture.assert_closed(&mut interrupted).await, &outcome) {
            (Some(_), None) => billed += 1,
            (None, None) => unbilled += 1,
            (Some(2), Some(Ok(_))) => break,
            other => panic!("{mode:?} after {waits} waits: {other:?}"),
        }
    }
    println!("{limit_store:?}, {mode:?}: dropped {unbilled} times unbilled, {billed} times billed");
    // Awaited before any text: the key lookup, the rate limit twice, the lease, the cap and the key's claim.
    assert!(unbilled >= 6, "{unbilled}");
    assert!(mode == ResponseMode::Whole || billed >= 1, "{billed}");
}

/// It is copied for every request. It once had 216 kB, and copying it took a tenth of a request's CPU time.
#[tokio::test]
async fn future_of_a_request_is_small() {
    let bytes = Fixture::new(LimitStore::Memory, send_two_words).await.request_bytes();
    println!("{bytes} bytes");
    assert!(bytes <= MAX_REQUEST_BYTES, "{bytes} bytes; box what is seldom needed, and pass pinned futures");
}

#[tokio::test]
async fn reply_dropped_at_any_await_leaves_no_reservation() {
    drop_at_each_await(LimitStore::Memory, ResponseMode::Whole).await;
}

#[tokio::test]
async fn stream_dropped_at_any_await_bills_delivered_text_and_releases_the_rest() {
    drop_at_each_await(LimitStore::Memory, ResponseMode::Stream).await;
}

#[tokio::test]
async fn stream_dropped_at_any_await_leaves_no_reservation_in_redis() {
    drop_at_each_await(LimitStore::Redis, ResponseMode::Stream).await;
}

/// One caller hangs up at the first await point of a whole reply, another at the second, and so on until one gets the reply.
#[tokio::test]
async fn hang_up_at_any_await_bills_what_was_generated_and_leaves_no_reservation() {
    let fixture = Fixture::new(LimitStore::Memory, send_two_words).await;
    let (mut billed, mut unbilled) = (0, 0);
    for waits in 0.. {
        fixture.clock.clock.advance(WINDOW);
        let (mut interrupted, outcome) = fixture.hang_up_after(waits).await;
        match (fixture.assert_closed(&mut interrupted).await, &outcome) {
            (Some(_), None) => billed += 1,
            (None, None) => unbilled += 1,
            (Some(2), Some(Ok(_))) => break,
            other => panic!("after {waits} waits: {other:?}"),
        }
    }
    println!("hung up {unbilled} times unbilled, {billed} times billed");
    // From the first word on, every hang-up is billed.
    assert!(billed >= 1, "{billed}");
}

#[tokio::test]
async fn stream_dropped_midway_bills_exactly_the_generated_tokens() {
    let fixture = Fixture::new(LimitStore::Memory, send_one_word_then_wait).await;
    let (mut interrupted, work) = fixture.spawn_and_read_a_word().await;
    work.abort();
    assert_eq!(fixture.assert_closed(&mut interrupted).await, Some(1));
    let row = fixture.row(&interrupted.call).await.unwrap();
    assert_eq!((row.input_tokens, row.stop_reason.as_str()), (6, "cancelled"));
}

#[tokio::test]
async fn panic_at_engine_start_leaves_no_reservation() {
    for mode in [ResponseMode::Whole, ResponseMode::Stream] {
        let fixture = Fixture::new(LimitStore::Memory, send_two_words).await;
        fixture.engine.panics_at_start.store(true, Ordering::SeqCst);
        let (mut interrupted, outcome) = fixture.run(mode).await;
        assert!(matches!(outcome, Err(MeterError::Internal(_))), "{outcome:?}");
        assert_eq!(fixture.assert_closed(&mut interrupted).await, None);
        assert_eq!(fixture.used().await, LimitUsage::default());
    }
}

#[tokio::test]
async fn engine_panic_bills_nothing_and_only_delivered_text_counts() {
    let fixture = Fixture::new(LimitStore::Memory, |sink| {
        sink.text("Dear");
        std::thread::sleep(Duration::from_millis(3));
        panic!("the engine's thread dies, as the test wants");
    })
    .await;
    let delivered = LimitUsage { requests: 1, tokens: 6 + 1 };
    for (mode, counted) in [(ResponseMode::Whole, LimitUsage::default()), (ResponseMode::Stream, delivered)] {
        let (mut interrupted, outcome) = fixture.run(mode).await;
        assert!(matches!(outcome, Err(MeterError::Engine(EngineError::Failed(_)))), "{outcome:?}");
        // Work that failed is not billed, though some of its text may have been read.
        while interrupted.pending.pieces.try_recv().is_ok() {}
        assert_eq!(fixture.assert_closed(&mut interrupted).await, None);
        assert_eq!(fixture.used().await, counted);
    }
}

#[tokio::test]
async fn limiter_panic_during_settlement_does_not_prevent_billing() {
    for mode in [ResponseMode::Whole, ResponseMode::Stream] {
        let fixture = Fixture::new(LimitStore::Memory, send_two_words).await;
        fixture.limiter.panics_in_settle.store(u32::MAX, Ordering::SeqCst);
        let (interrupted, outcome) = fixture.run(mode).await;
        let reply = outcome.unwrap();
        assert_eq!((reply.output_tokens, reply.rate_limit_status), (2, None));
        fixture.settled().await;
        assert_eq!(fixture.row(&interrupted.call).await.unwrap().output_tokens, 2);
        assert!(fixture.is_rest_of_cap_free().await);
        // Its actual usage could not be reported, so the full reservation counts.
        assert_eq!(fixture.used().await, LimitUsage { requests: 1, tokens: 56 });
    }
}

#[tokio::test]
async fn settlement_panic_is_retried_until_delivered_text_is_billed() {
    let fixture = Fixture::new(LimitStore::Memory, send_one_word_then_wait).await;
    let (mut interrupted, work) = fixture.spawn_and_read_a_word().await;
    fixture.clock.panics.store(true, Ordering::SeqCst);
    work.abort();
    fixture.unrecorded().await;
    fixture.clock.panics.store(false, Ordering::SeqCst);
    assert_eq!(fixture.assert_closed(&mut interrupted).await, Some(1));
}

#[tokio::test]
async fn delivered_text_is_billed_once_the_database_recovers() {
    let fixture = Fixture::new(LimitStore::Memory, send_one_word_then_wait).await;
    let (mut interrupted, work) = fixture.spawn_and_read_a_word().await;
    let database = fixture.lock_database().await;
    work.abort();
    // Longer than the store waits for a lock.
    fixture.unrecorded().await;
    assert_eq!(fixture.meter.running_requests(), 1, "it has not given up");
    unlock(database).await;
    assert_eq!(fixture.assert_closed(&mut interrupted).await, Some(1));
    assert_eq!(fixture.meter.unrecorded_requests(), 0);
}

#[tokio::test]
async fn undelivered_reservation_is_released_once_the_database_recovers() {
    let fixture = Fixture::new(LimitStore::Memory, send_one_word_then_wait).await;
    let (mut interrupted, work) = fixture.spawn(ResponseMode::Whole);
    while !fixture.has_claimed(&interrupted.call).await {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let database = fixture.lock_database().await;
    work.abort();
    fixture.settled().await;
    unlock(database).await;
    assert_eq!(fixture.assert_closed(&mut interrupted).await, None);
}

#[tokio::test]
async fn shutdown_waits_until_delivered_text_is_billed() {
    let fixture = Fixture::new(LimitStore::Memory, send_one_word_then_wait).await;
    let (mut interrupted, work) = fixture.spawn_and_read_a_word().await;
    let database = fixture.lock_database().await;
    fixture.meter.stop_admitting();
    work.abort();
    let draining = tokio::time::timeout(Duration::from_millis(500), fixture.meter.wait_until_settled()).await;
    assert!(draining.is_err(), "it has not waited");
    unlock(database).await;
    fixture.meter.wait_until_settled().await;
    assert_eq!(fixture.assert_closed(&mut interrupted).await, Some(1));
}

#[tokio::test]
async fn shutdown_does_not_wait_forever_for_an_unavailable_database() {
    let fixture = Fixture::new(LimitStore::Memory, send_one_word_then_wait).await;
    let (interrupted, work) = fixture.spawn_and_read_a_word().await;
    let database = fixture.lock_database().await;
    fixture.meter.stop_admitting();
    work.abort();
    fixture.unrecorded().await;
    fixture.meter.abandon_running();
    let abandoned = tokio::time::timeout(Duration::from_secs(20), fixture.meter.wait_until_settled()).await;
    assert!(abandoned.is_ok(), "it waits for ever");
    unlock(database).await;
    // The last attempt may have queued its row in the store, which writes it before closing.
    fixture.store.close().await;
    drop(interrupted);
}

#[tokio::test]
async fn failed_settlements_within_seconds_stop_admission_until_a_probe_is_written() {
    let fixture = Fixture::new(LimitStore::Memory, send_two_words).await;
    let full = MeterError::Database(DbError::DiskFull("why".to_owned()));
    let of_the_row = MeterError::Database(DbError::SumTooLarge);
    let fail = |error, times| (0..times).for_each(|_| fixture.meter.record_failed_settlement(error));
    fail(&of_the_row, 2 * MAX_FAILED_SETTLEMENTS);
    for _ in 0..3 {
        fail(&full, MAX_FAILED_SETTLEMENTS - 1);
        assert!(fixture.meter.can_record().is_ok());
        fixture.clock.clock.advance(FAILED_SETTLEMENTS_WINDOW);
    }
    let database = fixture.lock_database().await;
    fail(&full, MAX_FAILED_SETTLEMENTS);
    fixture.clock.clock.advance(FAILED_SETTLEMENTS_WINDOW);
    fixture.engine.panics_at_start.store(true, Ordering::SeqCst);
    for mode in [ResponseMode::Whole, ResponseMode::Stream] {
        let outcome = fixture.ask(mode).await;
        assert!(matches!(outcome, Err(MeterError::Database(DbError::DiskFull(_)))), "{outcome:?}");
    }
    let meter = Arc::clone(&fixture.meter);
    let probing = tokio::spawn(async move { meter.run_ledger_probe().await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(fixture.meter.can_record().is_err(), "the probe waits for the database");
    unlock(database).await;
    while fixture.meter.can_record().is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    probing.abort();
    fixture.engine.panics_at_start.store(false, Ordering::SeqCst);
    fixture.ask(ResponseMode::Whole).await.unwrap();
}
