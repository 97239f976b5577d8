//! Activations as the kernels read them: each row in 16-bit fixed point with a scale of its own, `x ≈ scale × q` and
//! `|q| ≤ 32,512`. AMX and AVX-512 multiply bytes, so for them q is two bytes, `q = 256 × high + low`, each offset by
//! 128 to be unsigned; the others read q whole. A group's sum of `q × weight` fits 32 bits, so it is exact everywhere.

use super::lanes::{Lanes, WIDTH};
use super::pool::SharedPointer;
use super::tiles::{Line, MIN_LARGEST, TILE_INPUTS};
use super::{Arithmetic, Kernels, dispatch};
use std::cell::RefCell;

/// Rows of one block: those of an AMX tile.
pub(super) const BLOCK_ROWS: usize = 16;
/// 127 × 256, so that the high byte of a rounded q stays a signed byte.
const MAX_QUANTUM: f32 = 32_512.0;
/// Below this many values a second thread costs more than it saves.
const MIN_SHARED_VALUES: usize = 4_096;
/// Rows that a thread takes at a time: their lines lie side by side, and threads that write neighbouring lines hold each
/// other up.
const ROWS_PER_TASK: usize = 8;
/// Lines of one row in one tile of inputs, in both forms.
const ROW_LINES: usize = 2;
/// Vectors of sixteen-bit numbers in a line.
const LINE_PARTS: usize = size_of::<Line>() / (2 * WIDTH);
const BITS_OF_INFINITY: u32 = 0x7f80_0000;

/// How q lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputForm {
    /// For each block of rows and tile of inputs: a line of high bytes for each row, then a line of low ones.
    Bytes,
    /// For each row: sixteen-bit numbers in their order.
    Words,
}

/// Rows to multiply, kept from product to product.
#[derive(Debug, Default)]
pub struct Inputs {
    rows: usize,
    width: usize,
    tiles: usize,
    /// The rows in f32, for the exact arithmetic only.
    values: Vec<f32>,
    lines: Vec<Line>,
    scales: Vec<f32>,
}

/// Up to 16 rows in the form of bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowBlock<'a> {
    pub(super) rows: usize,
    /// From the block's first line on; at least `BLOCK_ROWS` lines follow its last one.
    pub(super) lines: &'a [Line],
    pub(super) scales: &'a [f32],
}

impl Inputs {
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

    /// One row in the form of words: a pair of lines for each tile of inputs.
    pub(super) fn words(&self, row: usize) -> &[[Line; ROW_LINES]] {
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

    fn resize(&mut self, rows: usize, width: usize, arithmetic: Arithmetic) {
        *self = Self {
            rows,
            width,
            tiles: width.div_ceil(TILE_INPUTS),
            values: std::mem::take(&mut self.values),
            lines: std::mem::take(&mut self.lines),
            scales: std::mem::take(&mut self.scales),
        };
        // Every row is written whole before it is read, so what is there from before may stay.
        if arithmetic == Arithmetic::Exact {
            grow(&mut self.values, rows * width, 0.0);
        }
        // An AMX tile is always loaded with 16 rows; those after the last one are read and thrown away.
        grow(&mut self.lines, rows * self.tiles * ROW_LINES + BLOCK_ROWS, Line::ZERO);
        grow(&mut self.scales, rows, 0.0);
    }
}

thread_local! {
    /// Where a thread makes a row before it rounds it: small enough to stay in its cache.
    static ROW: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Makes a buffer at least so long.
fn grow<T: Clone>(buffer: &mut Vec<T>, len: usize, value: T) {
    if buffer.len() < len {
        buffer.resize(len, value);
    }
}

impl Kernels {
    /// Makes rows of `width` values with `fill`, which gets a row's number and its place, and rounds them.
    pub(super) fn make_inputs(
        &self,
        inputs: &mut Inputs,
        rows: usize,
        width: usize,
        fill: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        inputs.resize(rows, width, self.arithmetic);
        let tiles = inputs.tiles;
        let values = SharedPointer(inputs.values.as_mut_ptr());
        let lines = SharedPointer(inputs.lines.as_mut_ptr());
        let scales = SharedPointer(inputs.scales.as_mut_ptr());
        let each = |row: usize| {
            if self.arithmetic == Arithmetic::Exact {
                // SAFETY: `row` is below `rows` and handed out once, and the vector is as long as `resize` made it.
                fill(row, unsafe { std::slice::from_raw_parts_mut(values.get().add(row * width), width) });
                return;
            }
            let form = self.set.input_form();
            let (first, stride, second) = match form {
                InputForm::Words => (row * tiles * ROW_LINES, ROW_LINES, 1),
                InputForm::Bytes => {
                    let first_row = row / BLOCK_ROWS * BLOCK_ROWS;
                    let in_block = BLOCK_ROWS.min(rows - first_row);
                    (first_row * tiles * ROW_LINES + row % BLOCK_ROWS, ROW_LINES * in_block, in_block)
                }
            };
            // SAFETY: the last line written is that of the last tile: within the row's own lines in one form, within
            // its block's in the other, where rows write every `in_block`-th line.
            let place = Place { lines: unsafe { lines.get().add(first) }, stride, second, form };
            // SAFETY: as above.
            let scale = unsafe { &mut *scales.get().add(row) };
            ROW.with_borrow_mut(|values| {
                grow(values, width, 0.0);
                fill(row, &mut values[..width]);
                dispatch!(self.set, round_row, (&values[..width], place, scale), (&[f32], Place, &mut f32));
            });
        };
        if rows * width < MIN_SHARED_VALUES {
            (0..rows).for_each(each);
        } else {
            let tasks = rows.div_ceil(ROWS_PER_TASK);
            self.pool.run(tasks, &|task| {
                (task * ROWS_PER_TASK..rows.min((task + 1) * ROWS_PER_TASK)).for_each(each);
            });
        }
    }
}

/// Where a row's lines go: two for each tile of inputs, `stride` lines after those of the tile before.
#[derive(Clone, Copy)]
struct Place {
    lines: *mut Line,
    stride: usize,
    /// From a tile's first line to its second.
    second: usize,
    form: InputForm,
}

#[inline(always)]
fn round_row<L: Lanes>(lanes: L, (values, place, scale): (&[f32], Place, &mut f32)) {
    // As bits, so that infinities and what is not a number are the largest of all.
    let bits = values.iter().fold(0, |largest, value| (value.to_bits() & !(1 << 31)).max(largest));
    let largest = f32::from_bits(bits);
    let inverse = if bits >= BITS_OF_INFINITY || largest < MIN_LARGEST { 0.0 } else { MAX_QUANTUM / largest };
    // A row that holds no number anywhere gives no number: 0 × ∞.
    *scale = if bits >= BITS_OF_INFINITY { f32::INFINITY } else { largest / MAX_QUANTUM };
    let (tiles, rest) = values.as_chunks::<TILE_INPUTS>();
    let mut last = [0.0; TILE_INPUTS];
    last[..rest.len()].copy_from_slice(rest);
    for (tile, values) in tiles.iter().chain((!rest.is_empty()).then_some(&last)).enumerate() {
        // SAFETY: `make_inputs` vouches for two lines for each tile of the row; nobody else touches them.
        let (first, second) = unsafe {
            let first = place.lines.add(tile * place.stride);
            (&mut (*first).0, &mut (*first.add(place.second)).0)
        };
        for (part, values) in values.as_chunks::<WIDTH>().0.iter().enumerate() {
            // Where nothing is left to scale, the values may be no numbers: they count as zero.
            let scaled = if inverse == 0.0 {
                lanes.splat(0.0)
            } else {
                lanes.multiply(lanes.load(values), lanes.splat(inverse))
            };
            match place.form {
                InputForm::Bytes => {
                    let (highs, lows) = (first.as_chunks_mut().0, second.as_chunks_mut().0);
                    lanes.store_bytes(scaled, &mut highs[part], &mut lows[part]);
                }
                InputForm::Words => {
                    let line = if part < LINE_PARTS { &mut *first } else { &mut *second };
                    let mut words = [0; WIDTH];
                    lanes.store_words(scaled, &mut words);
                    let place = line.as_chunks_mut::<{ 2 * WIDTH }>().0[part % LINE_PARTS].as_chunks_mut().0;
                    for (place, word) in place.iter_mut().zip(words) {
                        *place = word.to_ne_bytes();
                    }
                }
            }
        }
    }
}
