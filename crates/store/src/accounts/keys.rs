//! API keys: how one is read, listed and locked. How they are changed is in `key_changes`.

use crate::accounts::accounts::{self, read_account};
use crate::db::error_codes::explain_unless_taken;
use crate::db::{COMMAND_WAIT, Conn, Dialect, FromRow, HasDb, Query, Row, TxError, corrupt, query};
use crate::{KeyOwner, Keys, NewKey, StoreError};
use chancery_domain::{
    Account, AccountId, AccountState, Key, KeyHash, KeyId, KeyPrefix, KeyState, UnixMillis,
};

impl FromRow for Key {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let hash: Vec<u8> = row.get("hash")?;
        let hash = hash.try_into().map_err(|bytes: Vec<u8>| {
            corrupt("a key's hash", format!("it has {} bytes instead of 32", bytes.len()))
        })?;
        let account: Option<i64> = row.get("account_id")?;
        let revoked_at: Option<i64> = row.get("revoked_at_ms")?;
        Ok(Self {
            id: KeyId(row.get("id")?),
            prefix: KeyPrefix::from_stored(row.get("prefix")?),
            hash: KeyHash(hash),
            label: row.get("label")?,
            account: account.map(AccountId),
            created_at: row.time("created_at_ms")?,
            state: revoked_at.map_or(KeyState::Active, |at_ms| KeyState::Revoked { at: UnixMillis(at_ms) }),
        })
    }
}

impl FromRow for KeyOwner {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let key = Key::from_row(row)?;
        let times = ["account_created_at_ms", "account_closed_at_ms"];
        let account = match (key.account, row.get("account_name")?) {
            (None, _) => None,
            (Some(id), Some(name)) => Some(read_account(row, id, name, times)?),
            (Some(id), None) => return Err(corrupt("a key's account", format!("account {id} is not there"))),
        };
        Ok(Self { key, account })
    }
}

const LIST: &str = "SELECT k.id, k.prefix, k.hash, k.label, k.account_id, k.created_at_ms, k.revoked_at_ms, \
    a.name AS account_name, a.requests_per_min, a.tokens_per_min, a.spend_per_month_nanos, \
    a.created_at_ms AS account_created_at_ms, a.closed_at_ms AS account_closed_at_ms \
    FROM api_keys k LEFT JOIN accounts a ON a.id = k.account_id ORDER BY k.created_at_ms, k.id";
const WITH_PREFIX: &str = "SELECT k.id, k.prefix, k.hash, k.label, k.account_id, k.created_at_ms, k.revoked_at_ms, \
    a.name AS account_name, a.requests_per_min, a.tokens_per_min, a.spend_per_month_nanos, \
    a.created_at_ms AS account_created_at_ms, a.closed_at_ms AS account_closed_at_ms \
    FROM api_keys k LEFT JOIN accounts a ON a.id = k.account_id WHERE k.prefix = $1";
const WITH_ID: &str = "SELECT * FROM api_keys WHERE id = $1";
const CREATE: &str =
    "INSERT INTO api_keys (prefix, hash, label, created_at_ms) VALUES ($1, $2, $3, $4) RETURNING *";
const CREATE_ON_OPEN_ACCOUNT: &str = "INSERT INTO api_keys (prefix, hash, label, created_at_ms, account_id) \
    SELECT $1, $2, $3, $4, id FROM accounts WHERE id = $5 AND closed_at_ms IS NULL RETURNING *";
const ATTACH: &str = "UPDATE api_keys SET account_id = $2 WHERE id = $1 AND revoked_at_ms IS NULL \
    AND EXISTS (SELECT 1 FROM accounts WHERE id = $2 AND closed_at_ms IS NULL)";
const REVOKE: &str = "UPDATE api_keys SET revoked_at_ms = COALESCE(revoked_at_ms, $2) WHERE id = $1";

/// Gives nothing back where the account is not open, or not there.
pub(crate) fn insert(new: &NewKey) -> Query<'_> {
    let insert = query(if new.account.is_some() { CREATE_ON_OPEN_ACCOUNT } else { CREATE })
        .bind(new.prefix.as_str())
        .bind(new.hash.0.as_slice())
        .bind(new.label.as_str())
        .bind(new.created_at.0);
    match new.account {
        Some(account) => insert.bind(account.0),
        None => insert,
    }
}

/// Changes nothing where the key is revoked or the account closed, or where there is no such key or account.
pub(crate) fn attach<'q>(key: KeyId, account: AccountId) -> Query<'q> {
    query(ATTACH).bind(key.0).bind(account.0)
}

pub(crate) fn revoke<'q>(key: KeyId, at: UnixMillis) -> Query<'q> {
    query(REVOKE).bind(key.0).bind(at.0)
}

/// The key, locked until the transaction ends, so that nobody else changes it.
pub(crate) async fn lock(conn: &mut Conn<'_>, prefix: &KeyPrefix) -> Result<Key, TxError> {
    // PostgreSQL refuses to compare with what it cannot keep; no stored prefix holds it either.
    if prefix.as_str().contains('\0') {
        return Err(StoreError::NoSuchKey.into());
    }
    let lock = query(match conn.dialect() {
        Dialect::Sqlite => "SELECT * FROM api_keys WHERE prefix = $1",
        Dialect::Postgres => "SELECT * FROM api_keys WHERE prefix = $1 FOR NO KEY UPDATE",
    });
    Ok(lock.bind(prefix.as_str()).fetch_optional(conn).await?.ok_or(StoreError::NoSuchKey)?)
}

/// Longest label of a key, in characters.
pub const MAX_KEY_LABEL_CHARS: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a label is at most {MAX_KEY_LABEL_CHARS} visible characters")]
pub struct KeyLabelError;

/// What people may call a key. The store has labels that are older than this rule.
pub fn key_label(text: &str) -> Result<String, KeyLabelError> {
    match text.chars().count() > MAX_KEY_LABEL_CHARS || text.chars().any(char::is_control) {
        true => Err(KeyLabelError),
        false => Ok(text.to_owned()),
    }
}

/// A label is stored as it is, but for what a database cannot store.
pub(crate) fn check_label(label: &str) -> Result<(), StoreError> {
    match label.contains('\0') {
        true => Err(StoreError::NulCharacter { what: "the key's label" }),
        false => Ok(()),
    }
}

/// Why a statement that asks for an open account did nothing.
pub(crate) fn why_not_on_account(found: Option<Account>, id: AccountId) -> StoreError {
    match found {
        None => StoreError::NoSuchAccountId(id),
        Some(Account { name, state: AccountState::Closed { .. }, .. }) => StoreError::AccountClosed(name),
        Some(Account { name, state: AccountState::Open, .. }) => StoreError::Corrupt {
            what: "an account",
            why: format!("{name} is open, yet was taken for closed"),
        },
    }
}

#[async_trait::async_trait]
impl<S: HasDb> Keys for S {
    async fn create_key(&self, new: NewKey) -> Result<Key, StoreError> {
        check_label(&new.label)?;
        let created = self.db().write_returning(insert(&new), COMMAND_WAIT).await;
        let taken = || StoreError::KeyPrefixTaken(new.prefix.clone());
        let created = created.map_err(|error| explain_unless_taken(&error, taken))?;
        match (created.into_iter().next(), new.account) {
            (Some(key), _) => Ok(key),
            (None, Some(account)) => {
                let found = self.db().fetch_optional(query(accounts::WITH_ID).bind(account.0)).await?;
                Err(why_not_on_account(found, account))
            }
            (None, None) => Err(StoreError::Unavailable("the new key was not given back".to_owned())),
        }
    }

    async fn list_keys(&self) -> Result<Vec<KeyOwner>, StoreError> {
        Ok(self.db().fetch_all(query(LIST)).await?)
    }

    async fn key_with_prefix(&self, prefix: &KeyPrefix) -> Result<Option<KeyOwner>, StoreError> {
        // PostgreSQL refuses to compare with what it cannot keep; no stored prefix holds it either.
        if prefix.as_str().contains('\0') {
            return Ok(None);
        }
        Ok(self.db().fetch_optional(query(WITH_PREFIX).bind(prefix.as_str())).await?)
    }

    async fn attach_key(&self, key: KeyId, account: AccountId) -> Result<(), StoreError> {
        if self.db().execute(attach(key, account), COMMAND_WAIT).await? > 0 {
            return Ok(());
        }
        match self.db().fetch_optional::<Key>(query(WITH_ID).bind(key.0)).await? {
            None => Err(StoreError::NoSuchKey),
            Some(Key { prefix, state: KeyState::Revoked { .. }, .. }) => Err(StoreError::KeyRevoked(prefix)),
            Some(_) => {
                let found = self.db().fetch_optional(query(accounts::WITH_ID).bind(account.0)).await?;
                Err(why_not_on_account(found, account))
            }
        }
    }

    async fn revoke_key(&self, key: KeyId, at: UnixMillis) -> Result<(), StoreError> {
        match self.db().execute(revoke(key, at), COMMAND_WAIT).await? {
            0 => Err(StoreError::NoSuchKey),
            _ => Ok(()),
        }
    }
}
