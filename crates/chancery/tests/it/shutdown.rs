//! SIGTERM: what runs finishes and is billed, what is new is refused, nothing is lost. The prompt is one on which the model
//! repeats itself without end, so that the reply lasts until its cap.

use crate::server::{Firm, Reply, Server, client, eventually, request};
use rustix::process::Signal;
use std::time::Duration;
use tokio::task::JoinHandle;

/// A server that has a reply under way, and that reply.
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
async fn sigterm_finishes_what_runs_and_refuses_what_is_new() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let (mut server, running) = busy_server(&firm, &key, 400).await;
    let refused = server.generate(&key, &request("", "Say hello.", 1)).await;
    assert_eq!((refused.status, refused.code()), (503, "shutting_down"));
    assert!(!refused.header("retry-after").is_empty());
    let ready = client().get(format!("{}/readyz", server.ops)).send().await.unwrap();
    assert_eq!(ready.status().as_u16(), 503);

    let (_, output) = running.await.unwrap().tokens();
    assert_eq!(server.wait(), Some(0));
    let total = &firm.json(&["usage", "--json"])["total"];
    assert_eq!((total["requests"].as_u64(), total["output_tokens"].as_u64()), (Some(1), Some(output)));
}

#[tokio::test]
async fn a_second_signal_gives_up_what_runs_and_bills_nothing_for_it() {
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
async fn ctrl_c_ends_an_idle_server_cleanly() {
    let mut server = Firm::new().start();
    server.signal(Signal::INT);
    assert_eq!(server.wait(), Some(0));
}

/// What a balancer needs: word before the first refusal, and time to act on it.
#[tokio::test]
async fn a_node_that_leaves_says_so_and_serves_on_until_the_wait_is_over_or_a_second_signal() {
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
    assert!(server.log().contains("leaving"), "{}", server.log());
}
