//! Queries for the identity provider's signing keys. The provider decides when a key is due; this file ensures that
//! each generation is created once.

use crate::DbError;
use crate::SigningKey;
use crate::db::{COMMAND_RETRY_LIMIT, Db, FromRow, Row, query};
use chancery_domain::UnixMillis;
use std::fmt;

impl FromRow for SigningKey {
    const ROW_LABEL_COLUMN: Option<&'static str> = Some("key_id");

    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            generation: row.get("generation")?,
            key_id: row.get("key_id")?,
            private_key: row.get("private_key")?,
            signs_from: UnixMillis(row.get("signs_from_ms")?),
            signs_until: UnixMillis(row.get("signs_until_ms")?),
            published_until: UnixMillis(row.get("published_until_ms")?),
        })
    }
}

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
}

impl SigningKeys {
    /// All stored keys, oldest first.
    pub async fn signing_keys(&self) -> Result<Vec<SigningKey>, DbError> {
        Ok(self.db.fetch_all(query(LIST)).await?)
    }

    /// Returns whether the key was added; false if its generation exists. Only one of several concurrent calls
    /// succeeds.
    pub async fn add_signing_key(&self, key: SigningKey) -> Result<bool, DbError> {
        let add = query(ADD)
            .bind(key.generation)
            .bind(key.key_id.as_str())
            .bind(key.private_key.as_slice())
            .bind(key.signs_from.0)
            .bind(key.signs_until.0)
            .bind(key.published_until.0);
        Ok(self.db.execute(add, COMMAND_RETRY_LIMIT).await? > 0)
    }

    /// Deletes keys that are no longer published and returns how many.
    pub async fn delete_expired_signing_keys(&self, now: UnixMillis) -> Result<u64, DbError> {
        Ok(self.db.execute(query(DELETE_EXPIRED).bind(now.0), COMMAND_RETRY_LIMIT).await?)
    }
}
