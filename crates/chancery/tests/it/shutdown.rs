//! SIGTERM: running requests finish and are billed, new ones are rejected, nothing is lost. On this prompt the model
//! repeats itself endlessly, so that the reply lasts until its cap.

use crate::server::{Firm, Reply, Server, client, eventually, request};
use rustix::process::Signal;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Returns a server with a running reply, and that reply.
async fn busy_server(firm: &Firm, key: &str, max_output_tokens: u64) -> (Server, JoinHandle<Reply>) {
    let server = firm.start();
    let body = request("Translate to French.", "", max_output_tokens);
    let call = client().post(format!("{}/v1/generate", server.api)).bearer_auth(key).json(&body);
    let running = tokio::spawn(async move { Reply::read(call.send().await.unwrap()).await });
    server.generating().await;
    server.signal(Signal::TERM);
    eventually("the server drains", Duration::from_secs(5), async || server.log().contains("draining")).await;
    (server, running)
}

#[tokio::test]
async fn sigterm_finishes_running_requests_and_rejects_new_ones() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let (mut server, running) = busy_server(&firm, &key, 400).await;
    let rejected = server.generate(&key, &request("", "Say hello.", 1)).await;
    assert_eq!((rejected.status, rejected.code()), (503, "shutting_down"));
    assert!(!rejected.header("retry-after").is_empty());
    let ready = client().get(format!("{}/readyz", server.ops)).send().await.unwrap();
    assert_eq!(ready.status().as_u16(), 503);

    let (_, output) = running.await.unwrap().tokens();
    assert_eq!(server.wait(), Some(0));
    let total = &firm.json(&["usage", "--json"])["total"];
    assert_eq!((total["requests"].as_u64(), total["output_tokens"].as_u64()), (Some(1), Some(output)));
}

#[tokio::test]
async fn second_sigterm_abandons_running_requests_unbilled() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let (mut server, running) = busy_server(&firm, &key, 8000).await;
    server.signal(Signal::TERM);
    let reply = running.await.unwrap();
    assert_eq!((reply.status, reply.code()), (503, "shutting_down"));
    assert_eq!(server.wait(), Some(0));
    assert_eq!(firm.json(&["usage", "--json"])["total"]["requests"], 0);
}

#[tokio::test]
async fn sigint_stops_an_idle_server_cleanly() {
    let mut server = Firm::new().start();
    server.signal(Signal::INT);
    assert_eq!(server.wait(), Some(0));
}

/// A load balancer needs notice before the first rejection, and time to act on it.
#[tokio::test]
async fn draining_node_reports_unready_and_serves_until_the_drain_wait_ends() {
    let firm = Firm::new().with("CHANCERY_OPS__DRAIN_WAIT_S", "300");
    let key = firm.account_with_key("Hale & Ward");
    let mut server = firm.start();
    let body = request("", "Say hello.", 1);
    let before = server.generate(&key, &body).await;
    assert_eq!((before.status, before.header("connection")), (200, ""));
    server.signal(Signal::TERM);
    let ready = async |server: &Server| {
        let reply = client().get(format!("{}/readyz", server.ops)).send().await.unwrap();
        Reply::read(reply).await
    };
    eventually("it says that it leaves", Duration::from_secs(10), async || {
        ready(&server).await.status == 503
    })
    .await;
    assert_eq!(ready(&server).await.body["reason"], "shutting down");
    let meanwhile = server.generate(&key, &body).await;
    assert_eq!((meanwhile.status, meanwhile.header("connection")), (200, "close"), "{}", meanwhile.body);
    let page = client().get(format!("{}/", server.portal)).send().await.unwrap();
    assert_eq!((page.status().as_u16(), &page.headers()["connection"]), (200, &"close".parse().unwrap()));
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0), "the wait is cut short, and nothing runs");
    assert!(server.log().contains("draining"), "{}", server.log());
    assert_eq!(firm.json(&["usage", "--json"])["total"]["requests"], 2);

    let mut server = firm.with("CHANCERY_OPS__DRAIN_WAIT_S", "1").start();
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0), "the wait is over, and nothing runs");
    assert!(server.log().contains("shutting down: not ready, still serving"), "{}", server.log());
}
