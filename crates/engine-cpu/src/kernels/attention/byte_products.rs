//! Integer products of bytes for attention, with AMX or AVX-512. Both give the same numbers.
//!
//! A tile of queries or weights is 16 rows of 64 bytes, a tile of keys or values 16 lines, each with four consecutive
//! inputs of 16 columns. Results are tiles of 16 rows × 16 columns: the products of high bytes, then the sum of both
//! mixed products, high × low and low × high.

use super::BLOCK_PAGES;
use crate::kernels::matmul::amx::{self, Amx};
use crate::kernels::tiles::Line;
use crate::kernels::x86::Avx512;
use std::arch::asm;
use std::arch::x86_64::*;

/// Rows of a tile.
pub(super) const ROWS: usize = 16;
/// Lines of one tile in two planes.
pub(super) const PLANE_PAIR: usize = 2 * ROWS;
/// Bytes from one row of a tile to the next.
const STRIDE: usize = size_of::<Line>();
/// Lines of a page for 16 values of a head.
pub(super) const PAGE_LINES: usize = 4;
/// Queries and tiles that AVX-512 multiplies together.
const MAX_QUERIES: usize = 4;

/// Holding a value proves that the CPU has the instructions.
pub(super) trait ByteProducts: Copy {
    /// Whether values are read as tiles rather than page by page.
    const NEEDS_TILES: bool;

    /// Prepares this thread for tiles of up to `rows` rows.
    fn start(self, rows: usize);

    /// Ends what `start` began.
    fn end(self);

    /// For each page: `rows` queries (signed, planes for each 64 values) times the page's keys (planes of unsigned bytes).
    fn scores(self, queries: &[Line], keys: &[[&[Line]; 2]], rows: usize, products: &mut [Line]);

    /// For each 16 values of a head: weights (two planes of unsigned bytes) times values (pairs of planes of signed bytes).
    /// Every line of a tile has four tokens of a page, and the pages take turns; beyond the given pages all weights are
    /// zero.
    fn weighted_values(
        self,
        weights: &[Line],
        values: Values<'_>,
        rows_and_pages: (usize, usize),
        products: &mut [Line],
    );
}

/// A block's values, twice: page by page as they are stored, and as tiles, which only exist where `NEEDS_TILES`.
#[derive(Clone, Copy)]
pub(super) struct Values<'a> {
    pub(super) pages: &'a [[&'a [Line]; 2]; BLOCK_PAGES],
    pub(super) tiles: &'a [Line],
}

/// Adds the products of the loaded tiles to the sums: high × high, and both mixed products.
macro_rules! multiply_add {
    ($product:literal, $high:tt, $mixed:tt) => {
        asm!(
            concat!($product, " ", $high, ", tmm4, tmm6"),
            concat!($product, " ", $mixed, ", tmm4, tmm7"),
            concat!($product, " ", $mixed, ", tmm5, tmm6"),
            out($high) _, out($mixed) _,
            options(nostack, nomem),
        )
    };
}

/// A tile load waits for the tile stores before it, and a store for its products. So the tiles of the next page or group
/// are loaded before the sums of the last one are stored, and two pairs of sums take turns: while one is stored, the
/// other is multiplied.
impl ByteProducts for Amx {
    const NEEDS_TILES: bool = true;

    fn start(self, rows: usize) {
        amx::configure(self, rows);
    }

    fn end(self) {
        amx::release(self);
    }

    fn scores(self, queries: &[Line], keys: &[[&[Line]; 2]], rows: usize, products: &mut [Line]) {
        let chunks = queries.len() / PLANE_PAIR;
        assert!(rows <= ROWS && products.len() >= keys.len() * PLANE_PAIR, "room for the products");
        let products = &mut products.as_chunks_mut::<PLANE_PAIR>().0[..keys.len()];
        for (page, [highs, lows]) in keys.iter().enumerate() {
            assert!(highs.len() == chunks * ROWS && lows.len() == highs.len(), "tiles of keys");
            for chunk in 0..chunks {
                // SAFETY: an `Amx` proves that the CPU has the instructions, and `start` has configured the tiles: those
                // of queries and products with at most 16 rows, all others with 16. The lengths are asserted above, and
                // no other code touches the tiles between these asm blocks.
                unsafe {
                    // Queries of a single tile stay loaded for all pages.
                    if chunks > 1 || page == 0 {
                        load_rows(queries.as_ptr().add(chunk * PLANE_PAIR));
                    }
                    load_columns(highs.as_ptr().add(chunk * ROWS), lows.as_ptr().add(chunk * ROWS));
                    if chunk == 0 {
                        if let Some(before) = page.checked_sub(1) {
                            store_sums(before, &mut products[before]);
                        }
                        clear_sums(page);
                    }
                    match page % 2 {
                        0 => multiply_add!("tdpbsud", "tmm0", "tmm1"),
                        _ => multiply_add!("tdpbsud", "tmm2", "tmm3"),
                    }
                }
            }
        }
        if let Some(last) = products.len().checked_sub(1) {
            // SAFETY: as above.
            unsafe { store_sums(last, &mut products[last]) };
        }
    }

    fn weighted_values(
        self,
        weights: &[Line],
        Values { tiles: values, .. }: Values<'_>,
        _rows_and_pages: (usize, usize),
        products: &mut [Line],
    ) {
        assert!(weights.len() >= PLANE_PAIR, "both planes");
        let values = values.as_chunks::<PLANE_PAIR>().0;
        let products = &mut products.as_chunks_mut::<PLANE_PAIR>().0[..values.len()];
        // SAFETY: as in `scores`. The weights stay in their tiles.
        unsafe { load_rows(weights.as_ptr()) };
        for (group, values) in values.iter().enumerate() {
            // SAFETY: as in `scores`; both planes have 16 lines.
            unsafe {
                load_columns(values.as_ptr(), values.as_ptr().add(ROWS));
                if let Some(before) = group.checked_sub(1) {
                    store_sums(before, &mut products[before]);
                }
                clear_sums(group);
                match group % 2 {
                    0 => multiply_add!("tdpbusd", "tmm0", "tmm1"),
                    _ => multiply_add!("tdpbusd", "tmm2", "tmm3"),
                }
            }
        }
        if let Some(last) = products.len().checked_sub(1) {
            // SAFETY: as in `scores`.
            unsafe { store_sums(last, &mut products[last]) };
        }
    }
}

/// Loads both planes of queries or weights.
///
/// # Safety
/// The tiles are configured, and 32 lines can be read.
#[inline(always)]
unsafe fn load_rows(lines: *const Line) {
    // SAFETY: what the caller guarantees.
    unsafe {
        asm!(
            "tileloadd tmm4, [{lines} + {stride}]",
            "tileloadd tmm5, [{lines} + {stride} + 1024]",
            lines = in(reg) lines,
            stride = in(reg) STRIDE,
            out("tmm4") _, out("tmm5") _,
            options(nostack, readonly),
        );
    }
}

/// Loads both planes of keys or values.
///
/// # Safety
/// The tiles are configured, and 16 lines can be read from each pointer.
#[inline(always)]
unsafe fn load_columns(highs: *const Line, lows: *const Line) {
    // SAFETY: what the caller guarantees.
    unsafe {
        asm!(
            "tileloadd tmm6, [{highs} + {stride}]",
            "tileloadd tmm7, [{lows} + {stride}]",
            highs = in(reg) highs,
            lows = in(reg) lows,
            stride = in(reg) STRIDE,
            out("tmm6") _, out("tmm7") _,
            options(nostack, readonly),
        );
    }
}

/// Sets the sums of an even or an odd index to zero.
///
/// # Safety
/// The tiles are configured.
#[inline(always)]
unsafe fn clear_sums(index: usize) {
    // SAFETY: no memory is accessed.
    unsafe {
        if index.is_multiple_of(2) {
            asm!("tilezero tmm0", "tilezero tmm1", out("tmm0") _, out("tmm1") _, options(nostack, nomem));
        } else {
            asm!("tilezero tmm2", "tilezero tmm3", out("tmm2") _, out("tmm3") _, options(nostack, nomem));
        }
    }
}

/// Writes the sums of an even or an odd index.
///
/// # Safety
/// The tiles are configured.
#[inline(always)]
unsafe fn store_sums(index: usize, products: &mut [Line; PLANE_PAIR]) {
    // SAFETY: the reference covers the 32 lines.
    unsafe {
        match index % 2 {
            0 => asm!(
                "tilestored [{out} + {stride}], tmm0",
                "tilestored [{out} + {stride} + 1024], tmm1",
                out = in(reg) products,
                stride = in(reg) STRIDE,
                options(nostack),
            ),
            _ => asm!(
                "tilestored [{out} + {stride}], tmm2",
                "tilestored [{out} + {stride} + 1024], tmm3",
                out = in(reg) products,
                stride = in(reg) STRIDE,
                options(nostack),
            ),
        }
    }
}

impl ByteProducts for Avx512 {
    const NEEDS_TILES: bool = false;

    fn start(self, _rows: usize) {}

    fn end(self) {}

    fn scores(self, queries: &[Line], keys: &[[&[Line]; 2]], rows: usize, products: &mut [Line]) {
        assert!(rows <= ROWS && products.len() >= keys.len() * PLANE_PAIR, "room for the products");
        for (index, keys) in keys.chunks(2).enumerate() {
            let products = &mut products[2 * index * PLANE_PAIR..];
            for first in (0..rows).step_by(MAX_QUERIES) {
                let queries = &queries[first..];
                let products = &mut products[first..];
                // SAFETY: an `Avx512` exists only if the CPU has these instructions.
                unsafe {
                    match (keys, rows - first) {
                        ([page], 1) => score_rows::<1, 1>(queries, [*page], products),
                        ([page], 2) => score_rows::<2, 1>(queries, [*page], products),
                        ([page], 3) => score_rows::<3, 1>(queries, [*page], products),
                        ([page], _) => score_rows::<MAX_QUERIES, 1>(queries, [*page], products),
                        ([page, next], 1) => score_rows::<1, 2>(queries, [*page, *next], products),
                        ([page, next], 2) => score_rows::<2, 2>(queries, [*page, *next], products),
                        ([page, next], 3) => score_rows::<3, 2>(queries, [*page, *next], products),
                        ([page, next], _) => score_rows::<MAX_QUERIES, 2>(queries, [*page, *next], products),
                        _ => {}
                    }
                }
            }
        }
    }

    fn weighted_values(
        self,
        weights: &[Line],
        Values { pages: values, .. }: Values<'_>,
        (rows, pages): (usize, usize),
        products: &mut [Line],
    ) {
        // A head has at least four groups of 16 values, so they come in pairs.
        let pairs = values[0][0].len() / (2 * PAGE_LINES);
        for (pair, products) in
            products.as_chunks_mut::<{ 2 * PLANE_PAIR }>().0.iter_mut().enumerate().take(pairs)
        {
            let values =
                values.map(|planes| planes.map(|plane| &plane[pair * 2 * PAGE_LINES..][..2 * PAGE_LINES]));
            let values = &values[..pages];
            for first in (0..rows).step_by(MAX_QUERIES) {
                let weights = &weights[first..];
                let products = &mut products[first..];
                // SAFETY: an `Avx512` exists only if the CPU has these instructions.
                unsafe {
                    match rows - first {
                        1 => sum_value_rows::<1>(weights, values, products),
                        2 => sum_value_rows::<2>(weights, values, products),
                        3 => sum_value_rows::<3>(weights, values, products),
                        _ => sum_value_rows::<MAX_QUERIES>(weights, values, products),
                    }
                }
            }
        }
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn load(line: &Line) -> __m512i {
    // SAFETY: a line is 64 bytes, and aligned.
    unsafe { _mm512_load_si512((&raw const *line).cast()) }
}

/// Four bytes of a line in every lane.
#[target_feature(enable = "avx512f")]
#[inline]
fn broadcast(line: &Line, quad: usize) -> __m512i {
    _mm512_set1_epi32(i32::from_ne_bytes(line.0.as_chunks::<4>().0[quad]))
}

#[target_feature(enable = "avx512f")]
#[inline]
fn store(line: &mut Line, vector: __m512i) {
    // SAFETY: a line is 64 bytes, and aligned.
    unsafe { _mm512_store_si512((&raw mut *line).cast(), vector) }
}

/// # Safety
/// The CPU has these instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn score_rows<const QUERIES: usize, const PAGES: usize>(
    queries: &[Line],
    keys: [[&[Line]; 2]; PAGES],
    products: &mut [Line],
) {
    let mut highs = [[_mm512_setzero_si512(); PAGES]; QUERIES];
    let mut mixed = highs;
    let lines = keys[0][0].len();
    let keys = keys.map(|[high, low]| (&high[..lines], &low[..lines]));
    for chunk in 0..lines / ROWS {
        let queries = &queries[chunk * PLANE_PAIR..][..ROWS + QUERIES];
        for quad in 0..ROWS {
            let line = chunk * ROWS + quad;
            let keys = keys.map(|(high, low)| (load(&high[line]), load(&low[line])));
            for query in 0..QUERIES {
                let (high, low) = (broadcast(&queries[query], quad), broadcast(&queries[ROWS + query], quad));
                for (page, keys) in keys.iter().enumerate() {
                    highs[query][page] = _mm512_dpbusd_epi32(highs[query][page], keys.0, high);
                    mixed[query][page] = _mm512_dpbusd_epi32(mixed[query][page], keys.1, high);
                    mixed[query][page] = _mm512_dpbusd_epi32(mixed[query][page], keys.0, low);
                }
            }
        }
    }
    for query in 0..QUERIES {
        for page in 0..PAGES {
            store(&mut products[page * PLANE_PAIR + query], highs[query][page]);
            store(&mut products[page * PLANE_PAIR + ROWS + query], mixed[query][page]);
        }
    }
}

/// # Safety
/// The CPU has these instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn sum_value_rows<const QUERIES: usize>(
    weights: &[Line],
    values: &[[&[Line]; 2]],
    products: &mut [Line],
) {
    let mut highs = [[_mm512_setzero_si512(); 2]; QUERIES];
    let mut mixed = highs;
    let weights = &weights[..ROWS + QUERIES];
    for (page, [high_lines, low_lines]) in values.iter().enumerate() {
        for line in 0..PAGE_LINES {
            let values =
                [line, PAGE_LINES + line].map(|line| (load(&high_lines[line]), load(&low_lines[line])));
            let quad = line * BLOCK_PAGES + page;
            for query in 0..QUERIES {
                let (high, low) = (broadcast(&weights[query], quad), broadcast(&weights[ROWS + query], quad));
                for (group, values) in values.iter().enumerate() {
                    highs[query][group] = _mm512_dpbusd_epi32(highs[query][group], high, values.0);
                    mixed[query][group] = _mm512_dpbusd_epi32(mixed[query][group], high, values.1);
                    mixed[query][group] = _mm512_dpbusd_epi32(mixed[query][group], low, values.0);
                }
            }
        }
    }
    for query in 0..QUERIES {
        for group in 0..2 {
            store(&mut products[group * PLANE_PAIR + query], highs[query][group]);
            store(&mut products[group * PLANE_PAIR + ROWS + query], mixed[query][group]);
        }
    }
}
