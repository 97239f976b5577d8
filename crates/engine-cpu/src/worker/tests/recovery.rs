//! Panics, and what comes after them.

use super::*;
use crate::limits::STEADY_AFTER;
use std::path::PathBuf;

/// What a test lets the next build come to.
enum Build {
    Works,
    Fails,
    Panics,
}

/// An engine that is built anew when a test says so and not before, and how to say it.
fn rebuilt_by_hand(bounds: Bounds) -> (Bench, mpsc::Sender<Build>) {
    let (say, said) = mpsc::channel();
    say.send(Build::Works).unwrap();
    let bench = Bench::rebuilt_by(bounds, move |permits| match said.recv() {
        Ok(Build::Fails) => Err(LoadError::NotFound { path: PathBuf::from("gone.gguf") }),
        Ok(Build::Panics) => panic!("no such weights"),
        Ok(Build::Works) | Err(_) => Ok(ScriptedModel { permits, logits: Vec::new() }),
    });
    (bench, say)
}

/// A job that makes the engine panic and one that waits for the only slot, both there before the first step.
fn poisoned_and_waiting(bench: &Bench) -> (Generation, Generation) {
    let both = (bench.submit(job(&[POISON], 5)), bench.submit(job(&[FIRST], 2)));
    bench.allow(1_000);
    both
}

const ONE_SLOT: Bounds = Bounds { slots: 1, ..BOUNDS };

/// Makes the engine panic, and returns when it refuses new jobs.
async fn poison(bench: &Bench) {
    let mut poisoned = bench.submit(job(&[POISON], 5));
    bench.allow(1);
    let Err(EngineError::Failed(reason)) = poisoned.next().await else { panic!("it did not fail") };
    assert_eq!(reason, "the engine panicked: poisoned", "the log has the panic's message");
}

pub(super) async fn served_again(bench: &Bench) {
    while bench.requests.outage().is_some() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Moves the clock and lets the supervisor look at it.
fn advance(bench: &Bench, by: Duration) {
    // With the lock, so that the supervisor is not between its look at the clock and its sleep.
    let _state = bench.requests.lock();
    bench.clock.advance(by);
    bench.requests.changed.notify_all();
}

/// How long a refused caller is told to wait.
fn retry_after_s(bench: &Bench) -> u32 {
    match bench.requests.submit(job(&[FIRST], 1)).unwrap_err() {
        EngineError::Restarting { retry_after_s } => retry_after_s,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_panic_fails_what_ran_and_refuses_others_for_as_long_as_the_rebuild_takes() {
    let (bench, build) = rebuilt_by_hand(BOUNDS);
    poison(&bench).await;
    assert_eq!(retry_after_s(&bench), 3, "two and a half seconds, in whole ones");
    advance(&bench, Duration::from_millis(1_600));
    assert_eq!(retry_after_s(&bench), 1);
    advance(&bench, Duration::from_secs(60));
    assert_eq!(retry_after_s(&bench), 1, "it takes longer than the last time");
    build.send(Build::Works).unwrap();
    served_again(&bench).await;
    bench.allow(2);
    assert_eq!(all(bench.submit(job(&[FIRST], 2))).await.0, "bc");
}

#[tokio::test]
async fn a_job_that_waited_is_served_after_the_rebuild() {
    let (bench, build) = rebuilt_by_hand(ONE_SLOT);
    let (mut poisoned, waiting) = poisoned_and_waiting(&bench);
    assert!(matches!(poisoned.next().await, Err(EngineError::Failed(_))));
    build.send(Build::Works).unwrap();
    assert_eq!(all(waiting).await.0, "bc");
}

#[tokio::test]
async fn a_job_whose_time_is_up_before_the_engine_is_back_is_refused_at_once() {
    let (bench, build) = rebuilt_by_hand(ONE_SLOT);
    let mut poisoned = bench.submit(job(&[POISON], 5));
    let mut early = bench.submit(job(&[FIRST], 2));
    bench.clock.advance(MAX_WAIT - BUILD_TIME + Duration::from_millis(1));
    let late = bench.submit(job(&[FIRST], 2));
    bench.allow(1_000);
    assert!(matches!(poisoned.next().await, Err(EngineError::Failed(_))));
    assert_eq!(early.next().await, Err(EngineError::Restarting { retry_after_s: 3 }));
    build.send(Build::Works).unwrap();
    assert_eq!(all(late).await.0, "bc");
}

#[tokio::test]
async fn a_rebuild_that_fails_refuses_everybody_and_is_tried_again_less_and_less_often() {
    let (bench, build) = rebuilt_by_hand(ONE_SLOT);
    let (mut poisoned, mut waiting) = poisoned_and_waiting(&bench);
    assert!(matches!(poisoned.next().await, Err(EngineError::Failed(_))));
    assert_eq!(bench.requests.outage().as_deref(), Some("it is being set up anew after a panic"));
    for (outcome, wait_s) in [(Build::Fails, 1), (Build::Panics, 2), (Build::Fails, 4)] {
        let reason = match outcome {
            Build::Panics => "no such weights",
            _ => "there is no model file at gone.gguf",
        };
        build.send(outcome).unwrap();
        while !bench.requests.outage().unwrap().contains(reason) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(retry_after_s(&bench), wait_s + 3, "the pause, and then the rebuild");
        advance(&bench, Duration::from_secs(wait_s.into()));
    }
    assert!(matches!(waiting.next().await, Err(EngineError::Restarting { retry_after_s: 4 })));
    build.send(Build::Works).unwrap();
    served_again(&bench).await;
    assert_eq!(all(bench.submit(job(&[FIRST], 2))).await.0, "bc");
}

#[tokio::test]
async fn panics_soon_after_each_other_make_the_pauses_longer_until_all_is_well_for_a_minute() {
    let (bench, build) = rebuilt_by_hand(BOUNDS);
    for wait_s in [0, 1, 2, 4] {
        poison(&bench).await;
        // Only the first build took its time; by this clock the others take none.
        let build_s = if wait_s == 0 { 3 } else { 0 };
        assert_eq!(retry_after_s(&bench), (wait_s + build_s).max(1));
        build.send(Build::Works).unwrap();
        advance(&bench, Duration::from_secs(wait_s.into()));
        served_again(&bench).await;
    }
    bench.clock.advance(STEADY_AFTER);
    poison(&bench).await;
    build.send(Build::Works).unwrap();
    served_again(&bench).await;
}

#[tokio::test]
async fn an_engine_dropped_while_it_is_away_lets_nobody_wait() {
    let (bench, build) = rebuilt_by_hand(ONE_SLOT);
    poison(&bench).await;
    build.send(Build::Works).unwrap();
    served_again(&bench).await;
    let (mut poisoned, mut waiting) = poisoned_and_waiting(&bench);
    assert!(matches!(poisoned.next().await, Err(EngineError::Failed(_))));
    // The second panic in a row, so there is a pause, and it would last for ever by this clock.
    drop(bench);
    assert_eq!(waiting.next().await, Err(EngineError::ShuttingDown));
}

#[tokio::test]
async fn a_panic_in_the_middle_of_the_queue_fails_what_was_in_it() {
    let (bench, build) = rebuilt_by_hand(ONE_SLOT);
    let (mut poisoned, mut waiting) = (bench.submit(job(&[POISON], 5)), bench.submit(job(&[FIRST], 2)));
    let requests = Arc::clone(&bench.requests);
    let broken = thread::spawn(move || {
        let _state = requests.lock();
        panic!("in the middle of the queue");
    });
    assert!(broken.join().is_err());
    bench.allow(1_000);
    assert!(matches!(poisoned.next().await, Err(EngineError::Failed(_))));
    assert!(matches!(waiting.next().await, Err(EngineError::Failed(_))));
    build.send(Build::Works).unwrap();
    served_again(&bench).await;
    assert_eq!(all(bench.submit(job(&[FIRST], 2))).await.0, "bc");
}
