//! `GET /v1/models`.

use crate::server::Firm;

#[tokio::test]
async fn models_are_listed_with_context_and_prices() {
    let firm = Firm::new().with("CHANCERY_MODELS__0__OUTPUT_PER_MILLION", "0.405");
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    let reply = server.get("/v1/models", &key).await;
    assert_eq!(reply.body["object"], "list");
    let model = &reply.body["data"][0];
    assert_eq!(model["id"], "smollm2-135m");
    assert_eq!(model["context_tokens"], 8192);
    assert!((130_000_000..170_000_000).contains(&model["parameters"].as_u64().unwrap()), "{model}");
    assert_eq!(model["input_per_million"], "0.10");
    assert_eq!(model["output_per_million"], "0.405");
    assert!(model.get("cached_input_per_million").is_none(), "cached tokens cost as much as other input");
    assert_eq!((&model["object"], &model["owned_by"]), (&"model".into(), &"chancery".into()));
    assert!(model["created"].as_i64().unwrap() > 1_700_000_000);
    assert_eq!(server.get("/v1/models", "nobody").await.status, 401);

    let one = server.get("/v1/models/smollm2-135m", &key).await;
    assert_eq!((one.status, &one.body), (200, model));
    for name in ["gpt", "%FF", "a%2Fb"] {
        let unknown = server.get(&format!("/v1/models/{name}"), &key).await;
        assert_eq!((unknown.status, unknown.code()), (404, "unknown_model"), "{name}");
    }
    assert_eq!(server.get("/v1/models/smollm2-135m", "nobody").await.status, 401);
}
