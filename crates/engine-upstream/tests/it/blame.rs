//! Which failures open a server's circuit breaker. One account alone must not be able to: everybody else would lose the
//! server.

use crate::fixtures::{
    TIMEOUTS, collect_reply, engine_at, engine_with, manual_clock, settings, start_as, wait_for_state,
};
use chancery_engine::{EndpointState, Engine, EngineError, Event};
use chancery_engine_upstream::{Timeouts, UpstreamEngine, UpstreamSettings};
use chancery_test_support::faulty_chat_server::{FaultyServer, Step, reply, text};
use std::time::Duration;

/// More than the failures in a row that open a breaker.
const ATTEMPTS: usize = 4;
const ATTACKER: i64 = 1;
const OTHER: i64 = 2;
/// Only probes ask for one token here.
const PROBE_MARKER: &str = r#""max_tokens":1,"#;

/// Runs these steps for jobs with this text in their prompt, and replies to all others.
async fn server_failing_for(marker: &'static str, steps: Vec<Step>) -> FaultyServer {
    FaultyServer::by_body(move |body| if body.contains(marker) { steps.clone() } else { reply(&["fine"], 1) })
        .await
}

async fn engine_with_timeouts(server: &FaultyServer, timeouts: Timeouts) -> UpstreamEngine {
    engine_with(UpstreamSettings { timeouts, ..settings(&[server]) }).await
}

async fn assert_serves_others(engine: &UpstreamEngine) {
    let (output, _) = collect_reply(start_as(engine, OTHER, "x")).await.unwrap();
    assert_eq!((output.as_str(), engine.endpoints()[0].state), ("fine", EndpointState::Up));
}

const QUICK: Timeouts =
    Timeouts { first_token: Duration::from_secs(1), idle: Duration::from_secs(1), ..TIMEOUTS };

#[tokio::test]
async fn time_outs_of_one_account_leave_the_server_to_others() {
    let server = server_failing_for("hang", vec![Step::Hang]).await;
    let engine = engine_with_timeouts(&server, QUICK).await;
    for _ in 0..ATTEMPTS {
        let error = collect_reply(start_as(&engine, ATTACKER, "hang")).await.unwrap_err();
        assert_eq!(error, EngineError::TimedOut);
    }
    assert_serves_others(&engine).await;
}

#[tokio::test]
async fn simultaneous_time_outs_of_one_account_send_one_probe_without_its_text() {
    let server = server_failing_for("hang", vec![Step::Hang]).await;
    let engine = engine_with_timeouts(&server, QUICK).await;
    let at_once: Vec<_> = (0..16).map(|_| start_as(&engine, ATTACKER, "hang")).collect();
    for generation in at_once {
        collect_reply(generation).await.unwrap_err();
    }
    server.until_jobs_with(PROBE_MARKER, 1).await;
    assert_serves_others(&engine).await;
    let probes: Vec<String> = server.jobs().into_iter().filter(|body| body.contains(PROBE_MARKER)).collect();
    assert_eq!(probes.len(), 1, "{probes:?}");
    assert!(!probes[0].contains("hang") && probes[0].contains(r#""model":"their-m""#), "{}", probes[0]);
}

#[tokio::test]
async fn silent_hang_ups_of_one_account_leave_the_server_to_others() {
    let server = server_failing_for("hang", vec![Step::Hang]).await;
    let clock = manual_clock();
    let engine = engine_at(settings(&[&server]), &clock).await;
    for number in 0..ATTEMPTS {
        let generation = start_as(&engine, ATTACKER, "hang");
        server.until_jobs_with("hang", number + 1).await;
        clock.advance(Duration::from_secs(11));
        drop(generation);
        server.until_hang_ups(number + 1).await;
    }
    assert_serves_others(&engine).await;
}

#[tokio::test]
async fn total_time_outs_of_long_streams_are_no_failures_of_the_server() {
    let mut steps = vec![Step::Stream];
    for _ in 0..100 {
        steps.extend([text("a"), Step::Pause(Duration::from_millis(200))]);
    }
    let server = server_failing_for("long", steps).await;
    let timeouts = Timeouts { total: Duration::from_secs(2), ..TIMEOUTS };
    let engine = engine_with_timeouts(&server, timeouts).await;
    let accounts = [ATTACKER, ATTACKER, ATTACKER, OTHER];
    let at_once = accounts.map(|account| start_as(&engine, account, "long"));
    for generation in at_once {
        // However the job ends for its caller.
        let _ = collect_reply(generation).await;
    }
    let status = engine.endpoints().remove(0);
    assert_eq!((status.state, status.running), (EndpointState::Up, 0));
    assert_eq!(server.jobs().len(), 4, "no probe is needed");
    assert_serves_others(&engine).await;
}

#[tokio::test]
async fn streams_of_one_account_that_break_leave_the_server_to_others() {
    let cut = vec![Step::Stream, text("half"), Step::Cut];
    let stalled = vec![Step::Stream, text("half"), Step::Hang];
    let error = vec![Step::Stream, text("half"), Step::Event(r#"{"error":{"message":"oom"}}"#.to_owned())];
    for steps in [cut, stalled, error] {
        let server = server_failing_for("break", steps).await;
        let engine = engine_with_timeouts(&server, QUICK).await;
        for _ in 0..ATTEMPTS {
            let mut generation = start_as(&engine, ATTACKER, "break");
            assert_eq!(generation.next().await.unwrap(), Event::Text("half".to_owned()));
            collect_reply(generation).await.unwrap_err();
        }
        assert_serves_others(&engine).await;
    }
}

#[tokio::test]
async fn server_that_also_fails_the_probe_is_opened_by_one_account() {
    let refuses = Step::Answer(500, "", "{}".to_owned());
    for probe_steps in [vec![Step::Hang], vec![refuses], vec![Step::Cut]] {
        let server =
            FaultyServer::by_body(
                move |body| {
                    if body.contains("slow") { vec![Step::Hang] } else { probe_steps.clone() }
                },
            )
            .await;
        let engine = engine_with_timeouts(&server, QUICK).await;
        collect_reply(start_as(&engine, ATTACKER, "slow")).await.unwrap_err();
        wait_for_state(&engine, EndpointState::Open).await;
    }
}

#[tokio::test]
async fn time_outs_of_two_accounts_open_the_breaker_without_waiting_for_the_probe() {
    let server = FaultyServer::always(vec![Step::Hang]).await;
    let engine = engine_with_timeouts(&server, QUICK).await;
    let both = [start_as(&engine, ATTACKER, "x"), start_as(&engine, OTHER, "x")];
    for generation in both {
        assert_eq!(collect_reply(generation).await.unwrap_err(), EngineError::TimedOut);
    }
    assert_eq!(engine.endpoints()[0].state, EndpointState::Open);
}

#[tokio::test]
async fn busy_or_rejecting_server_passes_the_probe() {
    for status in [400, 429, 503] {
        let server = FaultyServer::by_body(move |body| {
            if body.contains("hang") {
                return vec![Step::Hang];
            }
            let is_probe = body.contains(PROBE_MARKER);
            if is_probe { vec![Step::Answer(status, "", "{}".to_owned())] } else { reply(&["fine"], 1) }
        })
        .await;
        let engine = engine_with_timeouts(&server, QUICK).await;
        for _ in 0..ATTEMPTS {
            collect_reply(start_as(&engine, ATTACKER, "hang")).await.unwrap_err();
        }
        assert_serves_others(&engine).await;
    }
}
