//! SIGTERM: running requests finish and are billed, new ones are rejected, nothing is lost. On this prompt the model
//! repeats itself endlessly, so that the reply lasts until its cap.

use crate::server::{Firm, Reply, Server, client, eventually, request};
use rustix::process::Signal;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
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
    server.wait_for_log("draining");
    assert_eq!(firm.json(&["usage", "--json"])["total"]["requests"], 2);

    let mut server = firm.with("CHANCERY_OPS__DRAIN_WAIT_S", "1").start();
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0), "the wait is over, and nothing runs");
    server.wait_for_log("shutting down: not ready, still serving");
}

/// Starts the portal alone, sends a request whose body is not complete yet, and waits until the portal drains.
async fn busy_portal() -> (Firm, Server, TcpStream) {
    // The request arrives during this wait.
    let firm = Firm::new().with("CHANCERY_OPS__DRAIN_WAIT_S", "3");
    let server = firm.start_with(&["--only", "portal"]);
    let address = server.portal.trim_start_matches("http://").to_owned();
    let mut connection = TcpStream::connect(&address).await.unwrap();
    let part = format!(
        "POST /auth/backchannel-logout HTTP/1.1\r\nHost: {address}\r\nContent-Length: 14\r\n\
         Content-Type: application/x-www-form-urlencoded\r\n\r\nlogout_"
    );
    connection.write_all(part.as_bytes()).await.unwrap();
    server.signal(Signal::TERM);
    eventually("it is not ready", Duration::from_secs(3), async || {
        let reply = client().get(format!("{}/readyz", server.ops)).send().await.unwrap();
        Reply::read(reply).await.body["reason"] == "shutting down"
    })
    .await;
    assert!(!server.log().contains("draining"), "it is not ready before it drains");
    eventually("the portal drains", Duration::from_secs(10), async || server.log().contains("draining"))
        .await;
    server.wait_for_log("\"running_pages\":1");
    (firm, server, connection)
}

#[tokio::test]
async fn portal_alone_finishes_running_requests_before_it_stops() {
    let (_firm, mut server, mut connection) = busy_portal().await;
    // Longer than a listener that closes waits for its last replies.
    tokio::time::sleep(Duration::from_secs(4)).await;
    connection.write_all(b"token=x").await.unwrap();
    let mut reply = String::new();
    connection.read_to_string(&mut reply).await.unwrap();
    // No identity provider runs, so the token cannot be checked; but the reply is complete.
    assert!(reply.starts_with("HTTP/1.1 503 ") && reply.contains("\r\nconnection: close\r\n"), "{reply}");
    assert!(reply.ends_with('}') && reply.contains("temporarily_unavailable"), "{reply}");
    assert_eq!(server.wait(), Some(0));
}

#[tokio::test]
async fn second_sigterm_abandons_the_running_requests_of_the_portal() {
    let (_firm, mut server, mut connection) = busy_portal().await;
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0));
    server.wait_for_log("abandoning running requests");
    let mut reply = Vec::new();
    let _ = connection.read_to_end(&mut reply).await;
    assert!(reply.is_empty(), "it was never complete");
}
