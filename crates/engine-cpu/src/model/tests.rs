//! Models of a few kilobytes, sound, wrong and damaged.

use super::*;
use crate::chat_template::ChatTemplate;
use crate::forward::{Forward, Segment, StepModel};
use crate::gguf::TensorType;
use crate::gguf::writer::GgufWriter;
use crate::kernels::Kernels;
use crate::kernels::KvCache;
use crate::kv::{Lane, PageLedger};
use crate::tokenizer::Tokenizer;
use proptest::prelude::*;
use std::io::Cursor;

const WIDTH: u64 = 32;
const FEED_FORWARD: u64 = 64;
const VOCABULARY: u64 = 28;

fn keys() -> GgufWriter {
    let mut tokens = vec!["<end>".to_owned(), "Ċ".to_owned()];
    tokens.extend(('a'..='z').map(String::from));
    let mut types = [1; VOCABULARY as usize];
    types[0] = 3;
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    GgufWriter::new()
        .u32("llama.block_count", 1)
        .u32("llama.context_length", 128)
        .u32("llama.embedding_length", WIDTH as u32)
        .u32("llama.feed_forward_length", FEED_FORWARD as u32)
        .u32("llama.attention.head_count", 2)
        .u32("llama.attention.head_count_kv", 1)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.tokens", &tokens)
        .strings("tokenizer.ggml.merges", &[])
        .i32s("tokenizer.ggml.token_type", &types)
        .u32("tokenizer.ggml.eos_token_id", 0)
        .string("tokenizer.chat_template", "{% for m in messages %}{{ m.role }}\n{{ m.content }}{% endfor %}")
}

/// The weights, in several formats; `skip` is left out.
fn with_weights(mut writer: GgufWriter, skip: &str) -> GgufWriter {
    let shapes: [(&str, &[u64], TensorType); 12] = [
        ("token_embd.weight", &[WIDTH, VOCABULARY], TensorType::Q8_0),
        ("blk.0.attn_norm.weight", &[WIDTH], TensorType::F32),
        ("blk.0.attn_q.weight", &[WIDTH, 32], TensorType::Q4_1),
        ("blk.0.attn_k.weight", &[WIDTH, 16], TensorType::Q4_0),
        ("blk.0.attn_v.weight", &[WIDTH, 16], TensorType::Q5_0),
        ("blk.0.attn_output.weight", &[32, WIDTH], TensorType::F16),
        ("blk.0.ffn_norm.weight", &[WIDTH], TensorType::F32),
        ("blk.0.ffn_gate.weight", &[WIDTH, FEED_FORWARD], TensorType::Q5_1),
        ("blk.0.ffn_up.weight", &[WIDTH, FEED_FORWARD], TensorType::Bf16),
        ("blk.0.ffn_down.weight", &[FEED_FORWARD, WIDTH], TensorType::Q4_1),
        ("output_norm.weight", &[WIDTH], TensorType::F32),
        ("rope_freqs.weight", &[8], TensorType::F32),
    ];
    for (name, shape, kind) in shapes.into_iter().filter(|(name, ..)| *name != skip) {
        let values: u64 = shape.iter().product();
        let blocks = values as usize / kind.block_len();
        // Bytes of 0x3c make small finite numbers in every format.
        writer = writer.tensor(name, shape, kind, &vec![0x3c; blocks * kind.block_bytes()]);
    }
    writer
}

fn sound() -> Vec<u8> {
    with_weights(keys().string("general.architecture", "llama"), "").finish()
}

fn load(bytes: Vec<u8>) -> Result<(Tokenizer, ChatTemplate, Model), Fault> {
    let len = bytes.len() as u64;
    let mut file = Gguf::read(Cursor::new(bytes), len)?;
    let tokenizer = Tokenizer::from_metadata(file.metadata())?;
    let template = ChatTemplate::from_metadata(file.metadata(), &tokenizer)?;
    let kernels = Kernels::start(1).unwrap();
    let model = Model::from_gguf(&mut file, tokenizer.vocabulary_len(), &kernels)?;
    Ok((tokenizer, template, model))
}

fn refusal(bytes: Vec<u8>) -> String {
    load(bytes).expect_err("refused").to_string()
}

/// Runs one step; returns how many logits came out.
fn step(model: Model, tokens: &[u32]) -> usize {
    let cache = KvCache::new(model.hyper_parameters.kv_shape(), 2).unwrap();
    let mut ledger = PageLedger::new(2, 0);
    let mut pages = ledger.promise(2, Lane::Any).unwrap();
    ledger.grow(&mut pages, tokens.len());
    let mut forward = Forward::new(model, Kernels::start(1).unwrap(), cache);
    let segment = Segment { tokens, first_position: 0, pages: pages.pages(), logits_rows: 1 };
    forward.step(&[segment]).rows().map(<[f32]>::len).sum()
}

#[test]
fn a_small_model_in_many_formats_loads_and_steps() {
    let (tokenizer, template, model) = load(sound()).unwrap();
    let prompt = template.render(&tokenizer, "abc", "xyz").token_ids;
    assert_eq!(model.hyper_parameters.attention.head_len, 16);
    assert_eq!(step(model, &prompt), VOCABULARY as usize);
}

#[test]
fn what_the_forward_pass_would_not_honour_is_refused_by_name() {
    let llama = || keys().string("general.architecture", "llama");
    let other = with_weights(keys().string("general.architecture", "gemma"), "").finish();
    let message = refusal(other);
    assert!(message.contains("`gemma`") && message.contains("upstream"), "{message}");
    let scaled = with_weights(llama().string("llama.rope.scaling.type", "yarn"), "").finish();
    assert!(refusal(scaled).contains("`yarn`"));
    let unknown_key = with_weights(llama().f32("llama.logit_scale", 2.0), "").finish();
    assert!(refusal(unknown_key).contains("llama.logit_scale"));
    let experts = with_weights(llama().u32("llama.expert_count", 8), "").finish();
    assert!(refusal(experts).contains("experts"));
    let biased =
        with_weights(llama(), "").tensor("blk.0.attn_q.bias", &[32], TensorType::F32, &[0; 128]).finish();
    assert!(refusal(biased).contains("blk.0.attn_q.bias"));
}

#[test]
fn a_missing_or_misshapen_tensor_is_refused_by_name() {
    let llama = || keys().string("general.architecture", "llama");
    for name in ["token_embd.weight", "blk.0.ffn_up.weight", "output_norm.weight"] {
        assert!(refusal(with_weights(llama(), name).finish()).contains(name));
    }
    let misshapen = with_weights(llama(), "output_norm.weight")
        .tensor("output_norm.weight", &[16], TensorType::F32, &[0; 64])
        .finish();
    assert!(refusal(misshapen).contains("output_norm.weight"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_damaged_model_is_refused_or_runs_but_never_panics(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = sound();
        for (index, value) in flips {
            let index = index.index(bytes.len());
            bytes[index] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok((tokenizer, template, model)) = load(bytes) {
            let mut prompt = template.render(&tokenizer, "abc", "xyz").token_ids;
            prompt.truncate(64);
            if !prompt.is_empty() {
                step(model, &prompt);
            }
        }
    }
}
