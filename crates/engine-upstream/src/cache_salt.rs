//! A salt for each account, so that a server's prefix cache is never shared between accounts: a cached prompt would tell
//! one account what another has sent. Servers see only the salt, which reveals nothing about the account.

use chancery_domain::{AccountId, SecretToken};
use ring::hmac;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// vLLM's name of the field; SGLang has it too.
pub(super) const CACHE_SALT_FIELD: &str = "cache_salt";

/// Salts that are remembered, so that only an account's first job computes its salt. Beyond that, all are forgotten.
const MAX_REMEMBERED: usize = 10_000;

pub(super) struct CacheSalts {
    key: hmac::Key,
    known: Mutex<HashMap<AccountId, Arc<str>>>,
}

impl CacheSalts {
    /// Nodes that share servers must share the secret, or their caches are of no use to each other.
    pub(super) fn new(secret: &SecretToken) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.reveal().as_bytes());
        Self { key, known: Mutex::default() }
    }

    pub(super) fn of(&self, account: AccountId) -> Arc<str> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(salt) = known.get(&account) {
            return Arc::clone(salt);
        }
        if known.len() >= MAX_REMEMBERED {
            known.clear();
        }
        Arc::clone(known.entry(account).or_insert(self.compute(account).into()))
    }

    fn compute(&self, account: AccountId) -> String {
        let tag = hmac::sign(&self.key, &account.0.to_le_bytes());
        tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn salt_is_the_hmac_of_the_account_in_hexadecimal() {
        let secret = SecretToken::parse(&"k".repeat(43)).unwrap();
        let salts = CacheSalts::new(&secret);
        for _ in 0..2 {
            assert_eq!(
                &*salts.of(AccountId(7)),
                "b344ef4c3f272eda0c8d73276e6d912eceed58afb12aa803278e04f412240551"
            );
        }
    }
}
