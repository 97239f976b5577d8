//! Who holds which page of the key-value cache: all that scheduling needs to know of it. The numbers are in
//! `kernels::KvCache`.
//!
//! Every page is in one of three places: free; in one table, being written; or complete, in the prefix cache, where any
//! number of tables of one account may read it, or none.

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
    pub fn numbered(number: u32) -> Self {
        Self(number)
    }
}

/// Pages that a sequence of so many tokens needs.
pub fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}

/// Who holds which page. A sequence is promised all the pages it may ever need before it starts, so that it can never
/// run out in the middle; it takes them one by one as it grows. Promises are made from one of two lanes, each with its
/// own share of the pages.
///
/// A page that is shared counts in full against the promise of each who reads it. So tables never hold more pages than
/// are promised, and a page that was promised is always there to be taken: free, or cached and read by nobody. A hit
/// saves time, not room; in return the cache can never make a job wait.
#[derive(Debug)]
pub struct PageLedger {
    free: Vec<PageId>,
    cache: PrefixCache,
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

/// How the pages of a key-value cache are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvPages {
    pub total: usize,
    /// Nothing is in them.
    pub free: usize,
    /// In the prefix cache, whether or not a running job reads them. The rest is being written.
    pub cached: usize,
    /// What running jobs may still grow to, together; a page that is shared counts for each of them.
    pub promised: usize,
}

/// The pages of one sequence, and how many it may grow to.
#[derive(Debug, Default)]
pub struct PageTable {
    pages: Vec<PageId>,
    /// How many of them, from the first, are complete and in the prefix cache; the rest is this table's alone.
    cached: usize,
    promised: usize,
    lane: Lane,
}

impl PageTable {
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }

    /// What the page after the cached ones is known by, if it could be reused for this prompt: the prompt's last token
    /// is never reused, because what comes next is only known by computing it.
    pub fn next_reusable(&self, account: AccountId, prompt: &[u32]) -> Option<PageKey> {
        self.next_key(account, &prompt[..prompt.len().saturating_sub(1)])
    }

    /// What the page after the cached ones is known by, if `tokens` fill it.
    fn next_key(&self, account: AccountId, tokens: &[u32]) -> Option<PageKey> {
        let before = self.cached.checked_sub(1).map(|last| self.pages[last]);
        PageKey::new(account, before, tokens.get(self.cached * PAGE_TOKENS..)?)
    }
}

impl PageLedger {
    /// `short_pages` come on top of `pages`.
    pub fn new(pages: usize, short_pages: usize) -> Self {
        // The last one is taken first, so low numbers are in use and high ones are perhaps never allocated.
        let count = u32::try_from(pages + short_pages).unwrap_or(u32::MAX);
        Self {
            free: (0..count).rev().map(PageId).collect(),
            cache: PrefixCache::default(),
            any: Budget { pages, promised: 0 },
            short: Budget { pages: short_pages, promised: 0 },
        }
    }

    pub fn usage(&self) -> KvPages {
        KvPages {
            total: self.any.pages + self.short.pages,
            free: self.free.len(),
            cached: self.cache.len(),
            promised: self.any.promised + self.short.promised,
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
        Some(PageTable { pages: Vec::with_capacity(pages), cached: 0, promised: pages, lane })
    }

    /// Puts cached pages where the prompt goes on as they do, and returns how many tokens the table holds then.
    pub fn reuse(
        &mut self,
        table: &mut PageTable,
        account: AccountId,
        prompt: &[u32],
        computed: usize,
    ) -> usize {
        let mut covered = computed;
        while let Some(page) = table.next_reusable(account, prompt).and_then(|key| self.cache.hold(&key)) {
            self.put_cached(table, page);
            covered = covered.max(table.cached * PAGE_TOKENS);
        }
        covered
    }

    /// Takes the table's complete pages into the cache. `tokens` are those that were computed, all of them. Where the
    /// cache has such a page already, the table reads that one and its own is free.
    pub fn keep(&mut self, table: &mut PageTable, account: AccountId, tokens: &[u32]) {
        while let Some(key) = table.next_key(account, tokens) {
            match self.cache.hold(&key) {
                Some(page) => self.put_cached(table, page),
                None => {
                    self.cache.insert(key, table.pages[table.cached]);
                    table.cached += 1;
                }
            }
        }
    }

    fn put_cached(&mut self, table: &mut PageTable, page: PageId) {
        match table.pages.get_mut(table.cached) {
            Some(own) => self.free.push(std::mem::replace(own, page)),
            None => table.pages.push(page),
        }
        table.cached += 1;
    }

    /// Grows a table until it covers `tokens`.
    ///
    /// # Panics
    /// When the table was promised fewer pages than that: a mistake of the caller's.
    pub fn grow(&mut self, table: &mut PageTable, tokens: usize) {
        assert!(pages_for(tokens) <= table.promised, "a sequence outgrew the pages it was promised");
        while table.pages.len() < pages_for(tokens) {
            let Some(page) = self.free.pop().or_else(|| self.cache.evict()) else {
                unreachable!("a page was promised that there is not");
            };
            table.pages.push(page);
        }
    }

    /// Takes a table's pages back; the complete ones stay in the cache until their room is needed.
    pub fn release(&mut self, table: PageTable) {
        let PageTable { pages, cached, promised, lane } = table;
        self.budget(lane).promised -= promised;
        self.cache.let_go(&pages[..cached]);
        self.free.extend(pages.into_iter().skip(cached));
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
        assert_eq!(ledger.usage(), KvPages { total: 6, free: 6, cached: 0, promised: 5 });
        ledger.release(first);
        assert!(ledger.promise(4, Lane::Any).is_some());
    }

    const A: AccountId = AccountId(1);
    const B: AccountId = AccountId(2);

    /// A table for `prompt` that has computed all of it, and how many tokens it did not have to compute.
    fn compute(ledger: &mut PageLedger, account: AccountId, prompt: &[u32]) -> (PageTable, usize) {
        let mut table = ledger.promise(pages_for(prompt.len()), Lane::Any).unwrap();
        let reused = ledger.reuse(&mut table, account, prompt, 0);
        ledger.grow(&mut table, prompt.len());
        ledger.keep(&mut table, account, prompt);
        (table, reused)
    }

    #[test]
    fn the_same_prompt_of_two_accounts_shares_no_page() {
        let mut ledger = PageLedger::new(12, 0);
        let prompt = [7; 3 * PAGE_TOKENS + 1];
        let (of_a, _) = compute(&mut ledger, A, &prompt);
        let (of_b, reused) = compute(&mut ledger, B, &prompt);
        assert_eq!(reused, 0);
        assert!(of_a.pages().iter().all(|page| !of_b.pages().contains(page)));
        let (again, reused) = compute(&mut ledger, A, &prompt);
        assert_eq!(reused, 3 * PAGE_TOKENS, "its own account does find it");
        assert_eq!(again.pages()[..3], of_a.pages()[..3]);
        assert_ne!(again.pages()[3], of_a.pages()[3], "a page that is being written is nobody else's");
    }

    #[test]
    fn the_last_token_of_a_prompt_is_always_computed() {
        let mut ledger = PageLedger::new(12, 0);
        let prompt = [7; 2 * PAGE_TOKENS];
        let (table, _) = compute(&mut ledger, A, &prompt);
        ledger.release(table);
        assert_eq!(compute(&mut ledger, A, &prompt).1, PAGE_TOKENS);
    }

    #[test]
    fn two_that_computed_the_same_page_at_once_end_with_one() {
        let mut ledger = PageLedger::new(4, 0);
        let prompt = [7; PAGE_TOKENS];
        let mut tables = [(); 2].map(|()| ledger.promise(2, Lane::Any).unwrap());
        for table in &mut tables {
            ledger.grow(table, PAGE_TOKENS + 1);
        }
        for table in &mut tables {
            ledger.keep(table, A, &prompt);
        }
        assert_eq!(tables[0].pages()[0], tables[1].pages()[0]);
        assert_ne!(tables[0].pages()[1], tables[1].pages()[1]);
        assert_eq!(ledger.free.len(), 1);
    }

    #[test]
    fn a_full_cache_makes_room_for_whoever_needs_it() {
        let mut ledger = PageLedger::new(4, 0);
        for token in 0..8 {
            let (table, reused) = compute(&mut ledger, A, &[token; 4 * PAGE_TOKENS]);
            assert_eq!((table.pages().len(), reused), (4, 0));
            ledger.release(table);
        }
        assert!(ledger.free.is_empty());
    }

    /// A sequence of the property test below: its own tokens, and how many of them are computed.
    struct Running {
        account: AccountId,
        tokens: Vec<u32>,
        computed: usize,
        table: PageTable,
    }

    proptest! {
        #[test]
        fn no_page_is_ever_held_twice_nor_lost(
            steps in proptest::collection::vec((0_usize..7, 0_usize..400, 0_u32..2, 0_i64..2), 1..80)
        ) {
            let mut ledger = PageLedger::new(12, 4);
            let mut running: Vec<Running> = Vec::new();
            // What is in each page, as the model would have written it: the account and all tokens up to its end.
            let mut contents: std::collections::HashMap<PageId, (AccountId, Vec<u32>)> = Default::default();
            for (action, amount, branch, account) in steps {
                let account = AccountId(account);
                match action {
                    0..=2 => {
                        let lane = if action == 2 { Lane::Short } else { Lane::Any };
                        // Prompts part at their second page, so that they share some pages and not others.
                        let tokens: Vec<u32> =
                            (0..amount).map(|at| if at < PAGE_TOKENS { 0 } else { branch }).collect();
                        if let Some(mut table) = ledger.promise(pages_for(amount), lane) {
                            let computed = ledger.reuse(&mut table, account, &tokens, 0);
                            prop_assert!(computed == 0 || computed < tokens.len());
                            running.push(Running { account, tokens, computed, table });
                        }
                    }
                    3..=5 => if !running.is_empty() {
                        let at = amount % running.len();
                        let Running { account, tokens, computed, table } = &mut running[at];
                        *computed = ledger.reuse(table, *account, tokens, *computed);
                        let target = (*computed + amount / 2).min(tokens.len());
                        ledger.grow(table, target);
                        for page in *computed / PAGE_TOKENS..pages_for(target) {
                            let end = target.min((page + 1) * PAGE_TOKENS);
                            contents.insert(table.pages()[page], (*account, tokens[..end].to_vec()));
                        }
                        *computed = target;
                        ledger.keep(table, *account, &tokens[..target]);
                    },
                    _ => if !running.is_empty() {
                        ledger.release(running.remove(amount % running.len()).table);
                    },
                }

                let holders = ledger.cache.holders();
                let mut counted: std::collections::HashMap<PageId, u32> =
                    holders.keys().map(|page| (*page, 0)).collect();
                let mut seen: Vec<PageId> = ledger.free.iter().chain(holders.keys()).copied().collect();
                for Running { account, tokens, computed, table } in &running {
                    prop_assert_eq!(table.cached, computed / PAGE_TOKENS);
                    prop_assert!(table.pages.len() <= table.promised);
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
                prop_assert_eq!(counted, holders);
                seen.sort_unstable();
                prop_assert_eq!(seen, (0..16).map(PageId).collect::<Vec<_>>());
            }
            for sequence in running {
                ledger.release(sequence.table);
            }
            prop_assert_eq!((ledger.any.promised, ledger.short.promised), (0, 0));
            while let Some(page) = ledger.cache.evict() {
                ledger.free.push(page);
            }
            prop_assert_eq!(ledger.free.len(), 16);
        }
    }
}
