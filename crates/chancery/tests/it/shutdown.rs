//! SIGTERM: what runs finishes and is billed, what is new is refused, nothing is lost. The prompt is one on which the model
//! repeats itself without end, so that the reply lasts until its cap.

use crate::server::{Firm, eventually, request};
use rustix::process::Signal;
use std::time::Duration;

#[tokio::test]
async fn sigterm_finishes_what_runs_and_refuses_what_is_new() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let mut server = firm.start();
    let (api, running_key) = (server.api.clone(), key.clone());
    let running = tokio::spawn(async move {
        let body = request("Translate to French.", "", 400);
        let call =
            crate::server::client().post(format!("{api}/v1/generate")).bearer_auth(running_key).json(&body);
        crate::server::Reply::read(call.send().await.unwrap()).await
    });
    server.generating().await;
    server.signal(Signal::TERM);
    eventually("the server drains", Duration::from_secs(5), async || server.log().contains("draining")).await;
    let refused = server.generate(&key, &request("", "Say hello.", 1)).await;
    assert_eq!((refused.status, refused.code()), (503, "shutting_down"));
    assert!(!refused.header("retry-after").is_empty());
    let ready = crate::server::client().get(format!("{}/readyz", server.ops)).send().await.unwrap();
    assert_eq!(ready.status().as_u16(), 503);

    let reply = running.await.unwrap();
    let (_, output) = reply.tokens();
    assert_eq!(server.wait(), Some(0));
    let usage = firm.json(&["usage", "--json"]);
    assert_eq!(
        (usage["total"]["requests"].as_u64(), usage["total"]["output_tokens"].as_u64()),
        (Some(1), Some(output))
    );
}

#[tokio::test]
async fn a_second_signal_gives_up_what_runs_and_bills_nothing_for_it() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let mut server = firm.start();
    let (api, running_key) = (server.api.clone(), key.clone());
    let running = tokio::spawn(async move {
        let body = request("Translate to French.", "", 8000);
        let call =
            crate::server::client().post(format!("{api}/v1/generate")).bearer_auth(running_key).json(&body);
        crate::server::Reply::read(call.send().await.unwrap()).await
    });
    server.generating().await;
    server.signal(Signal::TERM);
    eventually("the server drains", Duration::from_secs(5), async || server.log().contains("draining")).await;
    server.signal(Signal::TERM);
    let reply = running.await.unwrap();
    assert_eq!((reply.status, reply.code()), (503, "shutting_down"));
    assert_eq!(server.wait(), Some(0));
    assert_eq!(firm.json(&["usage", "--json"])["total"]["requests"], 0);
}

#[tokio::test]
async fn ctrl_c_ends_an_idle_server_cleanly() {
    let firm = Firm::new();
    let mut server = firm.start();
    server.signal(Signal::INT);
    assert_eq!(server.wait(), Some(0));
}
