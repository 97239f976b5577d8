//! Remembers which beginnings of conversations an account has paid for. A server does not tell which of its cached
//! tokens were computed for a request that was billed; without this, a caller could have a prompt computed, hang up
//! before the first token for nothing, and send it again at the price of cached input. Whole turns only. What is not
//! remembered (after a restart, on another node, past the limit) is billed in full.

use super::limits::MAX_BILLED_PREFIXES;
use chancery_domain::AccountId;
use chancery_engine::Turn;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

type PrefixHash = [u8; 32];

/// The billed prefixes of one model, the least recently billed forgotten first.
pub(super) struct BilledPrefixes {
    recent: Mutex<RecentPrefixes>,
    max: usize,
}

#[derive(Default)]
struct RecentPrefixes {
    tick: u64,
    tick_by_prefix: HashMap<PrefixHash, u64>,
    prefix_by_tick: BTreeMap<u64, PrefixHash>,
}

impl BilledPrefixes {
    pub(super) fn new() -> Self {
        Self { recent: Mutex::default(), max: MAX_BILLED_PREFIXES }
    }

    /// Records that the account is billed for these turns. Returns how many of the first turns it was billed for
    /// before.
    pub(super) fn record_billed(&self, account: AccountId, turns: &[Turn]) -> usize {
        let prefixes = prefix_hashes(account, turns);
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = |prefix: &PrefixHash| recent.tick_by_prefix.contains_key(prefix);
        let billed_turns = prefixes.iter().rposition(is_known).map_or(0, |last| last + 1);
        // The shortest last: it is part of the most conversations, so it is forgotten last.
        for prefix in prefixes.into_iter().rev() {
            recent.touch(prefix);
        }
        while recent.tick_by_prefix.len() > self.max {
            recent.remove_oldest();
        }
        billed_turns
    }
}

impl RecentPrefixes {
    fn touch(&mut self, prefix: PrefixHash) {
        self.tick += 1;
        if let Some(earlier) = self.tick_by_prefix.insert(prefix, self.tick) {
            self.prefix_by_tick.remove(&earlier);
        }
        self.prefix_by_tick.insert(self.tick, prefix);
    }

    fn remove_oldest(&mut self) {
        if let Some((_, prefix)) = self.prefix_by_tick.pop_first() {
            self.tick_by_prefix.remove(&prefix);
        }
    }
}

/// One hash for each turn: of the account, the turn and all before it.
fn prefix_hashes(account: AccountId, turns: &[Turn]) -> Vec<PrefixHash> {
    let mut hasher = Sha256::new_with_prefix(account.0.to_le_bytes());
    let hash_up_to = |turn: &Turn| -> PrefixHash {
        for part in [turn.role.as_str(), turn.text.as_str()] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.clone().finalize().into()
    };
    turns.iter().map(hash_up_to).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: AccountId = AccountId(1);

    fn turns(texts: &[&str]) -> Vec<Turn> {
        texts.iter().map(|text| Turn::user(*text)).collect()
    }

    #[test]
    fn only_the_longest_billed_beginning_of_the_same_account_counts() {
        let billed = BilledPrefixes::new();
        assert_eq!(billed.record_billed(ONE, &turns(&["a", "b"])), 0);
        assert_eq!(billed.record_billed(ONE, &turns(&["a", "b", "c"])), 2);
        assert_eq!(billed.record_billed(ONE, &turns(&["a", "x"])), 1);
        assert_eq!(billed.record_billed(ONE, &turns(&["a", "b", "c"])), 3);
        assert_eq!(billed.record_billed(ONE, &turns(&["ab"])), 0, "turns are not joined");
        assert_eq!(billed.record_billed(ONE, &[Turn::system("a")]), 0, "another role");
        assert_eq!(billed.record_billed(AccountId(2), &turns(&["a", "b"])), 0, "another account");
    }

    #[test]
    fn least_recently_billed_prefixes_are_forgotten_first() {
        let billed = BilledPrefixes { max: 3, ..BilledPrefixes::new() };
        billed.record_billed(ONE, &turns(&["a", "b"]));
        billed.record_billed(ONE, &turns(&["a", "c"]));
        // Forgets `a`, `b`, because `a` was billed again.
        billed.record_billed(ONE, &turns(&["d"]));
        assert_eq!(billed.recent.lock().unwrap().prefix_by_tick.len(), 3);
        assert_eq!(billed.recent.lock().unwrap().tick_by_prefix.len(), 3);
        assert_eq!(billed.record_billed(ONE, &turns(&["a", "c"])), 2);
        assert_eq!(billed.record_billed(ONE, &turns(&["a", "b"])), 1);
    }
}
