//! The generation API without sockets: router, authentication, limits, metering and ledger.

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, header};
use chancery_api::ApiState;
use chancery_bench::accounts::unlimited_keys;
use chancery_domain::{
    Clock, Currency, ManualClock, Prices, Randomness, SeededRandomness, StopReason, SystemClock,
};
use chancery_engine::{Engine, EngineError, Finished, Generation, Job, Prompt, PromptContent, Turn, channel};
use chancery_metering::{MemoryLimiter, Meter, Model, Models};
use chancery_store::{DatabaseUrl, Store};
use http_body_util::BodyExt;
use std::net::SocketAddr;
use std::sync::Arc;
use tower_service::Service;

const TOKENS: u32 = 16;
const MAX_BODY_BYTES: usize = 1 << 20;
const GENERATE: &str = r#"{"model":"instant","instructions":"You write letters for a firm of consultants. Be brief and polite.","input":"Thank the client for the meeting on 3 March and confirm the invoice.","max_output_tokens":64}"#;
const CHAT: &str = r#"{"model":"instant","messages":[{"role":"system","content":"You write letters for a firm of consultants. Be brief and polite."},{"role":"user","content":"Thank the client for the meeting on 3 March and confirm the invoice."}],"max_tokens":64,"stream":true}"#;

pub async fn generate(iterations: usize) {
    Api::open().await.call("/v1/generate", GENERATE, iterations).await;
}

pub async fn chat_stream(iterations: usize) {
    Api::open().await.call("/v1/chat/completions", CHAT, iterations).await;
}

struct Api {
    router: Router,
    store: Arc<Store>,
    authorization: String,
    _folder: tempfile::TempDir,
}

impl Api {
    async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = DatabaseUrl::sqlite_file(&folder.path().join("chancery.db"));
        let store = Arc::new(Store::open(&database).await.unwrap());
        let keys = unlimited_keys(&store, 1).await;
        let prices = Prices::new("0.10".parse().unwrap(), "0.40".parse().unwrap()).unwrap();
        let engine: Arc<dyn Engine> = Arc::new(InstantEngine);
        let models = Models::new([Model { name: "instant".to_owned(), engine, prices }]);
        // It stands still, so that no rule about time makes a run differ from another.
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(SystemClock.now()));
        let randomness: Arc<dyn Randomness> = Arc::new(SeededRandomness::new(7));
        let limiter = Arc::new(MemoryLimiter::new(Arc::clone(&clock)));
        let meter = Meter::new(models, Arc::new(store.metering()), limiter, clock, randomness);
        let state = ApiState::new(Arc::new(meter), Currency::USD, MAX_BODY_BYTES);
        let authorization = format!("Bearer {}", keys[0]);
        Self { router: chancery_api::router(state), store, authorization, _folder: folder }
    }

    async fn call(mut self, path: &str, body: &'static str, iterations: usize) {
        let peer = SocketAddr::from(([127, 0, 0, 1], 50_000));
        for _ in 0..iterations {
            let request = Request::post(path)
                .header(header::HOST, "localhost:8080")
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::AUTHORIZATION, &self.authorization)
                .extension(ConnectInfo(peer))
                .body(Body::from(body))
                .unwrap();
            let response = self.router.call(request).await.unwrap();
            let status = response.status();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&body));
        }
        self.store.close().await;
    }
}

/// Its reply is complete before anybody asks for it.
struct InstantEngine;

impl Engine for InstantEngine {
    fn context_tokens(&self) -> u32 {
        8_192
    }

    fn prepare(&self, turns: &[Turn]) -> Result<Prompt, EngineError> {
        let words = turns.iter().flat_map(|turn| turn.text.split_whitespace()).count();
        let input_tokens = u32::try_from(words).unwrap_or(u32::MAX);
        Ok(Prompt { content: PromptContent::Tokens((0..input_tokens).collect()), input_tokens })
    }

    fn start(&self, job: Job) -> Result<Generation, EngineError> {
        let (sink, generation) = channel();
        for token in 0..TOKENS {
            sink.text(if token == 0 { "Dear" } else { " sir" });
        }
        sink.end(Finished {
            reason: StopReason::Complete,
            output_tokens: TOKENS,
            reasoning_tokens: 0,
            cached_tokens: 0,
            billed_cached_tokens: 0,
            prefilled_tokens: job.prompt.prompt_tokens(),
            input_tokens: None,
        });
        Ok(generation)
    }
}
