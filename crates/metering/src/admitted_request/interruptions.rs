//! What becomes of a request that is interrupted: its future dropped at each await point, a panic around the engine or
//! while it is settled, shutdown, a database that is gone for a while. Whatever happens, nothing stays reserved, what was
//! read is billed, and nothing is billed twice.

mod firm;

use crate::MeterError;
use crate::running::Wants;
use chancery_domain::{Amount, WINDOW};
use chancery_engine::EngineError;
use firm::{Firm, LimitsIn, one_word_then_wait, two_words, unlock};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Drops a request at its first await point, then another at its second, and so on until one comes to its end.
async fn dropped_at_each_await(limits_in: LimitsIn, wants: Wants) {
    let firm = Firm::new(limits_in, two_words).await;
    let (mut billed, mut unbilled) = (0, 0);
    for waits in 0.. {
        firm.clock.clock.advance(WINDOW);
        let (mut interrupted, outcome) = firm.dropped_after(waits, wants).await;
        match (firm.assert_closed(&mut interrupted).await, &outcome) {
            (Some(_), None) => billed += 1,
            (None, None) => unbilled += 1,
            (Some(2), Some(Ok(_))) => break,
            other => panic!("{wants:?} after {waits} waits: {other:?}"),
        }
    }
    println!("{limits_in:?}, {wants:?}: dropped {unbilled} times unbilled, {billed} times billed");
    // The key, the limits twice, the lease, the cap and the key's claim are asked for before any text comes.
    assert!(unbilled >= 6, "{unbilled}");
    assert!(wants == Wants::Reply || billed >= 1, "{billed}");
}

#[tokio::test]
async fn a_reply_dropped_at_any_await_leaves_nothing_reserved() {
    dropped_at_each_await(LimitsIn::Memory, Wants::Reply).await;
}

#[tokio::test]
async fn a_stream_dropped_at_any_await_leaves_nothing_reserved_and_bills_what_was_read() {
    dropped_at_each_await(LimitsIn::Memory, Wants::Text).await;
}

#[tokio::test]
async fn with_limits_in_redis_a_stream_dropped_at_any_await_leaves_nothing_reserved() {
    dropped_at_each_await(LimitsIn::Redis, Wants::Text).await;
}

#[tokio::test]
async fn a_stream_dropped_in_the_middle_is_billed_with_exactly_what_was_generated() {
    let firm = Firm::new(LimitsIn::Memory, one_word_then_wait).await;
    let (mut interrupted, work) = firm.spawn_and_read_a_word().await;
    work.abort();
    assert_eq!(firm.assert_closed(&mut interrupted).await, Some(1));
    let row = firm.row(&interrupted.call).await.unwrap();
    assert_eq!((row.input_tokens, row.ended.as_str()), (6, "cancelled"));
}

#[tokio::test]
async fn a_panic_while_the_work_starts_leaves_nothing_reserved() {
    for wants in [Wants::Reply, Wants::Text] {
        let firm = Firm::new(LimitsIn::Memory, two_words).await;
        firm.engine.panics_at_start.store(true, Ordering::SeqCst);
        let (mut interrupted, outcome) = firm.run(wants).await;
        assert!(matches!(outcome, Err(MeterError::Internal(_))), "{outcome:?}");
        assert_eq!(firm.assert_closed(&mut interrupted).await, None);
        assert_eq!(firm.used().await, Amount::default());
    }
}

#[tokio::test]
async fn a_panic_in_the_engine_bills_nothing_and_leaves_nothing_reserved() {
    let firm = Firm::new(LimitsIn::Memory, |sink| {
        sink.text("Dear");
        std::thread::sleep(Duration::from_millis(3));
        panic!("the engine's thread dies, as the test wants");
    })
    .await;
    for wants in [Wants::Reply, Wants::Text] {
        let (mut interrupted, outcome) = firm.run(wants).await;
        assert!(matches!(outcome, Err(MeterError::Engine(EngineError::Failed(_)))), "{outcome:?}");
        // Work that failed is not billed, though some of its text may have been read.
        while interrupted.awaited.text.try_recv().is_ok() {}
        assert_eq!(firm.assert_closed(&mut interrupted).await, None);
        assert_eq!(firm.used().await, Amount::default());
    }
}

#[tokio::test]
async fn a_limiter_that_panics_while_settling_keeps_nobody_from_being_billed() {
    for wants in [Wants::Reply, Wants::Text] {
        let firm = Firm::new(LimitsIn::Memory, two_words).await;
        firm.limiter.panics_in_settle.store(u32::MAX, Ordering::SeqCst);
        let (interrupted, outcome) = firm.run(wants).await;
        let reply = outcome.unwrap();
        assert_eq!((reply.output_tokens, reply.rate_limit_status), (2, None));
        firm.settled().await;
        assert_eq!(firm.row(&interrupted.call).await.unwrap().output_tokens, 2);
        assert!(firm.is_rest_of_cap_free().await);
        // Nobody could say that it used less, so it counts with all that it might have used.
        assert_eq!(firm.used().await, Amount { requests: 1, tokens: 56 });
    }
}

#[tokio::test]
async fn a_panic_while_settling_is_retried_until_what_was_read_is_billed() {
    let firm = Firm::new(LimitsIn::Memory, one_word_then_wait).await;
    let (mut interrupted, work) = firm.spawn_and_read_a_word().await;
    firm.clock.panics.store(true, Ordering::SeqCst);
    work.abort();
    firm.unrecorded().await;
    firm.clock.panics.store(false, Ordering::SeqCst);
    assert_eq!(firm.assert_closed(&mut interrupted).await, Some(1));
}

#[tokio::test]
async fn what_was_read_is_billed_once_the_database_is_back() {
    let firm = Firm::new(LimitsIn::Memory, one_word_then_wait).await;
    let (mut interrupted, work) = firm.spawn_and_read_a_word().await;
    let database = firm.lock_database().await;
    work.abort();
    // Longer than the store is patient.
    firm.unrecorded().await;
    assert_eq!(firm.meter.running_requests(), 1, "it has not given up");
    unlock(database).await;
    assert_eq!(firm.assert_closed(&mut interrupted).await, Some(1));
    assert_eq!(firm.meter.unrecorded_requests(), 0);
}

#[tokio::test]
async fn what_was_reserved_and_not_read_is_free_once_the_database_is_back() {
    let firm = Firm::new(LimitsIn::Memory, one_word_then_wait).await;
    let (mut interrupted, work) = firm.spawn(Wants::Reply);
    while !firm.has_claimed(&interrupted.call).await {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let database = firm.lock_database().await;
    work.abort();
    firm.settled().await;
    unlock(database).await;
    assert_eq!(firm.assert_closed(&mut interrupted).await, None);
}

#[tokio::test]
async fn shutdown_waits_until_what_was_read_is_billed() {
    let firm = Firm::new(LimitsIn::Memory, one_word_then_wait).await;
    let (mut interrupted, work) = firm.spawn_and_read_a_word().await;
    let database = firm.lock_database().await;
    firm.meter.stop_admitting();
    work.abort();
    let draining = tokio::time::timeout(Duration::from_millis(500), firm.meter.wait_until_settled()).await;
    assert!(draining.is_err(), "it has not waited");
    unlock(database).await;
    firm.meter.wait_until_settled().await;
    assert_eq!(firm.assert_closed(&mut interrupted).await, Some(1));
}

#[tokio::test]
async fn shutdown_does_not_wait_for_ever_for_a_database_that_is_gone() {
    let firm = Firm::new(LimitsIn::Memory, one_word_then_wait).await;
    let (interrupted, work) = firm.spawn_and_read_a_word().await;
    let database = firm.lock_database().await;
    firm.meter.stop_admitting();
    work.abort();
    firm.unrecorded().await;
    firm.meter.abandon_running();
    let abandoned = tokio::time::timeout(Duration::from_secs(20), firm.meter.wait_until_settled()).await;
    assert!(abandoned.is_ok(), "it waits for ever");
    unlock(database).await;
    // The last attempt may have left its row in the queue of the store, which writes it before it closes.
    firm.store.close().await;
    drop(interrupted);
}
