//! The embedded engine on the small random models of its own tests: valgrind knows no AVX-512 and no AMX, and loading a
//! real model under it takes minutes. The counts cover the AVX2 kernels and everything around the kernels.

use chancery_domain::{AccountId, Clock, SystemClock};
use chancery_engine::{Engine, Event, Job, Sampling, Turn};
use chancery_engine_cpu::{CpuEngine, Gguf, LoadOptions, LogprobEvaluator, Tokenizer};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

const KERNEL: &str = "avx2";
const MODEL: &str = "qwen2-q8_0.gguf";
const CONTEXT_TOKENS: usize = 128;
const PREFILLED_TOKENS: usize = 64;
const OUTPUT_TOKENS: u32 = 32;
const TEXT: &str = "Dear Ms. Raman, thank you for the meeting on 14 October 2026 about invoice 2041. We agreed that the three hours \
    for the stock count, $420 in all, are credited; the rest of $1,860.00 is due by 30 October. Größe, naïve, 漢字 and 🙂 are kept. ";

fn fixture(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../crates/engine-cpu/tests/fixtures/architectures", name].iter().collect()
}

pub fn tokenize(iterations: usize) {
    let file = Gguf::open(&fixture("tokenizer-smollm.gguf")).unwrap();
    let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
    let text = TEXT.repeat(8);
    for _ in 0..iterations {
        assert!(!tokenizer.encode_text(&text).is_empty());
    }
}

fn evaluator() -> LogprobEvaluator {
    LogprobEvaluator::load_on(KERNEL, &fixture(MODEL), CONTEXT_TOKENS, 1).unwrap()
}

pub fn decode(iterations: usize) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let mut evaluator = evaluator();
    for _ in 0..iterations {
        evaluator.time_decode_step(1, &clock);
    }
}

pub fn prefill(iterations: usize) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let mut evaluator = evaluator();
    let tokens: Vec<u32> = (1..).take(PREFILLED_TOKENS).collect();
    for _ in 0..iterations {
        evaluator.time_prefill(&tokens, &clock);
    }
}

/// Needs `CHANCERY_KERNEL=avx2`, which scripts/check-perf sets.
pub async fn sample(iterations: usize) {
    let options = LoadOptions { threads: Some(1), slots: Some(1), ..LoadOptions::default() };
    let engine = CpuEngine::load(&fixture(MODEL), &options, Arc::new(SystemClock)).unwrap();
    let turns = Turn::from_instructions_and_input("Be brief.", "Thank the client.");
    for _ in 0..iterations {
        let job = Job {
            account: AccountId(1),
            prompt: engine.prepare(&turns).unwrap(),
            max_output_tokens: OUTPUT_TOKENS,
            sampling: Sampling {
                temperature: 0.8,
                top_k: NonZeroU32::new(40),
                top_p: 0.95,
                min_p: 0.05,
                ..Sampling::GREEDY
            },
            stop: Vec::new(),
            stop_on_repetition: false,
            top_logprobs: None,
            needs_partial_text: true,
        };
        let mut generation = engine.start(job).unwrap();
        while !matches!(generation.next().await.unwrap(), Event::Finished(_)) {}
    }
    engine.shut_down();
}
