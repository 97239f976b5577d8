//! Two busy models in one process: tokens per second and the time between texts, with one model alone, with both
//! stepping freely, and with both taking turns as in a server.
//!
//!     cargo run --release -p chancery-bench --bin engine_pair -- MODEL.gguf [OTHER.gguf]

use chancery_domain::{AccountId, Clock, SystemClock};
use chancery_engine::{Engine, Event, Job, Sampling, Turn};
use chancery_engine_cpu::{CpuEngine, LoadOptions, Plan};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const OUTPUT_TOKENS: u32 = 64;
const STREAMS: [usize; 2] = [1, 8];
/// The machine is never quite idle, so the variants alternate and the median of this many rounds counts.
const ROUNDS: usize = 7;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let mut paths = std::env::args_os().skip(1).map(PathBuf::from);
    let first = paths.next().ok_or("give the path of a model file")?;
    let second = paths.next().unwrap_or_else(|| first.clone());
    let model = |path: &PathBuf, name: &str| {
        let options =
            LoadOptions { name: name.to_owned(), context_tokens: Some(1_024), ..LoadOptions::default() };
        (path.clone(), options)
    };
    let models = [model(&first, "first"), model(&second, "second")];
    let apart =
        models.iter().map(|model| load(std::slice::from_ref(model))).collect::<Outcome<Vec<_>>>()?.concat();
    let in_turns = load(&models)?;
    let ways = [
        ("one alone", &apart[..1]),
        ("both, whenever they like", &apart[..]),
        ("both, in turns", &in_turns[..]),
    ];
    println!("| streams for each | way | tokens/s together | texts' gap p50 | p95 |\n|---|---|---|---|---|");
    for streams in STREAMS {
        let mut rounds = ways.map(|_| Vec::new());
        for _ in 0..ROUNDS {
            for (rounds, (_, engines)) in rounds.iter_mut().zip(ways) {
                rounds.push(busy(engines, streams).await?);
            }
        }
        for (mut rounds, (way, _)) in rounds.into_iter().zip(ways) {
            rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (per_second, p50, p95) = rounds[ROUNDS / 2];
            println!("| {streams} | {way} | {per_second:.0} | {p50:.1?} | {p95:.1?} |");
        }
    }
    Ok(())
}

fn load(models: &[(PathBuf, LoadOptions)]) -> Outcome<Vec<Arc<CpuEngine>>> {
    let plans = Plan::for_models(models)?;
    plans
        .into_iter()
        .map(|plan| Ok(Arc::new(CpuEngine::load_planned(plan, Arc::new(SystemClock))?)))
        .collect()
}

/// Returns tokens per second of all engines together, and the median and 95th percentile of the gaps between texts.
async fn busy(engines: &[Arc<CpuEngine>], streams: usize) -> Outcome<(f64, Duration, Duration)> {
    let started = SystemClock.monotonic();
    let mut running = JoinSet::new();
    for (index, engine) in engines.iter().cycle().take(engines.len() * streams).enumerate() {
        let input = format!("Write a long letter about meeting number {index}, on 3 March.");
        let job = Job {
            account: AccountId(1),
            prompt: engine.prepare(&Turn::from_instructions_and_input("Answer in full sentences.", input))?,
            max_output_tokens: OUTPUT_TOKENS,
            sampling: Sampling::GREEDY,
            stop: Vec::new(),
            stop_on_repetition: false,
            top_logprobs: None,
            needs_partial_text: true,
        };
        let mut generation = engine.start(job)?;
        running.spawn(async move {
            let (mut gaps, mut last) = (Vec::new(), None);
            loop {
                match generation.next().await? {
                    Event::Finished(ended) => return Outcome::Ok((ended.output_tokens, gaps)),
                    Event::Logprobs(_) => {}
                    Event::Reasoning(_) | Event::Text(_) => {
                        let now = SystemClock.monotonic();
                        gaps.extend(last.replace(now).map(|last| now.duration_since(last)));
                    }
                }
            }
        });
    }
    let (mut tokens, mut gaps) = (0, Vec::new());
    while let Some(done) = running.join_next().await {
        let (more, its) = done??;
        tokens += more;
        gaps.extend(its);
    }
    gaps.sort_unstable();
    let at = |percent: usize| gaps.get(gaps.len() * percent / 100).copied().unwrap_or_default();
    Ok((f64::from(tokens) / started.elapsed().as_secs_f64(), at(50), at(95)))
}
