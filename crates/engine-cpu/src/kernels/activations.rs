//! Quantised activations: each row in 16-bit fixed point with its own scale, `x ≈ scale × q` and `|q| ≤ 32,512`.
//! Kernels that multiply bytes (AMX, AVX-512, dotprod) take q as two bytes, `q = 256 × high + low`, each offset by 128
//! to be unsigned; the others read q whole. A group's sum of `q × weight` fits 32 bits, so it is exact everywhere.

use super::lanes::{Lanes, WIDTH};
use super::pool::SharedPointer;
use super::tiles::{Line, MIN_LARGEST, TILE_INPUTS};
use super::{Kernels, Precision};
use std::cell::RefCell;

/// Rows of one block: those of an AMX tile.
pub(super) const BLOCK_ROWS: usize = 16;
/// 127 × 256, so that the high byte of a rounded q fits a signed byte.
pub(super) const MAX_QUANTIZED: f32 = 32_512.0;
/// Below this many values a second thread costs more than it saves.
const MIN_PARALLEL_VALUES: usize = 4_096;
/// Rows per task. The rows' lines are adjacent, and threads that write adjacent lines slow each other down.
const ROWS_PER_TASK: usize = 8;
/// Lines of one row in one tile of inputs, in both layouts.
const ROW_LINES: usize = 2;
/// Vectors of 16-bit numbers in a line.
const LINE_PARTS: usize = size_of::<Line>() / (2 * WIDTH);
pub(super) const INFINITY_BITS: u32 = 0x7f80_0000;

/// Memory layout of q.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ActivationLayout {
    /// For each block of rows and tile of inputs: a line of high bytes for each row, then a line of low bytes for each.
    SplitBytes,
    /// For each row: 16-bit numbers in order.
    I16,
}

/// Activation rows for matrix products; the buffers are reused.
#[derive(Debug, Default)]
pub struct Activations {
    rows: usize,
    width: usize,
    tiles: usize,
    /// The rows in f32, for exact arithmetic only.
    values: Vec<f32>,
    lines: Vec<Line>,
    scales: Vec<f32>,
}

/// Up to 16 rows in the `SplitBytes` layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowBlock<'a> {
    pub(super) rows: usize,
    /// Starts at the block's first line; at least `BLOCK_ROWS` more lines follow its last one.
    pub(super) lines: &'a [Line],
    pub(super) scales: &'a [f32],
}

impl Activations {
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.width..][..self.width]
    }

    pub(super) fn scale(&self, row: usize) -> f32 {
        self.scales[row]
    }

    /// One row in the `I16` layout: a pair of lines for each tile of inputs.
    pub(super) fn i16_lines(&self, row: usize) -> &[[Line; ROW_LINES]] {
        let per_row = self.tiles * ROW_LINES;
        self.lines[row * per_row..][..per_row].as_chunks().0
    }

    pub(super) fn block(&self, first_row: usize) -> RowBlock<'_> {
        let rows = BLOCK_ROWS.min(self.rows - first_row);
        RowBlock {
            rows,
            lines: &self.lines[first_row * self.tiles * ROW_LINES..],
            scales: &self.scales[first_row..][..rows],
        }
    }

    fn resize(&mut self, rows: usize, width: usize, precision: Precision) {
        *self = Self {
            rows,
            width,
            tiles: width.div_ceil(TILE_INPUTS),
            values: std::mem::take(&mut self.values),
            lines: std::mem::take(&mut self.lines),
            scales: std::mem::take(&mut self.scales),
        };
        // Every row is fully written before it is read, so old contents may stay.
        if precision == Precision::F32 {
            ensure_len(&mut self.values, rows * width, 0.0);
        }
        // An AMX tile always loads 16 rows; the lines after the last row are read and discarded.
        ensure_len(&mut self.lines, rows * self.tiles * ROW_LINES + BLOCK_ROWS, Line::ZERO);
        ensure_len(&mut self.scales, rows, 0.0);
    }
}

thread_local! {
    /// Scratch row before rounding: small enough to stay in the thread's CPU cache.
    static ROW: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Extends a buffer to at least `len`.
fn ensure_len<T: Clone>(buffer: &mut Vec<T>, len: usize, value: T) {
    if buffer.len() < len {
        buffer.resize(len, value);
    }
}

impl Kernels {
    /// Creates rows of `width` values with `fill`, which gets a row's index and buffer, and finishes the buffer.
    pub(super) fn quantize_rows(
        &self,
        inputs: &mut Activations,
        rows: usize,
        width: usize,
        fill: impl Fn(usize, RowBuffer<'_>) + Sync,
    ) {
        inputs.resize(rows, width, self.precision);
        let tiles = inputs.tiles;
        let values = SharedPointer(inputs.values.as_mut_ptr());
        let lines = SharedPointer(inputs.lines.as_mut_ptr());
        let scales = SharedPointer(inputs.scales.as_mut_ptr());
        let quantize_at = |row: usize| {
            if self.precision == Precision::F32 {
                // SAFETY: `row` is below `rows` and handed out once, and `resize` gave the vector this length.
                let values = unsafe { std::slice::from_raw_parts_mut(values.get().add(row * width), width) };
                fill(row, RowBuffer { values, destination: None });
                return;
            }
            let layout = self.set.activation_layout();
            let (first, stride, second) = match layout {
                ActivationLayout::I16 => (row * tiles * ROW_LINES, ROW_LINES, 1),
                ActivationLayout::SplitBytes => {
                    let first_row = row / BLOCK_ROWS * BLOCK_ROWS;
                    let in_block = BLOCK_ROWS.min(rows - first_row);
                    (first_row * tiles * ROW_LINES + row % BLOCK_ROWS, ROW_LINES * in_block, in_block)
                }
            };
            // SAFETY: the last line written is that of the last tile. With `I16` it is among the row's own lines, with
            // `SplitBytes` among its block's, where each row writes every `in_block`-th line.
            let lines = unsafe { lines.get().add(first) };
            // SAFETY: as above.
            let scale = unsafe { &mut *scales.get().add(row) };
            let destination = Some(RowDestination { lines, stride, second, layout, scale });
            ROW.with_borrow_mut(|values| {
                ensure_len(values, width, 0.0);
                fill(row, RowBuffer { values: &mut values[..width], destination });
            });
        };
        if rows * width < MIN_PARALLEL_VALUES {
            (0..rows).for_each(quantize_at);
        } else {
            let tasks = rows.div_ceil(ROWS_PER_TASK);
            self.pool.run(tasks, &|task| {
                (task * ROWS_PER_TASK..rows.min((task + 1) * ROWS_PER_TASK)).for_each(quantize_at);
            });
        }
    }
}

/// A row of `Activations` before it is quantised.
pub(super) struct RowBuffer<'a> {
    pub(super) values: &'a mut [f32],
    /// `None` for exact arithmetic, which reads the values themselves.
    destination: Option<RowDestination<'a>>,
}

impl RowBuffer<'_> {
    /// Quantises the values; `magnitudes` is the result of `max_magnitude` over all of them.
    #[inline(always)]
    pub(super) fn finish<L: Lanes>(self, lanes: L, magnitudes: L::Vector) {
        if let Some(destination) = self.destination {
            quantize_row(lanes, self.values, lanes.largest_bits(magnitudes), destination);
        }
    }
}

/// Destination of a row's lines: two per tile of inputs, with tiles `stride` lines apart.
struct RowDestination<'a> {
    lines: *mut Line,
    stride: usize,
    /// Distance from a tile's first line to its second.
    second: usize,
    layout: ActivationLayout,
    scale: &'a mut f32,
}

/// `bits` are those of the largest magnitude.
#[inline(always)]
fn quantize_row<L: Lanes>(lanes: L, values: &[f32], bits: u32, destination: RowDestination<'_>) {
    let RowDestination { lines, stride, second, layout, scale } = destination;
    let largest = f32::from_bits(bits);
    let inverse = if bits >= INFINITY_BITS || largest < MIN_LARGEST { 0.0 } else { MAX_QUANTIZED / largest };
    // A row with an infinity or NaN anywhere yields NaN: 0 × ∞.
    *scale = if bits >= INFINITY_BITS { f32::INFINITY } else { largest / MAX_QUANTIZED };
    let (tiles, rest) = values.as_chunks::<TILE_INPUTS>();
    let mut last = [0.0; TILE_INPUTS];
    last[..rest.len()].copy_from_slice(rest);
    for (tile, values) in tiles.iter().chain((!rest.is_empty()).then_some(&last)).enumerate() {
        // SAFETY: `quantize_rows` guarantees two lines for each tile of the row; no other thread accesses them.
        let (first, second) = unsafe {
            let first = lines.add(tile * stride);
            (&mut *first, &mut *first.add(second))
        };
        let [a, b, c, d] = values.as_chunks().0 else { continue };
        let vectors = [
            scaled(lanes, a, inverse),
            scaled(lanes, b, inverse),
            scaled(lanes, c, inverse),
            scaled(lanes, d, inverse),
        ];
        match layout {
            ActivationLayout::SplitBytes => lanes.store_byte_lines(vectors, first, second),
            ActivationLayout::I16 => {
                for (part, vector) in vectors.into_iter().enumerate() {
                    let line = if part < LINE_PARTS { &mut *first } else { &mut *second };
                    let mut words = [0; WIDTH];
                    lanes.store_i16(vector, &mut words);
                    let destination =
                        line.0.as_chunks_mut::<{ 2 * WIDTH }>().0[part % LINE_PARTS].as_chunks_mut().0;
                    for (destination, word) in destination.iter_mut().zip(words) {
                        *destination = word.to_ne_bytes();
                    }
                }
            }
        }
    }
}

/// If the inverse scale is 0, the values may be infinite or NaN, so they are replaced by zero.
#[inline(always)]
fn scaled<L: Lanes>(lanes: L, values: &[f32; WIDTH], inverse: f32) -> L::Vector {
    if inverse == 0.0 { lanes.splat(0.0) } else { lanes.multiply(lanes.load(values), lanes.splat(inverse)) }
}
