//! The keys that a process can decrypt with, and the one that encrypts.
//!
//! 1. The source (a file, a variable) has the newest key first. It is read when a key is needed for the first time, and
//!    again when a secret names a key that is not loaded: a running server learns of a new key without a restart.
//! 2. The database says which key is current. A transaction that stores a secret locks that row against a change
//!    (PostgreSQL: `FOR SHARE`; SQLite has one writer). So once a rotation has changed it, no secret is stored with the
//!    old key any more.
//! 3. The first transaction that stores a secret makes the newest key current.

use super::cipher::EncryptionKey;
use super::column::SecretColumn;
use super::error::SecretError;
use super::key_id::EncryptionKeyId;
use crate::db::{Dialect, QueryError, Tx, corrupt, query};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// Where the keys are. Read again whenever a key is missing, so reading must be quick.
pub trait EncryptionKeySource: Send + Sync + 'static {
    /// The newest key first, and at least one. The error names the setting and the fix.
    fn load(&self) -> Result<Vec<EncryptionKey>, String>;

    /// The setting, and the file if there is one, for errors.
    fn location(&self) -> String;
}

pub(super) const CURRENT: &str = "SELECT key_id FROM current_encryption_key";
const CURRENT_LOCKED: &str = "SELECT key_id FROM current_encryption_key FOR SHARE";
const SET_FIRST: &str =
    "INSERT INTO current_encryption_key (id, key_id) VALUES (1, $1) ON CONFLICT (id) DO NOTHING";

#[derive(Clone, Default)]
pub(crate) struct Keyring {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    source: OnceLock<Arc<dyn EncryptionKeySource>>,
    /// A key that the source has no longer stays, for secrets that were read before they were encrypted with another.
    loaded: RwLock<Vec<Arc<EncryptionKey>>>,
}

impl Keyring {
    /// The first call counts.
    pub(crate) fn set_source(&self, source: Arc<dyn EncryptionKeySource>) {
        // A process has one configuration, so a second source would be the same.
        let _ = self.shared.source.set(source);
    }

    fn source(&self) -> Result<&Arc<dyn EncryptionKeySource>, SecretError> {
        let none = || SecretError::NoKey("no key for the secrets in the database is configured".to_owned());
        self.shared.source.get().ok_or_else(none)
    }

    fn loaded(&self, id: EncryptionKeyId) -> Option<Arc<EncryptionKey>> {
        let loaded = self.shared.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.iter().find(|key| key.id() == id).cloned()
    }

    /// Reads the source again, and returns its newest key.
    pub(crate) fn load(&self) -> Result<Arc<EncryptionKey>, SecretError> {
        let source = self.source()?;
        let none = || SecretError::NoKey(format!("{}: there is no key", source.location()));
        let found: Vec<_> = source.load().map_err(SecretError::NoKey)?.into_iter().map(Arc::new).collect();
        let newest = found.first().cloned().ok_or_else(none)?;
        let mut loaded = self.shared.loaded.write().unwrap_or_else(PoisonError::into_inner);
        for key in found {
            if !loaded.iter().any(|known| known.id() == key.id()) {
                loaded.push(key);
            }
        }
        Ok(newest)
    }

    pub(crate) fn key(
        &self,
        id: EncryptionKeyId,
        secret: &'static str,
    ) -> Result<Arc<EncryptionKey>, SecretError> {
        if let Some(key) = self.loaded(id) {
            return Ok(key);
        }
        self.load()?;
        let location = self.source()?.location();
        self.loaded(id).ok_or(SecretError::UnknownKey { location, key: id, secret })
    }

    /// Decrypts a secret of this column and row.
    pub(crate) fn open(
        &self,
        column: SecretColumn,
        row: &[u8],
        stored: &[u8],
    ) -> Result<Vec<u8>, QueryError> {
        let id = EncryptionKeyId::of_secret(stored);
        let id = id.ok_or(SecretError::Rejected { secret: column.secret })?;
        Ok(self.key(id, column.secret)?.open(column, row, stored)?)
    }

    /// Like `open`, for a secret that is text.
    pub(crate) fn open_text(
        &self,
        column: SecretColumn,
        row: &[u8],
        stored: &[u8],
    ) -> Result<String, QueryError> {
        let text = String::from_utf8(self.open(column, row, stored)?);
        text.map_err(|_| SecretError::Rejected { secret: column.secret }.into())
    }

    /// The current key, which stays current until the transaction ends.
    pub(crate) fn lock_current(&self, tx: &mut Tx<'_>) -> Result<Arc<EncryptionKey>, QueryError> {
        let current = match read_current(tx)? {
            Some(current) => current,
            None => {
                let newest = self.load()?;
                query(SET_FIRST).bind(newest.id().as_bytes()).execute(tx)?;
                // Another process may have been faster.
                read_current(tx)?.ok_or(QueryError::NotFound)?
            }
        };
        Ok(self.key(current, "every new secret")?)
    }

    /// Encrypts a secret for this column and row, within the transaction that stores it.
    pub(crate) fn seal(
        &self,
        tx: &mut Tx<'_>,
        column: SecretColumn,
        row: &[u8],
        secret: &[u8],
    ) -> Result<Vec<u8>, QueryError> {
        Ok(self.lock_current(tx)?.seal(column, row, secret)?)
    }

    /// Like `seal`, for a column that may be NULL.
    pub(crate) fn seal_optional(
        &self,
        tx: &mut Tx<'_>,
        column: SecretColumn,
        row: &[u8],
        secret: Option<&[u8]>,
    ) -> Result<Option<Vec<u8>>, QueryError> {
        match secret {
            Some(secret) => self.seal(tx, column, row, secret).map(Some),
            None => Ok(None),
        }
    }
}

fn read_current(tx: &mut Tx<'_>) -> Result<Option<EncryptionKeyId>, QueryError> {
    let sql = match tx.dialect() {
        Dialect::Sqlite => CURRENT,
        Dialect::Postgres => CURRENT_LOCKED,
    };
    let stored: Option<Vec<u8>> = query(sql).fetch_optional(tx)?;
    stored.map(|stored| parse_current(&stored)).transpose()
}

pub(super) fn parse_current(stored: &[u8]) -> Result<EncryptionKeyId, QueryError> {
    let id = EncryptionKeyId::from_stored(stored);
    id.ok_or_else(|| corrupt("the current encryption key", format!("it has {} bytes", stored.len())))
}
