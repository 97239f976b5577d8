//! Errors of billing accounts and keys. The texts are for logs; surfaces write their own.

use crate::DbError;
use crate::db::QueryError;
use chancery_domain::{AccountId, AccountName, KeyPrefix, UnixMillis};

#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    #[error("there is already an account named {0}")]
    AccountNameTaken(AccountName),
    #[error("there is no account named {0}")]
    NoSuchAccount(AccountName),
    #[error("there is no account number {0}")]
    NoSuchAccountId(AccountId),
    #[error("the account {0} is closed")]
    AccountClosed(AccountName),
    #[error("there is no such key")]
    NoSuchKey,
    #[error("the key {0} is revoked")]
    KeyRevoked(KeyPrefix),
    #[error("the key {0} was rotated concurrently; nothing was changed")]
    KeyAlreadyRotated(KeyPrefix),
    #[error("the key {key} was rotated, and its old secret works until {}", .ends_at.to_iso())]
    OverlapRunning { key: KeyPrefix, ends_at: UnixMillis },
    #[error("there is already a key with the prefix {0}")]
    KeyPrefixTaken(KeyPrefix),
    #[error(transparent)]
    Database(#[from] DbError),
}

impl From<QueryError> for AccountError {
    fn from(error: QueryError) -> Self {
        Self::Database(error.into())
    }
}
