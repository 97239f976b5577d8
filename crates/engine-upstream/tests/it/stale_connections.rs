//! Servers close connections without announcing it. A job that was sent on such a connection is sent again on a new one,
//! and the server is not blamed.

use crate::fixtures::{collect_reply, engine_with, generate, settings_for, start};
use chancery_engine::{EndpointState, Engine};
use chancery_engine_upstream::{Servers, UpstreamEngine};
use chancery_test_support::closing_chat_server::{AfterReply, ClosingServer};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const CLIENTS: usize = 32;

const JOBS: usize = 20_000;

async fn engine_for(server: &ClosingServer) -> UpstreamEngine {
    engine_with(settings_for(Servers { endpoints: vec![server.url.clone()], api_key: None })).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_job_fails_at_a_server_that_closes_connections_at_random() {
    let server = ClosingServer::random().await;
    let engine = Arc::new(engine_for(&server).await);
    let remaining = Arc::new(AtomicUsize::new(JOBS));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (engine, remaining) = (Arc::clone(&engine), Arc::clone(&remaining));
            tokio::spawn(async move {
                let mut failures = Vec::new();
                let take = |left: usize| left.checked_sub(1);
                while remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
                    if let Err(error) = generate(&engine, "x").await {
                        failures.push(error.to_string());
                    }
                }
                failures
            })
        })
        .collect();
    let mut failures = Vec::new();
    for client in clients {
        failures.extend(client.await.unwrap());
    }
    assert!(failures.is_empty(), "{} of {JOBS} failed: {}", failures.len(), failures[0]);
    assert!(server.unanswered() > JOBS / 20, "the races were run: {}", server.unanswered());
    assert_eq!(engine.endpoints()[0].state, EndpointState::Up);
}

#[tokio::test]
async fn resend_uses_a_new_connection_even_if_others_are_pooled() {
    for after_reply in [AfterReply::CloseOnRequest, AfterReply::ResetOnRequest] {
        let server = ClosingServer::start(move |_| after_reply).await;
        let engine = engine_for(&server).await;
        let at_once: Vec<_> = (0..8).map(|_| start(&engine, "x")).collect();
        for generation in at_once {
            collect_reply(generation).await.unwrap();
        }
        let pooled = server.connections();
        assert!(pooled >= 4, "several connections are stale: {pooled}");
        // Each job finds at least one stale connection as long as there are any.
        for _ in 0..4 {
            assert_eq!(generate(&engine, "x").await.unwrap().0, "fine", "{after_reply:?}");
        }
        assert!(server.unanswered() >= 2, "{after_reply:?}: {}", server.unanswered());
        assert_eq!(engine.endpoints()[0].state, EndpointState::Up);
        assert_eq!(engine.outage(), None);
    }
}
