//! A model as the file describes it: its hyper-parameters and its weights, every one of them checked. What the forward
//! pass would not honour (another architecture, experts, a key or a tensor nobody knows) is refused by name.

mod architecture;
mod hyper_parameters;
mod rotation;
mod tensors;

pub use hyper_parameters::HyperParameters;

use crate::error::Fault;
use crate::gguf::{Gguf, TensorType};
use crate::kernels::{ColumnSource, Kernels, Matrix};
use crate::quantised;
use std::io::{Read, Seek};
use tensors::{Heads, Part, Tensors};

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

impl Layer {
    fn read<R: Read + Seek>(
        tensors: &mut Tensors<'_, R>,
        kernels: &Kernels,
        hyper_parameters: &HyperParameters,
        index: usize,
    ) -> Result<Self, Fault> {
        let HyperParameters { architecture, width, feed_forward, attention, .. } = *hyper_parameters;
        let query_width = attention.heads * attention.head_len;
        let kv_width = attention.kv_heads * attention.head_len;
        let heads = Heads {
            head_len: attention.head_len,
            rotated: 2 * hyper_parameters.rope_frequencies.len(),
            pairing: architecture.pairing(),
        };
        let weight = |part: &str| format!("blk.{index}.{part}.weight");
        let bias = |part: &str| format!("blk.{index}.{part}.bias");

        let query_key_value = [
            Part::of_heads(weight("attn_q"), query_width, heads),
            Part::of_heads(weight("attn_k"), kv_width, heads),
            Part::plain(weight("attn_v"), kv_width),
        ];
        let query_key_value_bias = [
            Part::of_heads(bias("attn_q"), query_width, heads),
            Part::of_heads(bias("attn_k"), kv_width, heads),
            Part::plain(bias("attn_v"), kv_width),
        ];
        let gate_up =
            [Part::plain(weight("ffn_gate"), feed_forward), Part::plain(weight("ffn_up"), feed_forward)];
        let head_norm = |part: &str| [Part::of_heads(weight(part), attention.head_len, heads)];
        Ok(Self {
            attention_norm: tensors.vector(&[Part::plain(weight("attn_norm"), width)])?,
            query_key_value: tensors.matrix(kernels, width, &query_key_value)?,
            query_key_value_bias: if architecture.has_biases() {
                Some(tensors.vector(&query_key_value_bias)?)
            } else {
                None
            },
            head_norms: if architecture.has_head_norms() {
                let (query, key) = (head_norm("attn_q_norm"), head_norm("attn_k_norm"));
                Some(HeadNorms { query: tensors.vector(&query)?, key: tensors.vector(&key)? })
            } else {
                None
            },
            attention_output: tensors.matrix(
                kernels,
                query_width,
                &[Part::plain(weight("attn_output"), width)],
            )?,
            feed_forward_norm: tensors.vector(&[Part::plain(weight("ffn_norm"), width)])?,
            gate_up: tensors.matrix(kernels, width, &gate_up)?,
            down: tensors.matrix(kernels, feed_forward, &[Part::plain(weight("ffn_down"), width)])?,
        })
    }
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
        let width = hyper_parameters.width;
        let mut tensors = Tensors::new(file);
        let (info, bytes) = tensors.take("token_embd.weight", &[width, vocabulary])?;
        let row_bytes = width / info.kind.block_len() * info.kind.block_bytes();
        let embedding = Embedding { kind: info.kind, row_bytes, bytes };
        let layers = (0..hyper_parameters.layers)
            .map(|index| Layer::read(&mut tensors, kernels, &hyper_parameters, index))
            .collect::<Result<Vec<_>, Fault>>()?;
        let output_norm = tensors.vector(&[Part::plain("output_norm.weight", width)])?;
        let output = if tensors.has("output.weight") {
            tensors.matrix(kernels, width, &[Part::plain("output.weight", vocabulary)])?
        } else {
            kernels.matrix(width, &[embedding.columns()])
        };
        if tensors.has("rope_freqs.weight") {
            let frequencies = &mut hyper_parameters.rope_frequencies;
            let divisors = tensors.vector(&[Part::plain("rope_freqs.weight", frequencies.len())])?;
            for (frequency, divisor) in frequencies.iter_mut().zip(divisors) {
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

#[cfg(test)]
mod tests;
