//! The API keys' queries. Accounts are never deleted, closed ones never reopened and revoked keys never revived, so
//! when a guarded statement changes nothing, looking afterwards finds the true reason.

use crate::accounts::accounts::StoredAccount;
use crate::db::both::{for_both_connections, for_both_stores, stored_row};
use crate::db::error_codes::{answer, explain, explain_unless_taken};
use crate::db::retry::{COMMAND_PATIENCE, patiently};
use crate::{KeyOwner, Keys, NewKey, StoreError};
use chancery_domain::{
    Account, AccountId, AccountState, Key, KeyHash, KeyId, KeyPrefix, KeyState, UnixMillis,
};

stored_row! {
    struct StoredKey {
        id: i64,
        prefix: String,
        hash: Vec<u8>,
        label: String,
        account_id: Option<i64>,
        created_at_ms: i64,
        revoked_at_ms: Option<i64>,
    }
}

impl StoredKey {
    pub(crate) fn into_key(self) -> Result<Key, StoreError> {
        let hash = self.hash.try_into().map_err(|bytes: Vec<u8>| StoreError::Corrupt {
            what: "a key's hash",
            why: format!("it has {} bytes instead of 32", bytes.len()),
        })?;
        Ok(Key {
            id: KeyId(self.id),
            prefix: KeyPrefix::from_stored(self.prefix),
            hash: KeyHash(hash),
            label: self.label,
            account: self.account_id.map(AccountId),
            created_at: UnixMillis(self.created_at_ms),
            state: match self.revoked_at_ms {
                None => KeyState::Active,
                Some(at_ms) => KeyState::Revoked { at: UnixMillis(at_ms) },
            },
        })
    }
}

stored_row! {
    /// A key and, where it has one, its account; the columns of `KEY_OWNERS`.
    struct StoredKeyOwner {
        id: i64,
        prefix: String,
        hash: Vec<u8>,
        label: String,
        account_id: Option<i64>,
        created_at_ms: i64,
        revoked_at_ms: Option<i64>,
        account_name: Option<String>,
        requests_per_min: Option<i64>,
        tokens_per_min: Option<i64>,
        spend_per_month_nanos: Option<i64>,
        account_created_at_ms: Option<i64>,
        account_closed_at_ms: Option<i64>,
    }
}

impl StoredKeyOwner {
    fn into_key_owner(self) -> Result<KeyOwner, StoreError> {
        let account = match (
            self.account_id,
            self.account_name,
            self.requests_per_min,
            self.tokens_per_min,
            self.account_created_at_ms,
        ) {
            (Some(id), Some(name), Some(requests_per_min), Some(tokens_per_min), Some(created_at_ms)) => {
                let stored = StoredAccount {
                    id,
                    name,
                    requests_per_min,
                    tokens_per_min,
                    spend_per_month_nanos: self.spend_per_month_nanos,
                    created_at_ms,
                    closed_at_ms: self.account_closed_at_ms,
                };
                Some(stored.into_account()?)
            }
            (None, ..) => None,
            (Some(id), ..) => {
                return Err(StoreError::Corrupt {
                    what: "a key's account",
                    why: format!("account {id} is not there"),
                });
            }
        };
        let key = StoredKey {
            id: self.id,
            prefix: self.prefix,
            hash: self.hash,
            label: self.label,
            account_id: self.account_id,
            created_at_ms: self.created_at_ms,
            revoked_at_ms: self.revoked_at_ms,
        };
        Ok(KeyOwner { key: key.into_key()?, account })
    }
}

macro_rules! key_owners {
    ($which:literal) => {
        concat!(
            "SELECT k.id, k.prefix, k.hash, k.label, k.account_id, k.created_at_ms, k.revoked_at_ms, \
             a.name AS account_name, a.requests_per_min, a.tokens_per_min, a.spend_per_month_nanos, \
             a.created_at_ms AS account_created_at_ms, a.closed_at_ms AS account_closed_at_ms \
             FROM api_keys k LEFT JOIN accounts a ON a.id = k.account_id ",
            $which
        )
    };
}

const LIST: &str = key_owners!("ORDER BY k.created_at_ms, k.id");
const WITH_PREFIX: &str = key_owners!("WHERE k.prefix = $1");
const WITH_ID: &str = key_owners!("WHERE k.id = $1");
const CREATE: &str =
    "INSERT INTO api_keys (prefix, hash, label, created_at_ms) VALUES ($1, $2, $3, $4) RETURNING *";
const CREATE_ON_OPEN_ACCOUNT: &str = "INSERT INTO api_keys (prefix, hash, label, created_at_ms, account_id) \
    SELECT $1, $2, $3, $4, id FROM accounts WHERE id = $5 AND closed_at_ms IS NULL RETURNING *";
const ATTACH: &str = "UPDATE api_keys SET account_id = $2 WHERE id = $1 AND revoked_at_ms IS NULL \
    AND EXISTS (SELECT 1 FROM accounts WHERE id = $2 AND closed_at_ms IS NULL)";
const REVOKE: &str = "UPDATE api_keys SET revoked_at_ms = COALESCE(revoked_at_ms, $2) WHERE id = $1";
pub(crate) const ACCOUNT_WITH_ID: &str = "SELECT * FROM accounts WHERE id = $1";

/// The statements that change keys, for the commands and for the desk (`account_deeds`).
#[async_trait::async_trait]
pub(crate) trait KeyRows {
    /// Nothing comes back where the account is not open, or not there.
    async fn insert_key(&mut self, new: &NewKey) -> Result<Vec<StoredKey>, sqlx::Error>;

    /// Whether the key was there and not revoked, and the account open.
    async fn move_key(&mut self, key: KeyId, account: AccountId) -> Result<bool, sqlx::Error>;

    /// Whether the key was there.
    async fn mark_revoked(&mut self, key: KeyId, at: UnixMillis) -> Result<bool, sqlx::Error>;
}

for_both_connections! {
    impl KeyRows {
        async fn insert_key(&mut self, new: &NewKey) -> Result<Vec<StoredKey>, sqlx::Error> {
            let sql = if new.account.is_some() { CREATE_ON_OPEN_ACCOUNT } else { CREATE };
            let mut insert = sqlx::query_as(sql)
                .bind(new.prefix.as_str())
                .bind(new.hash.0.as_slice())
                .bind(new.label.as_str())
                .bind(new.created_at.0);
            if let Some(account) = new.account {
                insert = insert.bind(account.0);
            }
            insert.fetch_all(&mut *self).await
        }

        async fn move_key(&mut self, key: KeyId, account: AccountId) -> Result<bool, sqlx::Error> {
            let moved = sqlx::query(ATTACH).bind(key.0).bind(account.0).execute(&mut *self).await?;
            Ok(moved.rows_affected() > 0)
        }

        async fn mark_revoked(&mut self, key: KeyId, at: UnixMillis) -> Result<bool, sqlx::Error> {
            let revoked = sqlx::query(REVOKE).bind(key.0).bind(at.0).execute(&mut *self).await?;
            Ok(revoked.rows_affected() > 0)
        }
    }
}

/// Longest label of a key, in characters.
pub const MAX_KEY_LABEL_CHARS: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a label is at most {MAX_KEY_LABEL_CHARS} visible characters")]
pub struct KeyLabelError;

/// What people may call a key. The store keeps labels that are older than this rule.
pub fn key_label(text: &str) -> Result<String, KeyLabelError> {
    match text.chars().count() > MAX_KEY_LABEL_CHARS || text.chars().any(char::is_control) {
        true => Err(KeyLabelError),
        false => Ok(text.to_owned()),
    }
}

/// A label is kept as it is, but for what a database cannot keep.
pub(crate) fn label_must_fit(label: &str) -> Result<(), StoreError> {
    match label.contains('\0') {
        true => Err(StoreError::NulCharacter { what: "the key's label" }),
        false => Ok(()),
    }
}

/// Why a statement that asks for an open account did nothing.
pub(crate) fn why_not_on_account(found: Vec<StoredAccount>, id: AccountId) -> StoreError {
    let account = match found.into_iter().next().map(StoredAccount::into_account) {
        None => return StoreError::NoSuchAccountId(id),
        Some(Err(error)) => return error,
        Some(Ok(account)) => account,
    };
    match account {
        Account { name, state: AccountState::Closed { .. }, .. } => StoreError::AccountClosed(name),
        Account { name, state: AccountState::Open, .. } => StoreError::Corrupt {
            what: "an account",
            why: format!("{name} is open, yet was taken for closed"),
        },
    }
}

for_both_stores! {
    impl Keys {
        async fn create_key(&self, new: NewKey) -> Result<Key, StoreError> {
            label_must_fit(&new.label)?;
            let created =
                patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| connection.insert_key(&new));
            let taken = || StoreError::KeyPrefixTaken(new.prefix.clone());
            let rows: Vec<StoredKey> = created.map_err(|error| explain_unless_taken(&error, taken))?;
            match (rows.into_iter().next(), new.account) {
                (Some(row), _) => row.into_key(),
                (None, Some(account)) => {
                    let found = sqlx::query_as(ACCOUNT_WITH_ID).bind(account.0).fetch_all(&self.reader);
                    Err(why_not_on_account(answer(found).await?, account))
                }
                (None, None) => {
                    Err(StoreError::Unavailable("the new key was not given back".to_owned()))
                }
            }
        }

        async fn list_keys(&self) -> Result<Vec<KeyOwner>, StoreError> {
            let rows: Vec<StoredKeyOwner> = answer(sqlx::query_as(LIST).fetch_all(&self.reader)).await?;
            rows.into_iter().map(StoredKeyOwner::into_key_owner).collect()
        }

        async fn key_with_prefix(&self, prefix: &KeyPrefix) -> Result<Option<KeyOwner>, StoreError> {
            // PostgreSQL refuses to compare with what it cannot keep; no stored prefix holds it either.
            if prefix.as_str().contains('\0') {
                return Ok(None);
            }
            let found = sqlx::query_as(WITH_PREFIX).bind(prefix.as_str()).fetch_optional(&self.reader);
            answer(found).await?.map(StoredKeyOwner::into_key_owner).transpose()
        }

        async fn attach_key(&self, key: KeyId, account: AccountId) -> Result<(), StoreError> {
            let attached = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                connection.move_key(key, account)
            });
            if attached.map_err(|error| explain(&error))? {
                return Ok(());
            }
            let found = sqlx::query_as(WITH_ID).bind(key.0).fetch_optional(&self.reader);
            match answer(found).await?.map(StoredKeyOwner::into_key_owner).transpose()? {
                None => Err(StoreError::NoSuchKey),
                Some(KeyOwner { key: Key { prefix, state: KeyState::Revoked { .. }, .. }, .. }) => {
                    Err(StoreError::KeyRevoked(prefix))
                }
                Some(_) => {
                    let found = sqlx::query_as(ACCOUNT_WITH_ID).bind(account.0).fetch_all(&self.reader);
                    Err(why_not_on_account(answer(found).await?, account))
                }
            }
        }

        async fn revoke_key(&self, key: KeyId, at: UnixMillis) -> Result<(), StoreError> {
            let revoked = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                connection.mark_revoked(key, at)
            });
            if revoked.map_err(|error| explain(&error))? { Ok(()) } else { Err(StoreError::NoSuchKey) }
        }
    }
}
