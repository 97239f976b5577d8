//! Every kernel that this machine has, against the portable one and against plain arithmetic.

use super::super::tiles::tests::sample_tensor;
use super::super::{Pool, Rows};
use super::*;
use crate::gguf::TensorType;
use crate::quantised::expand;
use proptest::prelude::*;

fn kernels(set: InstructionSet, arithmetic: Arithmetic) -> Kernels {
    Kernels::new(set, arithmetic, Pool::start(2).unwrap())
}

fn sample_inputs(rows: usize, width: usize) -> Vec<f32> {
    (0..rows * width).map(|index| ((index * 7919 % 1013) as f32 - 506.0) / 500.0).collect()
}

fn multiply(kernels: &Kernels, matrix: &Matrix, rows: &[f32], before: Before) -> Vec<f32> {
    let mut inputs = Inputs::default();
    kernels.take_rows(Rows { values: rows, stride: matrix.inputs() }, &mut inputs);
    let mut out = vec![0.75; rows.len() / matrix.inputs() * padded(matrix.columns())];
    kernels.multiply(&inputs, matrix, &mut out, before);
    out
}

/// Products of tensors with the largest difference from plain arithmetic that the arithmetic explains, for each row
/// and column: half a step of each weight times the sum of its inputs, and the inputs' own rounding.
fn assert_near(kernels: &Kernels, sources: &[ColumnSource<'_>], width: usize, rounding: f64) {
    let rows = 23;
    let columns: usize = sources.iter().map(|source| source.columns).sum();
    let inputs = sample_inputs(rows, width);
    let matrix = kernels.matrix(width, sources);
    let products = multiply(kernels, &matrix, &inputs, Before::Replaced);
    let mut weights = Vec::new();
    for source in sources {
        let mut values = vec![0.0; source.columns * width];
        expand(source.kind, source.bytes, &mut values);
        weights.extend(values);
    }
    for (row, input) in inputs.chunks_exact(width).enumerate() {
        for (column, weights) in weights.chunks_exact(width).enumerate() {
            let wanted: f64 = input.iter().zip(weights).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let largest =
                f64::from(weights.iter().fold(0.0_f32, |largest, weight| largest.max(weight.abs())));
            let size: f64 = input.iter().map(|input| f64::from(input.abs())).sum();
            let got = f64::from(products[row * padded(columns) + column]);
            let name = kernels.name();
            assert!(
                (got - wanted).abs() <= size * largest * rounding,
                "{name}, {row}, {column}: {got}, not {wanted}"
            );
        }
    }
}

#[test]
fn products_are_those_of_the_files_weights_within_half_a_step_in_every_format() {
    let width = 256;
    for kind in TensorType::ALL {
        let bytes = sample_tensor(kind, width, 83);
        let other = sample_tensor(TensorType::Q8_0, width, 14);
        let sources = [
            ColumnSource { kind, columns: 83, bytes: &bytes },
            ColumnSource { kind: TensorType::Q8_0, columns: 14, bytes: &other },
        ];
        for set in InstructionSet::available() {
            assert_near(&kernels(set, Arithmetic::Fixed), &sources, width, 0.5 / 127.0 + 0.001);
            assert_near(&kernels(set, Arithmetic::Exact), &sources, width, 1e-5);
        }
    }
}

#[test]
fn a_row_that_is_no_number_gives_none_and_harms_no_other() {
    let width = 64;
    let bytes = sample_tensor(TensorType::Q8_0, width, 40);
    let sources = [ColumnSource { kind: TensorType::Q8_0, columns: 40, bytes: &bytes }];
    for set in InstructionSet::available() {
        let kernels = kernels(set, Arithmetic::Fixed);
        let matrix = kernels.matrix(width, &sources);
        let mut rows = sample_inputs(7, width);
        let sound = multiply(&kernels, &matrix, &rows, Before::Replaced);
        (rows[70], rows[140]) = (f32::NAN, f32::INFINITY);
        rows[3 * width..4 * width].fill(0.0);
        rows[4 * width..5 * width].fill(f32::MIN_POSITIVE / 8.0);
        let products = multiply(&kernels, &matrix, &rows, Before::Replaced);
        let row = |products: &[f32], row: usize| products[row * 64..][..40].to_vec();
        for harmed in [1, 2] {
            assert!(row(&products, harmed).iter().all(|product| product.is_nan()), "{}", kernels.name());
        }
        assert_eq!([row(&products, 3), row(&products, 4)], [vec![0.0; 40], vec![0.0; 40]]);
        for sane in [0, 5, 6] {
            assert_eq!(row(&products, sane), row(&sound, sane), "{}", kernels.name());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_kernel_gives_the_same_bits_for_any_shape_and_any_rows_beside(
        rows in 1_usize..=40,
        columns in 1_usize..=110,
        sixteens in 1_usize..=42,
        added in any::<bool>(),
        seed in any::<u32>(),
    ) {
        let width = sixteens * 16;
        let bytes = sample_tensor(TensorType::F16, width, columns);
        let sources = [ColumnSource { kind: TensorType::F16, columns, bytes: &bytes }];
        let mut state = u64::from(seed) << 1 | 1;
        let inputs: Vec<f32> = (0..rows * width)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                ((state >> 40) as f32 - 8_388_608.0) * 2.0_f32.powi((state >> 33 & 15) as i32 - 24)
            })
            .collect();
        let before = if added { Before::Added } else { Before::Replaced };
        let portable = kernels(InstructionSet::available()[0], Arithmetic::Fixed);
        let wanted = multiply(&portable, &portable.matrix(width, &sources), &inputs, before);
        for set in InstructionSet::available() {
            let kernels = kernels(set, Arithmetic::Fixed);
            let matrix = kernels.matrix(width, &sources);
            prop_assert!(multiply(&kernels, &matrix, &inputs, before) == wanted, "{}", kernels.name());
            for (row, wanted) in wanted.chunks_exact(padded(columns)).enumerate() {
                let alone = multiply(&kernels, &matrix, &inputs[row * width..][..width], before);
                prop_assert!(alone == wanted, "{}, row {row} alone", kernels.name());
            }
        }
    }
}
