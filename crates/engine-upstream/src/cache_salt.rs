//! A salt for each account, so that a server's prefix cache is never shared between accounts: a cached prompt would tell
//! one account what another has sent. Servers see only the salt, which reveals nothing about the account.

use chancery_domain::{AccountId, SecretToken};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

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
        let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or('0');
        tag.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
    }
}
