//! The gain from speculative decoding: generated tokens per second with and without drafts, for one stream and several,
//! on prompts whose replies repeat the prompt and on prompts whose replies do not. Runs with and without drafts
//! alternate, and medians are reported.
//!
//!     cargo run --release -p chancery-bench --bin speculation -- MODEL.gguf
//!
//! `CHANCERY_KERNEL` (amx, avx512, avx2, portable) forces a kernel.

use chancery_domain::{AccountId, Clock, SystemClock};
use chancery_engine::{Engine, Event, Job, Sampling, Turn};
use chancery_engine_cpu::{CpuEngine, LoadOptions};
use std::path::PathBuf;
use std::sync::Arc;

const OUTPUT_TOKENS: u32 = 128;
const REPEATS: usize = 5;
const LETTER: &str = "Dear Mr Okafor,\n\nThank you for meeting us on 3 March. We agreed that the invoice of 14 January \
    stays open until the audit is done, that Ruth Adeyemi sends the corrected figures by 20 March, and that the second \
    half of the fee, 4,250 euros, falls due thirty days after that. Please tell us by Friday if you remember it \
    differently.\n\nYours sincerely,\nThe Chancery";

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let path: PathBuf = std::env::args_os().nth(1).ok_or("give the path of a model file")?.into();
    let load = |draft_rows| {
        let options = LoadOptions { context_tokens: Some(2_048), draft_rows, ..LoadOptions::default() };
        CpuEngine::load(&path, &options, Arc::new(SystemClock))
    };
    let (without, with) = (load(Some(1))?, load(None)?);
    println!("| prompt | streams | without | with | ratio |\n|---|---|---|---|---|");
    for (label, instructions, input) in [
        ("rewriting", "Repeat the letter word for word.", LETTER),
        ("summarising", "Summarise the letter in three sentences.", LETTER),
        ("free", "Write a story.", "It is about a lighthouse."),
    ] {
        for streams in [1, 4, 16] {
            let mut speeds = [Vec::new(), Vec::new()];
            for _ in 0..REPEATS {
                for (speeds, engine) in speeds.iter_mut().zip([&without, &with]) {
                    speeds.push(tokens_per_second(engine, instructions, input, streams).await?);
                }
            }
            let [without, with] = speeds.map(median);
            println!("| {label} | {streams} | {without:.0} | {with:.0} | {:.2} |", with / without);
        }
    }
    Ok(())
}

/// Tokens per second of this many equal jobs at once, including their prompts.
async fn tokens_per_second(
    engine: &CpuEngine,
    instructions: &str,
    input: &str,
    streams: usize,
) -> Outcome<f64> {
    let prompt = engine.prepare(&Turn::from_instructions_and_input(instructions, input))?;
    let started = SystemClock.monotonic();
    let mut generations = Vec::new();
    for _ in 0..streams {
        generations.push(engine.start(Job {
            account: AccountId(1),
            prompt: prompt.clone(),
            max_output_tokens: OUTPUT_TOKENS,
            sampling: Sampling::GREEDY,
            stop: Vec::new(),
            stop_on_repetition: false,
            top_logprobs: None,
            needs_partial_text: true,
        })?);
    }
    let mut tokens = 0;
    for mut generation in generations {
        tokens += loop {
            if let Event::Finished(ended) = generation.next().await? {
                break ended.output_tokens;
            }
        };
    }
    Ok(f64::from(tokens) / started.elapsed().as_secs_f64())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
