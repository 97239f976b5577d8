//! Takes weights from a file by name and shape, and remembers which were taken.

use super::architecture::Pairing;
use crate::error::Fault;
use crate::gguf::{Gguf, TensorInfo};
use crate::kernels::{ColumnSource, Kernels, Matrix};
use crate::quantised;
use std::collections::HashSet;
use std::io::{Read, Seek};

pub(super) struct Tensors<'a, R> {
    file: &'a mut Gguf<R>,
    taken: HashSet<String>,
}

/// Heads side by side in the columns of a matrix or in a vector.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub(super) head_len: usize,
    /// The first so many values of each are rotated.
    pub(super) rotated: usize,
    pub(super) pairing: Pairing,
}

impl Heads {
    /// Where the file has the value that the forward pass wants at `place`, within one head: the kernels rotate
    /// neighbours, so halves are put side by side once, here. Scores do not change when queries and keys are
    /// reordered alike.
    fn place_in_file(self, place: usize) -> usize {
        match self.pairing {
            Pairing::Halves if place < self.rotated => place % 2 * (self.rotated / 2) + place / 2,
            _ => place,
        }
    }

    /// Reorders all heads; each value has `item_len` items.
    fn reorder<T: Copy>(self, items: &mut [T], item_len: usize) {
        if self.pairing == Pairing::Neighbours {
            return;
        }
        let mut head_before = Vec::with_capacity(self.head_len * item_len);
        for head in items.chunks_exact_mut(self.head_len * item_len) {
            head_before.clear();
            head_before.extend_from_slice(head);
            for (place, value) in head.chunks_exact_mut(item_len).enumerate() {
                value.copy_from_slice(&head_before[self.place_in_file(place) * item_len..][..item_len]);
            }
        }
    }
}

/// A tensor that is some of a matrix's columns, or some of a vector.
#[derive(Clone, Debug)]
pub(super) struct Part {
    name: String,
    columns: usize,
    heads: Option<Heads>,
}

impl Part {
    pub(super) fn plain(name: impl Into<String>, columns: usize) -> Self {
        Self { name: name.into(), columns, heads: None }
    }

    /// Columns that are heads which will be rotated.
    pub(super) fn of_heads(name: impl Into<String>, columns: usize, heads: Heads) -> Self {
        Self { name: name.into(), columns, heads: Some(heads) }
    }
}

impl<'a, R: Read + Seek> Tensors<'a, R> {
    pub(super) fn new(file: &'a mut Gguf<R>) -> Self {
        Self { file, taken: HashSet::new() }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    pub(super) fn take(&mut self, name: &str, shape: &[usize]) -> Result<(TensorInfo, Vec<u8>), Fault> {
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

    /// One matrix of several tensors' columns side by side.
    pub(super) fn matrix(
        &mut self,
        kernels: &Kernels,
        inputs: usize,
        parts: &[Part],
    ) -> Result<Matrix, Fault> {
        let mut tensors = Vec::with_capacity(parts.len());
        for part in parts {
            let (info, mut bytes) = self.take(&part.name, &[inputs, part.columns])?;
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

    /// One vector of several tensors, one after the other.
    pub(super) fn vector(&mut self, parts: &[Part]) -> Result<Vec<f32>, Fault> {
        let mut values = Vec::new();
        for part in parts {
            let (info, bytes) = self.take(&part.name, &[part.columns])?;
            let before = values.len();
            values.resize(before + part.columns, 0.0);
            quantised::expand(info.kind, &bytes, &mut values[before..]);
            if let Some(heads) = part.heads {
                heads.reorder(&mut values[before..], 1);
            }
        }
        Ok(values)
    }

    /// A tensor that nobody took would change the result if it were honoured, so it is not passed over.
    pub(super) fn refuse_unknown(&self) -> Result<(), Fault> {
        match self.file.tensor_names().filter(|name| !self.taken.contains(*name)).min() {
            None => Ok(()),
            Some(name) => {
                Err(Fault::unsupported(format!("its tensor `{name}` is not one this engine knows")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_become_neighbours_and_what_is_not_rotated_stays() {
        let heads = Heads { head_len: 8, rotated: 6, pairing: Pairing::Halves };
        let mut values: Vec<u32> = (0..16).collect();
        heads.reorder(&mut values, 1);
        assert_eq!(values, [0, 3, 1, 4, 2, 5, 6, 7, 8, 11, 9, 12, 10, 13, 14, 15]);
        let mut columns: Vec<u32> = (0..16).collect();
        heads.reorder(&mut columns, 2);
        assert_eq!(columns, [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, 12, 13, 14, 15]);
        let mut neighbours: Vec<u32> = (0..8).collect();
        Heads { pairing: Pairing::Neighbours, ..heads }.reorder(&mut neighbours, 1);
        assert_eq!(neighbours, (0..8).collect::<Vec<_>>());
    }
}
