//! Sends ten thousand requests through the engine, all generated from a seed; `chancery_bench::soak` says what is
//! checked. The run fails at the first error. Stalls are reported only at the end, because a busy machine may cause them.
//!
//!     cargo run --release -p chancery-bench --bin engine_soak -- MODEL.gguf [REQUESTS] [SEED]

use chancery_bench::soak::{self, Soak, SoakStats};
use chancery_domain::{Clock, SystemClock};
use chancery_engine_cpu::{CpuEngine, LoadOptions, LogprobEvaluator};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const REQUESTS: usize = 10_000;
const SEED: u64 = 1;
const SLOTS: usize = 16;
const CONTEXT_TOKENS: u32 = 1_024;
/// Prompt tokens per step beside other sequences' tokens, as docs/engine.md states.
const PROMPT_TOKENS_IN_A_STEP: usize = 64;
/// How many of the longest steps a text may take to create_person. One is the actual bound; the rest is headroom for a machine
/// that has other work and two cores for the engine and its callers.
const STEPS_WITHIN: u32 = 8;
const TIMES: usize = 10;

fn progress(stats: &SoakStats) {
    if stats.requests.is_multiple_of(500) {
        println!("{:6} requests, {} output tokens", stats.requests, stats.output_tokens);
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let path: PathBuf = arguments.next().ok_or("give the path of a model file")?.into();
    let mut number = |default: u64| match arguments.next() {
        Some(text) => text.to_string_lossy().parse(),
        None => Ok(default),
    };
    let (requests, seed) = (usize::try_from(number(REQUESTS as u64)?)?, number(SEED)?);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let longest_step = time_longest_step(&path, &clock)?;
    let max_stall = longest_step * STEPS_WITHIN;
    println!("a step of {} rows takes {longest_step:.1?}", PROMPT_TOKENS_IN_A_STEP + SLOTS);

    let options =
        LoadOptions { context_tokens: Some(CONTEXT_TOKENS), slots: Some(SLOTS), ..LoadOptions::default() };
    let engine = Arc::new(CpuEngine::load(&path, &options, Arc::clone(&clock))?);
    println!("stated before loading: {} MB at most", engine.memory_bytes() / 1_000_000);
    let soak = Soak {
        requests,
        seed,
        callers: 24,
        accounts: 6,
        inputs: 30,
        max_words: 300,
        max_output_tokens: 24,
        max_stall,
        max_growth_bytes: 16_000_000,
    };
    let stats = soak::run(engine, soak, clock, progress).await?;
    println!(
        "{} requests in {:.0?}: {} complete, {} at their limit, {} at a stop string, {} cancelled, {} left",
        stats.requests,
        stats.took,
        stats.complete,
        stats.at_limit,
        stats.stopped,
        stats.cancelled,
        stats.left
    );
    println!("{} output tokens, {} prompt tokens from the cache", stats.output_tokens, stats.cached_tokens);
    println!(
        "time between texts: half within {:.1?}, 99 % within {:.1?}, 99.9 % within {:.1?}, the longest {:.1?} of {max_stall:.1?}",
        stats.gap(500),
        stats.gap(990),
        stats.gap(999),
        stats.gap(1_000)
    );
    println!("pages at the end: {:?}", stats.pages);
    println!(
        "memory: {} MB after a third, {} MB at the end",
        stats.first_third_bytes / 1_000_000,
        stats.last_bytes / 1_000_000
    );
    match stats.stalls {
        0 => Ok(()),
        stalls => Err(format!("{stalls} texts took longer than {max_stall:.1?}").into()),
    }
}

/// Measures the longest step that may fall between two tokens of a reply.
fn time_longest_step(
    path: &std::path::Path,
    clock: &Arc<dyn Clock>,
) -> Result<Duration, Box<dyn std::error::Error>> {
    let threads = std::thread::available_parallelism()?.get();
    let rows = PROMPT_TOKENS_IN_A_STEP + SLOTS;
    let mut evaluation = LogprobEvaluator::load(path, rows, threads)?;
    let tokens: Vec<u32> = (100..).take(rows).collect();
    let times = (0..TIMES).map(|_| evaluation.time_prefill(&tokens, clock));
    Ok(times.map(|times| times.matmul + times.attention + times.other).max().unwrap_or_default())
}
