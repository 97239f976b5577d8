//! The speed of the engine alone, without HTTP and metering: the duration and breakdown of a step for several numbers
//! of sequences and prompt tokens, the share of the memory bandwidth that a step of one sequence reaches, and generated
//! tokens per second for several numbers of streams.
//!
//!     cargo run --release -p chancery-bench --bin engine_throughput -- MODEL.gguf
//!
//! `CHANCERY_KERNEL` (amx, avx512, avx2, portable) forces a kernel.

use chancery_domain::{AccountId, Clock, SystemClock};
use chancery_engine::{Engine, Event, Job, Sampling, Turn};
use chancery_engine_cpu::{CpuEngine, LoadOptions, LogprobEvaluator, StepTimes};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const OUTPUT_TOKENS: u32 = 64;
const INSTRUCTIONS: &str = "You help a consulting firm. Answer in full sentences, keep every figure as it is given, \
    name the client, and say what was promised and by when. ";
/// Context length of each sequence when a step is timed.
const CONTEXT_TOKENS: usize = 300;
/// Lengths of prompts, and how many of their tokens a step processes, as the engine does while nothing is decoded.
const PROMPT_TOKENS: [usize; 5] = [16, 64, 256, 330, 2_000];
const STEP_TOKENS: usize = 256;
/// The machine is never quite idle, so the best of this many step times counts.
const REPEATS: usize = 20;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let path: PathBuf = std::env::args_os().nth(1).ok_or("give the path of a model file")?.into();
    time_steps(&path)?;
    time_streams(&path).await
}

fn time_steps(path: &Path) -> Outcome<()> {
    let threads = std::thread::available_parallelism()?.get();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let started = clock.monotonic();
    let mut evaluation = LogprobEvaluator::load(path, CONTEXT_TOKENS, threads)?;
    println!("loaded in {:.2?}", started.elapsed());
    println!("| one step of | ms | products | attention | rest | tokens/s |\n|---|---|---|---|---|---|");
    let best = |label: String, rows: usize, step: &mut dyn FnMut() -> StepTimes| -> StepTimes {
        let times = (0..REPEATS).map(|_| step()).min_by_key(|times| total(*times)).unwrap_or_default();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "| {label} | {:.2} | {:.2} | {:.2} | {:.2} | {:.0} |",
            ms(total(times)),
            ms(times.matmul),
            ms(times.attention),
            ms(times.other),
            rows as f64 / total(times).as_secs_f64()
        );
        times
    };
    let mut one_row = StepTimes::default();
    for rows in [1, 2, 4, 8, 16, 32, 64] {
        let label = format!("{rows} sequences with {CONTEXT_TOKENS} tokens each");
        let times = best(label, rows, &mut || evaluation.time_decode_step(rows, &clock));
        if rows == 1 {
            one_row = times;
        }
    }
    let mut evaluation = LogprobEvaluator::load(path, PROMPT_TOKENS[PROMPT_TOKENS.len() - 1], threads)?;
    for rows in PROMPT_TOKENS {
        let tokens: Vec<u32> = (100..).take(rows).collect();
        best(format!("a prompt of {rows} tokens"), rows, &mut || {
            evaluation.restart();
            let steps = tokens.chunks(STEP_TOKENS).map(|tokens| evaluation.time_extend(tokens, &clock));
            steps.fold(StepTimes::default(), sum)
        });
    }
    let weights = evaluation.matrix_bytes() as f64;
    let bandwidth = evaluation.read_bandwidth(&*clock);
    let share = |time: Duration| 100.0 * weights / time.as_secs_f64() / bandwidth;
    println!(
        "{threads} threads read {:.1} GB/s; one sequence reads {:.0} MB of weights in a step: {:.0} % of the memory bandwidth \
         while it multiplies, {:.0} % over the whole step",
        bandwidth / 1e9,
        weights / 1e6,
        share(one_row.matmul),
        share(total(one_row)),
    );
    Ok(())
}

fn sum(a: StepTimes, b: StepTimes) -> StepTimes {
    StepTimes { matmul: a.matmul + b.matmul, attention: a.attention + b.attention, other: a.other + b.other }
}

fn total(times: StepTimes) -> Duration {
    times.matmul + times.attention + times.other
}

async fn time_streams(path: &Path) -> Outcome<()> {
    let started = SystemClock.monotonic();
    let engine = CpuEngine::load(path, &LoadOptions::default(), Arc::new(SystemClock))?;
    println!("loaded in {:.2?}, {} MB at most", started.elapsed(), engine.memory_bytes() >> 20);
    for streams in [1, 2, 4, 8, 16] {
        for (label, repeat) in [("short prompt", 1), ("long prompt", 8)] {
            let jobs: Vec<Job> = (0..streams)
                .map(|stream| -> Outcome<Job> {
                    let input = format!("Write a letter about meeting number {stream}, on 3 March.");
                    Ok(Job {
                        account: AccountId(1),
                        prompt: engine.prepare(&Turn::from_instructions_and_input(
                            INSTRUCTIONS.repeat(repeat),
                            input,
                        ))?,
                        max_output_tokens: OUTPUT_TOKENS,
                        sampling: Sampling::GREEDY,
                        stop: Vec::new(),
                        stop_on_repetition: false,
                        top_logprobs: None,
                        needs_partial_text: true,
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
                        Event::Logprobs(_) => {}
                        Event::Reasoning(_) | Event::Text(_) => {
                            first_text_s.get_or_insert_with(|| started.elapsed().as_secs_f64());
                        }
                        Event::Finished(ended) => {
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
