//! Tests the engine on Qwen2.5-Coder 0.5B and 1.5B. `make test-models` fetches the files, 1.6 GB together, and runs these
//! tests one after another, because the f32 form of the larger model takes about 8 GB. They are not part of `make test`.
//!
//! The files are `NAME.gguf` in `CHANCERY_TEST_LARGE_MODELS`, or in the folder of `chancery model pull`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use chancery_domain::{AccountId, SystemClock};
use chancery_engine::{Engine, Event, Finished, Generation, Job, Sampling, StopReason, Turn};
use chancery_engine_cpu::{
    BudgetedAllocator, CpuEngine, Gguf, LoadOptions, LogprobComparison, LogprobEvaluator, Tokenizer,
    text_logprobs,
};
use serde::Deserialize;
use std::alloc::System;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bounds chat templates, as in the server.
#[global_allocator]
static ALLOCATOR: BudgetedAllocator<System> = BudgetedAllocator(System);

const SMALLER: &str = "qwen2.5-coder-0.5b";
const LARGER: &str = "qwen2.5-coder-1.5b";
const TEXT: &str = include_str!("../fixtures/perplexity_text.md");
const INSTRUCTIONS: &str = "You write letters for a consulting firm. Answer with the letter alone.";
/// Notes from meetings with different clients.
const NOTES: [&str; 4] = [
    "Ms Raman disputes three hours on invoice 2041, $420. We credit them. She pays $1,860 by 30 October.",
    "Mr Okafor got the report on 19 September instead of 8 September. The next one is due on 16 October.",
    "Ms Kim needs the claim form for the insurer by 21 October. The estimate is $18,400.",
    "Mr Novak must tell Talon Finance by 31 October whether he buys the machine for $22,000.",
];
const LETTER_TOKENS: u32 = 48;
const SLOTS: usize = NOTES.len();

/// `fixtures/accuracy_bounds.json`, which says where the values come from.
#[derive(Deserialize)]
struct Bounds {
    max_perplexity_difference: f64,
    models: BTreeMap<String, ModelBounds>,
}

#[derive(Deserialize)]
struct ModelBounds {
    text_tokens: usize,
    llama_cpp_perplexity: Option<f64>,
    max_mean_kl: f64,
    min_top1_agreement: f64,
}

fn bounds() -> Bounds {
    serde_json::from_str(include_str!("../fixtures/accuracy_bounds.json")).unwrap()
}

fn model_path(name: &str) -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let pulled = || {
        let cache = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
        cache.unwrap_or_default().join("chancery").join("models")
    };
    let folder = variable("CHANCERY_TEST_LARGE_MODELS").unwrap_or_else(pulled);
    let path = folder.join(format!("{name}.gguf"));
    assert!(path.is_file(), "no model at {}: run `make test-models`, which fetches it", path.display());
    path
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn text_tokens(path: &Path, count: usize) -> Vec<u32> {
    let file = Gguf::open(path).unwrap();
    let mut tokens = Tokenizer::from_metadata(file.metadata()).unwrap().encode_text(TEXT);
    assert!(tokens.len() >= count, "{} tokens", tokens.len());
    tokens.truncate(count);
    tokens
}

fn check_accuracy(name: &str) {
    let (path, bounds) = (model_path(name), bounds());
    let model = &bounds.models[name];
    let tokens = text_tokens(&path, model.text_tokens);
    // One after another: together they take twice the memory.
    let exact =
        text_logprobs(&mut LogprobEvaluator::load_f32(&path, tokens.len(), threads()).unwrap(), &tokens);
    let served = text_logprobs(&mut LogprobEvaluator::load(&path, tokens.len(), threads()).unwrap(), &tokens);
    let comparison = LogprobComparison::of_text(&exact, &served, &tokens);
    let (perplexity, exact_perplexity) = (comparison.perplexity(), comparison.reference_perplexity());
    let (mean_kl, agreement) = (comparison.mean_kl(), comparison.top1_agreement());
    println!(
        "{name}: perplexity {perplexity:.3}, f32 {exact_perplexity:.3}, llama.cpp {:?}; mean KL {mean_kl:.5}, \
         top-1 agreement {agreement:.4}",
        model.llama_cpp_perplexity
    );
    let is_close = |reference: f64| (perplexity / reference - 1.0).abs() < bounds.max_perplexity_difference;
    assert!(is_close(exact_perplexity), "{perplexity}, f32 {exact_perplexity}");
    assert!(
        model.llama_cpp_perplexity.is_none_or(is_close),
        "{perplexity}, {:?}",
        model.llama_cpp_perplexity
    );
    assert!(mean_kl < model.max_mean_kl && agreement > model.min_top1_agreement, "{mean_kl}, {agreement}");
}

#[test]
fn perplexity_and_kl_divergence_of_the_0_5b_model_are_within_bounds() {
    check_accuracy(SMALLER);
}

#[test]
fn perplexity_and_kl_divergence_of_the_1_5b_model_are_within_bounds() {
    check_accuracy(LARGER);
}

fn check_chunked_prefill(name: &str) {
    let path = model_path(name);
    let tokens = text_tokens(&path, 200);
    let mut evaluator = LogprobEvaluator::load(&path, tokens.len(), threads()).unwrap();
    let whole = evaluator.extend(&tokens);
    for piece in [7, 64] {
        evaluator.restart();
        let pieces: Vec<Vec<f64>> = tokens.chunks(piece).map(|tokens| evaluator.extend(tokens)).collect();
        assert!(pieces.last() == Some(&whole), "{name} in pieces of {piece}");
    }
}

#[test]
fn chunked_prefill_of_the_0_5b_model_equals_whole_prefill() {
    check_chunked_prefill(SMALLER);
}

#[test]
fn chunked_prefill_of_the_1_5b_model_equals_whole_prefill() {
    check_chunked_prefill(LARGER);
}

fn start(engine: &CpuEngine, notes: &str) -> Generation {
    let job = Job {
        account: AccountId(1),
        prompt: engine.prepare(&Turn::from_instructions_and_input(INSTRUCTIONS, notes)).unwrap(),
        max_output_tokens: LETTER_TOKENS,
        sampling: Sampling::GREEDY,
        stop: Vec::new(),
        stop_on_repetition: false,
        top_logprobs: None,
        needs_partial_text: true,
    };
    engine.start(job).unwrap()
}

async fn collect_reply(mut generation: Generation) -> (String, Finished) {
    let mut text = String::new();
    loop {
        match generation.next().await.unwrap() {
            Event::Text(more) => text += &more,
            Event::Finished(finished) => return (text, finished),
            event => panic!("{event:?}"),
        }
    }
}

/// Letters are served in batches, and a batch must not change their text.
async fn check_letters(name: &str) {
    let options = LoadOptions { context_tokens: Some(2_048), slots: Some(SLOTS), ..LoadOptions::default() };
    let engine = CpuEngine::load(&model_path(name), &options, Arc::new(SystemClock)).unwrap();
    let mut alone = Vec::new();
    for notes in NOTES {
        let (text, finished) = collect_reply(start(&engine, notes)).await;
        assert!(!text.trim().is_empty(), "{name}: {finished:?}");
        assert!(
            matches!(finished.reason, StopReason::Complete | StopReason::MaxOutputTokens),
            "{finished:?}"
        );
        println!("{name}: {text:?}");
        alone.push(text);
    }
    let running: Vec<Generation> = NOTES.iter().map(|notes| start(&engine, notes)).collect();
    for (generation, expected) in running.into_iter().zip(&alone) {
        assert_eq!(&collect_reply(generation).await.0, expected, "{name}");
    }
}

#[tokio::test]
async fn letters_of_the_0_5b_model_are_the_same_alone_and_in_a_batch() {
    check_letters(SMALLER).await;
}

#[tokio::test]
async fn letters_of_the_1_5b_model_are_the_same_alone_and_in_a_batch() {
    check_letters(LARGER).await;
}
