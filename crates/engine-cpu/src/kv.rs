//! The key-value cache: pages of `PAGE_TOKENS` positions from one pool, allocated when first used and used again when
//! freed. `PageLedger` says who holds which page and is all that scheduling needs; `KvCache` holds the numbers.

use crate::half_precision::f32_to_f16_finite;
use crate::limits::PAGE_TOKENS;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageId(u32);

/// Pages that a sequence of so many tokens needs.
pub fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}

/// Which pages are free. A sequence is promised all the pages it may ever need before it starts, so that it can never
/// run out in the middle; it takes them one by one as it grows. Promises are made from one of two lanes, each with its
/// own share of the pages.
#[derive(Debug)]
pub struct PageLedger {
    free: Vec<PageId>,
    any: Budget,
    short: Budget,
}

/// Whose share of the pages a promise comes out of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lane {
    #[default]
    Any,
    /// For jobs that are soon done.
    Short,
}

#[derive(Debug)]
struct Budget {
    pages: usize,
    promised: usize,
}

/// The pages of one sequence, and how many it may grow to.
#[derive(Debug, Default)]
pub struct PageTable {
    pages: Vec<PageId>,
    promised: usize,
    lane: Lane,
}

impl PageTable {
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }
}

impl PageLedger {
    /// `short_pages` come on top of `pages`.
    pub fn new(pages: usize, short_pages: usize) -> Self {
        // The last one is taken first, so low numbers are in use and high ones are perhaps never allocated.
        let count = u32::try_from(pages + short_pages).unwrap_or(u32::MAX);
        Self {
            free: (0..count).rev().map(PageId).collect(),
            any: Budget { pages, promised: 0 },
            short: Budget { pages: short_pages, promised: 0 },
        }
    }

    fn budget(&mut self, lane: Lane) -> &mut Budget {
        match lane {
            Lane::Any => &mut self.any,
            Lane::Short => &mut self.short,
        }
    }

    /// A table that may grow to `pages`; `None` when the lane does not have them.
    pub fn promise(&mut self, pages: usize, lane: Lane) -> Option<PageTable> {
        let budget = self.budget(lane);
        if pages > budget.pages - budget.promised {
            return None;
        }
        budget.promised += pages;
        Some(PageTable { pages: Vec::with_capacity(pages), promised: pages, lane })
    }

    /// Grows a table until it covers `tokens`.
    ///
    /// # Panics
    /// When the table was promised fewer pages than that: a mistake of the caller's.
    pub fn grow(&mut self, table: &mut PageTable, tokens: usize) {
        assert!(pages_for(tokens) <= table.promised, "a sequence outgrew the pages it was promised");
        while table.pages.len() < pages_for(tokens) {
            table.pages.extend(self.free.pop());
        }
    }

    pub fn release(&mut self, table: PageTable) {
        self.budget(table.lane).promised -= table.promised;
        self.free.extend(table.pages);
    }
}

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
}

/// Keys and values in half precision. Within a page: by layer, by head, keys before values. A head's keys lie value
/// by value with the tokens side by side, its values token by token: the orders in which attention reads them.
#[derive(Debug)]
pub struct KvCache {
    shape: KvShape,
    head_page_len: usize,
    page_len: usize,
    /// Empty until first used.
    pages: Vec<Box<[u16]>>,
}

impl KvCache {
    /// `None` when the shape is beyond counting.
    pub fn new(shape: KvShape, pages: usize) -> Option<Self> {
        let page_len = shape.page_len()?;
        Some(Self {
            shape,
            head_page_len: shape.head_len * PAGE_TOKENS,
            page_len,
            pages: (0..pages).map(|_| Box::default()).collect(),
        })
    }

    fn head_start(&self, layer: usize, kv_head: usize) -> usize {
        (layer * self.shape.kv_heads + kv_head) * 2 * self.head_page_len
    }

    pub fn keys(&self, page: PageId, layer: usize, kv_head: usize) -> &[u16] {
        &self.pages[page.0 as usize][self.head_start(layer, kv_head)..][..self.head_page_len]
    }

    pub fn values(&self, page: PageId, layer: usize, kv_head: usize) -> &[u16] {
        &self.pages[page.0 as usize][self.head_start(layer, kv_head) + self.head_page_len..]
            [..self.head_page_len]
    }

    /// Stores the keys and values of all heads for one token.
    pub fn write(&mut self, pages: &[PageId], layer: usize, position: usize, keys: &[f32], values: &[f32]) {
        let (page, slot) = (pages[position / PAGE_TOKENS].0 as usize, position % PAGE_TOKENS);
        if self.pages[page].is_empty() {
            self.pages[page] = vec![0; self.page_len].into();
        }
        let head_len = self.shape.head_len;
        for (kv_head, (keys, values)) in
            keys.chunks_exact(head_len).zip(values.chunks_exact(head_len)).enumerate()
        {
            let start = self.head_start(layer, kv_head);
            let (key_page, value_page) =
                self.pages[page][start..][..2 * self.head_page_len].split_at_mut(self.head_page_len);
            for (place, key) in key_page[slot..].iter_mut().step_by(PAGE_TOKENS).zip(keys) {
                *place = f32_to_f16_finite(*key);
            }
            for (place, value) in value_page[slot * head_len..][..head_len].iter_mut().zip(values) {
                *place = f32_to_f16_finite(*value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_promise_is_refused_when_the_pages_are_promised_to_others() {
        let mut ledger = PageLedger::new(4, 2);
        let first = ledger.promise(3, Lane::Any).unwrap();
        assert!(ledger.promise(2, Lane::Any).is_none());
        assert!(ledger.promise(2, Lane::Short).is_some(), "the short lane has pages of its own");
        assert!(ledger.promise(1, Lane::Short).is_none());
        ledger.release(first);
        assert!(ledger.promise(4, Lane::Any).is_some());
    }

    proptest! {
        #[test]
        fn no_page_is_ever_held_twice_nor_lost(steps in proptest::collection::vec((0_usize..6, 0_usize..400), 1..60)) {
            let mut ledger = PageLedger::new(12, 4);
            let mut tables: Vec<(PageTable, usize)> = Vec::new();
            for (action, amount) in steps {
                match action {
                    0 | 1 => tables.extend(ledger.promise(pages_for(amount), Lane::Any).map(|table| (table, amount))),
                    2 => tables.extend(ledger.promise(pages_for(amount), Lane::Short).map(|table| (table, amount))),
                    3 | 4 => if let Some((table, tokens)) = tables.last_mut() {
                        ledger.grow(table, amount.min(*tokens));
                    },
                    _ => if !tables.is_empty() {
                        ledger.release(tables.remove(amount % tables.len()).0);
                    },
                }
                let mut seen: Vec<u32> = ledger.free.iter().map(|page| page.0).collect();
                seen.extend(tables.iter().flat_map(|(table, _)| table.pages().iter().map(|page| page.0)));
                seen.sort_unstable();
                prop_assert_eq!(seen, (0..16).collect::<Vec<_>>());
            }
            for (table, _) in tables {
                ledger.release(table);
            }
            prop_assert_eq!((ledger.any.promised, ledger.short.promised), (0, 0));
        }
    }
}
