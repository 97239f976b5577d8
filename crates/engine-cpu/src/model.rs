//! A model's hyper-parameters and weights, read from the file and checked. Anything that the forward pass does not
//! implement (another architecture, experts, an unknown key or tensor) is rejected by name.

mod architecture;
mod hyperparameters;
mod rope;
mod tensors;

pub use hyperparameters::Hyperparameters;

use crate::error::ModelFileError;
use crate::gguf::{Gguf, TensorType};
use crate::kernels::{ColumnSource, Kernels, Matrix};
use crate::quantized;
use std::io::{Read, Seek};
use tensors::{HeadLayout, TensorPart, Tensors};

/// Weights of the per-head RMSNorm of queries and keys; all heads share them.
#[derive(Debug)]
pub struct QkNorm {
    pub query: Vec<f32>,
    pub key: Vec<f32>,
}

#[derive(Debug)]
pub struct Layer {
    pub attention_norm: Vec<f32>,
    /// Query, key and value projections, concatenated.
    pub qkv: Matrix,
    /// Biases of those projections, in the same order.
    pub qkv_bias: Option<Vec<f32>>,
    pub qk_norm: Option<QkNorm>,
    pub attention_output: Matrix,
    pub feed_forward_norm: Vec<f32>,
    /// Gate and up projections, concatenated.
    pub gate_up: Matrix,
    pub down: Matrix,
}

impl Layer {
    fn read<R: Read + Seek>(
        tensors: &mut Tensors<'_, R>,
        kernels: &Kernels,
        hyperparameters: &Hyperparameters,
        index: usize,
    ) -> Result<Self, ModelFileError> {
        let Hyperparameters { architecture, hidden_size, feed_forward, attention, .. } = *hyperparameters;
        let query_width = attention.heads * attention.head_dim;
        let kv_width = attention.kv_heads * attention.head_dim;
        let heads = HeadLayout {
            head_dim: attention.head_dim,
            rotary_dim: 2 * hyperparameters.rope_frequencies.len(),
            rope_layout: architecture.rope_layout(),
        };
        let weight = |part: &str| format!("blk.{index}.{part}.weight");
        let bias = |part: &str| format!("blk.{index}.{part}.bias");

        let qkv = [
            TensorPart::with_heads(weight("attn_q"), query_width, heads),
            TensorPart::with_heads(weight("attn_k"), kv_width, heads),
            TensorPart::plain(weight("attn_v"), kv_width),
        ];
        let qkv_bias = [
            TensorPart::with_heads(bias("attn_q"), query_width, heads),
            TensorPart::with_heads(bias("attn_k"), kv_width, heads),
            TensorPart::plain(bias("attn_v"), kv_width),
        ];
        let gate_up = [
            TensorPart::plain(weight("ffn_gate"), feed_forward),
            TensorPart::plain(weight("ffn_up"), feed_forward),
        ];
        let head_norm = |part: &str| [TensorPart::with_heads(weight(part), attention.head_dim, heads)];
        Ok(Self {
            attention_norm: tensors.vector(&[TensorPart::plain(weight("attn_norm"), hidden_size)])?,
            qkv: tensors.matrix(kernels, hidden_size, &qkv)?,
            qkv_bias: if architecture.has_qkv_bias() { Some(tensors.vector(&qkv_bias)?) } else { None },
            qk_norm: if architecture.has_qk_norm() {
                let (query, key) = (head_norm("attn_q_norm"), head_norm("attn_k_norm"));
                Some(QkNorm { query: tensors.vector(&query)?, key: tensors.vector(&key)? })
            } else {
                None
            },
            attention_output: tensors.matrix(
                kernels,
                query_width,
                &[TensorPart::plain(weight("attn_output"), hidden_size)],
            )?,
            feed_forward_norm: tensors.vector(&[TensorPart::plain(weight("ffn_norm"), hidden_size)])?,
            gate_up: tensors.matrix(kernels, hidden_size, &gate_up)?,
            down: tensors.matrix(
                kernels,
                feed_forward,
                &[TensorPart::plain(weight("ffn_down"), hidden_size)],
            )?,
        })
    }
}

/// The token embeddings, in the file's format.
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
    /// If the token is outside the vocabulary, or `values` is not as long as an embedding.
    pub fn read(&self, token: u32, values: &mut [f32]) {
        quantized::dequantize(
            self.kind,
            &self.bytes[token as usize * self.row_bytes..][..self.row_bytes],
            values,
        );
    }
}

#[derive(Debug)]
pub struct Model {
    pub hyperparameters: Hyperparameters,
    pub embedding: Embedding,
    pub layers: Vec<Layer>,
    pub output_norm: Vec<f32>,
    /// Created from the embedding if the file has no separate output matrix (tied embeddings).
    pub output: Matrix,
}

impl Model {
    /// Reads the weights and repacks them for the kernels.
    pub fn from_gguf<R: Read + Seek>(
        file: &mut Gguf<R>,
        vocab_size: usize,
        kernels: &Kernels,
    ) -> Result<Self, ModelFileError> {
        let mut hyperparameters = Hyperparameters::from_metadata(file.metadata(), vocab_size)?;
        let hidden_size = hyperparameters.hidden_size;
        let mut tensors = Tensors::new(file);
        let (info, bytes) = tensors.read("token_embd.weight", &[hidden_size, vocab_size])?;
        let row_bytes = hidden_size / info.kind.block_len() * info.kind.block_bytes();
        let embedding = Embedding { kind: info.kind, row_bytes, bytes };
        let layers = (0..hyperparameters.layers)
            .map(|index| Layer::read(&mut tensors, kernels, &hyperparameters, index))
            .collect::<Result<Vec<_>, ModelFileError>>()?;
        let output_norm = tensors.vector(&[TensorPart::plain("output_norm.weight", hidden_size)])?;
        let output = if tensors.has("output.weight") {
            tensors.matrix(kernels, hidden_size, &[TensorPart::plain("output.weight", vocab_size)])?
        } else {
            kernels.matrix(hidden_size, &[embedding.columns()])
        };
        if tensors.has("rope_freqs.weight") {
            let frequencies = &mut hyperparameters.rope_frequencies;
            let divisors = tensors.vector(&[TensorPart::plain("rope_freqs.weight", frequencies.len())])?;
            for (frequency, divisor) in frequencies.iter_mut().zip(divisors) {
                if divisor.is_nan() || divisor <= 0.0 {
                    return Err(ModelFileError::malformed(
                        "tensor `rope_freqs.weight` contains a value that is not positive",
                    ));
                }
                *frequency /= f64::from(divisor);
            }
        }
        tensors.ensure_all_used()?;
        Ok(Self { hyperparameters, embedding, layers, output_norm, output })
    }

    fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let in_layers = self
            .layers
            .iter()
            .flat_map(|layer| [&layer.qkv, &layer.attention_output, &layer.gate_up, &layer.down]);
        in_layers.chain([&self.output])
    }

    /// Bytes of the weights that every step reads.
    pub fn matrix_bytes(&self) -> usize {
        self.matrices().map(Matrix::memory_bytes).sum()
    }

    pub fn memory_bytes(&self) -> usize {
        self.matrix_bytes() + self.embedding.bytes.len()
    }
}

#[cfg(test)]
mod tests;
