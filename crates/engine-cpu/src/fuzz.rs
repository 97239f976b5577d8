//! Fuzz targets of what a model file contains, and of texts that callers send. The target of chat templates is in `tests/it/fuzz.rs`.

use crate::detokenizer::Detokenizer;
use crate::error::ModelFileError;
use crate::gguf::writer::GgufWriter;
use crate::gguf::{Gguf, TensorType};
use crate::model::Hyperparameters;
use crate::tokenizer::Tokenizer;
use chancery_test_support::Fuzz;
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use unicode_normalization::UnicodeNormalization;

const CRATE_FOLDER: &str = env!("CARGO_MANIFEST_DIR");
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/architectures");

/// Memory that reading a file may take: a part for each of its bytes, and a fixed part. A string of no bytes takes 24 bytes of
/// memory and 8 of the file, and lookup tables have spare capacity.
const MAX_BYTES_PER_FILE_BYTE: u64 = 64;
const MAX_FIXED_BYTES: u64 = 4 << 20;

/// Returns the peak of the bytes that are allocated meanwhile. A panic ends the measurement before it goes on.
fn peak_bytes(run: impl FnOnce()) -> u64 {
    let mut outcome = Ok(());
    let allocations = allocation_counter::measure(|| outcome = catch_unwind(AssertUnwindSafe(run)));
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
    allocations.bytes_max
}

fn tokenizer(name: &str) -> Tokenizer {
    let bytes = std::fs::read(format!("{FIXTURES}/tokenizer-{name}.gguf")).unwrap();
    let len = bytes.len() as u64;
    Tokenizer::from_metadata(Gguf::read(Cursor::new(bytes), len).unwrap().metadata()).unwrap()
}

/// Reads everything that loading a model reads before the weights, and the tensors.
fn load(bytes: &[u8]) -> Result<(), ModelFileError> {
    let file_len = bytes.len() as u64;
    let mut file = Gguf::read(Cursor::new(bytes), file_len)?;
    let names: Vec<String> = file.tensor_names().map(str::to_owned).collect();
    let mut tensor_bytes = 0;
    for name in names {
        tensor_bytes += file.read_tensor(&name)?.len() as u64;
    }
    assert!(tensor_bytes <= file_len, "{tensor_bytes} bytes of tensors in a file of {file_len}");
    let tokenizer = Tokenizer::from_metadata(file.metadata())?;
    let ids = tokenizer.encode_text("A text, <|im_start|> of é and 7 words.");
    assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()), "{ids:?}");
    Hyperparameters::from_metadata(file.metadata(), tokenizer.vocab_size())?;
    Ok(())
}

#[test]
fn model_files() {
    let small = GgufWriter::new()
        .string("general.architecture", "llama")
        .u32("general.alignment", 32)
        .u32("llama.block_count", 1)
        .u32("llama.embedding_length", 32)
        .u32("llama.attention.head_count", 1)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .f32("llama.rope.freq_base", 10_000.0)
        .string("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &["<s>", "a", "ab", "<0x41>"])
        .i32s("tokenizer.ggml.token_type", &[3, 1, 1, 6])
        .f32s("tokenizer.ggml.scores", &[0.0, -1.0, 0.5, 0.0])
        .u32("tokenizer.ggml.eos_token_id", 0)
        .bool("tokenizer.ggml.add_bos_token", false)
        .tensor("token_embd.weight", &[32, 3], TensorType::Q4_0, &[7; 54])
        .tensor("output_norm.weight", &[32], TensorType::F32, &[0; 128])
        .finish();
    let mut seeds: Vec<Vec<u8>> = ["smollm", "spm"]
        .map(|name| std::fs::read(format!("{FIXTURES}/tokenizer-{name}.gguf")).unwrap())
        .to_vec();
    // Most inputs come from the small file, where a mutation more often meets a count or a type.
    seeds.extend(vec![small; 4]);
    let tokens = &[
        "GGUF",
        "general.alignment",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.scores",
        "gpt2",
        "llama",
        "\u{2581}",
        "<0xFF>",
        "a b",
    ];
    Fuzz { name: "model_files", crate_folder: CRATE_FOLDER, seeds, tokens, iterations: 1_000 }.run(|bytes| {
        let peak = peak_bytes(|| drop(load(bytes)));
        let max = bytes.len() as u64 * MAX_BYTES_PER_FILE_BYTE + MAX_FIXED_BYTES;
        assert!(peak <= max, "a file of {} bytes took {peak} bytes of memory", bytes.len());
    });
}

#[test]
fn tokenized_texts() {
    let byte_level = ["llama-bpe", "smollm", "tekken"].map(tokenizer);
    let qwen = tokenizer("qwen2");
    let sentence_piece = tokenizer("spm");
    let seeds = [
        "The quick brown fox's 12345 jumps — over\r\n\tthe lazy dog!  ",
        "Ünïcödé 中文 العربية हिन्दी 👩‍👩‍👧‍👦 e\u{301}\u{212a}\u{390}",
        "<|im_start|>user\n<s></s>[INST] {{ messages }} <0x41>▁▁",
    ];
    let tokens = &[
        "'s",
        "'LL",
        "  ",
        "\n\n",
        "\u{a0}",
        "\u{2581}",
        "\u{301}",
        "\u{fdfa}",
        "\u{1100}\u{1161}",
        "<|im_end|>",
        "<0x0A>",
        "123",
        "ſ",
        "ß",
        "İ",
    ];
    let fuzz = Fuzz {
        name: "tokenized_texts",
        crate_folder: CRATE_FOLDER,
        seeds: seeds.map(|seed| seed.as_bytes().to_vec()).to_vec(),
        tokens,
        iterations: 1_000,
    };
    fuzz.run(|bytes| {
        let text = String::from_utf8_lossy(bytes);
        for tokenizer in &byte_level {
            check_text(tokenizer, &text, &text);
        }
        check_text(&qwen, &text, &text.nfc().collect::<String>());
        let spaced = if text.is_empty() { String::new() } else { format!(" {text}") };
        check_text(&sentence_piece, &text, &spaced.replace('\u{2581}', " "));
    });
}

/// The tokens decode to the text, at once and in a stream, and are no more than the text's bytes allow.
fn check_text(tokenizer: &Tokenizer, text: &str, expected: &str) {
    let ids = tokenizer.encode_text(text);
    let decoded: Vec<u8> = ids.iter().flat_map(|id| tokenizer.token_bytes(*id)).copied().collect();
    assert_eq!(String::from_utf8_lossy(&decoded), expected);
    assert!(ids.iter().all(|id| !tokenizer.token_bytes(*id).is_empty()), "no text is a control token");
    assert!(text.len() <= ids.len() * tokenizer.max_bytes_per_token());

    let stop: String = expected.chars().skip(expected.chars().count() / 2).take(3).collect();
    let stops = if stop.is_empty() { Vec::new() } else { vec![stop] };
    let mut detokenizer = Detokenizer::new(&stops);
    let mut streamed = String::new();
    let is_stopped = ids.iter().any(|id| {
        let emitted = detokenizer.push(tokenizer.token_bytes(*id));
        streamed.push_str(emitted.text);
        emitted.stopped
    });
    assert_eq!(is_stopped, !stops.is_empty());
    let end = stops.first().map_or(expected.len(), |stop| expected.find(stop.as_str()).unwrap());
    assert_eq!(streamed, expected[..end]);
}
