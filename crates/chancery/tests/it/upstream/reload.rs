//! SIGHUP: servers and upstream models are added and removed while requests run.

use super::{UpstreamModel, endpoints, firm_with, write};
use crate::event_stream::EventStream;
use crate::server::{Firm, eventually, request, write_secret};
use chancery_test_support::faulty_chat_server::{FaultyServer, Step, reply, text, well_ended};
use rustix::process::Signal;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

const CONTEXT: &str = "context_tokens = 4096";

fn model<'a>(endpoints: &'a [&'a str], more: &'a str) -> UpstreamModel<'a> {
    UpstreamModel { endpoints, api_key: Some("k1"), tokenizer: None, more }
}

#[tokio::test]
async fn endpoints_are_replaced_without_dropping_a_request() {
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
async fn reload_of_an_invalid_config_changes_nothing() {
    let upstream = FaultyServer::always(reply(&["still"], 1)).await;
    let firm = firm_with(&model(&[&upstream.url], CONTEXT));
    let key = firm.account_with_key("Caller");
    let server = firm.start();
    write(&firm, &model(&["not an address"], CONTEXT));
    server.signal(Signal::HUP);
    eventually("the mistake is told", Duration::from_secs(10), async || {
        server.log().contains("invalid URL \\\"not an address\\\"")
    })
    .await;
    assert_eq!(server.generate(&key, &request("", "Now.", 8)).await.text(), "still");
}

/// Two models, each on its own server.
fn two_models(first: &str, second: &str, price: &str) -> String {
    let model = |name: &str, endpoint: &str, key: &str| {
        format!(
            "[[models]]\nname = \"{name}\"\nengine = \"upstream\"\nendpoints = [\"{endpoint}\"]\n{key}{CONTEXT}\n\
             input_per_million = \"{price}\"\noutput_per_million = \"0.40\"\n"
        )
    };
    model("one", first, "") + &model("two", second, "api_key_file = \"two.key\"\n")
}

fn request_to(model: &str) -> serde_json::Value {
    let mut body = request("", "Now.", 8);
    body["model"] = model.into();
    body
}

#[tokio::test]
async fn reload_is_atomic_and_lists_keys_that_need_a_restart() {
    let (old, new) =
        (FaultyServer::always(reply(&["old"], 1)).await, FaultyServer::always(reply(&["new"], 1)).await);
    let firm = Firm::without_a_model();
    let write = |text: String, key: &str| {
        std::fs::write(firm.folder.path().join("chancery.toml"), text).unwrap();
        write_secret(&firm.folder.path().join("two.key"), key);
    };
    write(two_models(&old.url, &old.url, "0.10"), "k1\n");
    let key = firm.account_with_key("Caller");
    let server = firm.start();
    let reply_text = async |model: &str| server.generate(&key, &request_to(model)).await.text().to_owned();

    write(two_models(&new.url, &new.url, "0.10"), "one line\nand another\n");
    server.signal(Signal::HUP);
    eventually("the mistake is told", Duration::from_secs(20), async || {
        server.log().contains("reload failed, keeping the current configuration")
    })
    .await;
    assert_eq!((reply_text("one").await, reply_text("two").await), ("old".to_owned(), "old".to_owned()));

    write(two_models(&new.url, &new.url, "0.20") + "[ops]\ndrain_wait_s = 1\n", "k2\n");
    server.signal(Signal::HUP);
    eventually("the changes are told", Duration::from_secs(20), async || {
        server.log().contains("\"keys\":\"ops.drain_wait_s\"")
    })
    .await;
    let listed = server.get("/v1/models", &key).await;
    assert_eq!(listed.body["data"][0]["input_per_million"], "0.20", "prices are reloaded");
    assert_eq!((reply_text("one").await, reply_text("two").await), ("new".to_owned(), "new".to_owned()));
}

#[tokio::test]
async fn upstream_models_are_added_and_removed() {
    let upstream = FaultyServer::always(reply(&["well"], 1)).await;
    let firm = Firm::without_a_model();
    write_secret(&firm.folder.path().join("two.key"), "k\n");
    let both = two_models(&upstream.url, &upstream.url, "0.10");
    let only_one = both.rsplit_once("[[models]]").unwrap().0.to_owned();
    let write = |text: &str| std::fs::write(firm.folder.path().join("chancery.toml"), text).unwrap();
    write(&only_one);
    let key = firm.account_with_key("Caller");
    let server = firm.start();
    let status = async |model: &str| server.generate(&key, &request_to(model)).await.status;
    assert_eq!((status("one").await, status("two").await), (200, 404));
    for (text, expected) in [(&both, 200), (&only_one, 404)] {
        write(text);
        server.signal(Signal::HUP);
        eventually("the second model follows", Duration::from_secs(20), async || {
            status("two").await == expected
        })
        .await;
        assert_eq!(status("one").await, 200);
    }
}

#[tokio::test]
async fn servers_are_replaced_under_load_without_a_failed_request() {
    let pool = [
        FaultyServer::always(reply(&["well"], 1)).await,
        FaultyServer::always(reply(&["well"], 1)).await,
        FaultyServer::always(reply(&["well"], 1)).await,
    ];
    let firm = Firm::without_a_model();
    let write = |first: usize, second: usize| {
        let text = two_models(&pool[first].url, &pool[second].url, "0.10");
        std::fs::write(firm.folder.path().join("chancery.toml"), text).unwrap();
    };
    write_secret(&firm.folder.path().join("two.key"), "k\n");
    write(0, 1);
    let key = firm.account_with_key("Caller");
    let server = firm.start();
    let sent = || pool.iter().map(|server| server.jobs().len()).sum::<usize>();
    let requesting = async {
        for number in 0..120 {
            let model = if number % 2 == 0 { "one" } else { "two" };
            let reply = server.generate(&key, &request_to(model)).await;
            assert_eq!(reply.status, 200, "{}", reply.body);
        }
    };
    let exchanging = async {
        for round in 0..12 {
            write(round % 3, (round + 1) % 3);
            server.signal(Signal::HUP);
            eventually("some requests later", Duration::from_secs(60), async || sent() >= 8 * (round + 1))
                .await;
        }
    };
    tokio::join!(requesting, exchanging);
    assert!(pool.iter().all(|server| !server.jobs().is_empty()), "every server has had its time");
    assert_eq!(sent(), 120, "each request once");
}

#[tokio::test]
async fn sighup_without_changes_loads_nothing() {
    let firm = Firm::new();
    let mut server = firm.start();
    server.signal(Signal::HUP);
    eventually("it is told", Duration::from_secs(20), async || {
        server.log().contains("configuration reloaded")
    })
    .await;
    assert_eq!(server.log().matches("model loaded").count(), 1);
    let key = firm.account_with_key("Caller");
    assert_eq!(server.generate(&key, &request("", "Hi.", 2)).await.status, 200);
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0));
}
