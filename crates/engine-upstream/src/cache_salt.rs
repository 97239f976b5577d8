//! A salt for each account, so that a server's prefix cache is never shared between accounts: a cached prompt would tell
//! one account what another has sent. Servers see only the salt, which reveals nothing about the account.

use chancery_domain::{AccountId, SecretToken};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt::Write;

/// vLLM's name of the field; SGLang has it too.
pub(super) const CACHE_SALT_FIELD: &str = "cache_salt";

pub(super) struct CacheSalts {
    mac: Hmac<Sha256>,
}

impl CacheSalts {
    /// Nodes that share servers must share the secret, or their caches are of no use to each other.
    pub(super) fn new(secret: &SecretToken) -> Result<Self, hmac::digest::InvalidLength> {
        Ok(Self { mac: Hmac::<Sha256>::new_from_slice(secret.reveal().as_bytes())? })
    }

    pub(super) fn of(&self, account: AccountId) -> String {
        let tag = self.mac.clone().chain_update(account.0.to_le_bytes()).finalize().into_bytes();
        tag.iter().fold(String::with_capacity(2 * tag.len()), |mut salt, byte| {
            // Writing to a `String` cannot fail.
            let _ = write!(salt, "{byte:02x}");
            salt
        })
    }
}
