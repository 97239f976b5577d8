//! A salt for each account, so that a server's prefix cache is never shared between accounts: a cached prompt would tell
//! one account what another has sent. Servers see only the salt, which reveals nothing about the account.

use chancery_domain::{AccountId, SecretToken};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// vLLM's name of the field; SGLang has it too.
pub(super) const CACHE_SALT_FIELD: &str = "cache_salt";

/// Salts that are remembered, so that only an account's first job computes its salt. Beyond that, all are forgotten.
const MAX_REMEMBERED: usize = 10_000;

pub(super) struct CacheSalts {
    mac: Hmac<Sha256>,
    known: Mutex<HashMap<AccountId, Arc<str>>>,
}

impl CacheSalts {
    /// Nodes that share servers must share the secret, or their caches are of no use to each other.
    pub(super) fn new(secret: &SecretToken) -> Result<Self, hmac::digest::InvalidLength> {
        let mac = Hmac::<Sha256>::new_from_slice(secret.reveal().as_bytes())?;
        Ok(Self { mac, known: Mutex::default() })
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
        let tag = self.mac.clone().chain_update(account.0.to_le_bytes()).finalize().into_bytes();
        let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or('0');
        tag.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
    }
}
