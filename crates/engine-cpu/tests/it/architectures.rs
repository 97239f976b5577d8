//! Compares every architecture, on a small random model, with `transformers`, `tokenizers`, `sentencepiece` and
//! `jinja2` on the same weights, vocabularies and templates (`fixtures/architectures/make_fixtures.py`).

use crate::rows;
use chancery_domain::{AccountId, SystemClock};
use chancery_engine::{Engine, Event, Job, Sampling, Turn};
use chancery_engine_cpu::{CpuEngine, Gguf, LoadError, LoadOptions, LogprobEvaluator, Tokenizer};
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;

const MODELS: usize = 11;
const TOKENIZERS: usize = 6;
const CONTEXT_TOKENS: usize = 128;
/// The length beyond which Ministral 3 scales its attention, in its file.
const MINISTRAL_CONTEXT: u32 = 192;
/// The reference rounds keys and values as the cache does, so only the order of f32 additions differs (observed:
/// 0.0005, over all tokens of the vocabulary, however unlikely).
const MAX_ERROR_OF_EXACT: f64 = 0.001;
/// Rounding weights to eight bits affects a random model more than a trained one (observed: 0.34).
const MAX_ERROR_OF_SERVED: f64 = 0.4;

/// A row of `log_probabilities.jsonl`.
#[derive(Deserialize)]
struct Reference {
    model: String,
    tokens: Vec<u32>,
    log_probabilities: Vec<AtPosition>,
    greedy_prompt: Vec<u32>,
    greedy: Vec<u32>,
}

#[derive(Deserialize)]
struct AtPosition {
    position: usize,
    values: Vec<f64>,
}

#[derive(Deserialize)]
struct TokensRow {
    tokenizer: String,
    text: String,
    ids: Vec<u32>,
}

#[derive(Deserialize)]
struct PromptRow {
    model: String,
    instructions: String,
    input: String,
    ids: Vec<u32>,
}

fn fixture(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/fixtures/architectures", name].iter().collect()
}

fn references() -> Vec<Reference> {
    let references: Vec<Reference> = rows(include_str!("../fixtures/architectures/log_probabilities.jsonl"));
    assert_eq!(references.len(), MODELS);
    references
}

fn model(name: &str) -> PathBuf {
    fixture(&format!("{name}.gguf"))
}

type Load = fn(&std::path::Path, usize, usize) -> Result<LogprobEvaluator, LoadError>;

/// The largest errors: with the prompt in one step, and with its second half token by token.
fn worst_errors(load: Load, reference: &Reference) -> [f64; 2] {
    let mut evaluation = load(&model(&reference.model), CONTEXT_TOKENS, 2).unwrap();
    let at_once = evaluation.extend_all(&reference.tokens);
    evaluation.restart();
    let (first, rest) = reference.tokens.split_at(reference.tokens.len() / 2);
    let mut one_by_one = evaluation.extend_all(first);
    one_by_one.extend(rest.iter().map(|token| evaluation.extend(&[*token])));
    [at_once, one_by_one].map(|along| {
        let differences = reference.log_probabilities.iter().flat_map(|AtPosition { position, values }| {
            assert_eq!(values.len(), along[*position].len());
            values.iter().zip(&along[*position]).map(|(expected, got)| (expected - got).abs())
        });
        differences.fold(0.0, f64::max)
    })
}

#[test]
fn exact_logprobs_equal_transformers_in_prompts_and_replies() {
    for reference in references() {
        let errors = worst_errors(LogprobEvaluator::load_f32, &reference);
        println!("{}, exact: {errors:.5?}", reference.model);
        assert!(errors.iter().all(|error| *error < MAX_ERROR_OF_EXACT), "{}: {errors:?}", reference.model);
    }
}

#[test]
fn served_logprobs_are_close_to_transformers() {
    for reference in references() {
        let errors = worst_errors(LogprobEvaluator::load, &reference);
        println!("{}, served: {errors:.5?}", reference.model);
        assert!(errors.iter().all(|error| *error < MAX_ERROR_OF_SERVED), "{}: {errors:?}", reference.model);
    }
}

fn best(log_probabilities: &[f64]) -> u32 {
    let ids = 0..log_probabilities.len();
    ids.max_by(|a, b| log_probabilities[*a].total_cmp(&log_probabilities[*b])).unwrap() as u32
}

#[test]
fn greedy_continuations_equal_transformers() {
    for Reference { model: name, greedy_prompt, greedy, .. } in references() {
        for load in [LogprobEvaluator::load as Load, LogprobEvaluator::load_f32] {
            let mut evaluation = load(&model(&name), CONTEXT_TOKENS, 2).unwrap();
            let mut next = best(&evaluation.extend(&greedy_prompt));
            for (step, expected) in greedy.iter().enumerate() {
                assert_eq!(next, *expected, "{name}, step {step}");
                next = best(&evaluation.extend(&[next]));
            }
        }
    }
}

#[test]
fn token_ids_equal_the_published_tokenizers() {
    let rows: Vec<TokensRow> = rows(include_str!("../fixtures/architectures/tokens.jsonl"));
    let mut tokenizers = 0;
    for of_one in rows.chunk_by(|a, b| a.tokenizer == b.tokenizer) {
        tokenizers += 1;
        let name = &of_one[0].tokenizer;
        let tokenizer = tokenizer(name);
        for TokensRow { text, ids, .. } in of_one {
            assert_eq!(tokenizer.encode_text(text), *ids, "{name}: {text:?}");
        }
    }
    assert_eq!(tokenizers, TOKENIZERS);
}

fn tokenizer(kind: &str) -> Tokenizer {
    let file = Gguf::open(&fixture(&format!("tokenizer-{kind}.gguf"))).unwrap();
    Tokenizer::from_metadata(file.metadata()).unwrap()
}

#[test]
fn adversarial_texts_are_tokenized_in_time_by_every_tokenizer() {
    let patterns =
        ["a", "A", " ", "\n", "7", "'", "/", "ab", "aA", "A漢", "\u{301}", "a\u{301}\u{323}", " \n", "🙂"];
    for kind in ["llama-bpe", "qwen2", "smollm", "tekken", "spm"] {
        let tokenizer = tokenizer(kind);
        for pattern in patterns {
            let text = pattern.repeat((1 << 18) / pattern.len());
            let ids = tokenizer.encode_text(&text);
            let bytes = ids.iter().map(|id| tokenizer.token_bytes(*id).len()).sum::<usize>();
            // Qwen's normalises to NFC, SentencePiece's adds a leading space.
            assert!(bytes == text.len() || kind == "qwen2" || bytes == text.len() + 1, "{kind}: {pattern:?}");
        }
    }
}

#[test]
fn no_token_stands_for_more_bytes_than_the_bound() {
    // Long tokens, and texts that NFC makes shorter or that SentencePiece's escapes resemble.
    let patterns = [
        " ",
        "\n",
        "=",
        "a",
        "-",
        "\u{2581}",
        "\u{1fbe}\u{308}\u{301}",
        "\u{212a}",
        "\u{1100}\u{1161}\u{11a8}",
        "a\u{301}\u{323}",
        "🙂",
        "\0",
        "\u{7f}",
        "漢",
    ];
    for kind in ["llama-bpe", "qwen2", "smollm", "tekken", "spm", "spm-marked"] {
        let tokenizer = tokenizer(kind);
        let bound = tokenizer.max_bytes_per_token();
        for pattern in patterns {
            for repeated in [1, 2, 16, 500, 4_000] {
                let text = pattern.repeat(repeated);
                let tokens = tokenizer.encode_text(&text).len();
                assert!(
                    tokens * bound >= text.len(),
                    "{kind}: {pattern:?} {repeated} times, {tokens} tokens"
                );
            }
        }
    }
}

fn engine(name: &str) -> CpuEngine {
    let options = LoadOptions { threads: Some(2), ..LoadOptions::default() };
    CpuEngine::load(&model(name), &options, Arc::new(SystemClock)).unwrap()
}

#[test]
fn prompts_equal_the_published_templates_tokenized_whole() {
    let rows: Vec<PromptRow> = rows(include_str!("../fixtures/architectures/model_prompts.jsonl"));
    assert_eq!(rows.len(), 2 * MODELS);
    for of_one in rows.chunk_by(|a, b| a.model == b.model) {
        let engine = engine(&of_one[0].model);
        for PromptRow { model, instructions, input, ids } in of_one {
            let prompt = engine.prepare(&Turn::from_instructions_and_input(instructions, input)).unwrap();
            assert_eq!(*prompt.token_ids(), **ids, "{model}: {input:?}");
            let alone = [instructions, input].map(|text| engine.tokenizer().encode_text(text).len() as u32);
            assert_eq!(prompt.input_tokens, alone.iter().sum::<u32>(), "{model}: {input:?}");
        }
    }
}

#[test]
fn context_beyond_the_supported_length_is_rejected_with_the_reason() {
    assert_eq!(engine("ministral-3").context_tokens(), MINISTRAL_CONTEXT);
    let options = LoadOptions { context_tokens: Some(MINISTRAL_CONTEXT + 1), ..LoadOptions::default() };
    let error = CpuEngine::load(&model("ministral-3"), &options, Arc::new(SystemClock)).unwrap_err();
    assert!(
        error.to_string().contains("attention temperature scaling beyond 192 is not supported"),
        "{error}"
    );
}

#[test]
fn vector_kernels_are_bit_identical_for_every_architecture() {
    for Reference { model: name, tokens, .. } in references() {
        let mut first: Option<Vec<Vec<f64>>> = None;
        for kernel in ["amx", "avx512", "avx2"] {
            match LogprobEvaluator::load_on(kernel, &model(&name), CONTEXT_TOKENS, 2) {
                Ok(mut evaluation) => {
                    let along = evaluation.extend_all(&tokens);
                    assert!(first.get_or_insert_with(|| along.clone()) == &along, "{name} on {kernel}");
                }
                Err(error) => assert!(error.to_string().contains("not supported by this CPU"), "{error}"),
            }
        }
    }
}

#[tokio::test]
async fn every_architecture_serves_jobs() {
    for Reference { model, .. } in references() {
        let engine = engine(&model);
        let job = Job {
            account: AccountId(1),
            prompt: engine.prepare(&Turn::from_instructions_and_input("Be terse.", "x")).unwrap(),
            max_output_tokens: 4,
            sampling: Sampling::GREEDY,
            stop: Vec::new(),
            stop_on_repetition: false,
            top_logprobs: None,
            needs_partial_text: true,
        };
        let mut generation = engine.start(job).unwrap();
        let ended = loop {
            if let Event::Finished(ended) = generation.next().await.unwrap() {
                break ended;
            }
        };
        assert!(ended.output_tokens <= 4, "{model}");
    }
}
