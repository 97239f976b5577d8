//! Weights as the kernels read them: panels of sixteen columns (outputs), each stored along the rows (inputs), so
//! that one vector holds the weights of sixteen outputs for one input. Quantised weights keep their codes, four or
//! eight bits each, with a scale and a minimum per group and column: nothing is rounded on the way from the file.

use super::lanes::WIDTH;
use crate::gguf::TensorType;
use crate::quantised::{self, Block, Grouping};

/// How the weights of a matrix are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Four-bit codes; a byte holds those of two consecutive inputs.
    Nibbles,
    /// Eight-bit codes.
    Bytes,
    /// 32-bit floats, for files that are not quantised.
    Floats,
}

impl Form {
    /// Bytes that hold one panel's weights for two consecutive inputs.
    pub(super) const fn pair_bytes(self) -> usize {
        match self {
            Self::Nibbles => WIDTH,
            Self::Bytes => 2 * WIDTH,
            Self::Floats => 2 * WIDTH * size_of::<f32>(),
        }
    }
}

/// `columns` outputs of `rows` inputs each.
#[derive(Debug)]
pub struct Matrix {
    pub(super) form: Form,
    columns: usize,
    rows: usize,
    /// Inputs that share a scale and a minimum; all of them where there are no codes.
    pub(super) group_len: usize,
    pub(super) codes: Vec<u8>,
    /// For each panel and group: sixteen scales, sixteen minimums. Empty for floats.
    pub(super) affine: Vec<f32>,
}

impl Matrix {
    /// Takes over the bytes of a tensor of `columns` rows of `rows` values (the file lists a matrix by its outputs).
    ///
    /// # Panics
    /// When `bytes` is not that many values of the format, or `rows` is not a multiple of 16.
    pub fn from_tensor(kind: TensorType, rows: usize, columns: usize, bytes: &[u8]) -> Self {
        assert!(rows.is_multiple_of(WIDTH) && rows.is_multiple_of(kind.block_len()), "{rows} inputs");
        assert_eq!(
            bytes.len(),
            rows / kind.block_len() * kind.block_bytes() * columns,
            "bytes of a {kind} matrix"
        );
        match quantised::grouping(kind) {
            Some(grouping) => Self::from_blocks(kind, grouping, rows, columns, bytes),
            None => Self::from_floats(kind, rows, columns, bytes),
        }
    }

    fn from_blocks(kind: TensorType, grouping: Grouping, rows: usize, columns: usize, bytes: &[u8]) -> Self {
        let Grouping { group_len, code_bits } = grouping;
        let form = if code_bits == 4 { Form::Nibbles } else { Form::Bytes };
        let panels = columns.div_ceil(WIDTH);
        let groups = rows / group_len;
        let mut codes = vec![0; panels * rows / 2 * form.pair_bytes()];
        let mut affine = vec![0.0; panels * groups * 2 * WIDTH];
        let mut block = Block::default();
        let blocks_per_column = rows / kind.block_len();
        for (index, bytes) in bytes.chunks_exact(kind.block_bytes()).enumerate() {
            let (column, first_row) =
                (index / blocks_per_column, index % blocks_per_column * kind.block_len());
            let (panel, lane) = (column / WIDTH, column % WIDTH);
            quantised::decode_block(kind, bytes, &mut block);
            let panel_codes = &mut codes[panel * rows / 2 * form.pair_bytes()..];
            for (offset, code) in block.codes[..kind.block_len()].iter().enumerate() {
                let row = first_row + offset;
                match form {
                    Form::Nibbles => panel_codes[row / 2 * WIDTH + lane] |= code << (row % 2 * 4),
                    Form::Bytes | Form::Floats => panel_codes[row * WIDTH + lane] = *code,
                }
            }
            for group in 0..kind.block_len() / group_len {
                let at = (panel * groups + first_row / group_len + group) * 2 * WIDTH + lane;
                affine[at] = block.scales[group];
                affine[at + WIDTH] = block.minimums[group];
            }
        }
        Self { form, columns, rows, group_len, codes, affine }
    }

    fn from_floats(kind: TensorType, rows: usize, columns: usize, bytes: &[u8]) -> Self {
        let panels = columns.div_ceil(WIDTH);
        let mut codes = vec![0; panels * rows / 2 * Form::Floats.pair_bytes()];
        let mut values = vec![0.0; rows];
        for (column, bytes) in bytes.chunks_exact(rows * kind.block_bytes()).enumerate() {
            quantised::expand(kind, bytes, &mut values);
            let (panel, lane) = (column / WIDTH, column % WIDTH);
            for (row, value) in values.iter().enumerate() {
                let at = ((panel * rows + row) * WIDTH + lane) * size_of::<f32>();
                codes[at..at + size_of::<f32>()].copy_from_slice(&value.to_ne_bytes());
            }
        }
        Self { form: Form::Floats, columns, rows, group_len: rows, codes, affine: Vec::new() }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Columns counted up to whole panels: the length of a row of products.
    pub fn padded_columns(&self) -> usize {
        self.panels() * WIDTH
    }

    pub(super) fn panels(&self) -> usize {
        self.columns.div_ceil(WIDTH)
    }

    pub fn memory_bytes(&self) -> usize {
        self.codes.len() + self.affine.len() * size_of::<f32>()
    }

    /// The weights of one column: how a token's embedding is read from the matrix that also makes the logits.
    ///
    /// # Panics
    /// When there is no such column, or `values` is not as long as a column.
    pub fn read_column(&self, column: usize, values: &mut [f32]) {
        assert!(column < self.columns && values.len() == self.rows, "a column of {} values", self.rows);
        let (panel, lane) = (column / WIDTH, column % WIDTH);
        let panel_codes = &self.codes[panel * self.rows / 2 * self.form.pair_bytes()..];
        for (row, value) in values.iter_mut().enumerate() {
            let code = match self.form {
                Form::Nibbles => panel_codes[row / 2 * WIDTH + lane] >> (row % 2 * 4) & 15,
                Form::Bytes => panel_codes[row * WIDTH + lane],
                Form::Floats => {
                    let at = (row * WIDTH + lane) * size_of::<f32>();
                    let bytes = &panel_codes[at..at + size_of::<f32>()];
                    *value = f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                    continue;
                }
            };
            let group = panel * (self.rows / self.group_len) + row / self.group_len;
            let at = group * 2 * WIDTH + lane;
            *value = self.affine[at] * f32::from(code) + self.affine[at + WIDTH];
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Bytes of a tensor that vary, with scales that are small finite numbers.
    pub(in crate::kernels) fn sample_tensor(kind: TensorType, rows: usize, columns: usize) -> Vec<u8> {
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 32) as u8
        };
        let mut bytes: Vec<u8> =
            (0..rows / kind.block_len() * kind.block_bytes() * columns).map(|_| next()).collect();
        // Half-precision numbers between 2^-6 and 2^-5 wherever a format keeps one; plain formats likewise.
        for block in bytes.chunks_exact_mut(kind.block_bytes()) {
            let halves: &[usize] = match kind {
                TensorType::F32 => {
                    block[3] = 0x3c | block[3] & 0x80;
                    &[]
                }
                TensorType::Bf16 => {
                    block[1] = 0x3c | block[1] & 0x80;
                    &[]
                }
                TensorType::F16 | TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 => &[0],
                TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4K | TensorType::Q5K => &[0, 2],
                TensorType::Q6K => &[208],
            };
            for at in halves {
                block[at + 1] = 0x24 | block[at + 1] & 0x83;
            }
        }
        bytes
    }

    #[test]
    fn a_columns_weights_are_the_tensors_values_in_every_format() {
        let (rows, columns) = (256, 21);
        for kind in TensorType::ALL {
            let bytes = sample_tensor(kind, rows, columns);
            let matrix = Matrix::from_tensor(kind, rows, columns, &bytes);
            let mut wanted = vec![0.0; rows * columns];
            quantised::expand(kind, &bytes, &mut wanted);
            let mut got = vec![0.0; rows];
            for (column, wanted) in wanted.chunks_exact(rows).enumerate() {
                matrix.read_column(column, &mut got);
                assert_eq!(got, wanted, "{kind}, column {column}");
            }
        }
    }
}
