//! Reads, lists and locks API keys. Changes are in `key_changes`.

use crate::AccountLookup;
use crate::DbError;
use crate::accounts::lookup::read_account;
use crate::db::{Db, Dialect, FromColumn, FromRow, QueryError, Row, Tx, corrupt, hash, query};
use crate::{AccountError, KeyWithAccount};
use chancery_domain::{
    AllowedModels, AllowedModelsError, Key, KeyHash, KeyId, KeyLimits, KeyPrefix, KeyState, PreviousSecret,
    UnixMillis,
};

impl FromRow for Key {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let previous = row.get::<Option<KeyHash>>("previous_hash")?.zip(row.get("previous_expires_at_ms")?);
        let revoked_at: Option<UnixMillis> = row.get("revoked_at_ms")?;
        Ok(Self {
            id: row.get("id")?,
            prefix: row.get("prefix")?,
            hash: row.get("hash")?,
            label: row.get("label")?,
            account: row.get("account_id")?,
            created_at: row.get("created_at_ms")?,
            state: revoked_at.map_or(KeyState::Active, |at| KeyState::Revoked { at }),
            limits: read_limits(row)?,
            previous_secret: previous.map(|(hash, expires_at)| PreviousSecret { hash, expires_at }),
        })
    }
}

impl FromColumn for KeyHash {
    type Stored = Vec<u8>;

    fn from_column(stored: Vec<u8>) -> Result<Self, QueryError> {
        hash(stored, "a key's hash").map(Self)
    }
}

fn read_limits(row: &Row<'_>) -> Result<KeyLimits, QueryError> {
    let limit = |column| -> Result<Option<u32>, QueryError> {
        let stored: Option<i64> = row.get(column)?;
        let limit = stored.map(u32::try_from).transpose();
        limit.map_err(|_| corrupt("a key's limit", format!("{stored:?} in {column}")))
    };
    let models: Option<String> = row.get("allowed_models")?;
    let models = models.map(|text| text.parse::<AllowedModels>()).transpose();
    Ok(KeyLimits {
        requests_per_min: limit("max_requests_per_min")?,
        tokens_per_min: limit("max_tokens_per_min")?,
        spend_per_month: row.get("max_spend_per_month_nanos")?,
        models: models.map_err(|error: AllowedModelsError| corrupt("a key's models", error.to_string()))?,
        expires_at: row.get("expires_at_ms")?,
    })
}

impl FromRow for KeyWithAccount {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let key = Key::from_row(row)?;
        let times = ["account_created_at_ms", "account_closed_at_ms"];
        let account = match (key.account, row.get("account_name")?) {
            (None, _) => None,
            (Some(id), Some(name)) => Some(read_account(row, id, name, times)?),
            (Some(id), None) => {
                return Err(corrupt("a key's account", format!("account {id} does not exist")));
            }
        };
        Ok(Self { key, account, last_used_at: row.get("last_at_ms")? })
    }
}

const LIST: &str = "SELECT k.*, a.name AS account_name, a.requests_per_min, a.tokens_per_min, a.spend_per_month_nanos, \
    a.created_at_ms AS account_created_at_ms, a.closed_at_ms AS account_closed_at_ms, u.last_at_ms \
    FROM api_keys k LEFT JOIN accounts a ON a.id = k.account_id LEFT JOIN key_uses u ON u.key_id = k.id ORDER BY k.created_at_ms, k.id";
const BY_PREFIX: &str = "SELECT k.*, a.name AS account_name, a.requests_per_min, a.tokens_per_min, a.spend_per_month_nanos, \
    a.created_at_ms AS account_created_at_ms, a.closed_at_ms AS account_closed_at_ms, u.last_at_ms \
    FROM api_keys k LEFT JOIN accounts a ON a.id = k.account_id LEFT JOIN key_uses u ON u.key_id = k.id WHERE k.prefix = $1";

const BY_ID: &str = "SELECT k.*, a.name AS account_name, a.requests_per_min, a.tokens_per_min, a.spend_per_month_nanos, \
    a.created_at_ms AS account_created_at_ms, a.closed_at_ms AS account_closed_at_ms, u.last_at_ms \
    FROM api_keys k LEFT JOIN accounts a ON a.id = k.account_id LEFT JOIN key_uses u ON u.key_id = k.id WHERE k.id = $1";

/// Locks the key until the transaction ends.
pub(crate) fn lock(tx: &mut Tx<'_>, prefix: &KeyPrefix) -> Result<Key, AccountError> {
    // PostgreSQL rejects a NUL character in parameters, and no stored prefix has one.
    if prefix.as_str().contains('\0') {
        return Err(AccountError::NoSuchKey);
    }
    let lock = query(match tx.dialect() {
        Dialect::Sqlite => "SELECT * FROM api_keys WHERE prefix = $1",
        Dialect::Postgres => "SELECT * FROM api_keys WHERE prefix = $1 FOR NO KEY UPDATE",
    });
    lock.bind(prefix.as_str()).fetch_optional(tx)?.ok_or(AccountError::NoSuchKey)
}

pub const MAX_KEY_LABEL_CHARS: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a label has at most {MAX_KEY_LABEL_CHARS} visible characters")]
pub struct KeyLabelError;

/// Validates a new label. Stored labels may be older than this rule.
pub fn key_label(text: &str) -> Result<String, KeyLabelError> {
    match text.chars().count() > MAX_KEY_LABEL_CHARS || text.chars().any(char::is_control) {
        true => Err(KeyLabelError),
        false => Ok(text.to_owned()),
    }
}

/// Any label can be stored, except with a NUL character.
pub(crate) fn check_label(label: &str) -> Result<(), AccountError> {
    match label.contains('\0') {
        true => Err(DbError::NulCharacter { what: "the key's label" }.into()),
        false => Ok(()),
    }
}

impl AccountLookup {
    /// All keys including revoked ones, oldest first.
    pub async fn list_keys(&self) -> Result<Vec<KeyWithAccount>, DbError> {
        Ok(self.db.fetch_all(query(LIST)).await?)
    }
}

/// Finds the key that a request presents.
#[derive(Clone)]
pub struct KeyLookup {
    pub(crate) db: Db,
}

impl KeyLookup {
    pub async fn key_by_prefix(&self, prefix: &KeyPrefix) -> Result<Option<KeyWithAccount>, DbError> {
        // PostgreSQL rejects a NUL character in parameters, and no stored prefix has one.
        if prefix.as_str().contains('\0') {
            return Ok(None);
        }
        Ok(self.db.fetch_optional(query(BY_PREFIX).bind(prefix.as_str())).await?)
    }

    pub async fn key_by_id(&self, id: KeyId) -> Result<Option<KeyWithAccount>, DbError> {
        Ok(self.db.fetch_optional(query(BY_ID).bind(id.0)).await?)
    }
}
