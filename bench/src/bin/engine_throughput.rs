//! Generated tokens per second of the engine alone, at several numbers of streams: no HTTP, no metering.
//!
//!     cargo run --release -p chancery-bench --bin engine_throughput -- MODEL.gguf

use chancery_domain::{AccountId, Clock, SystemClock};
use chancery_engine::{Engine, Event, Job, Sampling};
use chancery_engine_cpu::{CpuEngine, LoadOptions};
use std::path::PathBuf;
use std::sync::Arc;

const OUTPUT_TOKENS: u32 = 64;
const INSTRUCTIONS: &str = "You help a consulting firm. Answer in full sentences, keep every figure as it is given, \
    name the client, and say what was promised and by when. ";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path: PathBuf = std::env::args_os().nth(1).ok_or("give the path of a model file")?.into();
    let started = SystemClock.monotonic();
    let engine = CpuEngine::load(&path, &LoadOptions::default(), Arc::new(SystemClock))?;
    println!("loaded in {:.2?}, {} MB at most", started.elapsed(), engine.memory_bytes() >> 20);
    for streams in [1, 2, 4, 8, 16] {
        for (label, repeat) in [("short prompt", 1), ("long prompt", 8)] {
            let jobs: Vec<Job> = (0..streams)
                .map(|stream| -> Result<Job, Box<dyn std::error::Error>> {
                    let input = format!("Write a letter about meeting number {stream}, on 3 March.");
                    Ok(Job {
                        account: AccountId(1),
                        prompt: engine.prepare(&INSTRUCTIONS.repeat(repeat), &input)?,
                        max_output_tokens: OUTPUT_TOKENS,
                        sampling: Sampling::GREEDY,
                        stop: Vec::new(),
                    })
                })
                .collect::<Result<_, _>>()?;
            let prompt_tokens = jobs[0].prompt.prompt_tokens();
            let started = SystemClock.monotonic();
            let generations: Vec<_> =
                jobs.into_iter().map(|job| engine.start(job)).collect::<Result<_, _>>()?;
            let (mut tokens, mut first_text_s) = (0, None);
            for mut generation in generations {
                loop {
                    match generation.next().await? {
                        Event::Text(_) => {
                            first_text_s.get_or_insert_with(|| started.elapsed().as_secs_f64());
                        }
                        Event::Ended(ended) => {
                            tokens += ended.output_tokens;
                            break;
                        }
                    }
                }
            }
            let seconds = started.elapsed().as_secs_f64();
            println!(
                "{streams:3} streams, {label} ({prompt_tokens} tokens): {:.0} tokens/s with the prompts, first text after {:.3} s",
                f64::from(tokens) / seconds,
                first_text_s.unwrap_or(seconds),
            );
        }
    }
    Ok(())
}
