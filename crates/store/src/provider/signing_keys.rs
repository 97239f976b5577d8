//! Queries for the identity provider's signing keys. The provider decides when a key is due; this file ensures that
//! each generation is created once.

use crate::DbError;
use crate::SigningKey;
use crate::db::{COMMAND_RETRY_LIMIT, Db, Tx, from_row, query};
use crate::secrets::column::SIGNING_KEY;
use crate::secrets::keyring::Keyring;
use chancery_domain::UnixMillis;
use std::fmt;

// The private key is still encrypted.
from_row!(
    SigningKey {
        generation,
        key_id,
        private_key,
        signs_from: "signs_from_ms",
        signs_until: "signs_until_ms",
        published_until: "published_until_ms"
    },
    "key_id"
);

/// Leaves the private key out of logs.
impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey")
            .field("generation", &self.generation)
            .field("key_id", &self.key_id)
            .field("signs_from", &self.signs_from)
            .field("signs_until", &self.signs_until)
            .field("published_until", &self.published_until)
            .finish_non_exhaustive()
    }
}

const LIST: &str = "SELECT generation, key_id, private_key, signs_from_ms, signs_until_ms, published_until_ms \
    FROM signing_keys ORDER BY generation";
const ADD: &str = "INSERT INTO signing_keys \
    (generation, key_id, private_key, signs_from_ms, signs_until_ms, published_until_ms) \
    VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (generation) DO NOTHING";
const DELETE_EXPIRED: &str = "DELETE FROM signing_keys WHERE published_until_ms <= $1";

/// Signing keys of the identity provider.
#[derive(Clone)]
pub struct SigningKeys {
    pub(crate) db: Db,
    pub(crate) keyring: Keyring,
}

impl SigningKeys {
    /// All stored keys, oldest first.
    pub async fn signing_keys(&self) -> Result<Vec<SigningKey>, DbError> {
        let stored: Vec<SigningKey> = self.db.fetch_all(query(LIST)).await?;
        let open = |stored: SigningKey| -> Result<SigningKey, DbError> {
            let row = stored.key_id.as_bytes();
            let private_key = self.keyring.open(SIGNING_KEY, row, &stored.private_key)?;
            Ok(SigningKey { private_key, ..stored })
        };
        stored.into_iter().map(open).collect()
    }

    /// Returns whether the key was added; false if its generation exists. Only one of several concurrent calls
    /// succeeds.
    pub async fn add_signing_key(&self, key: SigningKey) -> Result<bool, DbError> {
        let keyring = self.keyring.clone();
        let step = move |tx: &mut Tx<'_>| {
            let private_key = keyring.seal(tx, SIGNING_KEY, key.key_id.as_bytes(), &key.private_key)?;
            let add = query(ADD)
                .bind(key.generation)
                .bind(key.key_id.as_str())
                .bind(private_key)
                .bind(key.signs_from.0)
                .bind(key.signs_until.0)
                .bind(key.published_until.0);
            add.execute(tx)
        };
        Ok(self.db.write(step).await? > 0)
    }

    /// Deletes keys that are no longer published and returns how many.
    pub async fn delete_expired_signing_keys(&self, now: UnixMillis) -> Result<u64, DbError> {
        Ok(self.db.execute(query(DELETE_EXPIRED).bind(now.0), COMMAND_RETRY_LIMIT).await?)
    }
}
