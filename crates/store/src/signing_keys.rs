//! The queries about the identity provider's signing keys. Which key is due when, the provider says; here a generation is
//! made once.

use crate::both::{for_both_stores, stored_row};
use crate::failure::{answer, explain};
use crate::patience::{COMMAND_PATIENCE, patiently};
use crate::{SigningKey, SigningKeys, StoreError};
use chancery_domain::UnixMillis;
use std::fmt;

stored_row! {
    struct StoredSigningKey named by key_id {
        generation: i64,
        key_id: String,
        private_key: Vec<u8>,
        signs_from_ms: i64,
        signs_until_ms: i64,
        published_until_ms: i64,
    }
}

impl StoredSigningKey {
    fn into_signing_key(self) -> SigningKey {
        SigningKey {
            generation: self.generation,
            key_id: self.key_id,
            private_key: self.private_key,
            signs_from: UnixMillis(self.signs_from_ms),
            signs_until: UnixMillis(self.signs_until_ms),
            published_until: UnixMillis(self.published_until_ms),
        }
    }
}

/// The private key is for nobody's log.
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
const FORGET: &str = "DELETE FROM signing_keys WHERE published_until_ms <= $1";

for_both_stores! {
    impl SigningKeys {
        async fn signing_keys(&self) -> Result<Vec<SigningKey>, StoreError> {
            let rows: Vec<StoredSigningKey> = answer(sqlx::query_as(LIST).fetch_all(&self.reader)).await?;
            Ok(rows.into_iter().map(StoredSigningKey::into_signing_key).collect())
        }

        async fn add_signing_key(&self, key: SigningKey) -> Result<bool, StoreError> {
            let added = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(ADD)
                    .bind(key.generation)
                    .bind(key.key_id.as_str())
                    .bind(key.private_key.as_slice())
                    .bind(key.signs_from.0)
                    .bind(key.signs_until.0)
                    .bind(key.published_until.0)
                    .execute(&mut *connection)
            });
            added.map(|done| done.rows_affected() > 0).map_err(|error| explain(&error))
        }

        async fn forget_old_signing_keys(&self, now: UnixMillis) -> Result<u64, StoreError> {
            let gone = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query(FORGET).bind(now.0).execute(&mut *connection)
            });
            gone.map(|done| done.rows_affected()).map_err(|error| explain(&error))
        }
    }
}
