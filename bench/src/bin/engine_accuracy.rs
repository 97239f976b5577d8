//! Holds the engine's predictions for a fixed text against llama.cpp's and against f32 arithmetic on the same weights: perplexity,
//! mean KL divergence and how often the most likely token is the same.
//!
//!     make bench-accuracy MODEL=qwen2.5-coder-0.5b
//!
//! Fails if a bound of `crates/engine-cpu/tests/fixtures/accuracy_bounds.json` does not hold. llama.cpp is the build of
//! `scripts/bench-peers`, through `bench/peers/llama_logits.c`. Both sides get the same tokens, from our tokenizer.

use chancery_engine_cpu::{Gguf, LogprobComparison, LogprobEvaluator, Tokenizer, log_softmax, text_logprobs};
use clap::Parser;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const TEXT: &str = include_str!("../../../crates/engine-cpu/tests/fixtures/perplexity_text.md");
/// Tokens of the text for a model without bounds.
const DEFAULT_TEXT_TOKENS: usize = 512;
const BOUNDS: &str = include_str!("../../../crates/engine-cpu/tests/fixtures/accuracy_bounds.json");

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[derive(Debug, Parser)]
#[command(about = "Compares the engine's predictions with llama.cpp's and with f32 arithmetic")]
struct Arguments {
    /// The directory that scripts/bench-peers printed
    #[arg(long)]
    peers_folder: PathBuf,
    /// The model file
    #[arg(long)]
    model: PathBuf,
    /// Which of the bounds apply; by default, those of the file's name
    #[arg(long)]
    name: Option<String>,
    /// Which build of llama.cpp: native, for this processor, or avx2
    #[arg(long, default_value = "native")]
    build: String,
    /// Tokens of the text; other numbers than the default are not held against the bounds
    #[arg(long)]
    tokens: Option<usize>,
    /// Leave out f32 arithmetic, which takes four bytes per weight
    #[arg(long)]
    without_f32: bool,
}

struct Bounds {
    max_perplexity_difference: f64,
    /// `None` for a model without bounds.
    model: Option<ModelBounds>,
}

struct ModelBounds {
    text_tokens: usize,
    max_mean_kl: f64,
    min_top1_agreement: f64,
}

impl Bounds {
    fn read(model: &str) -> Outcome<Self> {
        let json: serde_json::Value = serde_json::from_str(BOUNDS)?;
        let number = |value: &serde_json::Value, name: &str| {
            value[name].as_f64().ok_or_else(|| format!("accuracy_bounds.json has no number {name}"))
        };
        let of_model = json["models"].get(model);
        let of_model = of_model.map(|bounds| -> Outcome<ModelBounds> {
            Ok(ModelBounds {
                text_tokens: number(bounds, "text_tokens")? as usize,
                max_mean_kl: number(bounds, "max_mean_kl")?,
                min_top1_agreement: number(bounds, "min_top1_agreement")?,
            })
        });
        Ok(Self {
            max_perplexity_difference: number(&json, "max_perplexity_difference")?,
            model: of_model.transpose()?,
        })
    }
}

fn main() -> Outcome<()> {
    let arguments = Arguments::parse();
    let stem = arguments.model.file_stem().and_then(|stem| stem.to_str()).unwrap_or("model");
    let name = arguments.name.clone().unwrap_or_else(|| stem.to_owned());
    let bounds = Bounds::read(&name)?;
    let bounded_tokens = bounds.model.as_ref().map_or(DEFAULT_TEXT_TOKENS, |model| model.text_tokens);
    let tokens = text_tokens(&arguments.model, arguments.tokens.unwrap_or(bounded_tokens))?;
    let threads = std::thread::available_parallelism()?.get();

    eprintln!("llama.cpp, {} tokens", tokens.len());
    let program = arguments.peers_folder.join("llama").join(&arguments.build).join("llama_logits");
    let llama = llama_logprobs(&program, &arguments.model, &tokens, threads)?;
    eprintln!("Chancery");
    let mut evaluator = LogprobEvaluator::load(&arguments.model, tokens.len(), threads)?;
    let served = text_logprobs(&mut evaluator, &tokens);
    drop(evaluator);
    if llama[0].len() != served[0].len() {
        return Err(format!(
            "{} tokens in llama.cpp's vocabulary, {} in ours",
            llama[0].len(),
            served[0].len()
        )
        .into());
    }
    let against_llama = LogprobComparison::of_text(&llama, &served, &tokens);
    println!("{name}, the first {} tokens of perplexity_text.md\n", tokens.len());
    println!("| | Perplexity | Mean KL | Same most likely token |\n|---|---|---|---|");
    let mut violations = Vec::new();
    if !arguments.without_f32 {
        eprintln!("f32");
        let mut evaluator = LogprobEvaluator::load_f32(&arguments.model, tokens.len(), threads)?;
        let exact = text_logprobs(&mut evaluator, &tokens);
        drop(evaluator);
        let ours = LogprobComparison::of_text(&exact, &served, &tokens);
        println!("| f32 on the file's weights | {:.3} | | |", ours.reference_perplexity());
        print_row("llama.cpp, against f32", &LogprobComparison::of_text(&exact, &llama, &tokens));
        print_row("Chancery, against f32", &ours);
        violations.extend(f32_violations(&bounds, &ours));
    } else {
        println!("| llama.cpp | {:.3} | | |", against_llama.reference_perplexity());
    }
    print_row("Chancery, against llama.cpp", &against_llama);
    let difference = against_llama.perplexity() / against_llama.reference_perplexity() - 1.0;
    if difference.abs() > bounds.max_perplexity_difference {
        violations.push(format!("perplexity differs from llama.cpp's by {:.2} %", difference * 100.0));
    }
    print_bounds(&bounds, difference);
    println!("\"llama_cpp_perplexity\": {:.3}", against_llama.reference_perplexity());
    let is_held_against_bounds = tokens.len() == bounded_tokens;
    match violations.as_slice() {
        [] => Ok(()),
        found if is_held_against_bounds => Err(found.join("; ").into()),
        found => {
            println!(
                "Not held against the bounds, which are for {bounded_tokens} tokens: {}",
                found.join("; ")
            );
            Ok(())
        }
    }
}

fn text_tokens(model: &Path, count: usize) -> Outcome<Vec<u32>> {
    let file = Gguf::open(model)?;
    let mut tokens = Tokenizer::from_metadata(file.metadata())?.encode_text(TEXT);
    if !(2..=tokens.len()).contains(&count) {
        return Err(format!("invalid --tokens {count}; use 2 to {}", tokens.len()).into());
    }
    tokens.truncate(count);
    Ok(tokens)
}

/// The log-probabilities of the next token after each token except the last, by llama.cpp.
fn llama_logprobs(program: &Path, model: &Path, tokens: &[u32], threads: usize) -> Outcome<Vec<Vec<f32>>> {
    let mut child = Command::new(program)
        .arg(model)
        .arg(threads.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{} does not start: {error}; run scripts/bench-peers", program.display()))?;
    let rows = tokens.len() - 1;
    let input: Vec<u8> = tokens[..rows].iter().flat_map(|token| token.to_ne_bytes()).collect();
    // It reads everything before it writes. Closing its input tells it that this was all.
    child.stdin.take().ok_or("no standard input")?.write_all(&input)?;
    let mut output = BufReader::new(child.stdout.take().ok_or("no standard output")?);
    let logprobs = read_rows(&mut output, rows);
    let status = child.wait()?;
    if !status.success() {
        return Err(format!("{} failed: {status}", program.display()).into());
    }
    logprobs
}

fn read_rows(output: &mut impl Read, rows: usize) -> Outcome<Vec<Vec<f32>>> {
    let mut size = [0; 4];
    output.read_exact(&mut size)?;
    let vocab_size = usize::try_from(i32::from_ne_bytes(size))?;
    let mut bytes = vec![0; vocab_size * size_of::<f32>()];
    let mut logprobs = Vec::with_capacity(rows);
    for _ in 0..rows {
        output.read_exact(&mut bytes)?;
        let logits: Vec<f32> = bytes
            .chunks_exact(4)
            .map(|float| f32::from_ne_bytes([float[0], float[1], float[2], float[3]]))
            .collect();
        logprobs.push(log_softmax(&logits));
    }
    Ok(logprobs)
}

fn print_row(label: &str, comparison: &LogprobComparison) {
    println!(
        "| {label} | {:.3} | {:.5} | {:.4} |",
        comparison.perplexity(),
        comparison.mean_kl(),
        comparison.top1_agreement()
    );
}

fn f32_violations(bounds: &Bounds, ours: &LogprobComparison) -> Vec<String> {
    let mut found = Vec::new();
    let Some(model) = &bounds.model else { return found };
    if ours.mean_kl() >= model.max_mean_kl {
        found.push(format!("mean KL from f32 is {:.5}, at most {}", ours.mean_kl(), model.max_mean_kl));
    }
    if ours.top1_agreement() <= model.min_top1_agreement {
        found.push(format!(
            "agreement with f32 is {:.4}, at least {}",
            ours.top1_agreement(),
            model.min_top1_agreement
        ));
    }
    found
}

fn print_bounds(bounds: &Bounds, difference: f64) {
    println!(
        "\nPerplexity differs from llama.cpp's by {:+.2} % (bound: {:.0} %).",
        difference * 100.0,
        bounds.max_perplexity_difference * 100.0
    );
    match &bounds.model {
        Some(ModelBounds { max_mean_kl, min_top1_agreement, .. }) => println!(
            "Bounds against f32: mean KL below {max_mean_kl}, same most likely token above {min_top1_agreement}."
        ),
        None => println!("accuracy_bounds.json has no bounds against f32 for this model."),
    }
}
