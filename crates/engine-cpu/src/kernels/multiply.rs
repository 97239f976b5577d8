//! Rows times matrices. A tile is a few rows by a few panels; its sums stay in registers while it walks along the
//! inputs. Every sum is built input by input in order, whatever the tile, so that a row's result never depends on the
//! rows beside it.

use super::lanes::{Lanes, WIDTH};
use super::matrix::{Form, Matrix};
use super::pool::SharedPointer;
use super::{Kernels, dispatch};

/// Panels in one task: enough for the widest tile, few enough to share out small matrices.
const PANELS_PER_TASK: usize = 4;

/// Input rows in the order that tiles read them: chunks of up to `max_rows` rows, each stored input by input.
#[derive(Debug, Default)]
pub struct PackedRows {
    values: Vec<f32>,
    rows: usize,
    width: usize,
}

/// One product to make: `out` gets a row of `matrix.padded_columns()` for every input row.
pub struct Product<'a> {
    pub matrix: &'a Matrix,
    pub out: &'a mut [f32],
}

/// Splits rows into chunks of 16, 8, 4, 2 and 1, no larger than `max_rows`.
fn chunks(rows: usize, max_rows: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let left = rows - start;
        if left == 0 {
            return None;
        }
        let len = max_rows.min(1 << left.ilog2());
        start += len;
        Some((start - len, len))
    })
}

impl Kernels {
    /// Arranges rows of `width` values for `multiply`.
    pub fn pack(&self, rows: &[f32], width: usize, packed: &mut PackedRows) {
        packed.rows = rows.len() / width;
        packed.width = width;
        packed.values.clear();
        packed.values.resize(rows.len(), 0.0);
        for (start, len) in chunks(packed.rows, self.set.max_rows()) {
            let source = &rows[start * width..][..len * width];
            let target = &mut packed.values[start * width..][..len * width];
            if len == 1 {
                target.copy_from_slice(source);
                continue;
            }
            for (row, values) in source.chunks_exact(width).enumerate() {
                for (slot, value) in target[row..].iter_mut().step_by(len).zip(values) {
                    *slot = *value;
                }
            }
        }
    }

    /// Multiplies the packed rows by every matrix.
    ///
    /// # Panics
    /// When a matrix does not have `width` inputs, or an output does not have room for every row.
    pub fn multiply(&self, packed: &PackedRows, products: &mut [Product<'_>]) {
        let mut targets = Vec::with_capacity(products.len());
        let mut tasks = 0;
        for product in products {
            let matrix = product.matrix;
            assert_eq!(matrix.rows(), packed.width, "inputs of the matrix");
            assert_eq!(product.out.len(), packed.rows * matrix.padded_columns(), "room for the products");
            targets.push((tasks, matrix, SharedPointer(product.out.as_mut_ptr())));
            tasks += matrix.panels().div_ceil(PANELS_PER_TASK);
        }
        self.pool.run(tasks, &|task| {
            let owner = targets.partition_point(|(first_task, ..)| *first_task <= task) - 1;
            let (first_task, matrix, out) = &targets[owner];
            let first_panel = (task - first_task) * PANELS_PER_TASK;
            let strip = Strip {
                matrix,
                first_panel,
                panels: PANELS_PER_TASK.min(matrix.panels() - first_panel),
                packed,
                out: out.get(),
            };
            dispatch!(self.set, multiply_strip, &strip, &Strip<'_>);
        });
    }
}

/// Some neighbouring panels of a matrix, for all rows. Strips of one product write different columns of `out`.
struct Strip<'a> {
    matrix: &'a Matrix,
    first_panel: usize,
    panels: usize,
    packed: &'a PackedRows,
    out: *mut f32,
}

#[inline(always)]
fn multiply_strip<L: Lanes>(lanes: L, strip: &Strip<'_>) {
    match strip.matrix.form {
        Form::Nibbles => multiply_form::<L, Nibbles>(lanes, strip),
        Form::Bytes => multiply_form::<L, Bytes>(lanes, strip),
        Form::Floats => multiply_form::<L, Floats>(lanes, strip),
    }
}

#[inline(always)]
fn multiply_form<L: Lanes, W: Weights>(lanes: L, strip: &Strip<'_>) {
    for (start, len) in chunks(strip.packed.rows, L::MAX_ROWS) {
        // The guards are constants: tiles too large for the registers are not compiled at all.
        match len {
            16 if L::MAX_ROWS >= 16 => tiles::<L, W, 16, 1>(lanes, strip, start),
            8 if L::MAX_ROWS >= 8 => tiles::<L, W, 8, 2>(lanes, strip, start),
            4 => tiles::<L, W, 4, 2>(lanes, strip, start),
            2 => tiles::<L, W, 2, 4>(lanes, strip, start),
            _ => tiles::<L, W, 1, 4>(lanes, strip, start),
        }
    }
}

/// Covers the strip's panels for one chunk of rows: `PANELS` at a time, then one by one.
#[inline(always)]
fn tiles<L: Lanes, W: Weights, const ROWS: usize, const PANELS: usize>(
    lanes: L,
    strip: &Strip<'_>,
    start: usize,
) {
    let mut panel = 0;
    while panel + PANELS <= strip.panels {
        tile::<L, W, ROWS, PANELS>(lanes, strip, start, strip.first_panel + panel);
        panel += PANELS;
    }
    while panel < strip.panels {
        tile::<L, W, ROWS, 1>(lanes, strip, start, strip.first_panel + panel);
        panel += 1;
    }
}

#[inline(always)]
fn tile<L: Lanes, W: Weights, const ROWS: usize, const PANELS: usize>(
    lanes: L,
    strip: &Strip<'_>,
    start: usize,
    first_panel: usize,
) {
    let Strip { matrix, packed, .. } = strip;
    let width = packed.width;
    let inputs = packed.values[start * width..][..ROWS * width].as_ptr();
    let pairs_per_panel = width / 2;
    let codes = matrix.codes[first_panel * pairs_per_panel * W::PAIR_BYTES..]
        [..PANELS * pairs_per_panel * W::PAIR_BYTES]
        .as_ptr();
    let groups = width / matrix.group_len;
    let pairs_per_group = matrix.group_len / 2;

    let mut sums = [[lanes.splat(0.0); PANELS]; ROWS];
    let mut scales = [lanes.splat(1.0); PANELS];
    let mut minimums = [lanes.splat(0.0); PANELS];
    for group in 0..groups {
        if W::AFFINE {
            for panel in 0..PANELS {
                let at = ((first_panel + panel) * groups + group) * 2 * WIDTH;
                let (affine, _) = matrix.affine[at..at + 2 * WIDTH].as_chunks();
                scales[panel] = lanes.load(&affine[0]);
                minimums[panel] = lanes.load(&affine[1]);
            }
        }
        for pair in group * pairs_per_group..(group + 1) * pairs_per_group {
            let mut weights = [[lanes.splat(0.0); PANELS]; 2];
            for panel in 0..PANELS {
                let at = (panel * pairs_per_panel + pair) * W::PAIR_BYTES;
                // SAFETY: `pair` is below `pairs_per_panel` and `panel` below `PANELS`, so all `PAIR_BYTES` bytes lie
                // within the slice that `codes` was taken from.
                let (first, second) = unsafe { W::load_pair(lanes, codes.add(at)) };
                if W::AFFINE {
                    weights[0][panel] = lanes.multiply_add(first, scales[panel], minimums[panel]);
                    weights[1][panel] = lanes.multiply_add(second, scales[panel], minimums[panel]);
                } else {
                    weights[0][panel] = first;
                    weights[1][panel] = second;
                }
            }
            for (half, weights) in weights.iter().enumerate() {
                for (row, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: `2 × pair + half` is below `width` and `row` below `ROWS`, within the slice that
                    // `inputs` was taken from.
                    let input = lanes.splat(unsafe { *inputs.add((2 * pair + half) * ROWS + row) });
                    for (sum, weight) in sums.iter_mut().zip(weights) {
                        *sum = lanes.multiply_add(input, *weight, *sum);
                    }
                }
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        for (panel, sum) in sums.iter().enumerate() {
            let at = (start + row) * matrix.padded_columns() + (first_panel + panel) * WIDTH;
            // SAFETY: the row and panel exist, so the place lies within the output, whose length `multiply` checked;
            // no other strip writes this panel's columns.
            let out = unsafe { &mut *strip.out.add(at).cast::<[f32; WIDTH]>() };
            lanes.store(*sum, out);
        }
    }
}

/// How a form's bytes become weights.
trait Weights {
    const PAIR_BYTES: usize;
    /// Whether the weights are codes that a scale and a minimum turn into values.
    const AFFINE: bool;

    /// One panel's codes for two consecutive inputs.
    ///
    /// # Safety
    /// `PAIR_BYTES` bytes are readable at `bytes`.
    unsafe fn load_pair<L: Lanes>(lanes: L, bytes: *const u8) -> (L::Vector, L::Vector);
}

struct Nibbles;

impl Weights for Nibbles {
    const PAIR_BYTES: usize = Form::Nibbles.pair_bytes();
    const AFFINE: bool = true;

    #[inline(always)]
    unsafe fn load_pair<L: Lanes>(lanes: L, bytes: *const u8) -> (L::Vector, L::Vector) {
        // SAFETY: the caller vouches for 16 bytes.
        lanes.load_nibbles(unsafe { &*bytes.cast() })
    }
}

struct Bytes;

impl Weights for Bytes {
    const PAIR_BYTES: usize = Form::Bytes.pair_bytes();
    const AFFINE: bool = true;

    #[inline(always)]
    unsafe fn load_pair<L: Lanes>(lanes: L, bytes: *const u8) -> (L::Vector, L::Vector) {
        // SAFETY: the caller vouches for 32 bytes.
        let [first, second]: &[[u8; WIDTH]; 2] = unsafe { &*bytes.cast() };
        (lanes.load_bytes(first), lanes.load_bytes(second))
    }
}

struct Floats;

impl Weights for Floats {
    const PAIR_BYTES: usize = Form::Floats.pair_bytes();
    const AFFINE: bool = false;

    #[inline(always)]
    unsafe fn load_pair<L: Lanes>(lanes: L, bytes: *const u8) -> (L::Vector, L::Vector) {
        // SAFETY: the caller vouches for 128 bytes; bytes are not aligned like floats, so they are copied out.
        let [first, second]: [[f32; WIDTH]; 2] =
            unsafe { bytes.cast::<[[f32; WIDTH]; 2]>().read_unaligned() };
        (lanes.load(&first), lanes.load(&second))
    }
}

#[cfg(test)]
mod tests {
    use super::super::matrix::tests::sample_tensor;
    use super::super::{InstructionSet, Pool};
    use super::*;
    use crate::gguf::TensorType;
    use crate::quantised::expand;

    fn inputs(rows: usize, width: usize) -> Vec<f32> {
        (0..rows * width).map(|index| ((index * 7919 % 1013) as f32 - 506.0) / 500.0).collect()
    }

    fn multiply(set: InstructionSet, matrix: &Matrix, rows: &[f32]) -> Vec<f32> {
        let kernels = Kernels { set, pool: Pool::start(2).unwrap() };
        let mut packed = PackedRows::default();
        kernels.pack(rows, matrix.rows(), &mut packed);
        let mut out = vec![f32::NAN; rows.len() / matrix.rows() * matrix.padded_columns()];
        kernels.multiply(&packed, &mut [Product { matrix, out: &mut out }]);
        out
    }

    #[test]
    fn products_equal_those_of_the_expanded_weights_in_every_format_and_instruction_set() {
        let (width, columns, rows) = (256, 83, 23);
        let inputs = inputs(rows, width);
        for kind in TensorType::ALL {
            let bytes = sample_tensor(kind, width, columns);
            let matrix = Matrix::from_tensor(kind, width, columns, &bytes);
            let mut weights = vec![0.0; width * columns];
            expand(kind, &bytes, &mut weights);
            for set in InstructionSet::available() {
                let products = multiply(set, &matrix, &inputs);
                for (row, input) in inputs.chunks_exact(width).enumerate() {
                    for (column, weights) in weights.chunks_exact(width).enumerate() {
                        let terms = || input.iter().zip(weights).map(|(a, b)| f64::from(*a) * f64::from(*b));
                        let (wanted, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
                        let got = f64::from(products[row * matrix.padded_columns() + column]);
                        assert!(
                            (got - wanted).abs() <= size * 1e-5,
                            "{kind}, {}, row {row}, column {column}: {got}, not {wanted}",
                            set.name()
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_rows_products_do_not_depend_on_the_rows_beside_it() {
        let (width, columns) = (288, 100);
        for kind in [TensorType::Q4_1, TensorType::Q8_0, TensorType::F16] {
            let matrix = Matrix::from_tensor(kind, width, columns, &sample_tensor(kind, width, columns));
            for set in InstructionSet::available() {
                let inputs = inputs(37, width);
                let together = multiply(set, &matrix, &inputs);
                for (row, input) in inputs.chunks_exact(width).enumerate() {
                    let alone = multiply(set, &matrix, input);
                    assert_eq!(together[row * matrix.padded_columns()..][..columns], alone[..columns]);
                }
            }
        }
    }
}
