//! Repeats one kind of step of the embedded engine for a while, for a profiler:
//!
//!     target/release/engine_steps MODEL.gguf decode 10     steps of one sequence with 300 tokens
//!     target/release/engine_steps MODEL.gguf prefill 10    prompts of 256 tokens
//!
//! `make flamegraph` records both. `CHANCERY_KERNEL` (amx, avx512, avx2, portable) forces a kernel.

use chancery_bench::Outcome;
use chancery_domain::{Clock, SystemClock};
use chancery_engine_cpu::LogprobEvaluator;
use clap::{Parser, ValueEnum};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const CONTEXT_TOKENS: usize = 300;
const PROMPT_TOKENS: usize = 256;

#[derive(Debug, Parser)]
#[command(about = "Repeats one kind of step of the embedded engine")]
struct Arguments {
    model: PathBuf,
    step: Step,
    seconds: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Step {
    Decode,
    Prefill,
}

fn main() -> Outcome<()> {
    let Arguments { model, step, seconds } = Arguments::parse();
    let threads = std::thread::available_parallelism()?.get();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let mut evaluator = LogprobEvaluator::load(&model, CONTEXT_TOKENS, threads)
        .map_err(|error| format!("{} does not load: {error}", model.display()))?;
    let prompt: Vec<u32> = (100..).take(PROMPT_TOKENS).collect();
    let began = clock.monotonic();
    let mut steps = 0_u64;
    while clock.monotonic() - began < Duration::from_secs(seconds) {
        match step {
            Step::Decode => evaluator.time_decode_step(1, &clock),
            Step::Prefill => evaluator.time_prefill(&prompt, &clock),
        };
        steps += 1;
    }
    let elapsed = clock.monotonic() - began;
    println!("{steps} steps, {:.2} ms each", elapsed.as_secs_f64() * 1e3 / steps.max(1) as f64);
    Ok(())
}
