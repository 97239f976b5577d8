//! Keys and values in half precision, in pages of `PAGE_TOKENS` positions that are allocated when first used. Within a
//! page: by layer, by head, keys before values. A head's keys lie sixteen tokens side by side, value by value, its
//! values token by token: the orders in which attention reads them.

use super::lanes::{Lanes, WIDTH};
use crate::kv::PageId;
use crate::limits::PAGE_TOKENS;
use std::ptr::NonNull;

/// The shape of what is kept for each token.
#[derive(Clone, Copy, Debug)]
pub struct KvShape {
    pub layers: usize,
    pub kv_heads: usize,
    pub head_len: usize,
}

impl KvShape {
    /// Half-precision values in a page; `None` when that is beyond counting.
    pub fn page_len(self) -> Option<usize> {
        let per_head = self.head_len.checked_mul(2)?.checked_mul(PAGE_TOKENS)?;
        per_head.checked_mul(self.kv_heads)?.checked_mul(self.layers)
    }

    pub fn page_bytes(self) -> Option<u64> {
        u64::try_from(self.page_len()?).ok()?.checked_mul(size_of::<u16>() as u64)
    }

    /// Where a head's keys begin in a page; its values follow them.
    fn head_start(self, layer: usize, kv_head: usize) -> usize {
        (layer * self.kv_heads + kv_head) * 2 * self.head_page_len()
    }

    /// The keys, or the values, of one head in one page.
    fn head_page_len(self) -> usize {
        self.head_len * PAGE_TOKENS
    }
}

#[derive(Debug)]
pub struct KvCache {
    shape: KvShape,
    page_len: usize,
    /// `None` until first used.
    pages: Vec<Option<Page>>,
}

/// The memory of one page. A pointer, so that threads can write different tokens of it at once.
#[derive(Debug)]
struct Page(NonNull<[u16]>);

// SAFETY: it owns its memory alone; who may write to it when is the contract of `KvCache::write`.
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

/// Where a token is: its page, and its number in the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    page: PageId,
    token: usize,
}

impl KvCache {
    /// `None` when the shape is beyond counting.
    pub fn new(shape: KvShape, pages: usize) -> Option<Self> {
        let page_len = shape.page_len()?;
        Some(Self { shape, page_len, pages: (0..pages).map(|_| None).collect() })
    }

    pub(super) fn shape(&self) -> KvShape {
        self.shape
    }

    /// Where the token of that position goes; its page is there from now on.
    ///
    /// # Panics
    /// When the pages do not reach the position.
    pub(super) fn place(&mut self, pages: &[PageId], position: usize) -> Place {
        let page = pages[position / PAGE_TOKENS];
        self.pages[page.index()].get_or_insert_with(|| Page::new(self.page_len));
        Place { page, token: position % PAGE_TOKENS }
    }

    /// Keys of a page that has been written to, sixteen tokens side by side: those of the first value, of the second …,
    /// then those of the next sixteen tokens.
    pub(super) fn keys(&self, page: PageId, layer: usize, kv_head: usize) -> &[u16] {
        self.read(page, self.shape.head_start(layer, kv_head))
    }

    pub(super) fn values(&self, page: PageId, layer: usize, kv_head: usize) -> &[u16] {
        self.read(page, self.shape.head_start(layer, kv_head) + self.shape.head_page_len())
    }

    fn read(&self, page: PageId, start: usize) -> &[u16] {
        match &self.pages[page.index()] {
            // SAFETY: the page is there as long as the cache; writing to it meanwhile is against `write`'s contract.
            Some(page) => unsafe { &page.0.as_ref()[start..][..self.shape.head_page_len()] },
            None => &[],
        }
    }

    /// Stores one layer's keys and values of all heads.
    ///
    /// # Safety
    /// Nobody else writes to this place, and nobody reads this layer, at the same time.
    ///
    /// # Panics
    /// When they are not as many as the shape says, or the page is not there.
    #[inline(always)]
    pub(super) unsafe fn write<L: Lanes>(
        &self,
        lanes: L,
        Place { page, token }: Place,
        layer: usize,
        keys: &[f32],
        values: &[f32],
    ) {
        let KvShape { kv_heads, head_len, layers } = self.shape;
        assert!(layer < layers && keys.len() == kv_heads * head_len && values.len() == keys.len(), "shape");
        let page = self.pages[page.index()].as_ref();
        assert!(page.is_some() && token < PAGE_TOKENS, "a place that `place` gave");
        let Some(Page(page)) = page else { return };
        let heads = keys.chunks_exact(head_len).zip(values.chunks_exact(head_len));
        for (kv_head, (keys, values)) in heads.enumerate() {
            let start = self.shape.head_start(layer, kv_head);
            let key_start = start + token / WIDTH * WIDTH * head_len + token % WIDTH;
            let value_start = start + self.shape.head_page_len() + token * head_len;
            // SAFETY: layer, head and token are within the shape, so both places are within the page.
            let (key_place, value_place) = unsafe {
                let page = page.as_ptr().cast::<u16>();
                (page.add(key_start), page.add(value_start))
            };
            let mut bits = [0; WIDTH];
            for (part, chunk) in keys.as_chunks().0.iter().enumerate() {
                lanes.store_f16(lanes.load(chunk), &mut bits);
                for (index, bits) in bits.into_iter().enumerate() {
                    // SAFETY: the values of a token's key lie every `WIDTH` places.
                    unsafe { *key_place.add((part * WIDTH + index) * WIDTH) = bits };
                }
            }
            for (part, chunk) in values.as_chunks().0.iter().enumerate() {
                // SAFETY: a token's values of one head lie side by side.
                let place = unsafe { &mut *value_place.add(part * WIDTH).cast() };
                lanes.store_f16(lanes.load(chunk), place);
            }
        }
    }
}
