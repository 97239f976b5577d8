//! The soak of `engine_soak`, shortened for a test. It is a unit test, because cargo builds every benchmark before it runs a
//! separate test program.

use super::{Soak, run};
use chancery_domain::SystemClock;
use chancery_engine_cpu::{CpuEngine, LoadOptions};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn many_accounts_get_their_own_text_without_stalls_or_leaks() {
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
        // A test may run on a busy machine, so this only catches a standstill.
        max_stall: Duration::from_secs(20),
        max_growth_bytes: 32_000_000,
    };
    let stats = run(Arc::new(engine), soak, Arc::new(SystemClock), |_| {}).await.unwrap();
    assert_eq!((stats.requests, stats.stalls), (300, 0));
    let each = [stats.at_limit, stats.stopped, stats.cancelled, stats.left];
    assert!(each.iter().all(|count| *count > 0) && stats.cached_tokens > 0, "{stats:?}");
}
