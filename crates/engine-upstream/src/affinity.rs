//! Predicts which server has a prompt's prefix cached. Servers cache prompt prefixes, so jobs of one account with the
//! same instructions go to the same server if possible. Uses rendezvous hashing: every server has a score per key and
//! the highest wins. Adding or removing a server moves only the keys that it wins. All nodes compute the same scores in
//! every version: SHA-256 over bytes that are specified here. Pure.

use chancery_domain::AccountId;
use chancery_engine::{Role, Turn};
use sha2::{Digest, Sha256};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AffinityKey(u64);

impl AffinityKey {
    /// Returns `None` without instructions: there is no prefix worth reusing.
    pub(super) fn of(account: AccountId, turns: &[Turn]) -> Option<Self> {
        let system_turns = turns.iter().take_while(|turn| turn.role == Role::System);
        let texts: Vec<&str> =
            system_turns.map(|turn| turn.text.as_str()).filter(|text| !text.is_empty()).collect();
        if texts.is_empty() {
            return None;
        }
        let mut hasher = Sha256::new_with_prefix(account.0.to_le_bytes());
        for text in texts {
            hasher.update((text.len() as u64).to_le_bytes());
            hasher.update(text);
        }
        Some(Self(first_bytes(hasher)))
    }

    pub(super) fn score(self, endpoint: &str) -> u64 {
        first_bytes(Sha256::new_with_prefix(self.0.to_le_bytes()).chain_update(endpoint))
    }
}

fn first_bytes(hasher: Sha256) -> u64 {
    hasher.finalize().iter().take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affinity_scores_are_stable_across_versions() {
        let key = AffinityKey::of(AccountId(7), &Turn::from_instructions_and_input("Draft a letter.", "x"))
            .unwrap();
        assert_eq!((key.0, key.score("http://10.0.0.7:8000/v1")), KNOWN);
    }

    /// Golden values. A change would move every key of a running cluster to another server.
    const KNOWN: (u64, u64) = (7_805_047_404_303_463_996, 9_978_339_484_748_944_141);
}
