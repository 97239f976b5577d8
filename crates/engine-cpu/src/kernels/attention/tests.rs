//! Compares attention on every kernel that this CPU supports with the plain formula, in both formats of the cache.

use super::super::{InstructionSet, Precision, ThreadPool};
use super::*;
use crate::half_precision::{f16_to_f32, f32_to_f16_finite};
use crate::kernels::KvShape;
use crate::kernels::lanes::Portable;
use crate::paging::{PageAllocator, PagePool, PageTable};

/// The cache is in half precision.
const SMALL: AttentionShape = AttentionShape { heads: 6, kv_heads: 2, head_dim: 48 };
/// The cache is in split bytes where the kernel has integer products.
const SHAPES: [AttentionShape; 3] = [
    SMALL,
    AttentionShape { heads: 9, kv_heads: 3, head_dim: 64 },
    AttentionShape { heads: 7, kv_heads: 1, head_dim: 128 },
];
const TOKENS: usize = 150;
const LAYER: usize = 1;
/// Values are below 2. In half precision they are stored exactly; split bytes round them, and the softmax weights, to 16
/// bits.
const MAX_ERROR_IN_F16: f64 = 1e-5;
const MAX_ERROR_IN_SPLIT_BYTES: f64 = 2e-4;

fn wave(index: usize) -> f32 {
    f16_to_f32(f32_to_f16_finite((index as f32 * 0.713).sin() * 2.0))
}

fn keys(shape: AttentionShape, token: usize) -> Vec<f32> {
    (0..shape.kv_heads * shape.head_dim).map(|index| wave(token * 97 + index)).collect()
}

/// Tokens differ in size, so that their scales do.
fn values(shape: AttentionShape, token: usize) -> Vec<f32> {
    let size = [1.0, 0.25, 0.5][token % 3];
    (0..shape.kv_heads * shape.head_dim).map(|index| wave(token * 89 + index + 13) * size).collect()
}

/// Reference: the plain attention formula.
fn expected(shape: AttentionShape, query: &[f32], kv_head: usize, position: usize) -> Vec<f64> {
    let head = kv_head * shape.head_dim..(kv_head + 1) * shape.head_dim;
    let weights: Vec<f64> = (0..=position)
        .map(|token| {
            let key = &keys(shape, token)[head.clone()];
            let score: f64 = query.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            (score / (shape.head_dim as f64).sqrt()).exp()
        })
        .collect();
    let total: f64 = weights.iter().sum();
    let mut result = vec![0.0; shape.head_dim];
    for (token, weight) in weights.iter().enumerate() {
        for (sum, value) in result.iter_mut().zip(&values(shape, token)[head.clone()]) {
            *sum += weight / total * f64::from(*value);
        }
    }
    result
}

fn kernels(set: InstructionSet) -> Kernels {
    Kernels::new(set, Precision::Int8, ThreadPool::start(2).unwrap())
}

fn cache_of(kernels: &Kernels, shape: AttentionShape) -> (KvCache, PageTable) {
    let AttentionShape { kv_heads, head_dim, .. } = shape;
    let mut cache = kernels.kv_cache(KvShape { layers: 2, kv_heads, head_dim }, 10).unwrap();
    let mut allocator = PageAllocator::new(10, 0);
    let mut table = allocator.reserve(10, PagePool::General).unwrap();
    allocator.grow(&mut table, TOKENS);
    for token in 0..TOKENS {
        write(&mut cache, &table, token, &keys(shape, token), &values(shape, token));
    }
    (cache, table)
}

fn write(cache: &mut KvCache, table: &PageTable, token: usize, keys: &[f32], values: &[f32]) {
    let slot = cache.slot(table.pages(), token);
    // SAFETY: the cache is not shared.
    unsafe { cache.write(Portable, slot, LAYER, keys, values) };
}

fn queries_of(shape: AttentionShape) -> Vec<f32> {
    (0..TOKENS * shape.heads * shape.head_dim).map(|index| wave(index * 31 + 5)).collect()
}

fn span(table: &PageTable, first_row: usize, rows: usize) -> Span<'_> {
    Span { first_row, rows, first_position: first_row, pages: table.pages() }
}

fn attend(
    kernels: &Kernels,
    shape: AttentionShape,
    (cache, spans): (&KvCache, &[Span<'_>]),
    queries: &[f32],
) -> Vec<f32> {
    let mut out = vec![0.0; queries.len()];
    let queries = Rows { values: queries, stride: shape.heads * shape.head_dim };
    kernels.attend(shape, cache, LAYER, spans, queries, &mut out);
    out
}

#[test]
fn spans_that_share_a_row_or_exceed_the_rows_panic() {
    for set in InstructionSet::available() {
        let kernels = kernels(set);
        let (cache, table) = cache_of(&kernels, SMALL);
        let queries = vec![0.0; 8 * SMALL.heads * SMALL.head_dim];
        let panics = |rows: &[(usize, usize)]| {
            let span = |&(first_row, rows)| Span { first_row, rows, first_position: 0, pages: table.pages() };
            let spans: Vec<Span<'_>> = rows.iter().map(span).collect();
            let attend = || attend(&kernels, SMALL, (&cache, &spans), &queries);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(attend)).is_err()
        };
        for disjoint in [&[(0, 8)][..], &[(0, 3), (3, 5)], &[(1, 2), (5, 3)], &[(2, 0), (2, 4)], &[]] {
            assert!(!panics(disjoint), "{disjoint:?}");
        }
        let wrong =
            [&[(0, 3), (2, 2)][..], &[(0, 8), (0, 8)], &[(4, 4), (0, 4)], &[(0, 9)], &[(usize::MAX, 2)]];
        for spans in wrong {
            assert!(panics(spans), "{spans:?}");
        }
    }
}

#[test]
fn attention_equals_the_reference_for_any_row_split() {
    for shape in SHAPES {
        let queries = queries_of(shape);
        for set in InstructionSet::available() {
            let kernels = kernels(set);
            let (cache, table) = cache_of(&kernels, shape);
            let max_error = match cache.format() {
                KvFormat::F16 => MAX_ERROR_IN_F16,
                KvFormat::SplitBytes => MAX_ERROR_IN_SPLIT_BYTES,
            };
            let out = attend(&kernels, shape, (&cache, &[span(&table, 0, TOKENS)]), &queries);
            for (row, head) in [(0, 0), (1, 5), (63, 2), (64, 3), (127, 4), (149, 5)] {
                let range = (row * shape.heads + head) * shape.head_dim..;
                let query = &queries[range.clone()][..shape.head_dim];
                let expected = expected(shape, query, head / (shape.heads / shape.kv_heads), row);
                for (got, expected) in out[range].iter().zip(expected) {
                    let error = (f64::from(*got) - expected).abs();
                    assert!(error < max_error, "{}, row {row}, head {head}: {error}", set.name());
                }
            }
            let cuts = [(0, 1), (1, 9), (10, 100), (110, 40)].map(|(first, rows)| span(&table, first, rows));
            assert!(attend(&kernels, shape, (&cache, &cuts), &queries) == out, "{}", set.name());
        }
    }
}

#[test]
fn integer_attention_is_bit_identical_on_every_kernel_that_has_it() {
    for shape in SHAPES {
        let queries = queries_of(shape);
        let mut first: Option<Vec<f32>> = None;
        for set in InstructionSet::available() {
            let kernels = kernels(set);
            let (cache, table) = cache_of(&kernels, shape);
            if cache.format() == KvFormat::SplitBytes {
                let out = attend(&kernels, shape, (&cache, &[span(&table, 0, TOKENS)]), &queries);
                assert!(*first.get_or_insert_with(|| out.clone()) == out, "{}", set.name());
            }
        }
    }
}

#[test]
fn later_tokens_do_not_change_a_row() {
    for shape in SHAPES {
        let queries = queries_of(shape);
        let width = shape.heads * shape.head_dim;
        for set in InstructionSet::available() {
            let kernels = kernels(set);
            let (mut cache, table) = cache_of(&kernels, shape);
            let before = attend(&kernels, shape, (&cache, &[span(&table, 0, TOKENS)]), &queries);
            for position in (0..TOKENS).rev().step_by(7) {
                let len = shape.kv_heads * shape.head_dim;
                for token in position + 1..TOKENS.min(position + 8) {
                    write(&mut cache, &table, token, &vec![f32::INFINITY; len], &vec![6e4; len]);
                }
                let row = attend(&kernels, shape, (&cache, &[span(&table, position, 1)]), &queries);
                let range = position * width..(position + 1) * width;
                assert!(row[range.clone()] == before[range], "{}, row {position}", set.name());
            }
        }
    }
}

/// At such scores, half a rounding step of the maximum is a factor of two.
#[test]
fn weights_add_up_to_one_for_huge_scores() {
    for shape in SHAPES {
        let queries: Vec<f32> = queries_of(shape).iter().map(|value| value * 1e8).collect();
        for set in InstructionSet::available() {
            let kernels = kernels(set);
            let (mut cache, table) = cache_of(&kernels, shape);
            let ones = vec![1.0; shape.kv_heads * shape.head_dim];
            for token in 0..TOKENS {
                write(&mut cache, &table, token, &keys(shape, token), &ones);
            }
            let out = attend(&kernels, shape, (&cache, &[span(&table, 0, TOKENS)]), &queries);
            let error = out.iter().map(|value| (value - 1.0).abs()).fold(0.0, f32::max);
            assert!(error < 1e-3 && !out.iter().any(|value| value.is_nan()), "{}: {error}", set.name());
        }
    }
}

#[test]
fn nan_query_affects_no_other_row() {
    for shape in SHAPES {
        let width = shape.heads * shape.head_dim;
        for set in InstructionSet::available() {
            let kernels = kernels(set);
            let (cache, table) = cache_of(&kernels, shape);
            let mut queries = queries_of(shape);
            let whole = [span(&table, 0, TOKENS)];
            let before = attend(&kernels, shape, (&cache, &whole), &queries);
            queries[70 * width] = f32::NAN;
            queries[71 * width + shape.head_dim] = f32::INFINITY;
            let after = attend(&kernels, shape, (&cache, &whole), &queries);
            for row in (0..TOKENS).filter(|row| ![70, 71].contains(row)) {
                let range = row * width..(row + 1) * width;
                assert!(after[range.clone()] == before[range], "{}, row {row}", set.name());
            }
        }
    }
}
