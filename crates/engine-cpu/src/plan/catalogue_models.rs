//! Plans for the shapes of the models that `chancery model pull` offers. The files have real headers and tensor tables, and
//! holes in place of the weights, so they take no disk space.

use super::*;
use crate::gguf::TensorType;
use crate::gguf::writer::GgufWriter;
use std::fs::File;
use std::io::Write as _;

const GB: u64 = 1_000_000_000;
/// The repacked form has one byte per weight, and for every 192 weights of a column a scale and a sum.
const MAX_BYTES_PER_WEIGHT: f64 = 1.06;
const TENSOR_ALIGNMENT: u64 = 32;

struct Shape {
    architecture: &'static str,
    layers: u32,
    hidden_size: u32,
    heads: u32,
    kv_heads: u32,
    feed_forward: u32,
    vocab: usize,
    merges: usize,
    context: u32,
    matrices: TensorType,
    embedding: TensorType,
    /// Whether the file has an output matrix of its own, beside the embedding.
    has_output: bool,
}

const SMOLLM2_135M: Shape = Shape {
    architecture: "llama",
    layers: 30,
    hidden_size: 576,
    heads: 9,
    kv_heads: 3,
    feed_forward: 1_536,
    vocab: 49_152,
    merges: 48_900,
    context: 8_192,
    matrices: TensorType::Q4_1,
    embedding: TensorType::Q8_0,
    has_output: false,
};

/// Rows of 896 values are no whole K-quant blocks, so the file has other types in their place.
const QWEN_0_5B: Shape = Shape {
    architecture: "qwen2",
    layers: 24,
    hidden_size: 896,
    heads: 14,
    kv_heads: 2,
    feed_forward: 4_864,
    vocab: 151_936,
    merges: 151_387,
    context: 32_768,
    matrices: TensorType::Q5_0,
    embedding: TensorType::Q8_0,
    has_output: true,
};

const QWEN_1_5B: Shape = Shape {
    architecture: "qwen2",
    layers: 28,
    hidden_size: 1_536,
    heads: 12,
    kv_heads: 2,
    feed_forward: 8_960,
    vocab: 151_936,
    merges: 151_387,
    context: 32_768,
    matrices: TensorType::Q4K,
    embedding: TensorType::Q6K,
    has_output: true,
};

impl Shape {
    fn head_dim(&self) -> u64 {
        u64::from(self.hidden_size / self.heads)
    }

    /// Bytes of keys and values of one token: two for each number, and a scale of four for each head.
    fn kv_token_bytes(&self) -> u64 {
        u64::from(self.layers) * u64::from(self.kv_heads) * (self.head_dim() * 2 + 4) * 2
    }

    /// Inputs and columns of every matrix except the embedding.
    fn matrices(&self) -> Vec<(String, [u64; 2])> {
        let (hidden, feed_forward) = (u64::from(self.hidden_size), u64::from(self.feed_forward));
        let kv_width = u64::from(self.kv_heads) * self.head_dim();
        let of_layer = |layer: u32| {
            [
                ("attn_q", [hidden, hidden]),
                ("attn_k", [hidden, kv_width]),
                ("attn_v", [hidden, kv_width]),
                ("attn_output", [hidden, hidden]),
                ("ffn_gate", [hidden, feed_forward]),
                ("ffn_up", [hidden, feed_forward]),
                ("ffn_down", [feed_forward, hidden]),
            ]
            .map(|(name, dimensions)| (format!("blk.{layer}.{name}.weight"), dimensions))
        };
        let output = self.has_output.then(|| ("output.weight".to_owned(), [hidden, self.vocab as u64]));
        (0..self.layers).flat_map(of_layer).chain(output).collect()
    }

    fn matrix_weights(&self) -> u64 {
        let of_matrices: u64 = self.matrices().iter().map(|(_, [inputs, columns])| inputs * columns).sum();
        // Without an output matrix, one is made from the embedding.
        let of_output = if self.has_output { 0 } else { u64::from(self.hidden_size) * self.vocab as u64 };
        of_matrices + of_output
    }

    fn embedding_bytes(&self) -> u64 {
        tensor_bytes(self.embedding, [u64::from(self.hidden_size), self.vocab as u64])
    }

    fn write(&self, path: &Path) {
        let key = |name: &str| format!("{}.{name}", self.architecture);
        let mut writer = GgufWriter::new()
            .string("general.architecture", self.architecture)
            .string("general.name", "A model of the catalogue")
            .u32(&key("block_count"), self.layers)
            .u32(&key("context_length"), self.context)
            .u32(&key("embedding_length"), self.hidden_size)
            .u32(&key("feed_forward_length"), self.feed_forward)
            .u32(&key("attention.head_count"), self.heads)
            .u32(&key("attention.head_count_kv"), self.kv_heads)
            .f32(&key("attention.layer_norm_rms_epsilon"), 1e-6)
            .strings("tokenizer.ggml.tokens", &vec!["a"; self.vocab])
            .strings("tokenizer.ggml.merges", &vec!["a b"; self.merges]);
        let embedding = ("token_embd.weight".to_owned(), [u64::from(self.hidden_size), self.vocab as u64]);
        let mut offset = 0;
        for (name, dimensions) in self.matrices().into_iter().chain([embedding]) {
            let kind = if name == "token_embd.weight" { self.embedding } else { self.matrices };
            writer = writer.tensor_at(&name, &dimensions, kind, offset, &[]);
            offset += tensor_bytes(kind, dimensions).next_multiple_of(TENSOR_ALIGNMENT);
        }
        let header = writer.finish();
        let mut file = File::create(path).unwrap();
        file.write_all(&header).unwrap();
        file.set_len(header.len() as u64 + offset).unwrap();
    }
}

fn tensor_bytes(kind: TensorType, [inputs, columns]: [u64; 2]) -> u64 {
    inputs * columns / kind.block_len() as u64 * kind.block_bytes() as u64
}

fn fit(shapes: &[(&str, &Shape)], bytes: u64) -> Result<Vec<Plan>, LoadError> {
    let folder = tempfile::tempdir().unwrap();
    let models: Vec<(PathBuf, LoadOptions)> = shapes
        .iter()
        .map(|(name, shape)| {
            let path = folder.path().join(name);
            shape.write(&path);
            (path, LoadOptions { name: (*name).to_owned(), ..LoadOptions::default() })
        })
        .collect();
    Plan::fit(&models, Some(AvailableMemory { bytes, bound: MemoryBound::Machine }))
}

fn one(name: &str, shape: &Shape, bytes: u64) -> Plan {
    fit(&[(name, shape)], bytes).unwrap().remove(0)
}

#[test]
fn larger_models_get_their_whole_context_and_all_slots_with_enough_memory() {
    for (name, shape) in [("qwen2.5-coder-0.5b", &QWEN_0_5B), ("qwen2.5-coder-1.5b", &QWEN_1_5B)] {
        let plan = one(name, shape, 16 * GB);
        assert_eq!((plan.context_tokens(), plan.slots()), (32_768, DEFAULT_SLOTS), "{plan}");
    }
}

#[test]
fn weights_are_estimated_at_about_one_byte_each_plus_the_embedding() {
    for shape in [&SMOLLM2_135M, &QWEN_0_5B, &QWEN_1_5B] {
        let plan = one("m", shape, 16 * GB);
        let matrices = plan.memory_estimate().weights_bytes - shape.embedding_bytes();
        let bytes_per_weight = matrices as f64 / shape.matrix_weights() as f64;
        assert!((0.5..MAX_BYTES_PER_WEIGHT).contains(&bytes_per_weight), "{bytes_per_weight}: {plan}");
    }
}

/// A model of 0.5B parameters runs beside a desktop's other programs, and one of 1.5B on a machine of 4 GB.
#[test]
fn minimum_memory_of_the_larger_models_is_modest() {
    let half = one("qwen2.5-coder-0.5b", &QWEN_0_5B, 2 * GB);
    assert!(half.context_tokens() >= 8_192, "{half}");
    let larger = one("qwen2.5-coder-1.5b", &QWEN_1_5B, 4 * GB);
    assert!(larger.context_tokens() >= 8_192, "{larger}");
    assert!(fit(&[("qwen2.5-coder-1.5b", &QWEN_1_5B)], GB).is_err());
}

#[test]
fn kv_cache_counts_key_and_value_heads_only() {
    for (shape, token_bytes) in [(&QWEN_0_5B, 12_672), (&QWEN_1_5B, 29_120)] {
        assert_eq!(shape.kv_token_bytes(), token_bytes);
        let plan = one("m", shape, 16 * GB);
        let pages = (plan.worker_limits.pages + SHORT_POOL_PAGES) as u64;
        assert_eq!(plan.memory_estimate().kv_bytes, pages * PAGE_TOKENS as u64 * token_bytes);
        assert!(plan.worker_limits.pages >= pages_for(plan.worker_limits.context_tokens));
    }
}

/// With a vocabulary of 151,936 tokens, logits of every row are the largest scratch buffer.
#[test]
fn scratch_buffers_cover_logits_of_a_large_vocabulary() {
    for shape in [&QWEN_0_5B, &QWEN_1_5B] {
        let activation_bytes = one("m", shape, 16 * GB).memory_estimate().activation_bytes;
        let logits_bytes = (MAX_DRAFT_ROWS * shape.vocab * size_of::<f32>()) as u64;
        assert!((logits_bytes..8 * logits_bytes).contains(&activation_bytes), "{activation_bytes}");
    }
}

#[test]
fn first_model_and_drafting_model_fit_together_in_four_gigabytes() {
    let models = [("smollm2-135m", &SMOLLM2_135M), ("qwen2.5-coder-0.5b", &QWEN_0_5B)];
    let plans = fit(&models, 4 * GB).unwrap();
    for plan in &plans {
        assert!(plan.context_tokens() >= 8_192 && plan.slots() >= 4, "{plan}");
    }
    let total: u64 = plans.iter().map(|plan| plan.memory_estimate().total_bytes()).sum();
    assert!(total <= 4 * GB / MEMORY_RESERVE_DIVISOR * (MEMORY_RESERVE_DIVISOR - 1), "{total}");
}

#[test]
fn model_that_does_not_fit_is_rejected_with_its_parts() {
    let models = [("smollm2-135m", &SMOLLM2_135M), ("qwen2.5-coder-1.5b", &QWEN_1_5B)];
    let text = fit(&models, 2 * GB).unwrap_err().to_string();
    for part in ["qwen2.5-coder-1.5b needs", "weights", "KV cache", "serve fewer or smaller models"] {
        assert!(text.contains(part), "{text}");
    }
}
