//! The supported architectures and their differences. They share one forward pass with small variations; every other
//! architecture is rejected by name.

use crate::error::ModelFileError;
use crate::gguf::{Metadata, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2 and 3, Mistral, SmolLM2, and other models with the same arithmetic.
    Llama,
    /// Ministral 3 and Mistral Small 3: Llama's arithmetic, up to the original training context.
    Mistral3,
    /// Qwen2 and Qwen2.5: biases on queries, keys and values.
    Qwen2,
    /// Qwen3: RMSNorm on every query and key head.
    Qwen3,
}

/// Which two values of a head RoPE rotates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// The first with the second, the third with the fourth (interleaved).
    Interleaved,
    /// The first of the lower half with the first of the upper half (NeoX style).
    Neox,
}

/// Keys allowed for every architecture: they are either read or have no effect.
const COMMON_KEYS: [&str; 23] = [
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "vocab_size",
    "expert_count",
    "expert_used_count",
    "tensor_data_layout",
    "attention.causal",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_log_multiplier",
];
const YARN_KEYS: [&str; 2] = ["rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"];
pub(super) const TEMPERATURE_SCALE: &str = "attention.temperature_scale";

impl Architecture {
    pub const ALL: [Self; 4] = [Self::Llama, Self::Mistral3, Self::Qwen2, Self::Qwen3];

    /// The value of `general.architecture` in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral3 => "mistral3",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// Rejects unknown architectures, and unknown keys of known ones.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, ModelFileError> {
        let name = metadata.string("general.architecture")?;
        let architecture = Self::ALL.into_iter().find(|known| known.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(|known| format!("`{}`", known.name())).join(", ");
            ModelFileError::unsupported(format!("architecture `{name}`; supported: {known}"))
        })?;
        let unknown = metadata.keys().filter(|key| {
            let own = key.strip_prefix(name).and_then(|rest| rest.strip_prefix('.'));
            own.is_some_and(|key| !architecture.supports_key(key))
        });
        match unknown.min() {
            None => Ok(architecture),
            Some(key) => Err(ModelFileError::unsupported(format!("unknown metadata key `{key}`"))),
        }
    }

    fn supports_key(self, key: &str) -> bool {
        COMMON_KEYS.contains(&key)
            || YARN_KEYS.contains(&key)
            || self == Self::Mistral3 && key == TEMPERATURE_SCALE
    }

    /// Converters interleave Llama's pairs and leave those of the others in halves.
    pub fn rope_layout(self) -> RopeLayout {
        match self {
            Self::Llama | Self::Mistral3 => RopeLayout::Interleaved,
            Self::Qwen2 | Self::Qwen3 => RopeLayout::Neox,
        }
    }

    /// Whether the query, key and value projections have biases.
    pub fn has_qkv_bias(self) -> bool {
        self == Self::Qwen2
    }

    /// Whether query and key heads are normalised.
    pub fn has_qk_norm(self) -> bool {
        self == Self::Qwen3
    }
}

/// The keys of one architecture, all prefixed with its name.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) architecture: Architecture,
}

impl<'a> Keys<'a> {
    pub(super) fn full(self, key: &str) -> String {
        format!("{}.{key}", self.architecture.name())
    }

    /// Reads a number between 1 and `limit`.
    pub(super) fn size(self, key: &str, limit: usize) -> Result<usize, ModelFileError> {
        let key = self.full(key);
        if let Some(Value::Array(_)) = self.metadata.get(&key) {
            return Err(ModelFileError::unsupported(format!("metadata key `{key}` varies by layer")));
        }
        let value = self.metadata.u64(&key)?;
        usize::try_from(value)
            .ok()
            .filter(|value| (1..=limit).contains(value))
            .ok_or_else(|| ModelFileError::malformed(format!("`{key}` is {value}, expected 1 to {limit}")))
    }

    pub(super) fn size_or(self, key: &str, limit: usize, default: usize) -> Result<usize, ModelFileError> {
        if self.has(key) { self.size(key, limit) } else { Ok(default) }
    }

    /// Reads a count; 0 if the key is absent.
    pub(super) fn count(self, key: &str) -> Result<u64, ModelFileError> {
        Ok(self.metadata.optional(&self.full(key), Metadata::u64)?.unwrap_or(0))
    }

    pub(super) fn number(self, key: &str) -> Result<Option<f64>, ModelFileError> {
        Ok(self.metadata.optional(&self.full(key), Metadata::f32)?.map(f64::from))
    }

    pub(super) fn string(self, key: &str) -> Result<Option<&'a str>, ModelFileError> {
        self.metadata.optional(&self.full(key), Metadata::string)
    }

    pub(super) fn has(self, key: &str) -> bool {
        self.metadata.get(&self.full(key)).is_some()
    }
}
