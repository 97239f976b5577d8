//! What the file says of the model's shape, every number checked.

use super::architecture::{Architecture, Keys, TEMPERATURE_SCALE};
use super::rotation::Rotation;
use crate::error::Fault;
use crate::gguf::Metadata;
use crate::kernels::KvShape;
use crate::kernels::{AttentionShape, MAX_HEAD_LEN};
use crate::limits::{MAX_CONTEXT_TOKENS, MAX_HEADS, MAX_LAYERS, MAX_VOCABULARY, MAX_WIDTH};

/// Widths are whole vectors of this many values.
const WIDTH_UNIT: usize = 16;

#[derive(Clone, Debug)]
pub struct HyperParameters {
    pub name: String,
    pub architecture: Architecture,
    pub context_tokens: usize,
    /// Why it is not longer.
    pub context_reason: String,
    pub width: usize,
    pub layers: usize,
    pub feed_forward: usize,
    pub attention: AttentionShape,
    pub norm_epsilon: f32,
    /// The angle by which each pair of a head turns from one position to the next.
    pub rope_frequencies: Vec<f64>,
    /// What rotated values are multiplied by besides.
    pub rope_magnitude: f64,
    pub vocabulary: usize,
}

impl HyperParameters {
    pub fn kv_shape(&self) -> KvShape {
        KvShape { layers: self.layers, kv_heads: self.attention.kv_heads, head_len: self.attention.head_len }
    }

    pub fn from_metadata(metadata: &Metadata, vocabulary: usize) -> Result<Self, Fault> {
        let architecture = Architecture::from_metadata(metadata)?;
        let keys = Keys { metadata, architecture };
        refuse_other_arithmetic(keys)?;
        let width = whole_vectors("the embedding's length", keys.size("embedding_length", MAX_WIDTH)?)?;
        let attention = attention_shape(keys, width)?;
        let head_len = attention.head_len;
        let rotated = keys.size_or("rope.dimension_count", head_len, head_len)?;
        if !rotated.is_multiple_of(2) {
            let key = keys.full("rope.dimension_count");
            return Err(Fault::malformed(format!("`{key}` is {rotated}, an odd number")));
        }
        let norm_epsilon = metadata.f32(&keys.full("attention.layer_norm_rms_epsilon"))?;
        if norm_epsilon < 0.0 {
            return Err(Fault::malformed(format!("the norms' epsilon is {norm_epsilon}")));
        }
        if vocabulary > MAX_VOCABULARY
            || keys.size_or("vocab_size", MAX_VOCABULARY, vocabulary)? != vocabulary
        {
            let key = keys.full("vocab_size");
            return Err(Fault::malformed(format!("`{key}` is not the vocabulary's {vocabulary}")));
        }
        let made_for = keys.size("context_length", usize::MAX)?;
        let (context_tokens, context_reason) = context(keys, made_for)?;
        let Rotation { frequencies, magnitude } = Rotation::read(keys, rotated, made_for)?;
        Ok(Self {
            name: metadata.optional("general.name", Metadata::string)?.unwrap_or("unnamed").to_owned(),
            architecture,
            context_tokens,
            context_reason,
            width,
            layers: keys.size("block_count", MAX_LAYERS)?,
            feed_forward: whole_vectors(
                "the feed-forward length",
                keys.size("feed_forward_length", MAX_WIDTH)?,
            )?,
            attention,
            norm_epsilon,
            rope_frequencies: frequencies,
            rope_magnitude: magnitude,
            vocabulary,
        })
    }
}

/// Refuses the keys whose value asks for what the forward pass does not do.
fn refuse_other_arithmetic(keys: Keys<'_>) -> Result<(), Fault> {
    for key in ["expert_count", "expert_used_count"] {
        let experts = keys.count(key)?;
        if experts > 0 {
            let key = keys.full(key);
            return Err(Fault::unsupported(format!("it is a mixture of experts (`{key}` is {experts})")));
        }
    }
    let files = keys.metadata.optional("split.count", Metadata::u64)?.unwrap_or(0);
    if files > 1 {
        return Err(Fault::unsupported(format!("it is one of several files (`split.count` is {files})")));
    }
    let causal = keys.full("attention.causal");
    if !keys.metadata.optional(&causal, Metadata::bool)?.unwrap_or(true) {
        return Err(Fault::unsupported(format!("its tokens see later ones (`{causal}` is false)")));
    }
    Ok(())
}

fn attention_shape(keys: Keys<'_>, width: usize) -> Result<AttentionShape, Fault> {
    let heads = keys.size("attention.head_count", MAX_HEADS)?;
    let kv_heads = keys.size_or("attention.head_count_kv", MAX_HEADS, heads)?;
    if !heads.is_multiple_of(kv_heads) {
        return Err(Fault::malformed(format!("{heads} heads cannot share {kv_heads} key-value heads")));
    }
    let head_len = keys.size_or("attention.key_length", MAX_HEAD_LEN, width / heads)?;
    if keys.size_or("attention.value_length", MAX_HEAD_LEN, head_len)? != head_len {
        return Err(Fault::unsupported("its keys and values differ in length"));
    }
    whole_vectors("the heads' length", head_len)?;
    if !(WIDTH_UNIT..=MAX_HEAD_LEN).contains(&head_len) {
        return Err(Fault::unsupported(format!("its heads have {head_len} values")));
    }
    Ok(AttentionShape { heads, kv_heads, head_len })
}

/// The longest context in which this forward pass is the model's own, and why it is not longer. Where a model attends
/// to a window, or treats late positions otherwise, it does so only beyond a length; up to there nothing differs.
fn context(keys: Keys<'_>, made_for: usize) -> Result<(usize, String), Fault> {
    let mut context = (made_for.min(MAX_CONTEXT_TOKENS), format!("the model was made for {made_for}"));
    let mut shorten = |tokens: usize, reason: String| {
        if tokens < context.0 {
            context = (tokens, reason);
        }
    };
    if keys.count("attention.sliding_window")? > 0 {
        let window = keys.size("attention.sliding_window", usize::MAX)?;
        shorten(window, format!("this engine runs the model within its attention's window of {window}"));
    }
    if keys.number(TEMPERATURE_SCALE)?.is_some_and(|scale| scale != 0.0) {
        let first = keys.size_or("rope.scaling.original_context_length", usize::MAX, made_for)?;
        shorten(first, format!("beyond {first} the model scales its attention, which this engine does not"));
    }
    Ok(context)
}

fn whole_vectors(what: &str, value: usize) -> Result<usize, Fault> {
    if value.is_multiple_of(WIDTH_UNIT) {
        Ok(value)
    } else {
        Err(Fault::unsupported(format!("{what} is {value}, not a multiple of {WIDTH_UNIT}")))
    }
}
