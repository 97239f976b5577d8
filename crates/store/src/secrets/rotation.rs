//! Rotation of the encryption key:
//!
//! 1. Every process that runs can read the old and the new key: both are in the key source. A process that does not have
//!    both cannot rotate.
//! 2. The new key becomes the current one. From then on, all processes store new secrets with it (see `keyring`).
//! 3. Each stored secret of another key is decrypted and encrypted again, a few rows per transaction, and only if it has
//!    not changed since it was read.
//!
//! Every secret can be read at any time, because it names its key. An interrupted rotation goes on where it stopped:
//! secrets of the new key are skipped. A secret that does not decrypt is left as it is and reported.

use super::column::{SECRET_COLUMNS, SecretColumn};
use super::encryption::SecretEncryption;
use super::error::SecretError;
use super::key_id::EncryptionKeyId;
use crate::DbError;
use crate::db::{QueryError, Tx, Value, from_row, query};

/// Rows per transaction: few enough that no other write waits noticeably on SQLite.
const BATCH_ROWS: u32 = 50;

/// Locks the row against other rotations too. A shared lock that both take first would be a deadlock.
const LOCK: &str = "UPDATE current_encryption_key SET key_id = key_id";
const SET_CURRENT: &str = "INSERT INTO current_encryption_key (id, key_id) VALUES (1, $1) \
    ON CONFLICT (id) DO UPDATE SET key_id = excluded.key_id";

/// The result of a rotation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RotationSummary {
    /// Secrets that were encrypted again.
    pub rotated: u64,
    /// Secrets that do not decrypt, with the reason. They are unchanged.
    pub failed: Vec<String>,
}

/// The primary key of a row. An empty one is before all others.
#[derive(Clone, Debug)]
enum RowKey {
    Text(String),
    Bytes(Vec<u8>),
}

impl RowKey {
    fn first(column: SecretColumn) -> Self {
        if column.statements.has_text_key { Self::Text(String::new()) } else { Self::Bytes(Vec::new()) }
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }

    fn value(&self) -> Value {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Bytes(bytes) => bytes.as_slice().into(),
        }
    }
}

struct TextKeyRow {
    row_key: String,
    sealed: Vec<u8>,
}

from_row!(TextKeyRow { row_key, sealed });

struct BytesKeyRow {
    row_key: Vec<u8>,
    sealed: Vec<u8>,
}

from_row!(BytesKeyRow { row_key, sealed });

struct OutdatedSecret {
    row_key: RowKey,
    sealed: Vec<u8>,
}

/// A secret that was decrypted, to be encrypted again.
struct OpenedSecret {
    row_key: RowKey,
    sealed: Vec<u8>,
    secret: Vec<u8>,
}

impl SecretEncryption {
    /// Makes this key the current one, and encrypts with it every secret of another key.
    pub async fn rotate_encryption_key(&self, new_key: EncryptionKeyId) -> Result<RotationSummary, DbError> {
        // Fails before anything changes if this process does not have the key.
        self.keyring.key(new_key, "nothing yet")?;
        let keyring = self.keyring.clone();
        let set_current = move |tx: &mut Tx<'_>| {
            query(LOCK).execute(tx)?;
            // Fails without the key that is current now: a key file that is out of date must not decide.
            keyring.lock_current(tx)?;
            query(SET_CURRENT).bind(new_key.as_bytes()).execute(tx)
        };
        self.db.write(set_current).await?;
        let mut summary = RotationSummary::default();
        for column in SECRET_COLUMNS {
            let mut last = RowKey::first(column);
            loop {
                let outdated = self.outdated_secrets(column, &last, new_key).await?;
                let Some(end) = outdated.last() else { break };
                last = end.row_key.clone();
                let (secrets, failed) = self.open_secrets(column, outdated);
                summary.failed.extend(failed);
                summary.rotated += self.reencrypt(column, secrets, new_key).await?;
            }
        }
        Ok(summary)
    }

    async fn outdated_secrets(
        &self,
        column: SecretColumn,
        after: &RowKey,
        new_key: EncryptionKeyId,
    ) -> Result<Vec<OutdatedSecret>, QueryError> {
        let find = query(column.statements.outdated)
            .bind(after.value())
            .bind(new_key.header().to_vec())
            .bind(i64::from(BATCH_ROWS));
        if column.statements.has_text_key {
            let rows: Vec<TextKeyRow> = self.db.fetch_all(find).await?;
            let secret =
                |TextKeyRow { row_key, sealed }| OutdatedSecret { row_key: RowKey::Text(row_key), sealed };
            return Ok(rows.into_iter().map(secret).collect());
        }
        let rows: Vec<BytesKeyRow> = self.db.fetch_all(find).await?;
        let secret =
            |BytesKeyRow { row_key, sealed }| OutdatedSecret { row_key: RowKey::Bytes(row_key), sealed };
        Ok(rows.into_iter().map(secret).collect())
    }

    /// Also returns why some do not decrypt.
    fn open_secrets(
        &self,
        column: SecretColumn,
        outdated: Vec<OutdatedSecret>,
    ) -> (Vec<OpenedSecret>, Vec<String>) {
        let (mut opened, mut failed) = (Vec::new(), Vec::new());
        for OutdatedSecret { row_key, sealed } in outdated {
            match self.keyring.open(column, row_key.as_bytes(), &sealed) {
                Ok(secret) => opened.push(OpenedSecret { row_key, sealed, secret }),
                Err(error) => failed.push(format!("{}: {}", column.name, DbError::from(error))),
            }
        }
        (opened, failed)
    }

    /// Returns how many secrets were replaced. The others have changed or were deleted since they were read.
    async fn reencrypt(
        &self,
        column: SecretColumn,
        secrets: Vec<OpenedSecret>,
        new_key: EncryptionKeyId,
    ) -> Result<u64, DbError> {
        let keyring = self.keyring.clone();
        self.db
            .write(move |tx| {
                let current = keyring.lock_current(tx)?;
                if current.id() != new_key {
                    return Err(SecretError::OtherRotation { other: current.id() }.into());
                }
                let mut replaced = 0;
                for OpenedSecret { row_key, sealed, secret } in &secrets {
                    let resealed = current.seal(column, row_key.as_bytes(), secret)?;
                    let replace = query(column.statements.replace)
                        .bind(row_key.value())
                        .bind(sealed.as_slice())
                        .bind(resealed);
                    replaced += replace.execute(tx)?;
                }
                Ok(replaced)
            })
            .await
    }
}
