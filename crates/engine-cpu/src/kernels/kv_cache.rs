//! The KV cache in half precision, in pages of `PAGE_TOKENS` positions that are allocated on first use. Within a page:
//! by layer, by head, keys before values. A head's keys are interleaved sixteen tokens at a time, value by value; its
//! values are stored token by token. These are the orders in which attention reads them.

use super::lanes::{Lanes, WIDTH};
use crate::limits::PAGE_TOKENS;
use crate::paging::PageId;
use std::ptr::NonNull;

/// The shape of the keys and values stored for each token.
#[derive(Clone, Copy, Debug)]
pub struct KvShape {
    pub layers: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

impl KvShape {
    /// Half-precision numbers per page; `None` on overflow.
    pub fn page_len(self) -> Option<usize> {
        let per_head = self.head_dim.checked_mul(2)?.checked_mul(PAGE_TOKENS)?;
        per_head.checked_mul(self.kv_heads)?.checked_mul(self.layers)
    }

    pub fn page_bytes(self) -> Option<u64> {
        u64::try_from(self.page_len()?).ok()?.checked_mul(size_of::<u16>() as u64)
    }

    /// Offset of a head's keys in a page; its values follow them.
    fn head_start(self, layer: usize, kv_head: usize) -> usize {
        (layer * self.kv_heads + kv_head) * 2 * self.head_page_len()
    }

    /// Length of the keys, or of the values, of one head in one page.
    fn head_page_len(self) -> usize {
        self.head_dim * PAGE_TOKENS
    }
}

#[derive(Debug)]
pub struct KvCache {
    shape: KvShape,
    page_len: usize,
    /// `None` until first used.
    pages: Vec<Option<Page>>,
}

/// The memory of one page. A raw pointer, so that threads can write different tokens concurrently.
#[derive(Debug)]
struct Page(NonNull<[u16]>);

// SAFETY: it owns its memory exclusively; the contract of `KvCache::write` governs concurrent access.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    fn new(len: usize) -> Self {
        Self(NonNull::from(Box::leak(vec![0; len].into_boxed_slice())))
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
    pub fn new(shape: KvShape, pages: usize) -> Option<Self> {
        let page_len = shape.page_len()?;
        Some(Self { shape, page_len, pages: (0..pages).map(|_| None).collect() })
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
        self.pages[page.index()].get_or_insert_with(|| Page::new(self.page_len));
        KvSlot { page, token: position % PAGE_TOKENS }
    }

    /// The keys of a page that has been written to, interleaved sixteen tokens at a time: their first values, their
    /// second values …, then the next sixteen tokens.
    pub(super) fn keys(&self, page: PageId, layer: usize, kv_head: usize) -> &[u16] {
        self.read(page, self.shape.head_start(layer, kv_head))
    }

    pub(super) fn values(&self, page: PageId, layer: usize, kv_head: usize) -> &[u16] {
        self.read(page, self.shape.head_start(layer, kv_head) + self.shape.head_page_len())
    }

    fn read(&self, page: PageId, start: usize) -> &[u16] {
        match &self.pages[page.index()] {
            // SAFETY: the page lives as long as the cache; `write`'s contract forbids concurrent writes.
            Some(page) => unsafe { &page.0.as_ref()[start..][..self.shape.head_page_len()] },
            None => &[],
        }
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
            let start = self.shape.head_start(layer, kv_head);
            let key_start = start + token / WIDTH * WIDTH * head_dim + token % WIDTH;
            let value_start = start + self.shape.head_page_len() + token * head_dim;
            // SAFETY: layer, head and token are within the shape, so both offsets are within the page.
            let (key_ptr, value_ptr) = unsafe {
                let page = page.as_ptr().cast::<u16>();
                (page.add(key_start), page.add(value_start))
            };
            let mut bits = [0; WIDTH];
            for (part, chunk) in keys.as_chunks().0.iter().enumerate() {
                lanes.store_f16(lanes.load(chunk), &mut bits);
                for (index, bits) in bits.into_iter().enumerate() {
                    // SAFETY: the values of a token's key are `WIDTH` apart.
                    unsafe { *key_ptr.add((part * WIDTH + index) * WIDTH) = bits };
                }
            }
            for (part, chunk) in values.as_chunks().0.iter().enumerate() {
                // SAFETY: a token's values of one head are contiguous.
                let out = unsafe { &mut *value_ptr.add(part * WIDTH).cast() };
                lanes.store_f16(lanes.load(chunk), out);
            }
        }
    }
}
