//! SIGHUP: embedded models are added, replaced and removed while requests run. The same weights serve under several names.

use crate::event_stream::EventStream;
use crate::server::{Firm, Server, client, eventually, model_file, request};
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Loading takes about a second; the rest is headroom for a busy machine.
const LOADED_WITHIN: Duration = Duration::from_secs(60);
/// A prompt whose reply does not end by itself.
const ENDLESS: &str = "Translate to French.";

/// A small model: several fit beside each other on any machine.
struct ModelSection<'a> {
    name: &'a str,
    file: &'a Path,
    context_tokens: u32,
    output_per_million: &'a str,
}

fn write(firm: &Firm, sections: &[ModelSection<'_>]) {
    let section = |ModelSection { name, file, context_tokens, output_per_million }: &ModelSection<'_>| {
        format!(
            "[[models]]\nname = {name:?}\nfile = {:?}\ncontext_tokens = {context_tokens}\nslots = 2\n\
             input_per_million = \"0.10\"\noutput_per_million = {output_per_million:?}\n",
            file.to_str().unwrap()
        )
    };
    let text: String = sections.iter().map(section).collect();
    std::fs::write(firm.folder.path().join("chancery.toml"), text).unwrap();
}

fn section<'a>(name: &'a str, file: &'a Path) -> ModelSection<'a> {
    ModelSection { name, file, context_tokens: 2_048, output_per_million: "0.40" }
}

fn to(model: &str, instructions: &str, max_output_tokens: u64) -> Value {
    let mut body = request(instructions, "", max_output_tokens);
    body["model"] = model.into();
    body
}

/// The names, contexts and output prices of the offered models.
async fn offered(server: &Server, key: &str) -> Vec<(String, u64, String)> {
    let listed = server.get("/v1/models", key).await;
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let model = |model: &Value| {
        let context_tokens = model["context_tokens"].as_u64().unwrap();
        (text(&model["id"]), context_tokens, text(&model["output_per_million"]))
    };
    listed.body["data"].as_array().unwrap().iter().map(model).collect()
}

async fn until_offered(server: &Server, key: &str, names: &[&str]) {
    eventually(&format!("{names:?} are offered"), LOADED_WITHIN, async || {
        offered(server, key).await.iter().map(|(name, ..)| name.as_str()).eq(names.iter().copied())
    })
    .await;
}

/// Lines of `/metrics` about the engine of this model.
async fn engine_metrics(server: &Server, model: &str) -> Vec<String> {
    let text = client().get(format!("{}/metrics", server.ops)).send().await.unwrap().text().await.unwrap();
    let label = format!("model=\"{model}\"");
    let is_engines = |line: &&str| line.starts_with("chancery_engine_") && line.contains(&label);
    text.lines().filter(is_engines).map(str::to_owned).collect()
}

#[tokio::test]
async fn models_are_added_and_removed_without_dropping_a_request() {
    let file = model_file();
    let firm = Firm::without_a_model();
    write(&firm, &[section("first", &file)]);
    let key = firm.account_with_key("Caller");
    let server = firm.start();
    assert_eq!(server.generate(&key, &to("second", "Say hello.", 2)).await.code(), "unknown_model");

    let is_done = AtomicBool::new(false);
    let requesting = async {
        while !is_done.load(Ordering::SeqCst) {
            let reply = server.generate(&key, &to("first", "Say hello.", 4)).await;
            assert_eq!(reply.status, 200, "{}", reply.body);
        }
    };
    let changing = async {
        write(&firm, &[section("first", &file), section("second", &file)]);
        server.signal(Signal::HUP);
        until_offered(&server, &key, &["first", "second"]).await;
        let metrics = engine_metrics(&server, "second").await;
        assert!(metrics.iter().any(|line| line.starts_with("chancery_engine_memory_bytes")), "{metrics:?}");
        let mut stream = EventStream::open(&server, &key, &to("second", ENDLESS, 600)).await;
        assert!(!stream.first_text().await.is_empty());

        write(&firm, &[section("first", &file)]);
        server.signal(Signal::HUP);
        until_offered(&server, &key, &["first"]).await;
        let rejected = server.generate(&key, &to("second", "Say hello.", 2)).await;
        assert_eq!((rejected.status, rejected.code()), (404, "unknown_model"));
        assert!(!server.log().contains("model unloaded"), "its stream still runs");
        assert_eq!(engine_metrics(&server, "second").await, Vec::<String>::new());

        let last = stream.rest().await.pop().unwrap();
        assert!(["response.completed", "response.incomplete"].contains(&last.name.as_str()), "{last:?}");
        assert!(last.data["response"]["usage"]["output_tokens"].as_u64().unwrap() > 100, "{last:?}");
        eventually("its memory is free", LOADED_WITHIN, async || server.log().contains("model unloaded"))
            .await;
        is_done.store(true, Ordering::SeqCst);
    };
    tokio::join!(requesting, changing);
    assert!(firm.run(&["verify"]).contains(": OK"));
}

#[tokio::test]
async fn changed_model_is_replaced_and_a_running_reply_keeps_its_price() {
    let file = model_file();
    let firm = Firm::without_a_model();
    write(&firm, &[section("first", &file)]);
    let key = firm.account_with_key("Caller");
    let server = firm.start();
    let loaded = || server.log().matches("model loaded").count();
    let mut stream = EventStream::open(&server, &key, &to("first", ENDLESS, 600)).await;
    assert!(!stream.first_text().await.is_empty());

    write(&firm, &[ModelSection { output_per_million: "9", ..section("first", &file) }]);
    server.signal(Signal::HUP);
    eventually("the new price is listed", LOADED_WITHIN, async || {
        offered(&server, &key).await == [("first".to_owned(), 2_048, "9.00".to_owned())]
    })
    .await;
    assert_eq!(loaded(), 1, "a price needs no new engine");

    let smaller = ModelSection { context_tokens: 1_024, output_per_million: "9", ..section("first", &file) };
    write(&firm, &[smaller]);
    server.signal(Signal::HUP);
    eventually("the new context is listed", LOADED_WITHIN, async || {
        offered(&server, &key).await == [("first".to_owned(), 1_024, "9.00".to_owned())]
    })
    .await;
    assert_eq!(loaded(), 2);
    let (input, output) = server.generate(&key, &to("first", "Say hello.", 4)).await.tokens();
    let last = stream.rest().await.pop().unwrap();
    let usage = &last.data["response"]["usage"];
    let [old_input, old_output] = ["input_tokens", "output_tokens"].map(|name| usage[name].as_u64().unwrap());
    assert!(old_output > 100, "{last:?}");
    let billed = firm.json(&["usage", "--by", "model", "--json"]);
    assert_eq!(
        billed["data"][0]["cost_nanos"],
        old_input * 100 + old_output * 400 + input * 100 + output * 9_000,
        "{billed}"
    );
    eventually("the old engine is gone", LOADED_WITHIN, async || server.log().contains("model unloaded"))
        .await;
}

#[tokio::test]
async fn invalid_configuration_or_model_leaves_the_old_one_and_the_others() {
    let file = model_file();
    let firm = Firm::without_a_model();
    let bad_file = firm.folder.path().join("bad.gguf");
    std::fs::write(&bad_file, "GGUF, but no more of it").unwrap();
    write(&firm, &[section("first", &file)]);
    let key = firm.account_with_key("Caller");
    let server = firm.start();
    let until_failed = async |count: usize| {
        eventually("the failure is logged", LOADED_WITHIN, async || {
            server.log().matches("model not loaded").count() == count
        })
        .await;
    };

    write(&firm, &[section("second", &file), section("second", &file)]);
    server.signal(Signal::HUP);
    eventually("the mistake is logged", LOADED_WITHIN, async || {
        server.log().contains("reload failed, keeping the current configuration")
    })
    .await;
    server.wait_for_log("duplicate model name");
    until_offered(&server, &key, &["first"]).await;
    assert_eq!(server.generate(&key, &to("first", "Say hello.", 2)).await.status, 200);

    write(&firm, &[section("first", &file), section("second", &bad_file)]);
    server.signal(Signal::HUP);
    until_failed(1).await;
    server.wait_for_log("bad.gguf");
    until_offered(&server, &key, &["first"]).await;

    write(&firm, &[section("first", &bad_file), section("third", &file)]);
    server.signal(Signal::HUP);
    until_failed(2).await;
    until_offered(&server, &key, &["first", "third"]).await;
    for model in ["first", "third"] {
        assert_eq!(server.generate(&key, &to(model, "Say hello.", 2)).await.status, 200);
    }
}
