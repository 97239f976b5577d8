//! The handle for encryption of secrets: where the keys come from, whether they fit the database, and which are in use.

use super::column::SECRET_COLUMNS;
use super::key_id::EncryptionKeyId;
use super::keyring::{CURRENT, EncryptionKeySource, Keyring, parse_current};
use crate::DbError;
use crate::db::{Db, from_row, query};
use std::sync::Arc;

/// Encryption of the secrets in the database.
#[derive(Clone)]
pub struct SecretEncryption {
    pub(crate) db: Db,
    pub(crate) keyring: Keyring,
}

/// How many secrets of one kind a key encrypts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncryptionKeyUsage {
    /// `None` if the stored bytes name no key.
    pub key: Option<EncryptionKeyId>,
    /// One of the secrets, for messages.
    pub secret: &'static str,
    pub count: u64,
}

struct HeaderCount {
    header: Vec<u8>,
    count: u64,
}

from_row!(HeaderCount { header, count: "secrets" });

impl SecretEncryption {
    /// Nothing is read until a key is needed. The first call counts.
    pub fn use_keys(&self, source: Arc<dyn EncryptionKeySource>) {
        self.keyring.set_source(source);
    }

    /// `None` if no secret was ever stored.
    pub async fn current_encryption_key(&self) -> Result<Option<EncryptionKeyId>, DbError> {
        let stored: Option<Vec<u8>> = self.db.fetch_optional(query(CURRENT)).await?;
        Ok(stored.map(|stored| parse_current(&stored)).transpose()?)
    }

    /// Which keys encrypt the stored secrets.
    pub async fn encryption_key_usage(&self) -> Result<Vec<EncryptionKeyUsage>, DbError> {
        let mut usage = Vec::new();
        for column in SECRET_COLUMNS {
            let counts: Vec<HeaderCount> = self.db.fetch_all(query(column.statements.count)).await?;
            usage.extend(counts.into_iter().map(|HeaderCount { header, count }| EncryptionKeyUsage {
                key: EncryptionKeyId::of_secret(&header),
                secret: column.secret,
                count,
            }));
        }
        Ok(usage)
    }

    /// For the start of a server: fails unless this process has every key that the database needs. In a new database,
    /// the newest key becomes the current one.
    pub async fn check_encryption_keys(&self) -> Result<(), DbError> {
        self.keyring.load()?;
        for EncryptionKeyUsage { key, secret, .. } in self.encryption_key_usage().await? {
            match key {
                Some(key) => {
                    self.keyring.key(key, secret)?;
                }
                // One broken row is no reason to serve nobody. Reading it fails.
                None => tracing::error!(secret, "stored secret cannot be decrypted: it names no key"),
            }
        }
        // Last, so that a key that does not fit never becomes the current one.
        let keyring = self.keyring.clone();
        self.db.write(move |tx| keyring.lock_current(tx)).await?;
        Ok(())
    }
}
