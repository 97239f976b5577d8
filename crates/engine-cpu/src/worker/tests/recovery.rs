//! Panics and recovery from them.

use super::*;
use crate::limits::FAILURE_RESET_AFTER;
use std::path::PathBuf;

/// The outcome of the next build, chosen by the test.
enum Build {
    Works,
    Fails,
    Panics,
}

/// An engine that is rebuilt only when the test says so, and the channel to say it.
fn with_manual_rebuild(worker_limits: WorkerLimits) -> (Harness, mpsc::Sender<Build>) {
    let (build_sender, builds) = mpsc::channel();
    build_sender.send(Build::Works).unwrap();
    let harness = Harness::rebuilt_by(worker_limits, move |permits| match builds.recv() {
        Ok(Build::Fails) => Err(LoadError::NotFound { path: PathBuf::from("gone.gguf") }),
        Ok(Build::Panics) => panic!("no such weights"),
        Ok(Build::Works) | Err(_) => Ok(ScriptedModel { permits, logits: Vec::new() }),
    });
    (harness, build_sender)
}

/// A job that makes the engine panic and one that waits for the only slot, both queued before the first step.
fn poisoned_and_waiting(harness: &Harness) -> (Generation, Generation) {
    let both = (harness.submit(job(&[POISON], 5)), harness.submit(job(&[FIRST], 2)));
    harness.allow(1_000);
    both
}

const ONE_SLOT: WorkerLimits = WorkerLimits { slots: 1, ..LIMITS };

/// Makes the engine panic, and returns once it rejects new jobs.
async fn poison(harness: &Harness) {
    let mut poisoned = harness.submit(job(&[POISON], 5));
    harness.allow(1);
    let Err(EngineError::Failed(reason)) = poisoned.next().await else { panic!("it did not fail") };
    assert_eq!(reason, "engine panicked: poisoned", "the log has the panic's message");
}

pub(super) async fn served_again(harness: &Harness) {
    while harness.job_queue.outage().is_some() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Advances the clock and lets the supervisor see it.
fn advance(harness: &Harness, by: Duration) {
    // Holds the lock, so that the supervisor is not between reading the clock and sleeping.
    let _state = harness.job_queue.lock();
    harness.clock.advance(by);
    harness.job_queue.changed.notify_all();
}

/// The retry delay that a rejected caller gets.
fn retry_after_s(harness: &Harness) -> u32 {
    match harness.job_queue.submit(job(&[FIRST], 1)).unwrap_err() {
        EngineError::Restarting { retry_after_s } => retry_after_s,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn panic_fails_running_jobs_and_rejects_others_until_rebuilt() {
    let (harness, build) = with_manual_rebuild(LIMITS);
    poison(&harness).await;
    assert_eq!(retry_after_s(&harness), 3, "two and a half seconds, in whole ones");
    advance(&harness, Duration::from_millis(1_600));
    assert_eq!(retry_after_s(&harness), 1);
    advance(&harness, Duration::from_secs(60));
    assert_eq!(retry_after_s(&harness), 1, "it takes longer than the last time");
    build.send(Build::Works).unwrap();
    served_again(&harness).await;
    harness.allow(2);
    assert_eq!(collect_reply(harness.submit(job(&[FIRST], 2))).await.0, "bc");
}

#[tokio::test]
async fn queued_job_is_served_after_the_rebuild() {
    let (harness, build) = with_manual_rebuild(ONE_SLOT);
    let (mut poisoned, queued) = poisoned_and_waiting(&harness);
    assert!(matches!(poisoned.next().await, Err(EngineError::Failed(_))));
    build.send(Build::Works).unwrap();
    assert_eq!(collect_reply(queued).await.0, "bc");
}

#[tokio::test]
async fn job_that_would_expire_before_the_rebuild_is_rejected_immediately() {
    let (harness, build) = with_manual_rebuild(ONE_SLOT);
    let mut poisoned = harness.submit(job(&[POISON], 5));
    let mut early = harness.submit(job(&[FIRST], 2));
    harness.clock.advance(MAX_QUEUE_WAIT - BUILD_TIME + Duration::from_millis(1));
    let late = harness.submit(job(&[FIRST], 2));
    harness.allow(1_000);
    assert!(matches!(poisoned.next().await, Err(EngineError::Failed(_))));
    assert_eq!(early.next().await, Err(EngineError::Restarting { retry_after_s: 3 }));
    build.send(Build::Works).unwrap();
    assert_eq!(collect_reply(late).await.0, "bc");
}

#[tokio::test]
async fn failed_rebuild_rejects_all_jobs_and_retries_with_backoff() {
    let (harness, build) = with_manual_rebuild(ONE_SLOT);
    let (mut poisoned, mut queued) = poisoned_and_waiting(&harness);
    assert!(matches!(poisoned.next().await, Err(EngineError::Failed(_))));
    assert_eq!(harness.job_queue.outage().as_deref(), Some("restarting after a panic"));
    for (outcome, wait_s) in [(Build::Fails, 1), (Build::Panics, 2), (Build::Fails, 4)] {
        let reason = match outcome {
            Build::Panics => "no such weights",
            _ => "model file not found: gone.gguf",
        };
        build.send(outcome).unwrap();
        while !harness.job_queue.outage().unwrap().contains(reason) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(retry_after_s(&harness), wait_s + 3, "the pause, and then the rebuild");
        advance(&harness, Duration::from_secs(wait_s.into()));
    }
    assert!(matches!(queued.next().await, Err(EngineError::Restarting { retry_after_s: 4 })));
    build.send(Build::Works).unwrap();
    served_again(&harness).await;
    assert_eq!(collect_reply(harness.submit(job(&[FIRST], 2))).await.0, "bc");
}

#[tokio::test]
async fn repeated_panics_lengthen_the_backoff_until_a_stable_minute() {
    let (harness, build) = with_manual_rebuild(LIMITS);
    for wait_s in [0, 1, 2, 4] {
        poison(&harness).await;
        // Only the first build has a duration; by this clock the others take none.
        let build_s = if wait_s == 0 { 3 } else { 0 };
        assert_eq!(retry_after_s(&harness), (wait_s + build_s).max(1));
        build.send(Build::Works).unwrap();
        advance(&harness, Duration::from_secs(wait_s.into()));
        served_again(&harness).await;
    }
    harness.clock.advance(FAILURE_RESET_AFTER);
    poison(&harness).await;
    build.send(Build::Works).unwrap();
    served_again(&harness).await;
}

#[tokio::test]
async fn dropping_the_engine_during_a_rebuild_fails_waiting_jobs() {
    let (harness, build) = with_manual_rebuild(ONE_SLOT);
    poison(&harness).await;
    build.send(Build::Works).unwrap();
    served_again(&harness).await;
    let (mut poisoned, mut queued) = poisoned_and_waiting(&harness);
    assert!(matches!(poisoned.next().await, Err(EngineError::Failed(_))));
    // The second panic in a row, so there is a pause, and by this clock it would last forever.
    drop(harness);
    assert_eq!(queued.next().await, Err(EngineError::ShuttingDown));
}

#[tokio::test]
async fn panic_with_the_queue_locked_fails_queued_jobs() {
    let (harness, build) = with_manual_rebuild(ONE_SLOT);
    let (mut poisoned, mut queued) = (harness.submit(job(&[POISON], 5)), harness.submit(job(&[FIRST], 2)));
    let job_queue = Arc::clone(&harness.job_queue);
    let broken = thread::spawn(move || {
        let _state = job_queue.lock();
        panic!("in the middle of the queue");
    });
    assert!(broken.join().is_err());
    harness.allow(1_000);
    assert!(matches!(poisoned.next().await, Err(EngineError::Failed(_))));
    assert!(matches!(queued.next().await, Err(EngineError::Failed(_))));
    build.send(Build::Works).unwrap();
    served_again(&harness).await;
    assert_eq!(collect_reply(harness.submit(job(&[FIRST], 2))).await.0, "bc");
}
