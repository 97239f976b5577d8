//! SIGHUP: servers come and go while requests run.

use super::{UpstreamModel, endpoints, firm_with, write};
use crate::event_stream::EventStream;
use crate::faulty_server::{FaultyServer, Step, reply, text, well_ended};
use crate::server::{eventually, request};
use rustix::process::Signal;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

const CONTEXT: &str = "context_tokens = 4096";

fn model<'a>(endpoints: &'a [&'a str], more: &'a str) -> UpstreamModel<'a> {
    UpstreamModel { endpoints, api_key: Some("k1"), tokenizer: None, more }
}

#[tokio::test]
async fn endpoints_are_exchanged_without_dropping_a_request() {
    let gate = Arc::new(Notify::new());
    let mut steps = vec![Step::Stream, text("begun"), Step::Gate(Arc::clone(&gate)), text(" and ended")];
    steps.extend(well_ended("stop", 1, 2));
    let (old, new) = (FaultyServer::always(steps).await, FaultyServer::always(reply(&["new"], 1)).await);
    let firm = firm_with(&model(&[&old.url], CONTEXT));
    let key = firm.account_with_key("Caller");
    let server = firm.start();
    let mut stream = EventStream::open(&server, &key, &request("", "Now.", 8)).await;
    old.until_jobs(1).await;

    write(&firm, &UpstreamModel { api_key: Some("k2"), ..model(&[&new.url], CONTEXT) });
    server.signal(Signal::HUP);
    eventually("the new server is there", Duration::from_secs(10), async || {
        endpoints(&server).await.contains(&(new.url.clone(), "up".to_owned()))
    })
    .await;
    assert!(endpoints(&server).await.contains(&(old.url.clone(), "draining".to_owned())));
    for _ in 0..4 {
        assert_eq!(server.generate(&key, &request("", "Now.", 8)).await.text(), "new");
    }
    gate.notify_one();
    let last = loop {
        let event = stream.next().await.unwrap();
        if event.name == "response.completed" {
            break event;
        }
    };
    assert_eq!(last.data["response"]["output_text"], "begun and ended");
    assert_eq!(old.jobs().len(), 1, "nothing goes there after its removal");
    assert!(
        old.heads()[0].contains("Bearer k1") && new.heads().iter().all(|head| head.contains("Bearer k2"))
    );
    eventually("the old server is gone", Duration::from_secs(10), async || {
        endpoints(&server).await.len() == 1
    })
    .await;
}

#[tokio::test]
async fn a_configuration_that_cannot_be_used_changes_nothing() {
    let upstream = FaultyServer::always(reply(&["still"], 1)).await;
    let firm = firm_with(&model(&[&upstream.url], CONTEXT));
    let key = firm.account_with_key("Caller");
    let server = firm.start();
    write(&firm, &model(&["not an address"], CONTEXT));
    server.signal(Signal::HUP);
    eventually("the mistake is told", Duration::from_secs(10), async || {
        server.log().contains("is not a web address")
    })
    .await;
    assert_eq!(server.generate(&key, &request("", "Now.", 8)).await.text(), "still");
}
