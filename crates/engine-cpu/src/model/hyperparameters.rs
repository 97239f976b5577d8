//! The model's shape as given in the file, with every number checked.

use super::architecture::{Architecture, Keys, TEMPERATURE_SCALE};
use super::rope::RopeScaling;
use crate::error::ModelFileError;
use crate::gguf::Metadata;
use crate::kernels::KvShape;
use crate::kernels::{AttentionShape, MAX_HEAD_DIM};
use crate::limits::{MAX_CONTEXT_TOKENS, MAX_HEADS, MAX_HIDDEN_SIZE, MAX_LAYERS, MAX_VOCAB_SIZE};

/// Widths must be multiples of this vector length.
const WIDTH_UNIT: usize = 16;

#[derive(Clone, Debug)]
pub struct Hyperparameters {
    pub name: String,
    pub architecture: Architecture,
    pub context_tokens: usize,
    /// Why the context is not longer.
    pub context_reason: String,
    pub hidden_size: usize,
    pub layers: usize,
    pub feed_forward: usize,
    pub attention: AttentionShape,
    pub norm_eps: f32,
    /// RoPE frequency of each pair: its rotation angle per position.
    pub rope_frequencies: Vec<f64>,
    /// Factor on rotated values (YaRN attention scaling).
    pub rope_attention_factor: f64,
    pub vocab_size: usize,
}

impl Hyperparameters {
    pub fn kv_shape(&self) -> KvShape {
        KvShape { layers: self.layers, kv_heads: self.attention.kv_heads, head_dim: self.attention.head_dim }
    }

    pub fn from_metadata(metadata: &Metadata, vocab_size: usize) -> Result<Self, ModelFileError> {
        let architecture = Architecture::from_metadata(metadata)?;
        let keys = Keys { metadata, architecture };
        ensure_supported_arithmetic(keys)?;
        let hidden_size =
            ensure_vector_multiple("embedding length", keys.size("embedding_length", MAX_HIDDEN_SIZE)?)?;
        let attention = attention_shape(keys, hidden_size)?;
        let head_dim = attention.head_dim;
        let rotary_dim = keys.size_or("rope.dimension_count", head_dim, head_dim)?;
        if !rotary_dim.is_multiple_of(2) {
            let key = keys.full("rope.dimension_count");
            return Err(ModelFileError::malformed(format!(
                "`{key}` is {rotary_dim}, expected an even number"
            )));
        }
        let norm_eps = metadata.f32(&keys.full("attention.layer_norm_rms_epsilon"))?;
        if norm_eps < 0.0 {
            return Err(ModelFileError::malformed(format!("RMSNorm epsilon is {norm_eps}")));
        }
        if vocab_size > MAX_VOCAB_SIZE
            || keys.size_or("vocab_size", MAX_VOCAB_SIZE, vocab_size)? != vocab_size
        {
            let key = keys.full("vocab_size");
            return Err(ModelFileError::malformed(format!(
                "`{key}` does not match the vocabulary size {vocab_size}"
            )));
        }
        let trained_context = keys.size("context_length", usize::MAX)?;
        let (context_tokens, context_reason) = context(keys, trained_context)?;
        let RopeScaling { frequencies, attention_factor } =
            RopeScaling::read(keys, rotary_dim, trained_context)?;
        Ok(Self {
            name: metadata.optional("general.name", Metadata::string)?.unwrap_or("unnamed").to_owned(),
            architecture,
            context_tokens,
            context_reason,
            hidden_size,
            layers: keys.size("block_count", MAX_LAYERS)?,
            feed_forward: ensure_vector_multiple(
                "feed-forward length",
                keys.size("feed_forward_length", MAX_HIDDEN_SIZE)?,
            )?,
            attention,
            norm_eps,
            rope_frequencies: frequencies,
            rope_attention_factor: attention_factor,
            vocab_size,
        })
    }
}

/// Rejects keys whose value needs arithmetic that the forward pass does not implement.
fn ensure_supported_arithmetic(keys: Keys<'_>) -> Result<(), ModelFileError> {
    for key in ["expert_count", "expert_used_count"] {
        let experts = keys.count(key)?;
        if experts > 0 {
            let key = keys.full(key);
            return Err(ModelFileError::unsupported(format!("mixture of experts (`{key}` is {experts})")));
        }
    }
    let files = keys.metadata.optional("split.count", Metadata::u64)?.unwrap_or(0);
    if files > 1 {
        return Err(ModelFileError::unsupported(format!("split file (`split.count` is {files})")));
    }
    let causal = keys.full("attention.causal");
    if !keys.metadata.optional(&causal, Metadata::bool)?.unwrap_or(true) {
        return Err(ModelFileError::unsupported(format!("non-causal attention (`{causal}` is false)")));
    }
    Ok(())
}

fn attention_shape(keys: Keys<'_>, hidden_size: usize) -> Result<AttentionShape, ModelFileError> {
    let heads = keys.size("attention.head_count", MAX_HEADS)?;
    let kv_heads = keys.size_or("attention.head_count_kv", MAX_HEADS, heads)?;
    if !heads.is_multiple_of(kv_heads) {
        return Err(ModelFileError::malformed(format!(
            "{heads} heads are not a multiple of {kv_heads} KV heads"
        )));
    }
    let head_dim = keys.size_or("attention.key_length", MAX_HEAD_DIM, hidden_size / heads)?;
    if keys.size_or("attention.value_length", MAX_HEAD_DIM, head_dim)? != head_dim {
        return Err(ModelFileError::unsupported("key and value head dimensions differ"));
    }
    ensure_vector_multiple("head dimension", head_dim)?;
    if !(WIDTH_UNIT..=MAX_HEAD_DIM).contains(&head_dim) {
        return Err(ModelFileError::unsupported(format!("head dimension {head_dim}")));
    }
    Ok(AttentionShape { heads, kv_heads, head_dim })
}

/// The longest context in which this forward pass matches the model, and why it is not longer. Sliding windows and
/// position-dependent scaling take effect only beyond a certain length; up to it, results are the same.
fn context(keys: Keys<'_>, trained_context: usize) -> Result<(usize, String), ModelFileError> {
    let mut context =
        (trained_context.min(MAX_CONTEXT_TOKENS), format!("the model was trained for {trained_context}"));
    let mut shorten = |tokens: usize, reason: String| {
        if tokens < context.0 {
            context = (tokens, reason);
        }
    };
    if keys.count("attention.sliding_window")? > 0 {
        let window = keys.size("attention.sliding_window", usize::MAX)?;
        shorten(window, format!("limited to the sliding window of {window}"));
    }
    if keys.number(TEMPERATURE_SCALE)?.is_some_and(|scale| scale != 0.0) {
        let first = keys.size_or("rope.scaling.original_context_length", usize::MAX, trained_context)?;
        shorten(first, format!("attention temperature scaling beyond {first} is not supported"));
    }
    Ok(context)
}

fn ensure_vector_multiple(what: &str, value: usize) -> Result<usize, ModelFileError> {
    if value.is_multiple_of(WIDTH_UNIT) {
        Ok(value)
    } else {
        Err(ModelFileError::unsupported(format!("{what} is {value}, not a multiple of {WIDTH_UNIT}")))
    }
}
