//! The architectures this engine knows, and what tells them apart. They are one forward pass with small differences;
//! every other architecture is refused by its name.

use crate::error::Fault;
use crate::gguf::{Metadata, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2 and 3, Mistral, SmolLM2 and whatever else is the same arithmetic.
    Llama,
    /// Ministral 3 and Mistral Small 3: Llama's arithmetic, up to the context it was first trained for.
    Mistral3,
    /// Qwen2 and Qwen2.5: biases on queries, keys and values.
    Qwen2,
    /// Qwen3: every head of queries and keys is normalised.
    Qwen3,
}

/// Which two values of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// The first with the second, the third with the fourth.
    Neighbours,
    /// The first of the lower half with the first of the upper half.
    Halves,
}

/// Keys that every one of them may have: they are read, or they change nothing.
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

    /// The file's `general.architecture`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral3 => "mistral3",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// Refuses what is not known, the architecture and any of its keys alike.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, Fault> {
        let name = metadata.string("general.architecture")?;
        let architecture = Self::ALL.into_iter().find(|known| known.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(|known| format!("`{}`", known.name())).join(", ");
            Fault::unsupported(format!("its architecture is `{name}`, and this engine runs {known}"))
        })?;
        let unknown = metadata.keys().filter(|key| {
            let own = key.strip_prefix(name).and_then(|rest| rest.strip_prefix('.'));
            own.is_some_and(|key| !architecture.knows(key))
        });
        match unknown.min() {
            None => Ok(architecture),
            Some(key) => Err(Fault::unsupported(format!("its key `{key}` is not one this engine knows"))),
        }
    }

    fn knows(self, key: &str) -> bool {
        COMMON_KEYS.contains(&key)
            || YARN_KEYS.contains(&key)
            || self == Self::Mistral3 && key == TEMPERATURE_SCALE
    }

    /// Converters put Llama's pairs side by side; those of the others they leave as halves.
    pub fn pairing(self) -> Pairing {
        match self {
            Self::Llama | Self::Mistral3 => Pairing::Neighbours,
            Self::Qwen2 | Self::Qwen3 => Pairing::Halves,
        }
    }

    /// Whether something is added to the products that make queries, keys and values.
    pub fn has_biases(self) -> bool {
        self == Self::Qwen2
    }

    /// Whether the heads of queries and keys are normalised.
    pub fn has_head_norms(self) -> bool {
        self == Self::Qwen3
    }
}

/// The keys of one architecture, which all begin with its name.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) architecture: Architecture,
}

impl<'a> Keys<'a> {
    pub(super) fn full(self, key: &str) -> String {
        format!("{}.{key}", self.architecture.name())
    }

    /// A number between 1 and `limit`.
    pub(super) fn size(self, key: &str, limit: usize) -> Result<usize, Fault> {
        let key = self.full(key);
        if let Some(Value::Array(_)) = self.metadata.get(&key) {
            return Err(Fault::unsupported(format!("its key `{key}` differs from layer to layer")));
        }
        let value = self.metadata.u64(&key)?;
        usize::try_from(value)
            .ok()
            .filter(|value| (1..=limit).contains(value))
            .ok_or_else(|| Fault::malformed(format!("`{key}` is {value}, not between 1 and {limit}")))
    }

    pub(super) fn size_or(self, key: &str, limit: usize, default: usize) -> Result<usize, Fault> {
        if self.has(key) { self.size(key, limit) } else { Ok(default) }
    }

    /// A count; none where the key is absent.
    pub(super) fn count(self, key: &str) -> Result<u64, Fault> {
        Ok(self.metadata.optional(&self.full(key), Metadata::u64)?.unwrap_or(0))
    }

    pub(super) fn number(self, key: &str) -> Result<Option<f64>, Fault> {
        Ok(self.metadata.optional(&self.full(key), Metadata::f32)?.map(f64::from))
    }

    pub(super) fn string(self, key: &str) -> Result<Option<&'a str>, Fault> {
        self.metadata.optional(&self.full(key), Metadata::string)
    }

    pub(super) fn has(self, key: &str) -> bool {
        self.metadata.get(&self.full(key)).is_some()
    }
}
