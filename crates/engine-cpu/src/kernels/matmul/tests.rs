//! Compares every kernel that this CPU supports with the portable one and with plain arithmetic.

use super::super::tiles::tests::{as_int8, is_packed, sample_tensor};
use super::super::{Rows, ThreadPool};
use super::*;
use crate::gguf::TensorType;
use crate::quantized::dequantize;
use proptest::prelude::*;

fn kernels(set: InstructionSet, precision: Precision) -> Kernels {
    Kernels::new(set, precision, ThreadPool::start(2).unwrap())
}

fn sample_inputs(rows: usize, width: usize) -> Vec<f32> {
    (0..rows * width).map(|index| ((index * 7919 % 1013) as f32 - 506.0) / 500.0).collect()
}

fn multiply(kernels: &Kernels, matrix: &Matrix, rows: &[f32], mode: OutputMode) -> Vec<f32> {
    let mut inputs = Activations::default();
    kernels.copy_rows(Rows { values: rows, stride: matrix.inputs() }, &mut inputs);
    let mut out = vec![0.75; rows.len() / matrix.inputs() * padded(matrix.columns())];
    kernels.multiply(&inputs, matrix, &mut out, mode);
    out
}

/// Checks products against plain arithmetic, for each row and column. The largest difference that quantisation explains
/// is half a step of each weight times the sum of its inputs, plus the rounding of the inputs.
fn assert_near(kernels: &Kernels, sources: &[ColumnSource<'_>], width: usize, rounding: f64) {
    let rows = 23;
    let columns: usize = sources.iter().map(|source| source.columns).sum();
    let inputs = sample_inputs(rows, width);
    let matrix = kernels.matrix(width, sources);
    let products = multiply(kernels, &matrix, &inputs, OutputMode::Overwrite);
    let mut weights = Vec::new();
    for source in sources {
        let mut values = vec![0.0; source.columns * width];
        dequantize(source.kind, source.bytes, &mut values);
        weights.extend(values);
    }
    for (row, input) in inputs.chunks_exact(width).enumerate() {
        for (column, weights) in weights.chunks_exact(width).enumerate() {
            let expected: f64 = input.iter().zip(weights).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let largest =
                f64::from(weights.iter().fold(0.0_f32, |largest, weight| largest.max(weight.abs())));
            let size: f64 = input.iter().map(|input| f64::from(input.abs())).sum();
            let got = f64::from(products[row * padded(columns) + column]);
            let name = kernels.name();
            assert!(
                (got - expected).abs() <= size * largest * rounding,
                "{name}, {row}, {column}: {got}, not {expected}"
            );
        }
    }
}

#[test]
fn matmul_matches_the_file_weights_within_half_a_step() {
    let width = 256;
    for kind in TensorType::ALL {
        let bytes = sample_tensor(kind, width, 83);
        let other = sample_tensor(TensorType::Q8_0, width, 14);
        let sources = [
            ColumnSource { kind, columns: 83, bytes: &bytes },
            ColumnSource { kind: TensorType::Q8_0, columns: 14, bytes: &other },
        ];
        // The steps and offsets of 4-bit weights are rounded to 16 bits (`nibbles`).
        let steps = match kind {
            TensorType::Q4_0 | TensorType::Q4_1 | TensorType::Q4K => 0.518,
            _ => 0.5,
        };
        for set in InstructionSet::available() {
            assert_near(&kernels(set, Precision::Int8), &sources, width, steps / 127.0 + 0.001);
            assert_near(&kernels(set, Precision::F32), &sources, width, 1e-5);
        }
    }
}

#[test]
fn packed_weights_give_the_same_bits_as_int8_for_any_number_of_rows() {
    let width = 768;
    for kind in [TensorType::Q4_0, TensorType::Q4_1, TensorType::Q4K] {
        let bytes = sample_tensor(kind, width, 83);
        let other = sample_tensor(TensorType::Q6K, width, 20);
        let sources = [
            ColumnSource { kind, columns: 83, bytes: &bytes },
            ColumnSource { kind: TensorType::Q6K, columns: 20, bytes: &other },
        ];
        let portable = kernels(InstructionSet::available()[0], Precision::Int8);
        let packed = TiledMatrix::new(&portable, width, &sources);
        assert!(is_packed(&packed), "{kind}");
        let int8 = Matrix(Storage::Tiled(as_int8(&portable, &packed)));
        let inputs = sample_inputs(40, width);
        for set in InstructionSet::available() {
            let kernels = kernels(set, Precision::Int8);
            let packed = kernels.matrix(width, &sources);
            for rows in 1..=40 {
                for mode in [OutputMode::Overwrite, OutputMode::Accumulate] {
                    let inputs = &inputs[..rows * width];
                    let expected = multiply(&kernels, &int8, inputs, mode);
                    assert!(
                        multiply(&kernels, &packed, inputs, mode) == expected,
                        "{kind}, {}, {rows} rows",
                        kernels.name()
                    );
                }
            }
        }
    }
}

#[test]
fn nan_row_yields_nan_and_affects_no_other_row() {
    let width = 64;
    let bytes = sample_tensor(TensorType::Q8_0, width, 40);
    let sources = [ColumnSource { kind: TensorType::Q8_0, columns: 40, bytes: &bytes }];
    for set in InstructionSet::available() {
        let kernels = kernels(set, Precision::Int8);
        let matrix = kernels.matrix(width, &sources);
        let mut rows = sample_inputs(7, width);
        let unaffected = multiply(&kernels, &matrix, &rows, OutputMode::Overwrite);
        (rows[70], rows[140]) = (f32::NAN, f32::INFINITY);
        rows[3 * width..4 * width].fill(0.0);
        rows[4 * width..5 * width].fill(f32::MIN_POSITIVE / 8.0);
        let products = multiply(&kernels, &matrix, &rows, OutputMode::Overwrite);
        let row = |products: &[f32], row: usize| products[row * 64..][..40].to_vec();
        for nan_row in [1, 2] {
            assert!(row(&products, nan_row).iter().all(|product| product.is_nan()), "{}", kernels.name());
        }
        assert_eq!([row(&products, 3), row(&products, 4)], [vec![0.0; 40], vec![0.0; 40]]);
        for finite_row in [0, 5, 6] {
            assert_eq!(row(&products, finite_row), row(&unaffected, finite_row), "{}", kernels.name());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_kernel_is_bit_identical_for_any_shape_and_batch(
        rows in 1_usize..=40,
        columns in 1_usize..=110,
        sixteens in 1_usize..=42,
        accumulates in any::<bool>(),
        packed in any::<bool>(),
        seed in any::<u32>(),
    ) {
        let (kind, width) = match packed {
            true => (TensorType::Q4_1, sixteens.div_ceil(2) * 32),
            false => (TensorType::F16, sixteens * 16),
        };
        let bytes = sample_tensor(kind, width, columns);
        let sources = [ColumnSource { kind, columns, bytes: &bytes }];
        let mut state = u64::from(seed) << 1 | 1;
        let inputs: Vec<f32> = (0..rows * width)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                ((state >> 40) as f32 - 8_388_608.0) * 2.0_f32.powi((state >> 33 & 15) as i32 - 24)
            })
            .collect();
        let mode = if accumulates { OutputMode::Accumulate } else { OutputMode::Overwrite };
        let portable = kernels(InstructionSet::available()[0], Precision::Int8);
        let expected = multiply(&portable, &portable.matrix(width, &sources), &inputs, mode);
        for set in InstructionSet::available() {
            let kernels = kernels(set, Precision::Int8);
            let matrix = kernels.matrix(width, &sources);
            prop_assert!(multiply(&kernels, &matrix, &inputs, mode) == expected, "{}", kernels.name());
            for (row, expected) in expected.chunks_exact(padded(columns)).enumerate() {
                let alone = multiply(&kernels, &matrix, &inputs[row * width..][..width], mode);
                prop_assert!(alone == expected, "{}, row {row} alone", kernels.name());
            }
        }
    }
}
