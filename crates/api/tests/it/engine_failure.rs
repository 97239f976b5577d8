//! A panicking engine, as seen by its callers, by other callers and in the ledger.

use crate::test_server::{MODEL, TestServer};
use chancery_domain::SystemClock;
use chancery_engine::Engine;
use chancery_engine_cpu::{CpuEngine, LoadOptions, Plan};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A server whose engine panics on demand in its next step, and whose model file can be removed.
struct Firm {
    test_server: TestServer,
    engine: Arc<CpuEngine>,
    panics: Arc<AtomicBool>,
    folder: tempfile::TempDir,
}

fn model_file() -> PathBuf {
    std::env::var_os("CHANCERY_TEST_MODEL").map(PathBuf::from).unwrap()
}

impl Firm {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let panics = Arc::new(AtomicBool::new(false));
        let should_panic = Arc::clone(&panics);
        let before_step = move || assert!(!should_panic.swap(false, Ordering::SeqCst), "told to panic");
        let model = folder.path().join("model.gguf");
        std::os::unix::fs::symlink(model_file(), &model).unwrap();
        let options =
            LoadOptions { name: MODEL.to_owned(), context_tokens: Some(512), ..LoadOptions::default() };
        let plan = Plan::for_models(&[(model, options)]).unwrap().remove(0);
        let engine =
            Arc::new(CpuEngine::load_with_hook(plan, Arc::new(SystemClock), Arc::new(before_step)).unwrap());
        let test_server = TestServer::start(Arc::clone(&engine) as _).await;
        Self { test_server, engine, panics, folder }
    }

    fn model(&self) -> PathBuf {
        self.folder.path().join("model.gguf")
    }

    async fn generate(&self) -> Reply {
        Reply::to(self.test_server.generate(&json!({}))).await
    }

    async fn get(&self, path: &str) -> Reply {
        Reply::to(self.test_server.get(path)).await
    }

    async fn billed_requests(&self) -> usize {
        self.test_server.billed_requests().await
    }
}

struct Reply {
    status: u16,
    retry_after_s: Option<u64>,
    body: Value,
}

impl Reply {
    async fn to(request: reqwest::RequestBuilder) -> Self {
        let response = request.send().await.unwrap();
        let retry_after =
            response.headers().get("retry-after").map(|value| value.to_str().unwrap().parse().unwrap());
        Self {
            status: response.status().as_u16(),
            retry_after_s: retry_after,
            body: response.json().await.unwrap(),
        }
    }

    fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_panic_bills_nothing_and_rejects_requests_until_recovery() {
    let firm = Firm::start().await;
    let before = firm.generate().await;
    assert_eq!((before.status, firm.billed_requests().await), (200, 1));

    // Without its model file the engine cannot recover, however fast the rebuild is.
    std::fs::remove_file(firm.model()).unwrap();
    firm.panics.store(true, Ordering::SeqCst);
    let failed = firm.generate().await;
    assert_eq!((failed.status, failed.code()), (502, "engine_failed"));
    assert!(!failed.body.to_string().contains("told to panic"), "{}", failed.body);

    let rejected = firm.generate().await;
    assert_eq!((rejected.status, rejected.code()), (503, "engine_restarting"));
    assert!((1..=60).contains(&rejected.retry_after_s.unwrap()), "{:?}", rejected.retry_after_s);
    let models = firm.get("/v1/models").await;
    assert_eq!(models.status, 200, "everything else goes on");
    let usage = firm.get("/v1/usage").await;
    assert_eq!((usage.status, &usage.body["total"]["requests"]), (200, &json!(1)));

    while !firm.engine.outage().unwrap().contains("model file not found") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    std::os::unix::fs::symlink(model_file(), firm.model()).unwrap();
    let rejected = firm.generate().await;
    assert_eq!(rejected.status, 503);
    // Covers the backoff and the rebuild. On a loaded machine the rebuild may take longer.
    tokio::time::sleep(Duration::from_secs(rejected.retry_after_s.unwrap())).await;
    while firm.engine.outage().is_some() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let after = firm.generate().await;
    assert_eq!((after.status, &after.body["output_text"]), (200, &before.body["output_text"]));
    assert_eq!(after.body["usage"]["input_tokens_details"]["cached_tokens"], 0, "nothing old is trusted");
    assert_eq!(firm.billed_requests().await, 2, "the two that were served");
}
