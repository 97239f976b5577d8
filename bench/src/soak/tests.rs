//! The soak of `engine_soak`, for as long as a test may take. Here and not in a program of its own, because cargo builds every
//! measurement before such a program runs.

use super::{Soak, run};
use chancery_domain::SystemClock;
use chancery_engine_cpu::{CpuEngine, LoadOptions};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn a_crowd_of_accounts_gets_its_own_texts_and_leaves_nothing_behind() {
    let path = std::env::var_os("CHANCERY_TEST_MODEL")
        .expect("run `make test`, which fetches the model and sets CHANCERY_TEST_MODEL");
    let options = LoadOptions { context_tokens: Some(512), slots: Some(4), ..LoadOptions::default() };
    let engine = CpuEngine::load(&PathBuf::from(path), &options, Arc::new(SystemClock)).unwrap();
    let soak = Soak {
        requests: 300,
        seed: 7,
        callers: 8,
        accounts: 3,
        inputs: 5,
        max_words: 120,
        max_output_tokens: 12,
        // A test may run beside anything; only what has come to a stand is caught here.
        max_stall: Duration::from_secs(20),
        max_growth_bytes: 32_000_000,
    };
    let seen = run(Arc::new(engine), soak, Arc::new(SystemClock), |_| {}).await.unwrap();
    assert_eq!((seen.requests, seen.stalls), (300, 0));
    let each = [seen.at_limit, seen.stopped, seen.cancelled, seen.left];
    assert!(each.iter().all(|count| *count > 0) && seen.cached_tokens > 0, "{seen:?}");
}
