//! Maps tokens to the complete pages that hold them, so that a known prefix is not computed again. It knows pages only
//! by id; how many each table may hold is up to `PageAllocator`.
//!
//! A page's keys and values depend on every token up to its end. So its cache key is its own tokens and the page before
//! it, which stands for all earlier tokens. That works because a page with followers is never evicted. Tokens are
//! compared one by one, so a hash collision finds nothing. The account is part of every key, so that no account ever
//! reads state computed from another's text.

use crate::limits::PAGE_TOKENS;
use crate::paging::PageId;
use chancery_domain::AccountId;
use std::collections::{BTreeSet, HashMap};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PageKey {
    account: AccountId,
    previous: Option<PageId>,
    tokens: [u32; PAGE_TOKENS],
}

impl PageKey {
    /// The key of the first full page of `rest`, which follows the page `previous`; `None` if `rest` does not fill a
    /// page.
    pub fn new(account: AccountId, previous: Option<PageId>, rest: &[u32]) -> Option<Self> {
        Some(Self { account, previous, tokens: *rest.first_chunk()? })
    }
}

/// A page in the cache. A sequence that references a page references all pages before it too, so an unreferenced page
/// has no referenced follower.
#[derive(Debug)]
struct CachedPage {
    key: PageKey,
    /// Reference count: running sequences that read the page.
    ref_count: u32,
    /// Cached pages that directly follow it.
    children: u32,
    last_used: u64,
    /// Whether a billed request computed or read it. An unbilled page gives no discount.
    is_billed: bool,
}

impl CachedPage {
    fn is_evictable(&self) -> bool {
        self.ref_count == 0 && self.children == 0
    }
}

#[derive(Debug, Default)]
pub struct PrefixCache {
    /// The keys come from callers' text, so this keeps the standard hasher, which resists collision attacks.
    page_by_key: HashMap<PageKey, PageId>,
    pages: HashMap<PageId, CachedPage>,
    /// Evictable pages, least recently used first. A page with followers is not among them; it is added with its own
    /// last-use time once they are evicted.
    evictable: BTreeSet<(u64, PageId)>,
    /// Logical clock that orders uses.
    tick: u64,
}

impl PrefixCache {
    /// Looks up a page by account, preceding page and tokens, all exactly equal, and takes a reference to it.
    pub fn acquire(&mut self, key: &PageKey) -> Option<PageId> {
        let page = *self.page_by_key.get(key)?;
        let cached = self.cached_page_mut(page);
        cached.ref_count += 1;
        let entry = (cached.last_used, page);
        self.evictable.remove(&entry);
        Some(page)
    }

    /// Adds a complete page that is not billed yet; the caller gets a reference to it.
    pub fn insert(&mut self, key: PageKey, page: PageId) {
        if let Some(previous) = key.previous {
            self.cached_page_mut(previous).children += 1;
        }
        self.page_by_key.insert(key.clone(), page);
        let last_used = self.tick;
        self.pages.insert(page, CachedPage { key, ref_count: 1, children: 0, last_used, is_billed: false });
    }

    pub fn is_billed(&self, page: PageId) -> bool {
        self.pages.get(&page).is_some_and(|cached| cached.is_billed)
    }

    pub fn mark_billed(&mut self, page: PageId) {
        self.cached_page_mut(page).is_billed = true;
    }

    /// Drops the references taken by `acquire` or `insert`.
    pub fn release(&mut self, pages: &[PageId]) {
        self.tick += 1;
        for page in pages {
            let tick = self.tick;
            let cached = self.cached_page_mut(*page);
            cached.ref_count -= 1;
            cached.last_used = tick;
            if cached.is_evictable() {
                self.evictable.insert((tick, *page));
            }
        }
    }

    /// Evicts the least recently used page.
    pub fn evict(&mut self) -> Option<PageId> {
        let (_, page) = self.evictable.pop_first()?;
        let cached = self.pages.remove(&page)?;
        self.page_by_key.remove(&cached.key);
        if let Some(previous) = cached.key.previous {
            let parent = self.cached_page_mut(previous);
            parent.children -= 1;
            if parent.is_evictable() {
                let entry = (parent.last_used, previous);
                self.evictable.insert(entry);
            }
        }
        Some(page)
    }

    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// # Panics
    /// If the page is not in the cache: the reference counts are wrong, and no page can be trusted any more.
    fn cached_page_mut(&mut self, page: PageId) -> &mut CachedPage {
        match self.pages.get_mut(&page) {
            Some(cached) => cached,
            None => unreachable!("page {page:?} is used but not cached"),
        }
    }

    #[cfg(test)]
    pub fn ref_count(&self) -> HashMap<PageId, u32> {
        self.pages.iter().map(|(page, cached)| (*page, cached.ref_count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: AccountId = AccountId(1);
    const B: AccountId = AccountId(2);

    fn key(account: AccountId, previous: Option<u32>, token: u32) -> PageKey {
        PageKey::new(account, previous.map(PageId::from_index), &[token; PAGE_TOKENS]).unwrap()
    }

    fn with_chain_of_three() -> PrefixCache {
        let mut cache = PrefixCache::default();
        for page in 0_u32..3 {
            cache.insert(key(A, page.checked_sub(1), page), PageId::from_index(page));
        }
        cache
    }

    #[test]
    fn page_is_found_only_by_its_account_tokens_and_prefix() {
        let mut cache = with_chain_of_three();
        assert_eq!(cache.acquire(&key(A, Some(0), 1)), Some(PageId::from_index(1)));
        assert_eq!(cache.acquire(&key(B, Some(0), 1)), None, "another account");
        assert_eq!(cache.acquire(&key(B, None, 0)), None, "another account");
        assert_eq!(cache.acquire(&key(A, Some(0), 2)), None, "other tokens");
        assert_eq!(cache.acquire(&key(A, None, 1)), None, "another beginning");
        assert!(PageKey::new(A, None, &[0; PAGE_TOKENS - 1]).is_none(), "not a full page");
    }

    #[test]
    fn pages_in_use_are_not_evicted_and_chains_evict_from_the_end() {
        let mut cache = with_chain_of_three();
        let first = cache.acquire(&key(A, None, 0)).unwrap();
        assert_eq!(cache.evict(), None);
        cache.release(&[0, 1, 2].map(PageId::from_index));
        assert_eq!(cache.evict(), Some(PageId::from_index(2)));
        assert_eq!(cache.evict(), Some(PageId::from_index(1)));
        assert_eq!(cache.evict(), None, "the first is still held");
        cache.release(&[first]);
        assert_eq!(cache.evict(), Some(first));
        assert!(cache.page_by_key.is_empty() && cache.pages.is_empty());
    }

    #[test]
    fn evicted_page_loses_its_billed_mark() {
        let mut cache = PrefixCache::default();
        let page = PageId::from_index(0);
        cache.insert(key(A, None, 0), page);
        assert!(!cache.is_billed(page));
        cache.mark_billed(page);
        assert!(cache.is_billed(page));
        cache.release(&[page]);
        assert_eq!(cache.evict(), Some(page));
        cache.insert(key(B, None, 0), page);
        assert!(!cache.is_billed(page), "it has another account's text now");
    }

    #[test]
    fn least_recently_used_page_is_evicted_first() {
        let mut cache = PrefixCache::default();
        for page in 0..3 {
            cache.insert(key(A, None, page), PageId::from_index(page));
        }
        for page in 0..3 {
            cache.release(&[PageId::from_index(page)]);
        }
        let used_again = cache.acquire(&key(A, None, 0)).unwrap();
        cache.release(&[used_again]);
        let order: Vec<_> = std::iter::from_fn(|| cache.evict()).collect();
        assert_eq!(order, [1, 2, 0].map(PageId::from_index));
    }
}
