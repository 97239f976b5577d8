//! An engine that panics: what its callers, other callers and the ledger see of it.

use crate::served::{MODEL, Served};
use chancery_domain::SystemClock;
use chancery_engine::Engine;
use chancery_engine_cpu::{CpuEngine, LoadOptions, Plan};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A firm whose engine panics in its next step when told to, and whose model file can be taken away.
struct Firm {
    served: Served,
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
        let told = Arc::clone(&panics);
        let before_step = move || assert!(!told.swap(false, Ordering::SeqCst), "told to panic");
        let model = folder.path().join("model.gguf");
        std::os::unix::fs::symlink(model_file(), &model).unwrap();
        let options =
            LoadOptions { name: MODEL.to_owned(), context_tokens: Some(512), ..LoadOptions::default() };
        let plan = Plan::for_models(&[(model, options)]).unwrap().remove(0);
        let engine =
            Arc::new(CpuEngine::load_with_hook(plan, Arc::new(SystemClock), Arc::new(before_step)).unwrap());
        let served = Served::start(Arc::clone(&engine) as _).await;
        Self { served, engine, panics, folder }
    }

    fn model(&self) -> PathBuf {
        self.folder.path().join("model.gguf")
    }

    async fn generate(&self) -> Reply {
        Reply::to(self.served.generate(&json!({}))).await
    }

    async fn get(&self, path: &str) -> Reply {
        Reply::to(self.served.get(path)).await
    }

    async fn billed_requests(&self) -> usize {
        self.served.billed_requests().await
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
async fn a_panic_bills_nobody_refuses_others_for_a_while_and_changes_no_text() {
    let firm = Firm::start().await;
    let before = firm.generate().await;
    assert_eq!((before.status, firm.billed_requests().await), (200, 1));

    // Without its file the engine stays away until the file is back, however fast it would be.
    std::fs::remove_file(firm.model()).unwrap();
    firm.panics.store(true, Ordering::SeqCst);
    let failed = firm.generate().await;
    assert_eq!((failed.status, failed.code()), (502, "engine_failed"));
    assert!(!failed.body.to_string().contains("told to panic"), "{}", failed.body);

    let refused = firm.generate().await;
    assert_eq!((refused.status, refused.code()), (503, "engine_restarting"));
    assert!((1..=60).contains(&refused.retry_after_s.unwrap()), "{:?}", refused.retry_after_s);
    let models = firm.get("/v1/models").await;
    assert_eq!(models.status, 200, "everything else goes on");
    let usage = firm.get("/v1/usage").await;
    assert_eq!((usage.status, &usage.body["total"]["requests"]), (200, &json!(1)));

    while !firm.engine.outage().unwrap().contains("there is no model file") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    std::os::unix::fs::symlink(model_file(), firm.model()).unwrap();
    let refused = firm.generate().await;
    assert_eq!(refused.status, 503);
    // The pause before the next try and the rebuild; a loaded machine may need longer for the rebuild.
    tokio::time::sleep(Duration::from_secs(refused.retry_after_s.unwrap())).await;
    while firm.engine.outage().is_some() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let after = firm.generate().await;
    assert_eq!((after.status, &after.body["output_text"]), (200, &before.body["output_text"]));
    assert_eq!(after.body["usage"]["input_tokens_details"]["cached_tokens"], 0, "nothing old is trusted");
    assert_eq!(firm.billed_requests().await, 2, "the two that were served");
}
