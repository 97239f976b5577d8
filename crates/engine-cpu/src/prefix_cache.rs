//! Which full pages hold which tokens, so that a beginning that was seen before is not computed again. It knows pages
//! by number only; who may hold how many of them is `PageLedger`'s business.
//!
//! A page's keys and values depend on every token up to its end, so a page is found by its own tokens and by the page
//! before it, which stands for all tokens before it. That works because a page with a page behind it is never given
//! up. The tokens are compared one by one, so a collision of hashes finds nothing; and the account is part of every
//! key, so that no account ever reads what another's text left behind.

use crate::kv::PageId;
use crate::limits::PAGE_TOKENS;
use chancery_domain::AccountId;
use std::collections::{BTreeSet, HashMap};

/// What a page is known by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PageKey {
    account: AccountId,
    before: Option<PageId>,
    tokens: [u32; PAGE_TOKENS],
}

impl PageKey {
    /// The key of the first full page of `rest`, which follows the page `before`; `None` when there is no full page.
    pub fn new(account: AccountId, before: Option<PageId>, rest: &[u32]) -> Option<Self> {
        Some(Self { account, before, tokens: *rest.first_chunk()? })
    }
}

/// A page in the cache. Whoever holds a page holds all pages before it too, so a page that nobody holds has none held
/// behind it.
#[derive(Debug)]
struct CachedPage {
    key: PageKey,
    /// Running sequences that read it.
    holders: u32,
    /// Cached pages directly behind it.
    followers: u32,
    last_used: u64,
}

impl CachedPage {
    fn may_go(&self) -> bool {
        self.holders == 0 && self.followers == 0
    }
}

#[derive(Debug, Default)]
pub struct PrefixCache {
    /// Its keys come from callers' text, so it keeps the hasher that nobody can aim at.
    found_by: HashMap<PageKey, PageId>,
    pages: HashMap<PageId, CachedPage>,
    /// Pages that may go, the one that was not used for longest first. A page with others behind it is not among them,
    /// and comes in at its own age once they are gone.
    unused: BTreeSet<(u64, PageId)>,
    /// Counts uses; it orders them in time.
    uses: u64,
}

impl PrefixCache {
    /// The page with exactly these tokens behind exactly that page, for exactly that account; the caller holds it from
    /// now on.
    pub fn hold(&mut self, key: &PageKey) -> Option<PageId> {
        let page = *self.found_by.get(key)?;
        let cached = self.known(page);
        cached.holders += 1;
        let place = (cached.last_used, page);
        self.unused.remove(&place);
        Some(page)
    }

    /// Takes in a page that was computed to its end; the caller holds it from now on.
    pub fn insert(&mut self, key: PageKey, page: PageId) {
        if let Some(before) = key.before {
            self.known(before).followers += 1;
        }
        self.found_by.insert(key.clone(), page);
        self.pages.insert(page, CachedPage { key, holders: 1, followers: 0, last_used: self.uses });
    }

    /// The caller of `hold` or `insert` no longer reads these pages.
    pub fn let_go(&mut self, pages: &[PageId]) {
        self.uses += 1;
        for page in pages {
            let uses = self.uses;
            let cached = self.known(*page);
            cached.holders -= 1;
            cached.last_used = uses;
            if cached.may_go() {
                self.unused.insert((uses, *page));
            }
        }
    }

    /// Gives up the page that was not used for longest.
    pub fn evict(&mut self) -> Option<PageId> {
        let (_, page) = self.unused.pop_first()?;
        let cached = self.pages.remove(&page)?;
        self.found_by.remove(&cached.key);
        if let Some(before) = cached.key.before {
            let parent = self.known(before);
            parent.followers -= 1;
            if parent.may_go() {
                let place = (parent.last_used, before);
                self.unused.insert(place);
            }
        }
        Some(page)
    }

    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// # Panics
    /// When the page is not in the cache: a mistake in the counting, after which no page may be trusted.
    fn known(&mut self, page: PageId) -> &mut CachedPage {
        match self.pages.get_mut(&page) {
            Some(cached) => cached,
            None => unreachable!("page {page:?} is used but not cached"),
        }
    }

    #[cfg(test)]
    pub fn holders(&self) -> HashMap<PageId, u32> {
        self.pages.iter().map(|(page, cached)| (*page, cached.holders)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: AccountId = AccountId(1);
    const B: AccountId = AccountId(2);

    fn key(account: AccountId, before: Option<u32>, token: u32) -> PageKey {
        PageKey::new(account, before.map(PageId::numbered), &[token; PAGE_TOKENS]).unwrap()
    }

    fn with_chain_of_three() -> PrefixCache {
        let mut cache = PrefixCache::default();
        for page in 0_u32..3 {
            cache.insert(key(A, page.checked_sub(1), page), PageId::numbered(page));
        }
        cache
    }

    #[test]
    fn a_page_is_found_only_by_its_own_account_tokens_and_beginning() {
        let mut cache = with_chain_of_three();
        assert_eq!(cache.hold(&key(A, Some(0), 1)), Some(PageId::numbered(1)));
        assert_eq!(cache.hold(&key(B, Some(0), 1)), None, "another account");
        assert_eq!(cache.hold(&key(B, None, 0)), None, "another account");
        assert_eq!(cache.hold(&key(A, Some(0), 2)), None, "other tokens");
        assert_eq!(cache.hold(&key(A, None, 1)), None, "another beginning");
        assert!(PageKey::new(A, None, &[0; PAGE_TOKENS - 1]).is_none(), "not a full page");
    }

    #[test]
    fn a_page_that_is_held_never_goes_and_the_last_of_a_chain_goes_first() {
        let mut cache = with_chain_of_three();
        let first = cache.hold(&key(A, None, 0)).unwrap();
        assert_eq!(cache.evict(), None);
        cache.let_go(&[0, 1, 2].map(PageId::numbered));
        assert_eq!(cache.evict(), Some(PageId::numbered(2)));
        assert_eq!(cache.evict(), Some(PageId::numbered(1)));
        assert_eq!(cache.evict(), None, "the first is still held");
        cache.let_go(&[first]);
        assert_eq!(cache.evict(), Some(first));
        assert!(cache.found_by.is_empty() && cache.pages.is_empty());
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let mut cache = PrefixCache::default();
        for page in 0..3 {
            cache.insert(key(A, None, page), PageId::numbered(page));
        }
        for page in 0..3 {
            cache.let_go(&[PageId::numbered(page)]);
        }
        let used_again = cache.hold(&key(A, None, 0)).unwrap();
        cache.let_go(&[used_again]);
        let order: Vec<_> = std::iter::from_fn(|| cache.evict()).collect();
        assert_eq!(order, [1, 2, 0].map(PageId::numbered));
    }
}
