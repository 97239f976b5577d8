//! A Llama model as the file describes it: its hyper-parameters and its weights, every one of them checked. What the
//! forward pass would not honour (another architecture, a scaling of positions, experts, biases) is refused by name.

use crate::error::Fault;
use crate::gguf::{Gguf, Metadata, TensorInfo, TensorType};
use crate::kernels::KvShape;
use crate::kernels::{AttentionShape, ColumnSource, Kernels, MAX_HEAD_LEN, Matrix};
use crate::limits::{MAX_CONTEXT_TOKENS, MAX_HEADS, MAX_LAYERS, MAX_VOCABULARY, MAX_WIDTH};
use crate::quantised;
use std::collections::HashSet;
use std::io::{Read, Seek};

const ARCHITECTURE: &str = "llama";
/// Widths are whole vectors of this many values.
const WIDTH_UNIT: usize = 16;
const DEFAULT_ROPE_BASE: f32 = 10_000.0;

/// Keys of the architecture that are read here, or that change nothing.
const KNOWN_KEYS: [&str; 14] = [
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scaling.type",
    "expert_count",
];

#[derive(Clone, Debug)]
pub struct HyperParameters {
    pub name: String,
    pub context_tokens: usize,
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
        let architecture = metadata.string("general.architecture")?;
        if architecture != ARCHITECTURE {
            return Err(Fault::unsupported(format!(
                "its architecture is `{architecture}`, and this engine runs `{ARCHITECTURE}`"
            )));
        }
        for key in metadata.keys() {
            if let Some(rest) = key.strip_prefix("llama.")
                && !KNOWN_KEYS.contains(&rest)
            {
                return Err(Fault::unsupported(format!("its key `{key}` is not one this engine knows")));
            }
        }
        match metadata.optional("llama.rope.scaling.type", Metadata::string)? {
            None | Some("none") => {}
            Some(other) => {
                return Err(Fault::unsupported(format!("it scales positions by `{other}`")));
            }
        }
        if metadata.optional("llama.expert_count", Metadata::u64)?.unwrap_or(0) > 0 {
            return Err(Fault::unsupported("it is a mixture of experts"));
        }

        let size = |key: &str, limit: usize| -> Result<usize, Fault> {
            let value = metadata.u64(key)?;
            usize::try_from(value)
                .ok()
                .filter(|value| (1..=limit).contains(value))
                .ok_or_else(|| Fault::malformed(format!("`{key}` is {value}, not between 1 and {limit}")))
        };
        let size_or = |key: &str, limit: usize, default: usize| {
            metadata.optional(key, |_, key| size(key, limit)).map(|value| value.unwrap_or(default))
        };
        let whole_vectors = |what: &str, value: usize| {
            if value.is_multiple_of(WIDTH_UNIT) {
                Ok(value)
            } else {
                Err(Fault::unsupported(format!("{what} is {value}, not a multiple of {WIDTH_UNIT}")))
            }
        };

        let width = whole_vectors("the embedding's length", size("llama.embedding_length", MAX_WIDTH)?)?;
        let heads = size("llama.attention.head_count", MAX_HEADS)?;
        let kv_heads = size_or("llama.attention.head_count_kv", MAX_HEADS, heads)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(Fault::malformed(format!("{heads} heads cannot share {kv_heads} key-value heads")));
        }
        let head_len = size_or("llama.attention.key_length", MAX_HEAD_LEN, width / heads)?;
        if size_or("llama.attention.value_length", MAX_HEAD_LEN, head_len)? != head_len {
            return Err(Fault::unsupported("its keys and values differ in length"));
        }
        whole_vectors("the heads' length", head_len)?;
        if !(WIDTH_UNIT..=MAX_HEAD_LEN).contains(&head_len) {
            return Err(Fault::unsupported(format!("its heads have {head_len} values")));
        }
        let rotated = size_or("llama.rope.dimension_count", head_len, head_len)?;
        if !rotated.is_multiple_of(2) {
            return Err(Fault::malformed(format!(
                "`llama.rope.dimension_count` is {rotated}, an odd number"
            )));
        }
        let rope_base =
            metadata.optional("llama.rope.freq_base", Metadata::f32)?.unwrap_or(DEFAULT_ROPE_BASE);
        let norm_epsilon = metadata.f32("llama.attention.layer_norm_rms_epsilon")?;
        if rope_base <= 0.0 || norm_epsilon < 0.0 {
            return Err(Fault::malformed(format!(
                "the base of rotation is {rope_base} and the norms' epsilon {norm_epsilon}"
            )));
        }
        if vocabulary > MAX_VOCABULARY
            || size_or("llama.vocab_size", MAX_VOCABULARY, vocabulary)? != vocabulary
        {
            return Err(Fault::malformed(format!("`llama.vocab_size` is not the vocabulary's {vocabulary}")));
        }
        Ok(Self {
            name: metadata.optional("general.name", Metadata::string)?.unwrap_or("unnamed").to_owned(),
            context_tokens: size("llama.context_length", usize::MAX)?.min(MAX_CONTEXT_TOKENS),
            width,
            layers: size("llama.block_count", MAX_LAYERS)?,
            feed_forward: whole_vectors(
                "the feed-forward length",
                size("llama.feed_forward_length", MAX_WIDTH)?,
            )?,
            attention: AttentionShape { heads, kv_heads, head_len },
            norm_epsilon,
            rope_frequencies: (0..rotated / 2)
                .map(|pair| f64::from(rope_base).powf(-2.0 * pair as f64 / rotated as f64))
                .collect(),
            rope_magnitude: 1.0,
            vocabulary,
        })
    }
}

/// The weights by which each head of queries and of keys is normalised on its own; all heads share them.
#[derive(Debug)]
pub struct HeadNorms {
    pub query: Vec<f32>,
    pub key: Vec<f32>,
}

#[derive(Debug)]
pub struct Layer {
    pub attention_norm: Vec<f32>,
    /// Queries, keys and values side by side.
    pub query_key_value: Matrix,
    /// What is added to those products, in their order.
    pub query_key_value_bias: Option<Vec<f32>>,
    pub head_norms: Option<HeadNorms>,
    pub attention_output: Matrix,
    pub feed_forward_norm: Vec<f32>,
    /// Gates and ups side by side.
    pub gate_up: Matrix,
    pub down: Matrix,
}

/// The embedding of every token, as the file holds it.
#[derive(Debug)]
pub struct Embedding {
    kind: TensorType,
    row_bytes: usize,
    bytes: Vec<u8>,
}

impl Embedding {
    fn columns(&self) -> ColumnSource<'_> {
        ColumnSource { kind: self.kind, columns: self.bytes.len() / self.row_bytes, bytes: &self.bytes }
    }

    /// # Panics
    /// When the token is outside the vocabulary, or `values` is not as long as an embedding.
    pub fn read(&self, token: u32, values: &mut [f32]) {
        quantised::expand(
            self.kind,
            &self.bytes[token as usize * self.row_bytes..][..self.row_bytes],
            values,
        );
    }
}

#[derive(Debug)]
pub struct Model {
    pub hyper_parameters: HyperParameters,
    pub embedding: Embedding,
    pub layers: Vec<Layer>,
    pub output_norm: Vec<f32>,
    /// Made from the embedding where the file has no matrix of its own for the logits.
    pub output: Matrix,
}

impl Model {
    /// Reads the weights and lays them out for the kernels.
    pub fn from_gguf<R: Read + Seek>(
        file: &mut Gguf<R>,
        vocabulary: usize,
        kernels: &Kernels,
    ) -> Result<Self, Fault> {
        let mut hyper_parameters = HyperParameters::from_metadata(file.metadata(), vocabulary)?;
        let HyperParameters { width, layers, feed_forward, attention, .. } = hyper_parameters;
        let query_width = attention.heads * attention.head_len;
        let kv_width = attention.kv_heads * attention.head_len;

        let mut tensors = Tensors { file, taken: HashSet::new() };
        let (info, bytes) = tensors.take("token_embd.weight", &[width, vocabulary])?;
        let row_bytes = width / info.kind.block_len() * info.kind.block_bytes();
        let embedding = Embedding { kind: info.kind, row_bytes, bytes };
        let layers = (0..layers)
            .map(|layer| {
                let name = |part: &str| format!("blk.{layer}.{part}.weight");
                Ok(Layer {
                    attention_norm: tensors.vector(&name("attn_norm"), width)?,
                    query_key_value: tensors.matrix(
                        kernels,
                        width,
                        &[
                            (&name("attn_q"), query_width),
                            (&name("attn_k"), kv_width),
                            (&name("attn_v"), kv_width),
                        ],
                    )?,
                    query_key_value_bias: None,
                    head_norms: None,
                    attention_output: tensors.matrix(
                        kernels,
                        query_width,
                        &[(&name("attn_output"), width)],
                    )?,
                    feed_forward_norm: tensors.vector(&name("ffn_norm"), width)?,
                    gate_up: tensors.matrix(
                        kernels,
                        width,
                        &[(&name("ffn_gate"), feed_forward), (&name("ffn_up"), feed_forward)],
                    )?,
                    down: tensors.matrix(kernels, feed_forward, &[(&name("ffn_down"), width)])?,
                })
            })
            .collect::<Result<Vec<_>, Fault>>()?;
        let output_norm = tensors.vector("output_norm.weight", width)?;
        let output = match tensors.file.tensor("output.weight") {
            None => kernels.matrix(width, &[embedding.columns()]),
            Some(_) => tensors.matrix(kernels, width, &[("output.weight", vocabulary)])?,
        };
        if tensors.file.tensor("rope_freqs.weight").is_some() {
            let divisors = tensors.vector("rope_freqs.weight", hyper_parameters.rope_frequencies.len())?;
            for (frequency, divisor) in hyper_parameters.rope_frequencies.iter_mut().zip(divisors) {
                if divisor.is_nan() || divisor <= 0.0 {
                    return Err(Fault::malformed("the tensor `rope_freqs.weight` holds a number below zero"));
                }
                *frequency /= f64::from(divisor);
            }
        }
        tensors.refuse_unknown()?;
        Ok(Self { hyper_parameters, embedding, layers, output_norm, output })
    }

    fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let in_layers = self
            .layers
            .iter()
            .flat_map(|layer| [&layer.query_key_value, &layer.attention_output, &layer.gate_up, &layer.down]);
        in_layers.chain([&self.output])
    }

    /// The weights of all matrices; an embedding that also makes the logits counts once.
    pub fn parameters(&self) -> usize {
        self.matrices().map(|matrix| matrix.inputs() * matrix.columns()).sum()
    }

    pub fn memory_bytes(&self) -> usize {
        self.matrices().map(Matrix::memory_bytes).sum::<usize>() + self.embedding.bytes.len()
    }
}

/// Takes tensors by name and shape, and remembers which were taken.
struct Tensors<'a, R> {
    file: &'a mut Gguf<R>,
    taken: HashSet<String>,
}

impl<R: Read + Seek> Tensors<'_, R> {
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<(TensorInfo, Vec<u8>), Fault> {
        let info = self
            .file
            .tensor(name)
            .cloned()
            .ok_or_else(|| Fault::malformed(format!("the tensor `{name}` is missing")))?;
        if info.dimensions != shape {
            return Err(Fault::malformed(format!(
                "the tensor `{name}` has the shape {:?} instead of {shape:?}",
                info.dimensions
            )));
        }
        self.taken.insert(name.to_owned());
        let bytes = self.file.read_tensor(name)?;
        Ok((info, bytes))
    }

    /// One matrix of several tensors' columns side by side, each given by its name and its columns.
    fn matrix(&mut self, kernels: &Kernels, inputs: usize, parts: &[(&str, usize)]) -> Result<Matrix, Fault> {
        let tensors = parts
            .iter()
            .map(|(name, columns)| self.take(name, &[inputs, *columns]))
            .collect::<Result<Vec<_>, _>>()?;
        let sources: Vec<ColumnSource<'_>> = tensors
            .iter()
            .zip(parts)
            .map(|((info, bytes), (_, columns))| ColumnSource { kind: info.kind, columns: *columns, bytes })
            .collect();
        Ok(kernels.matrix(inputs, &sources))
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, Fault> {
        let (info, bytes) = self.take(name, &[len])?;
        let mut values = vec![0.0; len];
        quantised::expand(info.kind, &bytes, &mut values);
        Ok(values)
    }

    /// A tensor that nobody took would change the result if it were honoured, so it is not passed over.
    fn refuse_unknown(&self) -> Result<(), Fault> {
        match self.file.tensor_names().filter(|name| !self.taken.contains(*name)).min() {
            None => Ok(()),
            Some(name) => {
                Err(Fault::unsupported(format!("its tensor `{name}` is not one this engine knows")))
            }
        }
    }
}

#[cfg(test)]
mod tests;
