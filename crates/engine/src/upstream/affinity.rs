//! Which server probably knows a prompt's beginning already. Servers keep what they computed of a prompt, so jobs of one
//! account with the same instructions go to the same one where they can. Rendezvous hashing: every server has a score for
//! every key, the highest wins, and a server that comes or goes moves only the keys that it wins. All nodes give the same
//! scores. Pure.

use crate::{Role, Turn};
use chancery_domain::AccountId;
use std::hash::{DefaultHasher, Hash, Hasher};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AffinityKey(u64);

impl AffinityKey {
    /// None where there are no instructions: then there is no beginning that is worth finding again.
    pub(super) fn of(account: AccountId, turns: &[Turn]) -> Option<Self> {
        let mut hasher = DefaultHasher::new();
        account.hash(&mut hasher);
        let beginning = turns.iter().take_while(|turn| turn.role == Role::System);
        let mut has_text = false;
        for turn in beginning.filter(|turn| !turn.text.is_empty()) {
            has_text = true;
            turn.text.hash(&mut hasher);
        }
        has_text.then(|| Self(hasher.finish()))
    }

    pub(super) fn score(self, endpoint: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.0, endpoint).hash(&mut hasher);
        hasher.finish()
    }
}
