//! Pools: several servers of one model, added and removed at run time.

use crate::fixtures::{
    TIMEOUTS, collect_reply, engine, engine_with, generate, instructed_job, servers, settings, start,
};
use chancery_engine::{EndpointState, Engine, Event};
use chancery_engine_upstream::{Servers, Timeouts, UpstreamEngine, UpstreamSettings};
use chancery_test_support::faulty_chat_server::{FaultyServer, Step, reply, text, well_ended};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

#[tokio::test]
async fn removed_server_finishes_running_jobs_and_gets_no_new_ones() {
    let gate = Arc::new(Notify::new());
    let mut slow = vec![Step::Stream, text("begun"), Step::Gate(Arc::clone(&gate)), text(" and ended")];
    slow.extend(well_ended("stop", 1, 2));
    let (old, new) = (FaultyServer::always(slow).await, FaultyServer::always(reply(&["new"], 1)).await);
    let timeouts = Timeouts { idle: Duration::from_secs(60), ..TIMEOUTS };
    let engine = engine_with(UpstreamSettings { timeouts, ..settings(&[&old]) }).await;
    let mut running = start(&engine, "x");
    assert_eq!(running.next().await.unwrap(), Event::Text("begun".to_owned()));
    engine.replace_servers(engine.check_servers(&servers(&[&new])).unwrap());
    for _ in 0..5 {
        assert_eq!(generate(&engine, "x").await.unwrap().0, "new");
    }
    let draining = engine.endpoints().into_iter().find(|status| status.url == old.url).unwrap();
    assert_eq!((draining.state, draining.running), (EndpointState::Draining, 1));
    gate.notify_one();
    assert_eq!(collect_reply(running).await.unwrap().0, " and ended");
    assert_eq!(old.jobs().len(), 1);
    let drained = async {
        while engine.endpoints().len() > 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), drained).await.unwrap();
}

#[tokio::test]
async fn rotated_api_key_is_used_for_the_next_job() {
    let server = FaultyServer::always(reply(&["x"], 1)).await;
    let engine = engine(&[&server]).await;
    let mut changed = servers(&[&server]);
    changed.api_key = Some("rotated".to_owned());
    engine.replace_servers(engine.check_servers(&changed).unwrap());
    generate(&engine, "x").await.unwrap();
    assert!(server.heads()[0].contains("Bearer rotated"));
}

#[tokio::test]
async fn same_instructions_of_one_account_go_to_one_server() {
    let pool = [
        FaultyServer::always(reply(&["x"], 1)).await,
        FaultyServer::always(reply(&["x"], 1)).await,
        FaultyServer::always(reply(&["x"], 1)).await,
    ];
    let engine = engine(&[&pool[0], &pool[1], &pool[2]]).await;
    for number in 0..12 {
        let job = instructed_job(&engine, "Answer.", &format!("{number}"), 16);
        collect_reply(engine.start(job).unwrap()).await.unwrap();
    }
    let jobs: Vec<usize> = pool.iter().map(|server| server.jobs().len()).collect();
    assert_eq!(jobs.iter().max(), Some(&12), "{jobs:?}");
}

#[tokio::test]
async fn health_checks_detect_a_stopped_server() {
    let (running, stopped) =
        (FaultyServer::always(reply(&["x"], 1)).await, FaultyServer::always(Vec::new()).await);
    stopped.stop();
    let engine = engine(&[&running, &stopped]).await;
    let is_down = || engine.endpoints()[1].state == EndpointState::Down;
    let waiting = async {
        while !is_down() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.unwrap();
    assert_eq!(engine.outage(), None);
    for number in 0..6 {
        generate(&engine, &format!("{number}")).await.unwrap();
    }
    assert_eq!(running.jobs().len(), 6);
}

#[tokio::test]
async fn unset_context_length_is_read_from_the_servers() {
    let server = FaultyServer::always(Vec::new()).await;
    let engine = engine_with(UpstreamSettings { context_tokens: None, ..settings(&[&server]) }).await;
    assert_eq!(engine.context_tokens(), 4_096);
}

#[tokio::test]
async fn oversized_model_list_is_rejected() {
    let server = FaultyServer::start_listing("x".repeat(2_000_000), |_| Vec::new()).await;
    let unset_context = UpstreamSettings { context_tokens: None, ..settings(&[&server]) };
    let randomness = Arc::new(chancery_domain::SeededRandomness::new(1));
    let started =
        UpstreamEngine::start(unset_context, Arc::new(chancery_domain::SystemClock), randomness).await;
    let error = started.err().unwrap().to_string();
    assert!(error.contains("larger than") && error.contains(&server.url), "{error}");
}

#[tokio::test]
async fn shortest_context_of_all_servers_is_used() {
    let list = |tokens: u32| format!(r#"{{"data":[{{"id":"their-m","max_model_len":{tokens}}}]}}"#);
    let long = FaultyServer::start_listing(list(9_000), |_| Vec::new()).await;
    let short = FaultyServer::start_listing(list(3_000), |_| Vec::new()).await;
    let engine = engine_with(UpstreamSettings { context_tokens: None, ..settings(&[&long, &short]) }).await;
    assert_eq!(engine.context_tokens(), 3_000);
}

fn hedged(pool: &[&FaultyServer]) -> UpstreamSettings {
    UpstreamSettings { hedge_after: Some(Duration::from_millis(200)), ..settings(pool) }
}

#[tokio::test]
async fn hedged_request_delivers_and_bills_only_the_faster_server() {
    let slow = FaultyServer::always(vec![Step::Hang]).await;
    let fast = FaultyServer::always(reply(&["fast"], 3)).await;
    let engine = engine_with(hedged(&[&slow, &fast])).await;
    for number in 0..4 {
        let (output, ended) = generate(&engine, &format!("{number}")).await.unwrap();
        assert_eq!((output.as_str(), ended.output_tokens, ended.input_tokens), ("fast", 1, Some(3)));
    }
    assert_eq!(fast.jobs().len(), 4);
    let hedged = slow.jobs().len();
    assert!(hedged >= 1, "one of them began there");
    slow.until_hang_ups(hedged).await;
    assert!(engine.endpoints().iter().all(|status| status.running == 0 && status.state == EndpointState::Up));
}

#[tokio::test]
async fn hedged_request_survives_the_failure_of_one_server() {
    let late = [Step::Stream, Step::Pause(Duration::from_millis(900)), text("late")];
    let late = [late.to_vec(), well_ended("stop", 1, 1).to_vec()].concat();
    let failing = vec![Step::Pause(Duration::from_millis(500)), Step::Answer(500, "", String::new())];
    let (late, failing) = (FaultyServer::always(late).await, FaultyServer::always(failing).await);
    let engine = engine_with(hedged(&[&late, &failing])).await;
    for _ in 0..3 {
        assert_eq!(generate(&engine, "x").await.unwrap().0, "late");
    }
}

#[tokio::test]
async fn no_job_is_hedged_unless_enabled() {
    let steps = [Step::Pause(Duration::from_millis(600)), Step::Stream, text("slow")];
    let steps = [steps.to_vec(), well_ended("stop", 1, 1).to_vec()].concat();
    let pool = [FaultyServer::always(steps.clone()).await, FaultyServer::always(steps).await];
    let engine = engine(&[&pool[0], &pool[1]]).await;
    generate(&engine, "x").await.unwrap();
    assert_eq!(pool[0].jobs().len() + pool[1].jobs().len(), 1);
}

#[test]
fn debug_output_of_servers_hides_the_api_key() {
    let shown = format!(
        "{:?}",
        Servers { endpoints: vec!["http://a/v1".to_owned()], api_key: Some("secret".to_owned()) }
    );
    assert!(shown.contains("http://a/v1") && !shown.contains("secret"), "{shown}");
}
