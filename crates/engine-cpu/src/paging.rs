//! Ownership of the KV cache's pages, which is all the scheduler needs to know. The keys and values themselves are in
//! `kernels::KvCache`.
//!
//! Every page is in one of three states: free; owned by one table and being written; or complete and in the prefix
//! cache, where any number of tables of one account, or none, read it.

use crate::limits::PAGE_TOKENS;
use crate::prefix_cache::{PageKey, PrefixCache};
use chancery_domain::AccountId;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(u32);

impl PageId {
    pub fn index(self) -> usize {
        self.0 as usize
    }

    #[cfg(test)]
    pub fn from_index(number: u32) -> Self {
        Self(number)
    }
}

pub fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}

/// Tracks which table owns which page. A sequence reserves all the pages it may ever need before it starts, so that it
/// can never run out midway; it takes them one by one as it grows. Reservations come from one of two pools, each with
/// its own budget of pages.
///
/// A shared page counts in full against the reservation of each table that reads it. So tables never hold more pages
/// than are reserved, and a reserved page is always available: free, or cached and unreferenced. A cache hit saves
/// time, not memory; in return the cache can never make a job wait.
#[derive(Debug)]
pub struct PageAllocator {
    free: Vec<PageId>,
    cache: PrefixCache,
    general: PoolBudget,
    short: PoolBudget,
}

/// The budget that a reservation draws from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PagePool {
    #[default]
    General,
    /// For jobs that finish soon.
    Short,
}

#[derive(Debug)]
struct PoolBudget {
    pages: usize,
    reserved: usize,
}

/// Page usage of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvPageUsage {
    pub total: usize,
    pub free: usize,
    /// In the prefix cache, whether or not a running job reads them. The remaining pages are being written.
    pub cached: usize,
    /// Pages reserved by running jobs, in total; a shared page counts once for each job.
    pub reserved: usize,
}

/// The pages of one sequence, and how many it may grow to.
#[derive(Debug, Default)]
pub struct PageTable {
    pages: Vec<PageId>,
    /// How many leading pages are complete and in the prefix cache; this table owns the rest exclusively.
    cached: usize,
    reserved: usize,
    pool: PagePool,
    /// Pages that it found in the cache, and how many tokens each saved.
    reused: Vec<(PageId, usize)>,
    /// Whether its request is billed, so that the pages it completes from now on are too.
    is_billed: bool,
}

impl PageTable {
    pub fn is_billed(&self) -> bool {
        self.is_billed
    }

    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }

    /// The cache key of the page after the cached ones, if this prompt could reuse that page. The prompt's last token
    /// is never reused: its logits must be computed.
    pub fn next_cache_key(&self, account: AccountId, prompt: &[u32]) -> Option<PageKey> {
        self.next_key(account, &prompt[..prompt.len().saturating_sub(1)])
    }

    /// The cache key of the page after the cached ones, if `tokens` fill it.
    fn next_key(&self, account: AccountId, tokens: &[u32]) -> Option<PageKey> {
        let before = self.cached.checked_sub(1).map(|last| self.pages[last]);
        PageKey::new(account, before, tokens.get(self.cached * PAGE_TOKENS..)?)
    }
}

impl PageAllocator {
    /// `short_pages` are in addition to `pages`.
    pub fn new(pages: usize, short_pages: usize) -> Self {
        // Pages are popped from the end, so low ids are used first and high ones may never be touched.
        let count = u32::try_from(pages + short_pages).unwrap_or(u32::MAX);
        Self {
            free: (0..count).rev().map(PageId).collect(),
            cache: PrefixCache::default(),
            general: PoolBudget { pages, reserved: 0 },
            short: PoolBudget { pages: short_pages, reserved: 0 },
        }
    }

    pub fn usage(&self) -> KvPageUsage {
        KvPageUsage {
            total: self.general.pages + self.short.pages,
            free: self.free.len(),
            cached: self.cache.len(),
            reserved: self.general.reserved + self.short.reserved,
        }
    }

    fn budget(&mut self, pool: PagePool) -> &mut PoolBudget {
        match pool {
            PagePool::General => &mut self.general,
            PagePool::Short => &mut self.short,
        }
    }

    /// Reserves `pages` for a new table; `None` if the pool does not have them.
    pub fn reserve(&mut self, pages: usize, pool: PagePool) -> Option<PageTable> {
        let budget = self.budget(pool);
        if pages > budget.pages - budget.reserved {
            return None;
        }
        budget.reserved += pages;
        Some(PageTable {
            pages: Vec::with_capacity(pages),
            cached: 0,
            reserved: pages,
            pool,
            reused: Vec::new(),
            is_billed: false,
        })
    }

    /// Adds cached pages that match the prompt, and returns how many tokens the table then covers.
    pub fn reuse_cached(
        &mut self,
        table: &mut PageTable,
        account: AccountId,
        prompt: &[u32],
        computed: usize,
    ) -> usize {
        let mut covered = computed;
        while let Some(page) = table.next_cache_key(account, prompt).and_then(|key| self.cache.acquire(&key))
        {
            self.use_cached(table, page);
            let end = table.cached * PAGE_TOKENS;
            if end > covered {
                table.reused.push((page, end - covered));
                covered = end;
            }
        }
        covered
    }

    /// Marks the table's request as billed, and all of its pages with it. Returns how many of the tokens that it reused were
    /// billed before, to other requests: only those may be discounted. Pages of requests that ended unbilled are paid for in
    /// full by the first billed request that reads them.
    pub fn mark_billed(&mut self, table: &mut PageTable) -> usize {
        table.is_billed = true;
        let billed_before = table.reused.iter().filter(|(page, _)| self.cache.is_billed(*page));
        let tokens = billed_before.map(|(_, tokens)| tokens).sum();
        for page in &table.pages[..table.cached] {
            self.cache.mark_billed(*page);
        }
        tokens
    }

    /// Adds the table's complete pages to the cache. `tokens` are all the tokens computed so far. If the cache already
    /// has an equal page, the table switches to that one and its own is freed.
    pub fn cache_full_pages(&mut self, table: &mut PageTable, account: AccountId, tokens: &[u32]) {
        while let Some(key) = table.next_key(account, tokens) {
            match self.cache.acquire(&key) {
                Some(page) => self.use_cached(table, page),
                None => {
                    self.cache.insert(key, table.pages[table.cached]);
                    table.cached += 1;
                }
            }
            if table.is_billed {
                self.cache.mark_billed(table.pages[table.cached - 1]);
            }
        }
    }

    fn use_cached(&mut self, table: &mut PageTable, page: PageId) {
        match table.pages.get_mut(table.cached) {
            Some(own) => self.free.push(std::mem::replace(own, page)),
            None => table.pages.push(page),
        }
        table.cached += 1;
    }

    /// Grows a table until it covers `tokens`.
    ///
    /// # Panics
    /// If the table reserved fewer pages than that, which is a bug in the caller.
    pub fn grow(&mut self, table: &mut PageTable, tokens: usize) {
        assert!(pages_for(tokens) <= table.reserved, "a sequence outgrew its reserved pages");
        while table.pages.len() < pages_for(tokens) {
            let Some(page) = self.free.pop().or_else(|| self.cache.evict()) else {
                unreachable!("a reserved page does not exist");
            };
            table.pages.push(page);
        }
    }

    /// Releases a table's pages; complete ones stay in the cache until they are evicted.
    pub fn release(&mut self, table: PageTable) {
        let PageTable { pages, cached, reserved, pool, .. } = table;
        self.budget(pool).reserved -= reserved;
        self.cache.release(&pages[..cached]);
        self.free.extend(pages.into_iter().skip(cached));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reservation_is_rejected_if_the_pages_are_already_reserved() {
        let mut allocator = PageAllocator::new(4, 2);
        let first = allocator.reserve(3, PagePool::General).unwrap();
        assert!(allocator.reserve(2, PagePool::General).is_none());
        assert!(allocator.reserve(2, PagePool::Short).is_some(), "the short lane has pages of its own");
        assert!(allocator.reserve(1, PagePool::Short).is_none());
        assert_eq!(allocator.usage(), KvPageUsage { total: 6, free: 6, cached: 0, reserved: 5 });
        allocator.release(first);
        assert!(allocator.reserve(4, PagePool::General).is_some());
    }

    const A: AccountId = AccountId(1);
    const B: AccountId = AccountId(2);

    /// Returns a table with all of `prompt` computed, and the number of tokens that came from the cache.
    fn compute(allocator: &mut PageAllocator, account: AccountId, prompt: &[u32]) -> (PageTable, usize) {
        let mut table = allocator.reserve(pages_for(prompt.len()), PagePool::General).unwrap();
        let reused = allocator.reuse_cached(&mut table, account, prompt, 0);
        allocator.grow(&mut table, prompt.len());
        allocator.cache_full_pages(&mut table, account, prompt);
        (table, reused)
    }

    #[test]
    fn same_prompt_of_two_accounts_shares_no_page() {
        let mut allocator = PageAllocator::new(12, 0);
        let prompt = [7; 3 * PAGE_TOKENS + 1];
        let (of_a, _) = compute(&mut allocator, A, &prompt);
        let (of_b, reused) = compute(&mut allocator, B, &prompt);
        assert_eq!(reused, 0);
        assert!(of_a.pages().iter().all(|page| !of_b.pages().contains(page)));
        let (again, reused) = compute(&mut allocator, A, &prompt);
        assert_eq!(reused, 3 * PAGE_TOKENS, "its own account does find it");
        assert_eq!(again.pages()[..3], of_a.pages()[..3]);
        assert_ne!(again.pages()[3], of_a.pages()[3], "a page that is being written is nobody else's");
    }

    #[test]
    fn last_prompt_token_is_always_computed() {
        let mut allocator = PageAllocator::new(12, 0);
        let prompt = [7; 2 * PAGE_TOKENS];
        let (table, _) = compute(&mut allocator, A, &prompt);
        allocator.release(table);
        assert_eq!(compute(&mut allocator, A, &prompt).1, PAGE_TOKENS);
    }

    #[test]
    fn reused_tokens_are_billed_as_cached_only_if_they_were_paid_for() {
        let mut allocator = PageAllocator::new(12, 0);
        let prompt = [7; 2 * PAGE_TOKENS + 1];
        let (cancelled, _) = compute(&mut allocator, A, &prompt);
        allocator.release(cancelled);
        let (mut first, reused) = compute(&mut allocator, A, &prompt);
        assert_eq!(reused, 2 * PAGE_TOKENS);
        assert_eq!(allocator.mark_billed(&mut first), 0, "these pages were not billed before");
        allocator.release(first);
        let (mut second, _) = compute(&mut allocator, A, &prompt);
        assert_eq!(allocator.mark_billed(&mut second), 2 * PAGE_TOKENS);
        let longer = [7; 4 * PAGE_TOKENS + 1];
        let (cancelled, reused) = compute(&mut allocator, A, &longer);
        assert_eq!(reused, 2 * PAGE_TOKENS);
        allocator.release(cancelled);
        let (mut third, reused) = compute(&mut allocator, A, &longer);
        assert_eq!(reused, 4 * PAGE_TOKENS);
        assert_eq!(allocator.mark_billed(&mut third), 2 * PAGE_TOKENS, "the rest ended unbilled");
    }

    #[test]
    fn pages_of_a_reply_are_billed_with_it() {
        let mut allocator = PageAllocator::new(12, 0);
        let tokens = [7; 3 * PAGE_TOKENS + 1];
        let mut table = allocator.reserve(3, PagePool::General).unwrap();
        allocator.grow(&mut table, PAGE_TOKENS + 1);
        allocator.cache_full_pages(&mut table, A, &tokens[..PAGE_TOKENS + 1]);
        assert_eq!(allocator.mark_billed(&mut table), 0);
        allocator.grow(&mut table, 3 * PAGE_TOKENS);
        allocator.cache_full_pages(&mut table, A, &tokens[..3 * PAGE_TOKENS]);
        allocator.release(table);
        let (mut follow_up, _) = compute(&mut allocator, A, &tokens);
        assert_eq!(allocator.mark_billed(&mut follow_up), 3 * PAGE_TOKENS);
    }

    /// A request that computed part of a page itself saves only the rest of it.
    #[test]
    fn page_completed_by_another_request_saves_only_what_is_left_of_it() {
        let mut allocator = PageAllocator::new(12, 0);
        let prompt = [7; 2 * PAGE_TOKENS + 1];
        let mut slow = allocator.reserve(3, PagePool::General).unwrap();
        allocator.grow(&mut slow, 5);
        let (mut fast, _) = compute(&mut allocator, A, &prompt);
        allocator.mark_billed(&mut fast);
        assert_eq!(allocator.reuse_cached(&mut slow, A, &prompt, 5), 2 * PAGE_TOKENS);
        assert_eq!(allocator.mark_billed(&mut slow), 2 * PAGE_TOKENS - 5);
    }

    #[test]
    fn page_computed_twice_is_deduplicated() {
        let mut allocator = PageAllocator::new(4, 0);
        let prompt = [7; PAGE_TOKENS];
        let mut tables = [(); 2].map(|()| allocator.reserve(2, PagePool::General).unwrap());
        for table in &mut tables {
            allocator.grow(table, PAGE_TOKENS + 1);
        }
        for table in &mut tables {
            allocator.cache_full_pages(table, A, &prompt);
        }
        assert_eq!(tables[0].pages()[0], tables[1].pages()[0]);
        assert_ne!(tables[0].pages()[1], tables[1].pages()[1]);
        assert_eq!(allocator.free.len(), 1);
    }

    #[test]
    fn full_cache_evicts_pages_on_demand() {
        let mut allocator = PageAllocator::new(4, 0);
        for token in 0..8 {
            let (table, reused) = compute(&mut allocator, A, &[token; 4 * PAGE_TOKENS]);
            assert_eq!((table.pages().len(), reused), (4, 0));
            allocator.release(table);
        }
        assert!(allocator.free.is_empty());
    }

    /// A sequence of the property test below: its tokens, and how many of them are computed.
    struct Running {
        account: AccountId,
        tokens: Vec<u32>,
        computed: usize,
        table: PageTable,
    }

    proptest! {
        #[test]
        fn no_page_is_allocated_twice_or_leaked(
            steps in proptest::collection::vec((0_usize..7, 0_usize..400, 0_u32..2, 0_i64..2), 1..80)
        ) {
            let mut allocator = PageAllocator::new(12, 4);
            let mut running: Vec<Running> = Vec::new();
            // The content of each page as the model would have written it: the account, and all tokens up to the page's
            // end.
            let mut contents: std::collections::HashMap<PageId, (AccountId, Vec<u32>)> = Default::default();
            for (action, amount, branch, account) in steps {
                let account = AccountId(account);
                match action {
                    0..=2 => {
                        let pool = if action == 2 { PagePool::Short } else { PagePool::General };
                        // Prompts diverge at their second page, so that they share some pages and not others.
                        let tokens: Vec<u32> =
                            (0..amount).map(|at| if at < PAGE_TOKENS { 0 } else { branch }).collect();
                        if let Some(mut table) = allocator.reserve(pages_for(amount), pool) {
                            let computed = allocator.reuse_cached(&mut table, account, &tokens, 0);
                            prop_assert!(computed == 0 || computed < tokens.len());
                            running.push(Running { account, tokens, computed, table });
                        }
                    }
                    3..=5 => if !running.is_empty() {
                        let at = amount % running.len();
                        let Running { account, tokens, computed, table } = &mut running[at];
                        *computed = allocator.reuse_cached(table, *account, tokens, *computed);
                        let target = (*computed + amount / 2).min(tokens.len());
                        allocator.grow(table, target);
                        for page in *computed / PAGE_TOKENS..pages_for(target) {
                            let end = target.min((page + 1) * PAGE_TOKENS);
                            contents.insert(table.pages()[page], (*account, tokens[..end].to_vec()));
                        }
                        *computed = target;
                        allocator.cache_full_pages(table, *account, &tokens[..target]);
                    },
                    _ => if !running.is_empty() {
                        allocator.release(running.remove(amount % running.len()).table);
                    },
                }

                let ref_count = allocator.cache.ref_count();
                let mut counted: std::collections::HashMap<PageId, u32> =
                    ref_count.keys().map(|page| (*page, 0)).collect();
                let mut seen: Vec<PageId> = allocator.free.iter().chain(ref_count.keys()).copied().collect();
                for Running { account, tokens, computed, table } in &running {
                    prop_assert_eq!(table.cached, computed / PAGE_TOKENS);
                    prop_assert!(table.pages.len() <= table.reserved);
                    for (at, page) in table.pages().iter().enumerate() {
                        if at < table.cached {
                            *counted.get_mut(page).unwrap() += 1;
                        } else {
                            seen.push(*page);
                        }
                        let end = (*computed).min((at + 1) * PAGE_TOKENS);
                        prop_assert_eq!(&contents[page], &(*account, tokens[..end].to_vec()));
                    }
                }
                prop_assert_eq!(counted, ref_count);
                seen.sort_unstable();
                prop_assert_eq!(seen, (0..16).map(PageId).collect::<Vec<_>>());
            }
            for sequence in running {
                allocator.release(sequence.table);
            }
            prop_assert_eq!((allocator.general.reserved, allocator.short.reserved), (0, 0));
            while let Some(page) = allocator.cache.evict() {
                allocator.free.push(page);
            }
            prop_assert_eq!(allocator.free.len(), 16);
        }
    }
}
