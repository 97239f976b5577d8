//! Models of a few kilobytes: valid, invalid and corrupted.

use super::architecture::Architecture;
use super::*;
use crate::chat_template::ChatTemplate;
use crate::forward::{BatchEntry, Forward, ForwardModel};
use crate::gguf::TensorType;
use crate::gguf::writer::GgufWriter;
use crate::kernels::Kernels;
use crate::paging::{PageAllocator, PagePool};
use crate::tokenizer::Tokenizer;
use chancery_engine::Turn;
use proptest::prelude::*;
use std::io::Cursor;

const WIDTH: u64 = 32;
const FEED_FORWARD: u64 = 64;
const VOCABULARY: u64 = 28;

fn keys(architecture: &str) -> GgufWriter {
    let own = |key: &str| format!("{architecture}.{key}");
    let mut tokens = vec!["<end>".to_owned(), "Ċ".to_owned()];
    tokens.extend(('a'..='z').map(String::from));
    let mut types = [1; VOCABULARY as usize];
    types[0] = 3;
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    GgufWriter::new()
        .string("general.architecture", architecture)
        .u32(&own("block_count"), 1)
        .u32(&own("context_length"), 128)
        .u32(&own("embedding_length"), WIDTH as u32)
        .u32(&own("feed_forward_length"), FEED_FORWARD as u32)
        .u32(&own("attention.head_count"), 2)
        .u32(&own("attention.head_count_kv"), 1)
        .f32(&own("attention.layer_norm_rms_epsilon"), 1e-5)
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.tokens", &tokens)
        .strings("tokenizer.ggml.merges", &[])
        .i32s("tokenizer.ggml.token_type", &types)
        .u32("tokenizer.ggml.eos_token_id", 0)
        .string("tokenizer.chat_template", "{% for m in messages %}{{ m.role }}\n{{ m.content }}{% endfor %}")
}

const COMMON_WEIGHTS: [(&str, &[u64], TensorType); 12] = [
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
const BIASES: [(&str, &[u64], TensorType); 3] = [
    ("blk.0.attn_q.bias", &[32], TensorType::F32),
    ("blk.0.attn_k.bias", &[16], TensorType::F32),
    ("blk.0.attn_v.bias", &[16], TensorType::F32),
];
const HEAD_NORMS: [(&str, &[u64], TensorType); 2] = [
    ("blk.0.attn_q_norm.weight", &[16], TensorType::F32),
    ("blk.0.attn_k_norm.weight", &[16], TensorType::F32),
];

/// Adds tensors in several formats, except `skip`.
fn with_tensors(mut writer: GgufWriter, tensors: &[(&str, &[u64], TensorType)], skip: &str) -> GgufWriter {
    for (name, shape, kind) in tensors.iter().filter(|(name, ..)| *name != skip) {
        let values: u64 = shape.iter().product();
        let blocks = values as usize / kind.block_len();
        // Bytes of 0x3c are small finite numbers in every format.
        writer = writer.tensor(name, shape, *kind, &vec![0x3c; blocks * kind.block_bytes()]);
    }
    writer
}

fn with_weights(writer: GgufWriter, skip: &str) -> GgufWriter {
    with_tensors(writer, &COMMON_WEIGHTS, skip)
}

/// A valid file of each architecture.
fn valid_model(architecture: Architecture) -> Vec<u8> {
    let writer = with_weights(keys(architecture.name()), "");
    match architecture {
        Architecture::Llama | Architecture::Mistral3 => writer,
        Architecture::Qwen2 => with_tensors(writer, &BIASES, ""),
        Architecture::Qwen3 => with_tensors(writer, &HEAD_NORMS, ""),
    }
    .finish()
}

fn load(bytes: Vec<u8>) -> Result<(Tokenizer, ChatTemplate, Model), ModelFileError> {
    let len = bytes.len() as u64;
    let mut file = Gguf::read(Cursor::new(bytes), len)?;
    let tokenizer = Tokenizer::from_metadata(file.metadata())?;
    let template = ChatTemplate::from_metadata(file.metadata(), &tokenizer)?;
    let kernels = Kernels::start(1).unwrap();
    let model = Model::from_gguf(&mut file, tokenizer.vocab_size(), &kernels)?;
    Ok((tokenizer, template, model))
}

fn rejection(bytes: Vec<u8>) -> String {
    load(bytes).expect_err("refused").to_string()
}

/// Runs one step; returns the number of logits.
fn step(model: Model, tokens: &[u32]) -> usize {
    let kernels = Kernels::start(1).unwrap();
    let cache = kernels.kv_cache(model.hyperparameters.kv_shape(), 2).unwrap();
    let mut allocator = PageAllocator::new(2, 0);
    let mut pages = allocator.reserve(2, PagePool::General).unwrap();
    allocator.grow(&mut pages, tokens.len());
    let mut forward = Forward::new(model, kernels, cache);
    let entry = BatchEntry { tokens, first_position: 0, pages: pages.pages(), logits_rows: 1 };
    forward.step(&[entry]).rows().map(<[f32]>::len).sum()
}

#[test]
fn small_model_of_each_architecture_loads_and_runs_a_step() {
    for architecture in Architecture::ALL {
        let (tokenizer, template, model) = load(valid_model(architecture)).unwrap();
        let prompt =
            template.render(&tokenizer, &Turn::from_instructions_and_input("abc", "xyz")).unwrap().token_ids;
        assert_eq!(model.hyperparameters.architecture, architecture);
        assert_eq!(model.hyperparameters.attention.head_dim, 16);
        assert_eq!(step(model, &prompt), VOCABULARY as usize);
    }
}

#[test]
fn unsupported_architecture_is_rejected_by_name_with_a_hint() {
    let others = ["gemma3", "phi3", "qwen2moe", "qwen3moe", "qwen3next", "mistral4", "llama4", "gpt-oss"];
    for other in others {
        let message = rejection(with_weights(keys(other), "").finish());
        assert!(message.contains(&format!("`{other}`")), "{message}");
        assert!(message.contains("`engine = \"upstream\"`"), "{message}");
    }
}

#[test]
fn unsupported_metadata_key_is_rejected_by_name() {
    let llama = || keys("llama");
    let rejected = [
        (llama().f32("llama.logit_scale", 2.0), "llama.logit_scale"),
        (llama().f32("llama.final_logit_softcapping", 30.0), "llama.final_logit_softcapping"),
        (llama().f32("llama.attention.scale", 0.1), "llama.attention.scale"),
        (llama().f32("llama.attention.temperature_scale", 0.1), "llama.attention.temperature_scale"),
        (llama().f32("llama.rope.scaling.yarn_ext_factor", 1.0), "llama.rope.scaling.yarn_ext_factor"),
        (llama().u32("llama.attention.sliding_window_pattern", 4), "llama.attention.sliding_window_pattern"),
        (keys("qwen2").u32("qwen2.pooling_type", 3), "qwen2.pooling_type"),
        (keys("qwen3").i32s("qwen3.rope.dimension_sections", &[1, 2]), "qwen3.rope.dimension_sections"),
    ];
    for (writer, key) in rejected {
        let message = rejection(with_weights(writer, "").finish());
        assert!(message.contains(&format!("`{key}`")) && message.contains("upstream"), "{message}");
    }
}

#[test]
fn unsupported_metadata_value_is_rejected_by_name() {
    let rejected = [
        (keys("llama").u32("llama.expert_count", 8), "mixture of experts (`llama.expert_count` is 8)"),
        (keys("qwen3").u32("qwen3.expert_used_count", 2), "`qwen3.expert_used_count` is 2"),
        (keys("qwen2").bool("qwen2.attention.causal", false), "`qwen2.attention.causal` is false"),
        (keys("llama").string("llama.rope.scaling.type", "longrope"), "`longrope`"),
        (keys("llama").u32("llama.attention.value_length", 32), "key and value head dimensions differ"),
        (keys("llama").u32("split.count", 2), "`split.count` is 2"),
    ];
    for (writer, what) in rejected {
        let message = rejection(with_weights(writer, "").finish());
        assert!(message.contains(what) && message.contains("upstream"), "{message}");
    }
}

#[test]
fn per_layer_hyperparameters_are_rejected_by_name() {
    let pruned = GgufWriter::new()
        .string("general.architecture", "llama")
        .u32("llama.embedding_length", 32)
        .i32s("llama.attention.head_count", &[2, 1]);
    let bytes = pruned.finish();
    let len = bytes.len() as u64;
    let file = Gguf::read(Cursor::new(bytes), len).unwrap();
    let message = Hyperparameters::from_metadata(file.metadata(), 28).unwrap_err().to_string();
    assert!(message.contains("`llama.attention.head_count` varies by layer"), "{message}");
}

#[test]
fn unsupported_tensor_is_rejected_by_name() {
    let bias = &[("blk.0.attn_output.bias", [WIDTH].as_slice(), TensorType::F32)];
    for architecture in ["llama", "mistral3"] {
        let writer = with_weights(keys(architecture), "");
        assert!(rejection(with_tensors(writer, bias, "").finish()).contains("blk.0.attn_output.bias"));
        let writer = with_weights(keys(architecture), "");
        assert!(rejection(with_tensors(writer, &BIASES, "").finish()).contains("blk.0.attn_k.bias"));
    }
    let writer = with_tensors(with_weights(keys("qwen3"), ""), &HEAD_NORMS, "");
    assert!(rejection(with_tensors(writer, &BIASES, "").finish()).contains("blk.0.attn_k.bias"));
}

#[test]
fn missing_or_misshapen_tensor_is_rejected_by_name() {
    for name in ["token_embd.weight", "blk.0.ffn_up.weight", "output_norm.weight"] {
        assert!(rejection(with_weights(keys("llama"), name).finish()).contains(name));
    }
    for (name, ..) in BIASES {
        let writer = with_tensors(with_weights(keys("qwen2"), ""), &BIASES, name);
        assert!(rejection(writer.finish()).contains(name));
    }
    for (name, ..) in HEAD_NORMS {
        let writer = with_tensors(with_weights(keys("qwen3"), ""), &HEAD_NORMS, name);
        assert!(rejection(writer.finish()).contains(name));
    }
    let misshapen = with_weights(keys("llama"), "output_norm.weight")
        .tensor("output_norm.weight", &[16], TensorType::F32, &[0; 64])
        .finish();
    assert!(rejection(misshapen).contains("output_norm.weight"));
}

#[test]
fn context_is_limited_to_what_the_forward_pass_supports() {
    let context = |writer: GgufWriter| {
        let (_, _, model) = load(with_weights(writer, "").finish()).unwrap();
        (model.hyperparameters.context_tokens, model.hyperparameters.context_reason)
    };
    assert_eq!(context(keys("llama")), (128, "the model was trained for 128".to_owned()));
    assert_eq!(context(keys("llama").u32("llama.attention.sliding_window", 0)).0, 128);
    assert_eq!(context(keys("llama").u32("llama.attention.sliding_window", 4_096)).0, 128);
    let (tokens, reason) = context(keys("llama").u32("llama.attention.sliding_window", 48));
    assert!(tokens == 48 && reason.contains("window of 48"), "{reason}");
    let scaled = keys("mistral3")
        .f32("mistral3.attention.temperature_scale", 0.1)
        .u32("mistral3.rope.scaling.original_context_length", 64);
    let (tokens, reason) = context(scaled);
    assert!(tokens == 64 && reason.contains("beyond 64"), "{reason}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn corrupted_model_never_panics(
        architecture in proptest::sample::select(Architecture::ALL.as_slice()),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = valid_model(architecture);
        for (index, value) in flips {
            let index = index.index(bytes.len());
            bytes[index] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok((tokenizer, template, model)) = load(bytes) {
            let mut prompt = template.render(&tokenizer, &Turn::from_instructions_and_input("abc", "xyz")).unwrap().token_ids;
            prompt.truncate(64);
            if !prompt.is_empty() {
                step(model, &prompt);
            }
        }
    }
}
