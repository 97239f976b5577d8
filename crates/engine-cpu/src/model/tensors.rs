//! Reads weights from a file by name and shape, and tracks which were read.

use super::architecture::RopeLayout;
use crate::error::ModelFileError;
use crate::gguf::{Gguf, TensorInfo};
use crate::kernels::{ColumnSource, Kernels, Matrix};
use crate::quantized;
use std::collections::HashSet;
use std::io::{Read, Seek};

pub(super) struct Tensors<'a, R> {
    file: &'a mut Gguf<R>,
    used: HashSet<String>,
}

/// The heads in the columns of a matrix or in a vector.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadLayout {
    pub(super) head_dim: usize,
    /// RoPE applies to this many leading values of each head.
    pub(super) rotary_dim: usize,
    pub(super) rope_layout: RopeLayout,
}

impl HeadLayout {
    /// Index in the file of the value that the forward pass needs at `index`, within one head. The kernels rotate
    /// adjacent values, so halves are interleaved once, here. Attention scores do not change if queries and keys are
    /// permuted alike.
    fn source_index(self, index: usize) -> usize {
        match self.rope_layout {
            RopeLayout::Neox if index < self.rotary_dim => index % 2 * (self.rotary_dim / 2) + index / 2,
            _ => index,
        }
    }

    /// Reorders all heads; each value has `item_len` items.
    fn reorder<T: Copy>(self, items: &mut [T], item_len: usize) {
        if self.rope_layout == RopeLayout::Interleaved {
            return;
        }
        let mut head_before = Vec::with_capacity(self.head_dim * item_len);
        for head in items.chunks_exact_mut(self.head_dim * item_len) {
            head_before.clear();
            head_before.extend_from_slice(head);
            for (index, value) in head.chunks_exact_mut(item_len).enumerate() {
                value.copy_from_slice(&head_before[self.source_index(index) * item_len..][..item_len]);
            }
        }
    }
}

/// A tensor that becomes part of a matrix's columns, or of a vector.
#[derive(Clone, Debug)]
pub(super) struct TensorPart {
    name: String,
    columns: usize,
    heads: Option<HeadLayout>,
}

impl TensorPart {
    pub(super) fn plain(name: impl Into<String>, columns: usize) -> Self {
        Self { name: name.into(), columns, heads: None }
    }

    /// Columns of heads that RoPE applies to.
    pub(super) fn with_heads(name: impl Into<String>, columns: usize, heads: HeadLayout) -> Self {
        Self { name: name.into(), columns, heads: Some(heads) }
    }
}

impl<'a, R: Read + Seek> Tensors<'a, R> {
    pub(super) fn new(file: &'a mut Gguf<R>) -> Self {
        Self { file, used: HashSet::new() }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    pub(super) fn read(
        &mut self,
        name: &str,
        shape: &[usize],
    ) -> Result<(TensorInfo, Vec<u8>), ModelFileError> {
        let info = self
            .file
            .tensor(name)
            .cloned()
            .ok_or_else(|| ModelFileError::malformed(format!("missing tensor `{name}`")))?;
        if info.dimensions != shape {
            return Err(ModelFileError::malformed(format!(
                "tensor `{name}` has shape {:?}, expected {shape:?}",
                info.dimensions
            )));
        }
        self.used.insert(name.to_owned());
        let bytes = self.file.read_tensor(name)?;
        Ok((info, bytes))
    }

    /// Reads several tensors into one matrix, columns concatenated.
    pub(super) fn matrix(
        &mut self,
        kernels: &Kernels,
        inputs: usize,
        parts: &[TensorPart],
    ) -> Result<Matrix, ModelFileError> {
        let mut tensors = Vec::with_capacity(parts.len());
        for part in parts {
            let (info, mut bytes) = self.read(&part.name, &[inputs, part.columns])?;
            if let Some(heads) = part.heads {
                heads.reorder(&mut bytes, inputs / info.kind.block_len() * info.kind.block_bytes());
            }
            tensors.push((info, bytes));
        }
        let sources: Vec<ColumnSource<'_>> = tensors
            .iter()
            .zip(parts)
            .map(|((info, bytes), part)| ColumnSource { kind: info.kind, columns: part.columns, bytes })
            .collect();
        Ok(kernels.matrix(inputs, &sources))
    }

    /// Reads several tensors into one vector, concatenated.
    pub(super) fn vector(&mut self, parts: &[TensorPart]) -> Result<Vec<f32>, ModelFileError> {
        let mut values = Vec::new();
        for part in parts {
            let (info, bytes) = self.read(&part.name, &[part.columns])?;
            let before = values.len();
            values.resize(before + part.columns, 0.0);
            quantized::dequantize(info.kind, &bytes, &mut values[before..]);
            if let Some(heads) = part.heads {
                heads.reorder(&mut values[before..], 1);
            }
        }
        Ok(values)
    }

    /// A tensor that was not read would affect the result if it were implemented, so it must not be ignored.
    pub(super) fn ensure_all_used(&self) -> Result<(), ModelFileError> {
        match self.file.tensor_names().filter(|name| !self.used.contains(*name)).min() {
            None => Ok(()),
            Some(name) => Err(ModelFileError::unsupported(format!("unknown tensor `{name}`"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reorder_interleaves_rotated_halves_and_keeps_the_rest() {
        let heads = HeadLayout { head_dim: 8, rotary_dim: 6, rope_layout: RopeLayout::Neox };
        let mut values: Vec<u32> = (0..16).collect();
        heads.reorder(&mut values, 1);
        assert_eq!(values, [0, 3, 1, 4, 2, 5, 6, 7, 8, 11, 9, 12, 10, 13, 14, 15]);
        let mut columns: Vec<u32> = (0..16).collect();
        heads.reorder(&mut columns, 2);
        assert_eq!(columns, [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, 12, 13, 14, 15]);
        let mut neighbours: Vec<u32> = (0..8).collect();
        HeadLayout { rope_layout: RopeLayout::Interleaved, ..heads }.reorder(&mut neighbours, 1);
        assert_eq!(neighbours, (0..8).collect::<Vec<_>>());
    }
}
