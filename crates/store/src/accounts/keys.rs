//! Reads, lists and locks API keys. Changes are in `key_changes`.

use crate::AccountLookup;
use crate::DbError;
use crate::accounts::lookup::read_account;
use crate::db::{Conn, Db, Dialect, FromRow, Row, TxError, corrupt, query};
use crate::{AccountError, KeyWithAccount};
use chancery_domain::{
    AccountId, AllowedModels, AllowedModelsError, Key, KeyHash, KeyId, KeyLimits, KeyPrefix, KeyState, Nanos,
    PreviousSecret, UnixMillis,
};

impl FromRow for Key {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let hash = read_hash(row.get("hash")?)?;
        let previous_hash: Option<Vec<u8>> = row.get("previous_hash")?;
        let previous_secret = match (previous_hash, row.get::<Option<i64>>("previous_expires_at_ms")?) {
            (Some(hash), Some(expires_at)) => {
                Some(PreviousSecret { hash: read_hash(hash)?, expires_at: UnixMillis(expires_at) })
            }
            _ => None,
        };
        let account: Option<i64> = row.get("account_id")?;
        let revoked_at: Option<i64> = row.get("revoked_at_ms")?;
        Ok(Self {
            id: KeyId(row.get("id")?),
            prefix: KeyPrefix::from_stored(row.get("prefix")?),
            hash,
            label: row.get("label")?,
            account: account.map(AccountId),
            created_at: row.time("created_at_ms")?,
            state: revoked_at.map_or(KeyState::Active, |at_ms| KeyState::Revoked { at: UnixMillis(at_ms) }),
            limits: read_limits(row)?,
            previous_secret,
        })
    }
}

fn read_hash(bytes: Vec<u8>) -> Result<KeyHash, sqlx::Error> {
    bytes.try_into().map(KeyHash).map_err(|bytes: Vec<u8>| {
        corrupt("a key's hash", format!("it has {} bytes instead of 32", bytes.len()))
    })
}

fn read_limits(row: &Row) -> Result<KeyLimits, sqlx::Error> {
    let limit = |column| -> Result<Option<u32>, sqlx::Error> {
        let stored: Option<i64> = row.get(column)?;
        let limit = stored.map(u32::try_from).transpose();
        limit.map_err(|_| corrupt("a key's limit", format!("{stored:?} in {column}")))
    };
    let models: Option<String> = row.get("allowed_models")?;
    let models = models.map(|text| text.parse::<AllowedModels>()).transpose();
    Ok(KeyLimits {
        requests_per_min: limit("max_requests_per_min")?,
        tokens_per_min: limit("max_tokens_per_min")?,
        spend_per_month: row.get::<Option<i64>>("max_spend_per_month_nanos")?.map(Nanos),
        models: models.map_err(|error: AllowedModelsError| corrupt("a key's models", error.to_string()))?,
        expires_at: row.get::<Option<i64>>("expires_at_ms")?.map(UnixMillis),
    })
}

impl FromRow for KeyWithAccount {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let key = Key::from_row(row)?;
        let times = ["account_created_at_ms", "account_closed_at_ms"];
        let account = match (key.account, row.get("account_name")?) {
            (None, _) => None,
            (Some(id), Some(name)) => Some(read_account(row, id, name, times)?),
            (Some(id), None) => {
                return Err(corrupt("a key's account", format!("account {id} does not exist")));
            }
        };
        Ok(Self { key, account, last_used_at: row.get::<Option<i64>>("last_at_ms")?.map(UnixMillis) })
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
pub(crate) async fn lock(conn: &mut Conn<'_>, prefix: &KeyPrefix) -> Result<Key, TxError<AccountError>> {
    // PostgreSQL rejects a NUL character in parameters, and no stored prefix has one.
    if prefix.as_str().contains('\0') {
        return Err(AccountError::NoSuchKey.into());
    }
    let lock = query(match conn.dialect() {
        Dialect::Sqlite => "SELECT * FROM api_keys WHERE prefix = $1",
        Dialect::Postgres => "SELECT * FROM api_keys WHERE prefix = $1 FOR NO KEY UPDATE",
    });
    Ok(lock.bind(prefix.as_str()).fetch_optional(conn).await?.ok_or(AccountError::NoSuchKey)?)
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
