//! Which server probably knows a prompt's beginning already. Servers keep what they computed of a prompt, so jobs of one
//! account with the same instructions go to the same one where they can. Rendezvous hashing: every server has a score for
//! every key, the highest wins, and a server that comes or goes moves only the keys that it wins. All nodes give the same
//! scores, of whatever version they are: SHA-256 over bytes that are written down here. Pure.

use chancery_domain::AccountId;
use chancery_engine::{Role, Turn};
use sha2::{Digest, Sha256};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AffinityKey(u64);

impl AffinityKey {
    /// None where there are no instructions: then there is no beginning that is worth finding again.
    pub(super) fn of(account: AccountId, turns: &[Turn]) -> Option<Self> {
        let beginning = turns.iter().take_while(|turn| turn.role == Role::System);
        let texts: Vec<&str> =
            beginning.map(|turn| turn.text.as_str()).filter(|text| !text.is_empty()).collect();
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
    fn scores_are_the_same_in_every_version() {
        let key =
            AffinityKey::of(AccountId(7), &Turn::instructions_and_input("Draft a letter.", "x")).unwrap();
        assert_eq!((key.0, key.score("http://10.0.0.7:8000/v1")), KNOWN);
    }

    /// Written down once; a change moves every key of a running cluster to another server.
    const KNOWN: (u64, u64) = (7_805_047_404_303_463_996, 9_978_339_484_748_944_141);
}
