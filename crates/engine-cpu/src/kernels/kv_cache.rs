//! The KV cache in pages of `PAGE_TOKENS` positions that are allocated on first use. Within a page: by layer, by head,
//! keys before values, in the order in which attention reads them. There are two formats with 16 bits a number:
//! - `F16`: half precision. A head's keys are interleaved sixteen tokens at a time, value by value; its values are
//!   stored token by token.
//! - `SplitBytes`: whole numbers with a scale for each token, `x ≈ scale × (256 × high + low)`, in planes of high and of
//!   low bytes, for integer products. A line of a key plane holds four consecutive values of all 16 tokens, offset by
//!   128 to be unsigned; a line of a value plane holds 16 values of four consecutive tokens, signed.

use super::activations::MAX_QUANTIZED;
use super::attention::MAX_HEAD_DIM;
use super::lanes::{Lanes, WIDTH};
use super::tiles::{Line, MIN_LARGEST, TILE_INPUTS};
use crate::half_precision::MAX_F16;
use crate::limits::PAGE_TOKENS;
use crate::paging::PageId;
use std::ptr::NonNull;

/// Values of a line of keys or tokens of a line of values: those that one integer product adds up.
const QUAD: usize = 4;
const LINE_BYTES: usize = size_of::<Line>();

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KvFormat {
    F16,
    SplitBytes,
}

/// The shape of the keys and values stored for each token.
#[derive(Clone, Copy, Debug)]
pub struct KvShape {
    pub layers: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

impl KvShape {
    /// Cache lines per page; `None` on overflow. The same in both formats, so that a memory plan does not depend on the
    /// CPU: `F16` leaves the lines of the scales unused.
    fn page_lines(self) -> Option<usize> {
        self.head_lines()?.checked_mul(self.kv_heads)?.checked_mul(self.layers)
    }

    pub fn page_bytes(self) -> Option<u64> {
        u64::try_from(self.page_lines()?).ok()?.checked_mul(LINE_BYTES as u64)
    }

    /// Whether the planes of a head consist of whole tiles.
    pub(super) fn fits_split_bytes(self) -> bool {
        self.head_dim.is_multiple_of(TILE_INPUTS)
    }

    /// Lines of one head in one page.
    fn head_lines(self) -> Option<usize> {
        let scales = if self.fits_split_bytes() { SplitHead::SCALE_LINES } else { 0 };
        self.head_dim
            .checked_mul(2 * PAGE_TOKENS * size_of::<u16>())?
            .div_ceil(LINE_BYTES)
            .checked_add(scales)
    }
}

/// A head's part of a page in the `SplitBytes` format: four planes, then a line of scales of its keys and one of its
/// values.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitHead<'a> {
    lines: &'a [Line],
}

#[cfg_attr(
    not(any(test, target_arch = "x86_64")),
    expect(dead_code, reason = "only x86-64 has integer attention")
)]
impl<'a> SplitHead<'a> {
    const SCALE_LINES: usize = 2;

    pub(super) const fn plane_lines(head_dim: usize) -> usize {
        head_dim * PAGE_TOKENS / LINE_BYTES
    }

    fn planes(self) -> usize {
        (self.lines.len() - Self::SCALE_LINES) / 4
    }

    /// The plane of high bytes, then that of low bytes.
    pub(super) fn keys(self) -> [&'a [Line]; 2] {
        [0, 1].map(|plane| &self.lines[plane * self.planes()..][..self.planes()])
    }

    pub(super) fn values(self) -> [&'a [Line]; 2] {
        [2, 3].map(|plane| &self.lines[plane * self.planes()..][..self.planes()])
    }

    /// One f32 for each token.
    pub(super) fn key_scales(self) -> &'a Line {
        &self.lines[4 * self.planes()]
    }

    pub(super) fn value_scales(self) -> &'a Line {
        &self.lines[4 * self.planes() + 1]
    }
}

#[derive(Debug)]
pub struct KvCache {
    shape: KvShape,
    format: KvFormat,
    page_lines: usize,
    head_lines: usize,
    /// `None` until first used.
    pages: Vec<Option<Page>>,
}

/// The memory of one page. A raw pointer, so that threads can write different tokens concurrently.
#[derive(Debug)]
struct Page(NonNull<[Line]>);

// SAFETY: it owns its memory exclusively; the contract of `KvCache::write` governs concurrent access.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    fn new(len: usize) -> Self {
        Self(NonNull::from(Box::leak(vec![Line::ZERO; len].into_boxed_slice())))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: it was leaked from a box of the same type and is freed once, here.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// A token's position in the cache: its page, and its index in the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KvSlot {
    page: PageId,
    token: usize,
}

impl KvCache {
    /// `None` if the size overflows.
    pub(super) fn new(shape: KvShape, format: KvFormat, pages: usize) -> Option<Self> {
        let (page_lines, head_lines) = (shape.page_lines()?, shape.head_lines()?);
        let pages = (0..pages).map(|_| None).collect();
        Some(Self { shape, format, page_lines, head_lines, pages })
    }

    pub(super) fn format(&self) -> KvFormat {
        self.format
    }

    pub(super) fn shape(&self) -> KvShape {
        self.shape
    }

    /// The cache position of a token; allocates its page if needed.
    ///
    /// # Panics
    /// If the pages do not cover the position.
    pub(super) fn slot(&mut self, pages: &[PageId], position: usize) -> KvSlot {
        let page = pages[position / PAGE_TOKENS];
        self.pages[page.index()].get_or_insert_with(|| Page::new(self.page_lines));
        KvSlot { page, token: position % PAGE_TOKENS }
    }

    /// The keys of a page that has been written to in `F16`, interleaved sixteen tokens at a time: their first values,
    /// their second values …, then the next sixteen tokens.
    pub(super) fn keys(&self, page: PageId, layer: usize, kv_head: usize) -> &[u16] {
        &self.halves(page, layer, kv_head)[..self.shape.head_dim * PAGE_TOKENS]
    }

    pub(super) fn values(&self, page: PageId, layer: usize, kv_head: usize) -> &[u16] {
        &self.halves(page, layer, kv_head)[self.shape.head_dim * PAGE_TOKENS..]
            [..self.shape.head_dim * PAGE_TOKENS]
    }

    fn halves(&self, page: PageId, layer: usize, kv_head: usize) -> &[u16] {
        assert_eq!(self.format, KvFormat::F16, "format");
        let lines = self.head(page, layer, kv_head);
        // SAFETY: the same memory; any bits are a valid `u16`, and a line is aligned to more than one.
        unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines) / size_of::<u16>()) }
    }

    /// A head's part of a page that has been written to in `SplitBytes`.
    #[cfg_attr(
        not(any(test, target_arch = "x86_64")),
        expect(dead_code, reason = "only x86-64 has integer attention")
    )]
    pub(super) fn split_head(&self, page: PageId, layer: usize, kv_head: usize) -> SplitHead<'_> {
        assert_eq!(self.format, KvFormat::SplitBytes, "format");
        SplitHead { lines: self.head(page, layer, kv_head) }
    }

    /// # Panics
    /// If the page has not been written to.
    fn head(&self, page: PageId, layer: usize, kv_head: usize) -> &[Line] {
        let page = self.pages[page.index()].as_ref();
        let start = self.head_start(layer, kv_head);
        // SAFETY: the page lives as long as the cache; `write`'s contract forbids concurrent writes.
        let lines: &[Line] = page.map_or(&[], |page| unsafe { page.0.as_ref() });
        &lines[start..][..self.head_lines]
    }

    fn head_start(&self, layer: usize, kv_head: usize) -> usize {
        (layer * self.shape.kv_heads + kv_head) * self.head_lines
    }

    /// Stores one layer's keys and values of all heads.
    ///
    /// # Safety
    /// No other thread may write to this slot, or read this layer, at the same time.
    ///
    /// # Panics
    /// If the lengths do not match the shape, or the page is not allocated.
    #[inline(always)]
    pub(super) unsafe fn write<L: Lanes>(
        &self,
        lanes: L,
        KvSlot { page, token }: KvSlot,
        layer: usize,
        keys: &[f32],
        values: &[f32],
    ) {
        let KvShape { kv_heads, head_dim, layers } = self.shape;
        assert!(layer < layers && keys.len() == kv_heads * head_dim && values.len() == keys.len(), "shape");
        let page = self.pages[page.index()].as_ref();
        assert!(page.is_some() && token < PAGE_TOKENS, "a slot from `slot`");
        let Some(Page(page)) = page else { return };
        let heads = keys.chunks_exact(head_dim).zip(values.chunks_exact(head_dim));
        for (kv_head, (keys, values)) in heads.enumerate() {
            // SAFETY: layer and head are within the shape, so the head's lines are within the page, and the token is
            // within them.
            unsafe {
                let head = page.as_ptr().cast::<Line>().add(self.head_start(layer, kv_head));
                match self.format {
                    KvFormat::F16 => write_f16(lanes, head.cast(), token, keys, values),
                    KvFormat::SplitBytes => write_split_bytes(lanes, head.cast(), token, keys, values),
                }
            }
        }
    }
}

/// # Safety
/// `head` is valid to write for a head of a page in this format, and no other thread accesses this token's numbers.
#[inline(always)]
unsafe fn write_f16<L: Lanes>(lanes: L, head: *mut u16, token: usize, keys: &[f32], values: &[f32]) {
    let head_dim = keys.len();
    let mut bits = [0; WIDTH];
    for (part, chunk) in keys.as_chunks().0.iter().enumerate() {
        lanes.store_f16(lanes.load(chunk), &mut bits);
        for (index, bits) in bits.into_iter().enumerate() {
            // SAFETY: the values of a token's key are `WIDTH` apart.
            unsafe { *head.add((part * WIDTH + index) * WIDTH + token) = bits };
        }
    }
    for (part, chunk) in values.as_chunks().0.iter().enumerate() {
        // SAFETY: a token's values of one head are contiguous, and follow the keys.
        let out = unsafe { &mut *head.add((PAGE_TOKENS + token) * head_dim + part * WIDTH).cast() };
        lanes.store_f16(lanes.load(chunk), out);
    }
}

/// # Safety
/// Like `write_f16`.
#[inline(always)]
unsafe fn write_split_bytes<L: Lanes>(lanes: L, head: *mut u8, token: usize, keys: &[f32], values: &[f32]) {
    let plane = SplitHead::plane_lines(keys.len()) * LINE_BYTES;
    let (mut highs, mut lows) = ([0; WIDTH], [0; WIDTH]);
    let (finite_keys, finite_values);
    let (mut keys, mut values) = (keys, values);
    if largest_bits(keys) > MAX_F16.to_bits() {
        finite_keys = finite(keys);
        keys = &finite_keys[..keys.len()];
    }
    if largest_bits(values) > MAX_F16.to_bits() {
        finite_values = finite(values);
        values = &finite_values[..values.len()];
    }
    let (key_scale, key_inverse) = scale_of(keys);
    for (part, chunk) in keys.as_chunks().0.iter().enumerate() {
        lanes.store_bytes(lanes.multiply(lanes.load(chunk), lanes.splat(key_inverse)), &mut highs, &mut lows);
        let quads = highs.as_chunks::<QUAD>().0.iter().zip(lows.as_chunks::<QUAD>().0);
        for (quad, (high, low)) in quads.enumerate() {
            let at = (part * (WIDTH / QUAD) + quad) * LINE_BYTES + token * QUAD;
            // SAFETY: four bytes of a line of each plane; they are aligned, because lines are.
            unsafe {
                *head.add(at).cast() = *high;
                *head.add(plane + at).cast() = *low;
            }
        }
    }
    let (value_scale, value_inverse) = scale_of(values);
    for (part, chunk) in values.as_chunks().0.iter().enumerate() {
        let scaled = lanes.multiply(lanes.load(chunk), lanes.splat(value_inverse));
        let line = (part * (PAGE_TOKENS / QUAD) + token / QUAD) * LINE_BYTES;
        // SAFETY: a line of each plane, of which this token has one byte of every four.
        unsafe {
            let (high, low) = (head.add(2 * plane + line).cast(), head.add(3 * plane + line).cast());
            lanes.store_byte_of_four(scaled, high, low, token % QUAD);
        }
    }
    // SAFETY: the two lines of scales follow the planes, with one number for each token.
    unsafe {
        let scales = head.add(4 * plane).cast::<f32>().add(token);
        *scales = key_scale;
        *scales.add(PAGE_TOKENS) = value_scale;
    }
}

/// The bits of the largest magnitude.
#[inline(always)]
fn largest_bits(values: &[f32]) -> u32 {
    values.iter().fold(0, |largest, value| (value.to_bits() & !(1 << 31)).max(largest))
}

/// The numbers as `F16` would store them if one is out of range: those become the largest finite ones, and NaN zero.
#[cold]
fn finite(values: &[f32]) -> [f32; MAX_HEAD_DIM] {
    let mut finite = [0.0; MAX_HEAD_DIM];
    for (finite, value) in finite.iter_mut().zip(values) {
        *finite = if value.is_nan() { 0.0 } else { value.clamp(-MAX_F16, MAX_F16) };
    }
    finite
}

/// The scale of a head's numbers, and its inverse.
#[inline(always)]
fn scale_of(values: &[f32]) -> (f32, f32) {
    let largest = f32::from_bits(largest_bits(values));
    if largest < MIN_LARGEST { (0.0, 0.0) } else { (largest / MAX_QUANTIZED, MAX_QUANTIZED / largest) }
}

#[cfg(test)]
mod tests {
    use super::super::lanes::Portable;
    use super::*;
    use crate::paging::{PageAllocator, PagePool};

    const SHAPE: KvShape = KvShape { layers: 2, kv_heads: 2, head_dim: 128 };

    /// What a plane pair holds for one token and value of a head.
    fn read(planes: [&[Line]; 2], line: usize, byte: usize, offset: u8, scale: f32) -> f32 {
        let byte = |plane: usize| f32::from((planes[plane][line].0[byte] ^ offset).cast_signed());
        (256.0 * byte(0) + byte(1)) * scale
    }

    #[test]
    fn split_bytes_round_each_token_to_16_bits_and_are_always_finite() {
        let mut cache = KvCache::new(SHAPE, KvFormat::SplitBytes, 2).unwrap();
        assert_eq!(SHAPE.page_bytes(), Some(2 * 2 * (2 * 128 * 16 * 2 + 2 * 16 * 4)));
        let mut allocator = PageAllocator::new(2, 0);
        let mut table = allocator.reserve(2, PagePool::General).unwrap();
        allocator.grow(&mut table, 20);
        let numbers = |token: usize, step: f32| -> Vec<f32> {
            let size = 10.0_f32.powi(token as i32 % 9 - 6);
            let mut numbers: Vec<f32> =
                (0..256).map(|index| ((index + token) as f32 * step).sin() * size).collect();
            match token {
                3 => numbers[7] = f32::NAN,
                4 => (numbers[8], numbers[200]) = (f32::NEG_INFINITY, 1e9),
                5 => numbers.fill(0.0),
                _ => {}
            }
            numbers
        };
        for token in 0..20 {
            let slot = cache.slot(table.pages(), token);
            // SAFETY: the cache is not shared.
            unsafe { cache.write(Portable, slot, 1, &numbers(token, 0.3), &numbers(token, 0.7)) };
        }
        for (token, kv_head) in (0..20).flat_map(|token| [(token, 0), (token, 1)]) {
            let head = cache.split_head(table.pages()[token / PAGE_TOKENS], 1, kv_head);
            let at = token % PAGE_TOKENS;
            let scale = |line: &Line| f32::from_ne_bytes(line.0.as_chunks::<4>().0[at]);
            let (key_scale, value_scale) = (scale(head.key_scales()), scale(head.value_scales()));
            for index in 0..128 {
                let expected = |step: f32| {
                    let number = numbers(token, step)[kv_head * 128 + index];
                    if number.is_nan() { 0.0 } else { number.clamp(-MAX_F16, MAX_F16) }
                };
                let key = read(head.keys(), index / 4, at * 4 + index % 4, 0x80, key_scale);
                let line = index / 16 * 4 + at / 4;
                let value = read(head.values(), line, index % 16 * 4 + at % 4, 0, value_scale);
                assert!((key - expected(0.3)).abs() <= 0.51 * key_scale, "{token}, {index}");
                assert!((value - expected(0.7)).abs() <= 0.51 * value_scale, "{token}, {index}");
            }
        }
    }
}
