//! Admit, generate, settle.

use crate::{Firm, call};
use chancery_domain::{HowEnded, Nanos};
use chancery_engine::{Ended, EngineError, GenerationSink, StopReason, Turn};
use chancery_metering::limits::MAX_UNRECORDED;
use chancery_metering::{MeterError, Progress};
use chancery_store::DbError;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;
use tokio::task::JoinHandle;

pub fn end(sink: GenerationSink, reason: StopReason, output_tokens: u32) {
    sink.end(Ended { reason, output_tokens, cached_tokens: 0, input_tokens: None });
}

/// Says a word, then waits to be cancelled.
pub fn one_word_then_wait(sink: GenerationSink) {
    sink.text("Dear");
    while !sink.is_cancelled() {
        std::thread::sleep(Duration::from_millis(1));
    }
    end(sink, StopReason::Cancelled, 1);
}

#[tokio::test]
async fn a_reply_is_in_the_ledger_when_it_is_given() {
    let firm = Firm::with(|_, sink| {
        sink.text("A ledger ");
        sink.text("is a book.");
        end(sink, StopReason::Complete, 5);
    })
    .await;
    let (id, request) = firm.new_request();
    let reply = firm.meter.generate(call(firm.caller, id.clone(), request)).await.unwrap();
    assert_eq!(reply.output_text, "A ledger is a book.");
    assert_eq!((reply.input_tokens, reply.output_tokens, reply.ended), (6, 5, HowEnded::Complete));
    let rows = firm.store.ledger_chains.ledger_rows(None, 10).await.unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].request_id.clone(), rows[0].cost), (id, Nanos(6 * 1_000 + 5 * 2_000)));
}

#[tokio::test]
async fn what_the_engine_had_cached_is_told_and_does_not_change_the_bill() {
    // The engine's count has the template's scaffolding in it, so it can be above the six tokens that are billed.
    for (cached_tokens, told) in [(0, 0), (4, 4), (64, 6)] {
        let firm = Firm::with(move |_, sink| {
            sink.end(Ended {
                reason: StopReason::Complete,
                output_tokens: 5,
                cached_tokens,
                input_tokens: None,
            });
        })
        .await;
        let (id, request) = firm.new_request();
        let reply = firm.meter.generate(call(firm.caller, id, request)).await.unwrap();
        assert_eq!((reply.input_tokens, reply.cached_tokens), (6, told));
        let rows = firm.store.ledger_chains.ledger_rows(None, 10).await.unwrap();
        assert_eq!((rows[0].input_tokens, rows[0].cost), (6, Nanos(6 * 1_000 + 5 * 2_000)));
    }
}

#[tokio::test]
async fn failed_work_is_not_billed() {
    for panics in [false, true] {
        let firm = Firm::with(move |_, sink| {
            sink.text("Dear");
            if panics {
                drop(sink);
            } else {
                sink.fail(EngineError::Failed("broken".to_owned()));
            }
        })
        .await;
        let (id, request) = firm.new_request();
        let error = firm.meter.generate(call(firm.caller, id, request)).await.unwrap_err();
        assert!(matches!(error, MeterError::Engine(EngineError::Failed(_))), "{error}");
        assert_eq!(firm.rows().await, []);
    }
}

/// Runs `script` for a caller who hangs up once it has begun; gives the rows when everything is settled.
async fn hang_up(script: impl Fn(GenerationSink) + Send + Sync + 'static) -> Vec<(u32, u32, &'static str)> {
    let (said, heard) = channel();
    let said = Mutex::new(said);
    let firm = Firm::with(move |_, sink| {
        said.lock().unwrap().send(()).unwrap();
        script(sink);
    })
    .await;
    let call = firm.spawn_request();
    tokio::task::spawn_blocking(move || heard.recv()).await.unwrap().unwrap();
    call.abort();
    firm.settled().await;
    firm.rows().await
}

#[tokio::test]
async fn a_caller_who_hangs_up_pays_for_exactly_what_was_generated() {
    assert_eq!(hang_up(one_word_then_wait).await, [(6, 1, "cancelled")]);
}

#[tokio::test]
async fn a_caller_who_hangs_up_before_anything_was_generated_pays_nothing() {
    let nothing = |sink: GenerationSink| {
        while !sink.is_cancelled() {
            std::thread::sleep(Duration::from_millis(1));
        }
        end(sink, StopReason::Cancelled, 0);
    };
    assert_eq!(hang_up(nothing).await, []);
}

#[tokio::test]
async fn what_a_caller_who_hung_up_has_used_is_recorded_once_the_database_is_back() {
    let firm = Firm::with(|_, sink| one_word_then_wait(sink)).await;
    // Another process keeps the database to itself for longer than the store is patient.
    let options = SqliteConnectOptions::new().filename(firm.database_file());
    let mut other = SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::query("BEGIN EXCLUSIVE").execute(&mut other).await.unwrap();
    let call = firm.spawn_request();
    while firm.meter.running_requests() == 0 {
        tokio::task::yield_now().await;
    }
    call.abort();
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(firm.meter.running_requests(), 1, "it has not given up");
    sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
    firm.settled().await;
    assert_eq!(firm.rows().await, [(6, 1, "cancelled")]);
}

#[tokio::test]
async fn nothing_more_is_admitted_while_too_much_cannot_be_recorded_and_all_of_it_is_in_the_end() {
    let mut firm = Firm::with(|_, sink| one_word_then_wait(sink)).await;
    firm.caller.limits.requests_per_min = 1_000;
    let options = SqliteConnectOptions::new().filename(firm.database_file());
    let mut other = SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::query("BEGIN EXCLUSIVE").execute(&mut other).await.unwrap();
    let calls: Vec<_> = (0..MAX_UNRECORDED).map(|_| firm.spawn_request()).collect();
    while firm.meter.running_requests() < MAX_UNRECORDED {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    calls.iter().for_each(JoinHandle::abort);
    while firm.meter.can_record().is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (id, request) = firm.new_request();
    let refused = firm.meter.generate(call(firm.caller, id, request)).await.unwrap_err();
    assert!(matches!(refused, MeterError::Database(DbError::Unavailable(_))), "{refused}");
    assert_eq!(firm.meter.running_requests(), MAX_UNRECORDED);
    sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
    firm.settled().await;
    assert_eq!(firm.rows().await.len(), MAX_UNRECORDED);
    assert!(firm.meter.can_record().is_ok());
}

#[tokio::test]
async fn text_that_was_streamed_is_recorded_once_the_database_is_back_and_only_then_ends() {
    let firm = Firm::with(|_, sink| {
        sink.text("Dear");
        end(sink, StopReason::Complete, 1);
    })
    .await;
    let options = SqliteConnectOptions::new().filename(firm.database_file());
    let mut other = SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::query("BEGIN EXCLUSIVE").execute(&mut other).await.unwrap();
    let (id, request) = firm.new_request();
    let mut running = firm.meter.stream(call(firm.caller, id, request)).await.unwrap();
    assert!(matches!(running.next().await, Progress::Text(text) if text == "Dear"));
    // Longer than the store is patient.
    assert!(tokio::time::timeout(Duration::from_secs(7), running.next()).await.is_err(), "it has not ended");
    sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
    assert!(matches!(running.next().await, Progress::Ended(Ok(reply)) if reply.output_text == "Dear"));
    assert_eq!(firm.rows().await, [(6, 1, "complete")]);
}

#[tokio::test]
async fn a_reply_that_cannot_be_recorded_is_not_given() {
    let firm = Firm::with(|_, sink| end(sink, StopReason::Complete, 3)).await;
    firm.store.close().await;
    let (id, request) = firm.new_request();
    let error = firm.meter.generate(call(firm.caller, id, request)).await.unwrap_err();
    assert!(matches!(error, MeterError::Unrecorded { has_key: false, .. }), "{error}");
}

#[tokio::test]
async fn what_cannot_be_admitted_never_reaches_the_engine() {
    let firm = Firm::with(|_, _| panic!("the engine was asked")).await;
    let (_, good) = firm.new_request();
    let words = |count| Turn::instructions_and_input("Answer briefly.", "word ".repeat(count));
    let cases = [
        (chancery_metering::GenerateRequest { model: "none".to_owned(), ..good.clone() }, "no model"),
        (
            chancery_metering::GenerateRequest { max_output_tokens: Some(101), ..good.clone() },
            "context holds 100",
        ),
        (
            chancery_metering::GenerateRequest { max_output_tokens: Some(u64::MAX), ..good.clone() },
            "context holds 100",
        ),
        (chancery_metering::GenerateRequest { turns: words(100), ..good.clone() }, "102 tokens"),
        (chancery_metering::GenerateRequest { turns: words(9_000), ..good }, "9002 tokens"),
    ];
    for (request, expected) in cases {
        let error =
            firm.meter.generate(call(firm.caller, firm.meter.new_request_id(), request)).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert_eq!(firm.rows().await, []);
}

#[tokio::test]
async fn draining_refuses_new_work_and_waits_for_the_old() {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let firm = Firm::with(move |_, sink| {
        wait.lock().unwrap().recv().unwrap();
        end(sink, StopReason::Complete, 2);
    })
    .await;
    let old = firm.spawn_request();
    while firm.meter.running_requests() == 0 {
        tokio::task::yield_now().await;
    }
    firm.meter.stop_admitting();
    let (id, request) = firm.new_request();
    let refused = firm.meter.generate(call(firm.caller, id, request)).await.unwrap_err();
    assert!(matches!(refused, MeterError::ShuttingDown));
    go.send(()).unwrap();
    firm.meter.wait_until_settled().await;
    assert!(old.await.unwrap().is_ok());
    assert_eq!(firm.rows().await, [(6, 2, "complete")]);
}

#[tokio::test]
async fn abandoned_work_is_answered_and_not_billed() {
    let firm = Firm::with(|_, sink| one_word_then_wait(sink)).await;
    let call = firm.spawn_request();
    while firm.meter.running_requests() == 0 {
        tokio::task::yield_now().await;
    }
    firm.meter.stop_admitting();
    firm.meter.abandon_running();
    assert!(matches!(call.await.unwrap(), Err(MeterError::ShuttingDown)));
    assert_eq!(firm.rows().await, []);
}
