//! The number of parameters in `GET /v1/models`, which only some engines know.

use crate::test_server::{MODEL, TestServer};
use chancery_engine::{Engine, EngineError, Generation, Job, Prompt, ScriptedEngine, Turn};
use serde_json::Value;
use std::sync::Arc;

struct SizedEngine(ScriptedEngine);

impl Engine for SizedEngine {
    fn context_tokens(&self) -> u32 {
        self.0.context_tokens()
    }

    fn prepare(&self, turns: &[Turn]) -> Result<Prompt, EngineError> {
        self.0.prepare(turns)
    }

    fn start(&self, job: Job) -> Result<Generation, EngineError> {
        self.0.start(job)
    }

    fn parameters(&self) -> Option<u64> {
        Some(1_543_714_304)
    }
}

async fn model(engine: Arc<dyn Engine>) -> Value {
    let server = TestServer::start(engine).await;
    let list: Value = server.get("/v1/models").send().await.unwrap().json().await.unwrap();
    let one: Value = server.get(&format!("/v1/models/{MODEL}")).send().await.unwrap().json().await.unwrap();
    assert_eq!(list["data"][0], one);
    one
}

#[tokio::test]
async fn parameters_are_listed_only_where_the_engine_knows_them() {
    let engine = || ScriptedEngine::new(100, |_, _| {});
    assert_eq!(model(Arc::new(SizedEngine(engine()))).await["parameters"], 1_543_714_304_u64);
    assert!(model(Arc::new(engine())).await.get("parameters").is_none());
}
