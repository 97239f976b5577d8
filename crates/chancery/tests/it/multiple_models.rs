//! Two models in one server.

use crate::server::{Firm, MODEL, Server, eventually, model_file, request};
use serde_json::{Value, json};
use std::time::Duration;

/// The same weights under two names, with different contexts and prices.
fn firm() -> (Firm, String, Server) {
    let firm = Firm::new()
        .with("CHANCERY_MODELS__1__NAME", "second")
        .with("CHANCERY_MODELS__1__FILE", model_file().to_str().unwrap())
        .with("CHANCERY_MODELS__1__CONTEXT_TOKENS", "1024")
        .with("CHANCERY_MODELS__1__INPUT_PER_MILLION", "1")
        .with("CHANCERY_MODELS__1__OUTPUT_PER_MILLION", "2");
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    (firm, key, server)
}

fn to(model: &str, mut body: Value) -> Value {
    body["model"] = json!(model);
    body
}

#[tokio::test]
async fn two_models_are_logged_priced_and_served_concurrently() {
    let (firm, key, server) = firm();
    memory_need_of_both_models_is_logged_before_loading(&server);
    two_models_are_served_concurrently_at_their_own_prices(&firm, &key, &server).await;
    long_job_on_one_model_does_not_delay_another_model(&key, &server).await;
}

async fn two_models_are_served_concurrently_at_their_own_prices(firm: &Firm, key: &str, server: &Server) {
    let listed = server.get("/v1/models", key).await;
    let models: Vec<(&str, u64)> = listed.body["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| (model["id"].as_str().unwrap(), model["context_tokens"].as_u64().unwrap()))
        .collect();
    assert_eq!(models, [("second", 1024), (MODEL, 8192)]);

    let letter = request("Rewrite the notes as a polite letter.", "Met Mr. Ito on 3 March.", 24);
    let alone = server.generate(key, &letter).await;
    let second = to("second", letter.clone());
    let fresh = server.generate(key, &second).await;
    assert_eq!(
        fresh.body["usage"]["input_tokens_details"]["cached_tokens"], 0,
        "each has a cache of its own"
    );
    let (one, two, three, four) = tokio::join!(
        server.generate(key, &letter),
        server.generate(key, &second),
        server.generate(key, &letter),
        server.generate(key, &second),
    );
    for reply in [&fresh, &one, &two, &three, &four] {
        assert_eq!(reply.text(), alone.text());
    }
    assert_eq!((two.body["model"].as_str(), one.body["model"].as_str()), (Some("second"), Some(MODEL)));

    let usage = firm.json(&["usage", "--by", "model", "--json"]);
    let (input, output) = alone.tokens();
    let cost = |requests: u64, prices: (u64, u64)| json!(requests * (input * prices.0 + output * prices.1));
    let costs: Vec<&Value> = usage["data"].as_array().unwrap().iter().map(|row| &row["cost_nanos"]).collect();
    assert_eq!(costs, [&cost(3, (1_000, 2_000)), &cost(3, (100, 400))], "{usage}");
    assert!(firm.run(&["verify"]).contains(": OK"));
}

async fn long_job_on_one_model_does_not_delay_another_model(key: &str, server: &Server) {
    let long = request("Tell a long story.", "", 4_000);
    let second = to("second", request("", "Say hello.", 8));
    let running = server.generate(key, &long);
    tokio::pin!(running);
    let short = async {
        eventually("the long one runs", Duration::from_secs(30), async || {
            server.metric(&format!("chancery_engine_steps_total{{model=\"{MODEL}\"}}")).await > 3
        })
        .await;
        server.generate(key, &second).await
    };
    tokio::select! {
        _ = &mut running => panic!("the long job was done first"),
        reply = short => assert_eq!(reply.tokens().1, 8),
    }
}

fn memory_need_of_both_models_is_logged_before_loading(server: &Server) {
    let log = server.log();
    let stated = log.find("second needs").unwrap();
    assert!(log.contains(&format!("{MODEL} needs")), "{log}");
    assert!(log[stated..].contains("KV cache") && log[stated..].contains("model loaded"), "{log}");
}
